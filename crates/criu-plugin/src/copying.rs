//! A copy of one process, such that nobody in the job sees that it is made.
//!
//! The process is made to clone itself; the clone closes its descriptors, clones itself with the same memory, and ends; the second one waits for
//! ever, holding back all signals, in a session of its own. It is no child of anybody who could wait for it: the first is waited for here, in its
//! parent's name, without a signal (`clone` with no flags), and the job's init inherits the second.

use std::io;

use libc::pid_t;

use crate::tracing::{Child, Stopped, kill};

/// A copy that nobody traces any more. It ends when this is dropped.
pub struct Copy(pid_t);

impl Copy {
    /// Its pid in this process's namespace.
    pub fn pid(&self) -> pid_t {
        self.0
    }

    /// Leaves it to whoever has its pid.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        kill(self.0);
    }
}

/// Makes a copy of the process, whose threads all stand, and leaves the process as it was.
pub fn copy(pid: pid_t) -> io::Result<Copy> {
    if is_filtered(pid)? {
        return Err(io::Error::other("its system calls are filtered (seccomp)"));
    }
    let process = Stopped::of(pid)?;
    let mask = process.hold_signals()?;
    let copied = process.trace_children().and_then(|()| copy_of(&process));
    process.put_back(mask)?;
    copied
}

fn unknown() -> io::Error {
    io::Error::other("its copy is not known")
}

fn copy_of(process: &Stopped) -> io::Result<Copy> {
    let mut child = None;
    let cloned = process.call_for(libc::SYS_clone, [0; 4], &mut child);
    let first = child.map(|pid| Child::of(process, pid)).ok_or_else(unknown).flatten();
    // Where that failed the child ends here.
    cloned.and_then(|number| {
        let copied = first.and_then(|first| {
            let copy = second_of(first.process())?;
            first.leave_in(libc::SYS_exit_group, 0)?;
            Ok(copy)
        });
        // The first one ends, whatever has become of it.
        process.call(libc::SYS_wait4, [number, 0, libc::__WALL as u64, 0])?;
        copied
    })
}

fn second_of(first: &Stopped) -> io::Result<Copy> {
    first.call(libc::SYS_close_range, [0, u64::from(u32::MAX), 0, 0])?;
    let mut child = None;
    let cloned = first.call_for(libc::SYS_clone, [libc::CLONE_VM as u64, 0, 0, 0], &mut child);
    let second = child.map(|pid| Child::of(first, pid)).ok_or_else(unknown).flatten();
    cloned?;
    let second = second?;
    second.process().call(libc::SYS_setsid, [0; 4])?;
    second.leave_in(libc::SYS_pause, 0).map(Copy)
}

fn is_filtered(pid: pid_t) -> io::Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::{Child, Command};
    use std::time::Duration;

    /// A shell that computes for ever, with what it does on SIGTRAP.
    struct Busy(Child);

    impl Busy {
        fn new(action: &str) -> Self {
            let script = format!("trap '{action}' TRAP; while :; do :; done");
            let busy = Self(Command::new("sh").arg("-c").arg(script).spawn().unwrap());
            while status(busy.pid()) == status(std::process::id() as pid_t) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            busy
        }

        fn pid(&self) -> pid_t {
            self.0.id() as pid_t
        }

        fn request(&self, request: libc::c_uint) {
            // SAFETY: requests that touch no memory.
            let done = unsafe { libc::ptrace(request, self.pid(), 0, 0) };
            assert!(done >= 0, "{}", io::Error::last_os_error());
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    /// Which signals a process holds back, ignores and catches.
    fn status(pid: pid_t) -> Vec<String> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status
            .lines()
            .filter(|line| line.starts_with("Sig") && !line.starts_with("SigQ"))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_copy_changes_nothing_that_its_process_does_on_a_signal() {
        for action in [":", ""] {
            let busy = Busy::new(action);
            let before = status(busy.pid());
            busy.request(libc::PTRACE_SEIZE);
            busy.request(libc::PTRACE_INTERRUPT);
            let mut stop = 0;
            // SAFETY: a status of our own to be written.
            assert_eq!(unsafe { libc::waitpid(busy.pid(), &raw mut stop, libc::__WALL) }, busy.pid());
            let copy = copy(busy.pid()).unwrap();
            let children = format!("/proc/{0}/task/{0}/children", busy.pid());
            assert_eq!(
                std::fs::read_to_string(children).unwrap(),
                "",
                "it has no child that it did not make"
            );
            let open = std::fs::read_dir(format!("/proc/{}/fd", copy.pid())).unwrap().count();
            assert_eq!(open, 0, "the copy has no file open");
            busy.request(libc::PTRACE_DETACH);
            assert_eq!(status(busy.pid()), before, "{action:?}");
            let of_copy = format!("/proc/{}/status", copy.pid());
            drop(copy);
            while std::fs::read_to_string(&of_copy).is_ok_and(|status| !status.contains("State:\tZ")) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
