//! A plugin of CRIU's that makes a copy of every process it dumps, while all of them stand still: the memory of the cut, to be read when the
//! job has long gone on (design D10; CRUM's forked checkpoint, section III-C). CRIU is the tracer of the processes, so nobody else could.
//!
//! It is told what to do over a socket, whose number is in the environment (`DORMOUSE_COPIES`), and says there, a line each:
//!
//! | it says | when |
//! |---|---|
//! | `frozen PID` | a process stands still, and nothing of it has been dumped |
//! | `copy PID COPY` | a process has a copy |
//! | `failed PID WHY` | it has none |
//! | `done` | no more copies are made |
//!
//! It begins to copy when it reads a `c`, behind the dump, and lets CRIU let the job go when it reads that again. If the other end is closed before, the
//! copies are nobody's, and end. Pids are those of CRIU's namespace.
//!
//! Preloaded into CRIU as well, it keeps private memory from it (`withheld`), and files in memory that have no names (`shared`).

mod copying;
mod shared;
mod tracing;
mod withheld;

use self::copying::Copy;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The environment variable with the socket's number.
const SOCKET: &str = "DORMOUSE_COPIES";
/// The environment variable with the pid of who has started CRIU.
const STARTED_BY: &str = "DORMOUSE_STARTED_BY";
/// Asks for copies, and later says that they have been taken over.
const GO: u8 = b'c';

/// `cr_plugin_desc_t` (CRIU's `criu-plugin.h`).
#[repr(C)]
pub struct Description {
    name: *const c_char,
    init: extern "C" fn(c_int) -> c_int,
    exit: extern "C" fn(c_int, c_int),
    version: c_uint,
    max_hooks: c_uint,
    hooks: [Option<extern "C" fn(c_int) -> c_int>; HOOKS],
}

// SAFETY: nothing in it changes.
unsafe impl Sync for Description {}

/// How many hooks this plugin knows: those of CRIU 4.0 and 4.1. A newer CRIU knows more, and takes fewer.
const HOOKS: usize = 12;
/// `CR_PLUGIN_HOOK__CHECKPOINT_DEVICES`: called for each process when all stand still, before anything is dumped.
const CHECKPOINT_DEVICES: usize = 11;
/// `CR_PLUGIN_STAGE__DUMP`.
const DUMP: c_int = 0;
const NAME: &CStr = c"dormouse";

/// What CRIU looks for.
#[unsafe(no_mangle)]
pub static CR_PLUGIN_DESC: Description = Description {
    name: NAME.as_ptr(),
    init,
    exit,
    // 0.2.0
    version: 2 << 8,
    max_hooks: HOOKS as c_uint,
    hooks: {
        let mut hooks = [None; HOOKS];
        hooks[CHECKPOINT_DEVICES] = Some(frozen as extern "C" fn(c_int) -> c_int);
        hooks
    },
};

static FROZEN: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<libc::pid_t>> {
    FROZEN.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn init(stage: c_int) -> c_int {
    withheld::forget_preload();
    if stage == DUMP && !hears_of_the_end() { -1 } else { 0 }
}

/// From here on SIGALRM ends CRIU when whoever has started it dies, or its own handler gives up what it waits for. Until here it is ignored: it would have ended CRIU with
/// helpers left over. False when that process is gone already.
fn hears_of_the_end() -> bool {
    // SAFETY: the default action has no handler.
    unsafe { libc::signal(libc::SIGALRM, libc::SIG_DFL) };
    let parent = std::env::var(STARTED_BY).ok().and_then(|pid| pid.parse::<libc::pid_t>().ok());
    // SAFETY: it takes nothing, and always succeeds.
    parent.is_none_or(|parent| parent == unsafe { libc::getppid() })
}

extern "C" fn frozen(pid: c_int) -> c_int {
    if let Some(mut socket) = socket() {
        all().push(pid);
        // Whoever does not read it will not ask for copies.
        let _ = writeln!(socket, "frozen {pid}");
    }
    // What cannot be withheld CRIU writes.
    let _ = withheld::withhold(pid);
    // It has no devices that this plugin knows.
    -libc::ENOTSUP
}

extern "C" fn exit(stage: c_int, failed: c_int) {
    let (DUMP, 0, Some(mut socket)) = (stage, failed, socket()) else { return };
    if go(&mut socket).is_err() {
        return;
    }
    let mut copies = Vec::new();
    if copy(&mut socket, &mut copies).and_then(|()| go(&mut socket)).is_err() {
        return;
    }
    copies.into_iter().for_each(Copy::leave);
}

/// Waits until it is told to go on.
fn go(socket: &mut UnixStream) -> io::Result<()> {
    let mut told = [0];
    socket.read_exact(&mut told)?;
    if told == [GO] { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Makes copies of all processes, or of those up to the first that can have none.
fn copy(socket: &mut UnixStream, copies: &mut Vec<Copy>) -> io::Result<()> {
    // CRIU's own handler would take a copy for one of its helpers.
    let _quiet = tracing::ChildrenUnheard::new();
    let frozen = std::mem::take(&mut *all());
    for pid in frozen.iter().copied() {
        match copying::copy(pid) {
            Ok(copy) => {
                let number = copy.pid();
                copies.push(copy);
                writeln!(socket, "copy {pid} {number}")?;
            }
            Err(error) => {
                tracing::kill_strays(&frozen)?;
                writeln!(socket, "failed {pid} {error}")?;
                break;
            }
        }
    }
    writeln!(socket, "done")
}

/// The socket, which is not this plugin's to close.
fn socket() -> Option<ManuallyDrop<UnixStream>> {
    let number = std::env::var(SOCKET).ok()?.parse().ok().filter(|number| *number >= 0)?;
    // SAFETY: whoever starts CRIU with the variable gives it that descriptor, which stays open as long as CRIU runs.
    Some(ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(number) }))
}
