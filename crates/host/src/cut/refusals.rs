//! What a job may hold that no image can, by name.

use std::fs;

use crate::criu::LogExcerpt;
use crate::job::Job;
use crate::tasks::{InnerPid, Task};
use crate::unix_sockets;
use crate::userfault::Right;

/// A thread of a job that cannot be stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unstoppable {
    thread: i32,
    /// Its process, and why, as a phrase.
    pub what: String,
}

impl Job {
    /// What the job holds now that cannot be restored, a sentence each, as far as that can be seen without stopping it. It may come to
    /// hold something later, or hold what is seen only when it is dumped.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        traced(&self.tasks())
    }

    /// Of processes whose managed memory has shadow pages, for which a restart makes each a userfaultfd: those that may have one only where every process may, and,
    /// a sentence each, those that may have none any more.
    #[must_use]
    pub fn rights_to_faults(&self, of: &[InnerPid]) -> (Vec<InnerPid>, Vec<String>) {
        let (mut by_machine, mut without) = (Vec::new(), Vec::new());
        for task in self.tasks().iter().filter(|task| of.contains(&task.inner)) {
            match Right::of(task.outer) {
                Ok(Right::Own) => {}
                Ok(Right::Machine) => by_machine.push(task.inner),
                Ok(Right::None) => without.push(format!(
                    "process {} of the job ({}) has managed memory with shadow pages, and has given up CAP_SYS_PTRACE since: after a restart nobody could know what it \
                     touches there. Have it keep that, or set vm.unprivileged_userfaultfd = 1; or start it with --user-faults, or with --managed=coherent (not where it needs --managed=exclusive)",
                    task.inner, task.comm
                )),
                Err(error) => tracing::debug!("process {} is gone: {error}", task.outer),
            }
        }
        (by_machine, without)
    }

    /// Threads that cannot be stopped now, since they wait for the end of a child that they have made with `vfork`, or for it to begin another program; mostly that is
    /// a moment. CRIU has those stand still that it has stopped already while it waits for that.
    #[must_use]
    pub fn unstoppable(&self) -> Vec<Unstoppable> {
        let named = |task: &Task, thread: i32| Unstoppable {
            thread,
            what: format!(
                "process {} of the job ({}), which waits for a child of vfork",
                task.inner, task.comm
            ),
        };
        let of_task = |task: &Task| {
            let waiting = task.threads.iter().filter(|thread| waits_for_vfork(task.outer.0, **thread));
            waiting.map(|thread| named(task, *thread)).collect::<Vec<_>>()
        };
        self.tasks().iter().flat_map(of_task).collect()
    }

    /// What CRIU has found that cannot be restored.
    pub(super) fn unrestorable(&self, log: &LogExcerpt) -> Option<Vec<String>> {
        const KNOWN: [(&str, &str); 5] = [
            ("Can't lookup mount", "a process has a file open from outside its mount namespace"),
            (
                "External socket is used",
                "a process is connected by a UNIX socket to a process outside the job",
            ),
            ("anon_inode:[userfaultfd]", "a process holds a userfaultfd descriptor"),
            ("SysVIPC shmem map", "a process has attached System V shared memory"),
            ("Can't dump a process traced by", "a process is being traced by a debugger"),
        ];
        let (text, meaning) = KNOWN.iter().find(|(text, _)| log.mentions(text))?;
        let named = match *text {
            "External socket is used" => unix_sockets::leading_out(&self.tasks()),
            "SysVIPC shmem map" => attached(&self.tasks()),
            "Can't dump a process traced by" => self.refusals(),
            _ => Vec::new(),
        };
        Some(if named.is_empty() { vec![(*meaning).to_owned()] } else { named })
    }
}

/// The tasks that have System V shared memory attached, which is the machine's and not the job's.
fn attached(tasks: &[Task]) -> Vec<String> {
    let maps = |task: &Task| fs::read_to_string(format!("/proc/{}/maps", task.outer)).unwrap_or_default();
    let attached = tasks.iter().filter(|task| maps(task).contains(" /SYSV"));
    let sentence = |task: &Task| {
        format!(
            "process {} of the job ({}) has attached System V shared memory (shmat), which no image can have: have it use shm_open, memfd_create or \
             MAP_SHARED | MAP_ANONYMOUS, or detach it",
            task.inner, task.comm
        )
    };
    attached.map(sentence).collect()
}

/// The tasks that somebody traces: a tracer is the only one that may stop them.
fn traced(tasks: &[Task]) -> Vec<String> {
    let tracer = |task: &Task| task.threads.iter().find_map(|thread| tracer_of(task.outer.0, *thread));
    let traced = tasks.iter().filter_map(|task| Some((task, tracer(task)?)));
    let sentence = |(task, tracer): (&Task, i32)| {
        let comm = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        format!(
            "process {} of the job ({}) is traced by process {tracer} ({}): end that, or have it detach",
            task.inner,
            task.comm,
            comm.trim_end()
        )
    };
    traced.map(sentence).collect()
}

/// Whether a thread is in a call for a child, and in a state in which it cannot be stopped (`proc_pid_syscall(5)`): only of one of `vfork` the end is waited for so.
fn waits_for_vfork(pid: i32, thread: i32) -> bool {
    let read =
        |name: &str| fs::read_to_string(format!("/proc/{pid}/task/{thread}/{name}")).unwrap_or_default();
    let call = read("syscall");
    let number = call.split_whitespace().next().and_then(|number| number.parse().ok());
    let is_for_child = matches!(number, Some(libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3));
    is_for_child && read("stat").rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('D'))
}

fn tracer_of(pid: i32, thread: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    // A thread of ours holds those of a process for a moment (`Still`), and ends then: a cut waits for that.
    let exists = |path: String| fs::symlink_metadata(path).is_ok();
    let ours = exists(format!("/proc/self/task/{tracer}")) || !exists(format!("/proc/{tracer}"));
    (tracer != 0 && !ours).then_some(tracer)
}
