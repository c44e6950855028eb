//! Processes that stand in a stop of ptrace, and what they can be made to do there.

use std::io;
use std::mem::{size_of, zeroed};
use std::time::{Duration, Instant};

use libc::{pid_t, user_regs_struct};

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const GETSIGMASK: libc::c_uint = 0x420a;
const SETSIGMASK: libc::c_uint = 0x420b;
/// The stop at a system call, told from a signal (`PTRACE_O_TRACESYSGOOD`).
const AT_CALL: libc::c_int = libc::SIGTRAP | 0x80;
/// How long a call may take, and the way to the next stop. A process that is in the middle of a call cannot be put back, and a fork takes 10 s for each TB of memory, longer on a machine
/// that has none to spare: so it is long.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_micros(20);

/// A process that this thread traces, whose first thread is in a stop.
#[derive(Clone, Copy)]
pub struct Stopped {
    pub pid: pid_t,
    /// Where it has a `syscall` instruction.
    syscall: u64,
    /// What it had in its registers, which all calls are made with.
    before: user_regs_struct,
}

/// A request for which the kernel reads or writes what `data` points to.
///
/// # Safety
/// `data` points to memory for what the request reads or writes.
unsafe fn trace_with<T>(request: libc::c_uint, pid: pid_t, address: usize, data: *mut T) -> io::Result<()> {
    // SAFETY: as the caller says.
    if unsafe { libc::ptrace(request, pid, address, data.cast::<libc::c_void>()) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// A request that takes a number.
fn trace(request: libc::c_uint, pid: pid_t, number: libc::c_int) -> io::Result<()> {
    // SAFETY: only requests that touch no memory come here: they take the number for what it is.
    unsafe { trace_with(request, pid, 0, std::ptr::without_provenance_mut::<libc::c_void>(number as usize)) }
}

/// The status of a stop, or an end, of this process.
fn wait(pid: pid_t) -> io::Result<libc::c_int> {
    let until = Instant::now() + PATIENCE;
    let mut status = 0;
    loop {
        // SAFETY: a status of our own to be written.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            0 if Instant::now() > until => return Err(io::ErrorKind::TimedOut.into()),
            0 => std::thread::sleep(LOOK),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => return Ok(status),
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

    /// Has its children traced, too, from their first moment on, and system calls told from signals.
    pub fn trace_children(&self) -> io::Result<()> {
        trace(libc::PTRACE_SETOPTIONS, self.pid, libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACESYSGOOD)
    }

    /// Which signals it holds back; now it holds back all that can be.
    pub fn hold_signals(&self) -> io::Result<u64> {
        let mut mask = 0u64;
        // SAFETY: the mask is as large as is said.
        unsafe { trace_with(GETSIGMASK, self.pid, size_of::<u64>(), &raw mut mask) }?;
        self.set_signals(u64::MAX)?;
        Ok(mask)
    }

    fn set_signals(&self, mask: u64) -> io::Result<()> {
        // SAFETY: the mask is as large as is said, and only read.
        unsafe { trace_with(SETSIGMASK, self.pid, size_of::<u64>(), (&raw const mask).cast_mut()) }
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
        self.set_registers(&registers)
    }

    fn set_registers(&self, registers: &user_regs_struct) -> io::Result<()> {
        // SAFETY: a process's registers, which are only read.
        unsafe { trace_with(libc::PTRACE_SETREGS, self.pid, 0, std::ptr::from_ref(registers).cast_mut()) }
    }

    /// Has it make a system call. It goes from stop to stop at the call, and not by single steps: the signal behind each of those would take the process's own
    /// handler for SIGTRAP away, since it holds it back.
    ///
    /// # Errors
    /// The call's, and those of ptrace.
    pub fn call(&self, call: libc::c_long, arguments: [u64; 4]) -> io::Result<u64> {
        self.call_for(call, arguments, &mut None)
    }

    /// The same of a call that makes a child, which is told even if the process then ends.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_for(
        &self,
        call: libc::c_long,
        arguments: [u64; 4],
        child: &mut Option<pid_t>,
    ) -> io::Result<u64> {
        self.prepare(call, arguments)?;
        let mut is_inside = false;
        let value = loop {
            trace(libc::PTRACE_SYSCALL, self.pid, 0)?;
            let status = wait(self.pid)?;
            match (libc::WIFSTOPPED(status), libc::WSTOPSIG(status), status >> 16) {
                (true, AT_CALL, 0) => {
                    let registers = registers(self.pid)?;
                    if is_inside {
                        break registers.rax;
                    }
                    // It may have stood in a call's end.
                    is_inside = registers.orig_rax == call as u64;
                }
                (true, libc::SIGTRAP, libc::PTRACE_EVENT_CLONE) => {
                    let mut message: libc::c_ulong = 0;
                    // SAFETY: a word of our own to be written.
                    unsafe { trace_with(libc::PTRACE_GETEVENTMSG, self.pid, 0, &raw mut message) }?;
                    *child = pid_t::try_from(message).ok();
                }
                _ => return Err(io::Error::other(format!("it was stopped otherwise ({status:#x})"))),
            }
        };
        match value as i64 {
            error @ -4095..0 => Err(io::Error::from_raw_os_error(-error as i32)),
            _ => Ok(value),
        }
    }

    /// Leaves it as it was found.
    pub fn put_back(&self, mask: u64) -> io::Result<()> {
        let signals = self.set_signals(mask);
        self.set_registers(&self.before)?;
        signals
    }
}

/// A process that a call has made, in a stop. It ends when this is dropped, and with this process.
pub struct Child(Stopped);

impl Child {
    /// The child `pid` of this process, which it has just made.
    pub fn of(parent: &Stopped, pid: pid_t) -> io::Result<Self> {
        let mut child = Self(Stopped { pid, ..*parent });
        if !libc::WIFSTOPPED(wait(pid)?) {
            return Err(io::Error::other("it ended at once"));
        }
        child.0.before = registers(pid)?;
        let options = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        trace(libc::PTRACE_SETOPTIONS, pid, options)?;
        Ok(child)
    }

    /// The process.
    pub fn process(&self) -> &Stopped {
        &self.0
    }

    /// Lets go of it with this call to make, behind which it does nothing more.
    pub fn leave_in(self, call: libc::c_long, argument: u64) -> io::Result<pid_t> {
        self.0.prepare(call, [argument, 0, 0, 0])?;
        trace(libc::PTRACE_DETACH, self.0.pid, 0)?;
        Ok(std::mem::ManuallyDrop::new(self).0.pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        kill(self.0.pid);
        // What it says last.
        while wait(self.0.pid).is_ok_and(|status| libc::WIFSTOPPED(status)) {}
    }
}

/// Ends what this thread traces and did not find: children of a process that ended before it could be asked which they are.
pub fn kill_strays(found: &[pid_t]) -> io::Result<()> {
    // SAFETY: only asks the kernel.
    let tracer = format!("TracerPid:\t{}", unsafe { libc::gettid() });
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if !found.contains(&pid) && status.lines().any(|line| line == tracer) {
            kill(pid);
        }
    }
    Ok(())
}

/// Ends a process that was made here.
pub fn kill(pid: pid_t) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

fn registers(pid: pid_t) -> io::Result<user_regs_struct> {
    // SAFETY: numbers, of which zero is one.
    let mut registers: user_regs_struct = unsafe { zeroed() };
    // SAFETY: registers of our own to be written.
    unsafe { trace_with(libc::PTRACE_GETREGS, pid, 0, &raw mut registers) }?;
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
