//! How the application ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The application's exit code or signal, exactly as `wait` gave it to init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending(ExitStatus);

impl Ending {
    pub(crate) fn from_wait_status(status: i32) -> Self {
        Self(ExitStatus::from_raw(status))
    }

    /// Killed by a signal.
    #[must_use]
    pub fn by_signal(signal: i32) -> Self {
        Self::from_wait_status(signal)
    }

    /// The status as the standard library has it.
    #[must_use]
    pub fn status(self) -> ExitStatus {
        self.0
    }

    /// What a shell would show as `$?`.
    #[must_use]
    pub fn shell_code(self) -> i32 {
        self.0.code().unwrap_or_else(|| 128 + self.0.signal().unwrap_or(0))
    }

    /// Ends this process in the same way: the same exit code, or killed by the same signal (without a second core file).
    pub fn exit_like_it(self) -> ! {
        if let Some(signal) = self.0.signal() {
            let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: plain system calls on our own process, with structures that outlive them.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &no_core);
                libc::signal(signal, libc::SIG_DFL);
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, signal);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
                libc::kill(libc::getpid(), signal);
            }
            // A signal for another thread to take: it does within no time.
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        std::process::exit(self.shell_code())
    }
}
