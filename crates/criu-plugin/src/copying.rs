//! A copy of one process, such that nobody in the job sees that it is made.
//!
//! The process is made to clone itself; the clone closes its descriptors, clones itself with the same memory, and ends; the second one waits for
//! ever, holding back all signals, in a session of its own. It is no child of anybody who could wait for it: the first is waited for here, in its
//! parent's name, without a signal (`clone` with no flags), and the job's init inherits the second.

use std::io;

use libc::pid_t;

use crate::tracing::Stopped;

/// Makes a copy of the process, whose threads all stand, and leaves the process as it was. Its pid is in this process's namespace.
pub fn copy(pid: pid_t) -> io::Result<pid_t> {
    if is_filtered(pid)? {
        return Err(io::Error::other("its system calls are filtered (seccomp)"));
    }
    let process = Stopped::of(pid)?;
    let mask = process.hold_signals()?;
    let copied = process.trace_children().and_then(|()| copy_of(&process));
    process.put_back(mask)?;
    copied
}

fn copy_of(process: &Stopped) -> io::Result<pid_t> {
    let cloned = process.call(libc::SYS_clone, [0; 4])?;
    let none = || io::Error::other("its copy is not known");
    let first = process.child(cloned.child.ok_or_else(none)?)?;
    let copied = second_of(&first);
    // It ends, in either case.
    match &copied {
        Ok(_) => first.leave_in(libc::SYS_exit_group, 0)?,
        Err(_) => first.kill(),
    }
    process.call(libc::SYS_wait4, [cloned.value, 0, libc::__WALL as u64, 0])?;
    copied
}

fn second_of(first: &Stopped) -> io::Result<pid_t> {
    first.call(libc::SYS_close_range, [0, u64::from(u32::MAX), 0, 0])?;
    let cloned = first.call(libc::SYS_clone, [libc::CLONE_VM as u64, 0, 0, 0])?;
    let none = || io::Error::other("its copy is not known");
    let second = first.child(cloned.child.ok_or_else(none)?)?;
    let left = second.call(libc::SYS_setsid, [0; 4]).and_then(|_| second.leave_in(libc::SYS_pause, 0));
    if let Err(error) = left {
        second.kill();
        return Err(error);
    }
    Ok(second.pid)
}

fn is_filtered(pid: pid_t) -> io::Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0")))
}
