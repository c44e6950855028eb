//! Processes that stand in a stop of ptrace, and what they can be made to do there.

use std::io;
use std::mem::{size_of, zeroed};

use libc::{pid_t, user_regs_struct};

use crate::Data;

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const GETSIGMASK: libc::c_uint = 0x420a;
const SETSIGMASK: libc::c_uint = 0x420b;

/// A process that this thread traces, whose first thread is in a stop.
#[derive(Clone, Copy)]
pub struct Stopped {
    pub pid: pid_t,
    /// Where it has a `syscall` instruction.
    syscall: u64,
    /// What it had in its registers, which all calls are made with.
    before: user_regs_struct,
}

/// What a call has come to.
pub struct Called {
    /// What it answered.
    pub value: u64,
    /// The child that it made, in this process's namespace.
    pub child: Option<pid_t>,
}

fn trace(request: libc::c_uint, pid: pid_t, address: usize, data: Data) -> io::Result<()> {
    // SAFETY: `data` is memory of ours for the requests that read or write it, as large as they take, and a number for all others.
    if unsafe { libc::ptrace(request, pid, address, data) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn number(value: usize) -> Data {
    std::ptr::without_provenance_mut(value)
}

/// The status of a stop, or an end, of this process.
fn wait(pid: pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    loop {
        // SAFETY: a status of our own to be written.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } == pid {
            return Ok(status);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The address of a `syscall` in code that every process has.
fn syscall_of(pid: pid_t) -> io::Result<u64> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "it has no vDSO to make system calls in");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).ok_or_else(none)?;
    let (start, end) = vdso.split(' ').next().and_then(|range| range.split_once('-')).ok_or_else(none)?;
    let address = |text| u64::from_str_radix(text, 16).map_err(|_| none());
    let (start, end) = (address(start)?, address(end)?);
    let mut code = vec![0; end.saturating_sub(start) as usize];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut code, start)?;
    let at = code.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL).ok_or_else(none)?;
    Ok(start + at as u64)
}

impl Stopped {
    /// A process that stands already.
    pub fn of(pid: pid_t) -> io::Result<Self> {
        Ok(Self { pid, syscall: syscall_of(pid)?, before: registers(pid)? })
    }

    /// A child that a call has just made of this process.
    pub fn child(&self, pid: pid_t) -> io::Result<Self> {
        let status = wait(pid)?;
        if !libc::WIFSTOPPED(status) {
            return Err(io::Error::other("it ended at once"));
        }
        Ok(Self { pid, before: registers(pid)?, ..*self })
    }

    /// Has its children traced, too, from their first moment on.
    pub fn trace_children(&self) -> io::Result<()> {
        trace(libc::PTRACE_SETOPTIONS, self.pid, 0, number(libc::PTRACE_O_TRACECLONE as usize))
    }

    /// Which signals it holds back; now it holds back all that can be.
    pub fn hold_signals(&self) -> io::Result<u64> {
        let mut mask = 0u64;
        trace(GETSIGMASK, self.pid, size_of::<u64>(), (&raw mut mask).cast())?;
        self.set_signals(u64::MAX)?;
        Ok(mask)
    }

    fn set_signals(&self, mask: u64) -> io::Result<()> {
        trace(SETSIGMASK, self.pid, size_of::<u64>(), (&raw const mask).cast_mut().cast())
    }

    fn prepare(&self, call: libc::c_long, arguments: [u64; 4]) -> io::Result<()> {
        let [rdi, rsi, rdx, r10] = arguments;
        // In no system call that the kernel could restart.
        let orig_rax = u64::MAX;
        let registers = user_regs_struct {
            rip: self.syscall,
            rax: call as u64,
            orig_rax,
            rdi,
            rsi,
            rdx,
            r10,
            ..self.before
        };
        trace(libc::PTRACE_SETREGS, self.pid, 0, (&raw const registers).cast_mut().cast())
    }

    /// Has it make a system call.
    ///
    /// # Errors
    /// The call's, and those of ptrace.
    pub fn call(&self, call: libc::c_long, arguments: [u64; 4]) -> io::Result<Called> {
        self.prepare(call, arguments)?;
        let mut child = None;
        loop {
            trace(libc::PTRACE_SINGLESTEP, self.pid, 0, number(0))?;
            let status = wait(self.pid)?;
            if !libc::WIFSTOPPED(status) || libc::WSTOPSIG(status) != libc::SIGTRAP {
                return Err(io::Error::other(format!("it was stopped otherwise ({status:#x})")));
            }
            match status >> 16 {
                0 => break,
                libc::PTRACE_EVENT_CLONE => {
                    let mut message: libc::c_ulong = 0;
                    trace(libc::PTRACE_GETEVENTMSG, self.pid, 0, (&raw mut message).cast())?;
                    child = pid_t::try_from(message).ok();
                }
                event => return Err(io::Error::other(format!("it met with event {event}"))),
            }
        }
        let value = registers(self.pid)?.rax;
        match value as i64 {
            error @ -4095..0 => Err(io::Error::from_raw_os_error(-error as i32)),
            _ => Ok(Called { value, child }),
        }
    }

    /// Lets go of it with this call to make, behind which it does nothing more.
    pub fn leave_in(self, call: libc::c_long, argument: u64) -> io::Result<()> {
        self.prepare(call, [argument, 0, 0, 0])?;
        trace(libc::PTRACE_DETACH, self.pid, 0, number(0))
    }

    /// Leaves it as it was found.
    pub fn put_back(&self, mask: u64) -> io::Result<()> {
        let signals = self.set_signals(mask);
        trace(libc::PTRACE_SETREGS, self.pid, 0, (&raw const self.before).cast_mut().cast())?;
        signals
    }

    /// Ends it.
    pub fn kill(self) {
        // SAFETY: a child of the job's that this thread traces, so the pid is its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // What it says last.
        while wait(self.pid).is_ok_and(|status| libc::WIFSTOPPED(status)) {}
    }
}

fn registers(pid: pid_t) -> io::Result<user_regs_struct> {
    // SAFETY: numbers, of which zero is one.
    let mut registers: user_regs_struct = unsafe { zeroed() };
    trace(libc::PTRACE_GETREGS, pid, 0, (&raw mut registers).cast())?;
    Ok(registers)
}

/// While this lives, SIGCHLD does nothing in this process.
pub struct ChildrenUnheard(libc::sigaction);

impl ChildrenUnheard {
    pub fn new() -> Self {
        // SAFETY: numbers and no handler, of which zero is one.
        let (ignored, mut before): (libc::sigaction, libc::sigaction) = unsafe { (zeroed(), zeroed()) };
        // SAFETY: both are there for the call; the default action is no handler of ours.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const ignored, &raw mut before) };
        Self(before)
    }
}

impl Drop for ChildrenUnheard {
    fn drop(&mut self) {
        // SAFETY: what there was before.
        unsafe { libc::sigaction(libc::SIGCHLD, &raw const self.0, std::ptr::null_mut()) };
    }
}
