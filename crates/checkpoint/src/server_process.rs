//! One GPU server as its supervisor sees it.

use crate::admin::{receive, send};
use crate::error::{Failure, Kind};
use server::control::{Answer, Ask, Cause, Start};
use std::io::{self, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The descriptor on which a server finds its supervisor.
const CONTROL_FD: i32 = 3;
/// A server that does not answer for this long is given up. Captures report progress meanwhile.
const SILENCE: Duration = Duration::from_secs(120);

/// A running `dormouse server`.
pub struct ServerProcess {
    child: Child,
    to: UnixStream,
    from: BufReader<UnixStream>,
    session: u32,
}

impl ServerProcess {
    /// Starts a server for session number `session`, whose files lie (or will lie) in `dir`. It is not ready yet.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub fn start(session: u32, dir: &Path, device: &str, start: &Start) -> Result<Self, Failure> {
        let fail = |error: io::Error| {
            Failure::of(format_args!("cannot start the GPU server of session {session}"), &error)
        };
        let (ours, theirs) = UnixStream::pair().map_err(fail)?;
        ours.set_read_timeout(Some(SILENCE)).map_err(fail)?;
        let theirs = OwnedFd::from(theirs);
        let raw = theirs.as_raw_fd();
        let mut command = Command::new(std::env::current_exe().map_err(fail)?);
        command
            .arg("server")
            .arg("--dir")
            .arg(dir)
            .args(["--session", &session.to_string(), "--device", device])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // A group of its own: what a terminal sends to the job's foreground group is not for the server.
            .process_group(0);
        // SAFETY: between fork and exec only `dup2` and `fcntl` are called, which are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                let kept = if raw == CONTROL_FD {
                    libc::fcntl(raw, libc::F_SETFD, 0)
                } else {
                    libc::dup2(raw, CONTROL_FD)
                };
                if kept < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let child = command.spawn().map_err(fail)?;
        drop(theirs);
        let from = BufReader::new(ours.try_clone().map_err(fail)?);
        let mut server = Self { child, to: ours, from, session };
        server.say(start)?;
        Ok(server)
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the server's next answer, passing on progress.
    ///
    /// # Errors
    /// [`Kind::Ended`] when the server is gone; what [`Answer::Failed`] says.
    pub fn answer(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<Answer, Failure> {
        loop {
            match receive(&mut self.from).map_err(|error| self.gone(&error))? {
                Some(Answer::Progress { done, total }) => progress(done, total),
                Some(Answer::Failed { message, cause }) => {
                    let kind = match cause {
                        Cause::Store => Kind::Store,
                        Cause::DeviceMemory => Kind::DeviceFull,
                        Cause::Other => Kind::Failed,
                    };
                    return Err(Failure::new(kind, message));
                }
                Some(answer) => return Ok(answer),
                None => return Err(self.gone(&io::Error::other("it has ended"))),
            }
        }
    }

    /// [`Self::answer`] to a question that may take this much longer than others.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn answer_within(
        &mut self,
        longer: Duration,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Answer, Failure> {
        let wait = |time| self.to.set_read_timeout(Some(time)).map_err(|error| self.gone(&error));
        wait(SILENCE + longer)?;
        let answer = self.answer(progress);
        self.to.set_read_timeout(Some(SILENCE)).map_err(|error| self.gone(&error))?;
        answer
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn ask(&mut self, ask: &Ask, progress: &mut dyn FnMut(u64, u64)) -> Result<Answer, Failure> {
        self.say(ask)?;
        self.answer(progress)
    }

    /// Asks something whose answer is [`Answer::Done`].
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn tell(&mut self, ask: &Ask) -> Result<(), Failure> {
        match self.ask(ask, &mut |_, _| {})? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The failure for an answer to another question.
    #[must_use]
    pub fn unexpected(&self, answer: &Answer) -> Failure {
        Failure::new(Kind::Failed, format!("the GPU server of session {} answered {answer:?}", self.session))
    }

    /// Ends the server at once.
    pub fn kill(&mut self) {
        // It may be gone already; either way it is reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks without waiting for the answer.
    ///
    /// # Errors
    /// [`Kind::Failed`] when the server is gone.
    pub fn say<T: serde::Serialize>(&mut self, message: &T) -> Result<(), Failure> {
        send(&self.to, message).map_err(|error| self.gone(&error))
    }

    fn gone(&self, error: &io::Error) -> Failure {
        Failure::of(format_args!("the GPU server of session {} does not answer", self.session), error)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
