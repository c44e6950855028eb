//! The job's processes, by their pid inside and outside.

use std::fmt;
use std::fs;
use std::ops::Range;

use procfs::process::Process;
use serde::{Deserialize, Serialize};

/// A process id as the supervisor sees it. Changes at every restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OuterPid(pub i32);

/// A process id as the job itself sees it. The same for as long as the process lives, restarts included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InnerPid(pub i32);

impl InnerPid {
    /// Our init.
    pub const INIT: Self = Self(1);
    /// What the user started.
    pub const APPLICATION: Self = Self(2);
}

impl fmt::Display for OuterPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for InnerPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A process of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its pid out here.
    pub outer: OuterPid,
    /// Its pid in the job.
    pub inner: InnerPid,
    /// Its parent's pid in the job; 0 for init.
    pub parent: InnerPid,
    /// The name of its main thread.
    pub comm: String,
    /// Outer ids of its threads.
    pub threads: Vec<i32>,
    /// The kernel's letter for the state of its main thread (`R`, `S`, `D`, `T`, `t`, `Z`).
    pub state: char,
}

impl Task {
    /// Whether it has ended, and only its parent has not looked.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == 'Z' && self.threads.len() <= 1
    }

    /// Whether every thread is stopped, by a signal or a tracer.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.state == 'Z'
            || self.threads.iter().all(|tid| {
                let stat = fs::read_to_string(format!("/proc/{}/task/{tid}/stat", self.outer));
                stat.ok().and_then(|s| state_letter(&s)).is_none_or(|state| "tTZX".contains(state))
            })
    }
}

/// Whether a thread has ended, collected or not.
pub(crate) fn is_over(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat"));
    stat.ok().and_then(|stat| state_letter(&stat)).is_none_or(|state| "ZX".contains(state))
}

/// Whether all threads of a process have ended, collected or not.
pub(crate) fn is_gone(process: OuterPid) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.all(|thread| thread.file_name().to_str().and_then(|name| name.parse().ok()).is_none_or(is_over))
}

fn state_letter(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// The pid that a process out here has in the job it belongs to, whichever that is: in the PID namespace below ours. None of
/// a process that is in no job, or gone.
#[must_use]
pub fn inner_pid(outer: OuterPid) -> Option<InnerPid> {
    Process::new(outer.0).ok()?.status().ok()?.nspid?.get(1).copied().map(InnerPid)
}

/// All processes in the PID namespace of which `init` is pid 1, by inner pid. Empty when init is gone.
pub(crate) fn in_namespace_of(init: OuterPid) -> Vec<Task> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(ours) = namespace(init.0) else { return Vec::new() };
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let mut tasks: Vec<Task> =
        pids.filter(|&pid| namespace(pid).as_ref() == Some(&ours)).filter_map(task).collect();
    let inner_of: std::collections::HashMap<i32, InnerPid> =
        tasks.iter().map(|t| (t.outer.0, t.inner)).collect();
    for task in &mut tasks {
        task.parent = inner_of.get(&task.parent.0).copied().unwrap_or(InnerPid(0));
    }
    tasks.sort_by_key(|t| t.inner);
    tasks
}

fn task(pid: i32) -> Option<Task> {
    let process = Process::new(pid).ok()?;
    let status = process.status().ok()?;
    let threads = process.tasks().ok()?.flatten().map(|t| t.tid).collect();
    Some(Task {
        outer: OuterPid(pid),
        inner: InnerPid(*status.nspid?.last()?),
        // The outer one until all are known.
        parent: InnerPid(status.ppid),
        comm: status.name,
        threads,
        state: status.state.chars().next()?,
    })
}

/// The addresses of a private mapping, of which this is the first line in `/proc/PID/maps` or `smaps`.
pub(crate) fn private_range(line: &str) -> Option<Range<u64>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let range = number(start)?..number(end)?;
    (rest.as_bytes().get(3) == Some(&b'p')).then_some(range)
}

/// Whether system calls of a process are filtered, by its `/proc/PID/status`.
pub(crate) fn is_filtered(status: &str) -> bool {
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"))
}

/// Whether a process has private huge pages (`MAP_HUGETLB`), by its `/proc/PID/maps`.
pub(crate) fn has_private_huge_pages(maps: &str) -> bool {
    maps.lines().any(|line| line.contains("/anon_hugepage") && private_range(line).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_must_not_fork_is_known() {
        assert!(is_filtered("Name:\tsh\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!is_filtered("Name:\tsh\nSeccomp:\t0\nSeccomp_filters:\t0\n"));
        let huge = "7f0000000000-7f0000200000 rw-p 00000000 00:0f 77                         /anon_hugepage (deleted)\n";
        assert!(has_private_huge_pages(huge));
        assert!(!has_private_huge_pages(&huge.replace("rw-p", "rw-s")));
    }

    #[test]
    fn private_mappings_are_told_from_shared_ones() {
        assert_eq!(
            private_range("7f0000000000-7f0000003000 rw-p 00000000 00:00 0 "),
            Some(0x7f00_0000_0000..0x7f00_0000_3000)
        );
        assert_eq!(private_range("200000000000-240000000000 ---s 00000000 00:2f 3  /s1/session"), None);
        assert_eq!(private_range("Size: 12 kB"), None);
    }
}
