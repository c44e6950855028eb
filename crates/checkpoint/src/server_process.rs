//! One GPU server as its supervisor sees it.

use crate::error::{Failure, Kind};
use crate::gpus;
use crate::sessions::Destination;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use server::control::{self, Answer, Ask, Cause, Lines, Question, Reply, Start};
use std::cmp::Ordering;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// With which a server ends that has lost its session with the machine of its devices.
pub const LOST_MACHINE: u8 = 90;
/// The variable that says what is logged.
const LOG: &str = "DORMOUSE_LOG";
/// The descriptor on which a server finds its supervisor.
const CONTROL_FD: i32 = 3;
/// The descriptor on which it finds the broker of what sessions share.
const BROKER_FD: i32 = 4;
/// A server that does not answer for this long is given up. Captures report progress meanwhile.
const SILENCE: Duration = Duration::from_secs(120);
/// How much longer than it was given a server may take to answer while the whole job waits for it.
const GRACE: Duration = Duration::from_secs(5);
/// How long a server that has closed its socket may take to be gone.
const DYING: Duration = Duration::from_secs(1);

/// A running `dormouse server`. One that says what it was not asked is killed, and its session with it: nothing it says from then
/// on could be believed.
pub struct ServerProcess {
    child: Child,
    to: UnixStream,
    from: Lines<UnixStream>,
    session: u32,
    /// Number of the last question.
    asked: u64,
    silence: Duration,
}

impl ServerProcess {
    /// Starts a server for session number `session`, whose files lie (or will lie) in `dir`. It is not ready yet. `broker` is its way
    /// to other sessions.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub fn start(
        session: u32,
        dir: &Path,
        (target, visible): (&Destination, Option<String>),
        start: &Start,
        broker: Option<OwnedFd>,
    ) -> Result<Self, Failure> {
        let fail = |error: io::Error| {
            Failure::of(format_args!("cannot start the GPU server of session {session}"), &error)
        };
        // What there is to warn of the session its own server has said.
        let quiet = *start == Start::Rehearsal && std::env::var_os(LOG).is_none();
        let (ours, theirs) = UnixStream::pair().map_err(fail)?;
        let theirs = OwnedFd::from(theirs);
        let mut passed = vec![(theirs.as_raw_fd(), CONTROL_FD)];
        passed.extend(broker.iter().map(|broker| (broker.as_raw_fd(), BROKER_FD)));
        let mut command = Command::new(std::env::current_exe().map_err(fail)?);
        command
            .arg("server")
            .arg("--dir")
            .arg(dir)
            .args(["--session", &session.to_string(), "--device", &target.device])
            .args(broker.is_some().then_some("--shares"))
            .args(["--managed", target.managed.name()])
            .args(target.preempt_after.map(|after| format!("--preempt-after={}ns", after.as_nanos())))
            .args(target.memory.map(|bytes| format!("--device-memory={bytes}")))
            .env_remove(gpus::VARIABLE)
            .envs(visible.map(|list| (gpus::VARIABLE, list)))
            .envs(quiet.then_some((LOG, "error")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // A group of its own: what a terminal sends to the job's foreground group is not for the server.
            .process_group(0);
        let done = |code: i32| if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) };
        // SAFETY: between fork and exec only `dup2` and `fcntl` are called, which are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                // Out of the way of each other first.
                for (from, _) in &mut passed {
                    *from = done(libc::fcntl(*from, libc::F_DUPFD_CLOEXEC, BROKER_FD + 1))?;
                }
                passed.iter().try_for_each(|(from, to)| done(libc::dup2(*from, *to)).map(drop))
            });
        }
        let child = command.spawn().map_err(fail)?;
        drop((theirs, broker));
        let mut server = Self::on(child, ours, session, SILENCE).map_err(fail)?;
        control::say(&server.to, start).map_err(|error| server.not_heard(&error))?;
        Ok(server)
    }

    fn on(child: Child, socket: UnixStream, session: u32, silence: Duration) -> io::Result<Self> {
        socket.set_read_timeout(Some(silence))?;
        socket.set_write_timeout(Some(silence))?;
        let from = Lines::of(socket.try_clone()?);
        Ok(Self { child, to: socket, from, session, asked: 0, silence })
    }

    /// The session's number.
    #[must_use]
    pub fn session(&self) -> u32 {
        self.session
    }

    /// A descriptor of its process.
    ///
    /// # Errors
    /// When there is none to be had.
    pub fn pidfd(&self) -> io::Result<OwnedFd> {
        Ok(pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?)
    }

    /// Waits for the answer to the last question, passing on progress. Answers to questions that were given up are dropped.
    ///
    /// # Errors
    /// When the server is gone, or silent for too long; what [`Answer::Failed`] says.
    pub fn answer(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<Answer, Failure> {
        loop {
            let Reply { number, answer } = match self.from.receive() {
                Ok(Some(reply)) => reply,
                Ok(None) => return Err(self.died()),
                Err(error) => return Err(self.not_heard(&error)),
            };
            match (number.cmp(&self.asked), answer) {
                (Ordering::Less, late) => {
                    tracing::debug!("session {}: too late, to question {number}: {late:?}", self.session);
                }
                (Ordering::Greater, answer) => return Err(self.unexpected(&answer)),
                (Ordering::Equal, Answer::Progress { done, total }) => progress(done, total),
                (Ordering::Equal, Answer::Failed { message, cause }) => {
                    let kind = match cause {
                        Cause::Store => Kind::Store,
                        Cause::DeviceMemory => Kind::DeviceFull,
                        Cause::Differs => Kind::Refused,
                        Cause::Other => Kind::Failed,
                    };
                    return Err(Failure::new(kind, message));
                }
                (Ordering::Equal, answer) => return Ok(answer),
            }
        }
    }

    /// [`Self::answer`] to a question that may take this long and for which the whole job waits.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn answer_within(
        &mut self,
        longer: Duration,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Answer, Failure> {
        self.wait_at_most(self.silence.min(GRACE) + longer)?;
        let answer = self.answer(progress);
        self.wait_at_most(self.silence)?;
        answer
    }

    fn wait_at_most(&mut self, time: Duration) -> Result<(), Failure> {
        self.to.set_read_timeout(Some(time)).map_err(|error| self.not_heard(&error))
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
        self.say(ask)?;
        self.done()
    }

    /// Waits for [`Answer::Done`].
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub fn done(&mut self) -> Result<(), Failure> {
        match self.answer(&mut |_, _| {})? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Kills a server that answers what was not asked; gives the failure.
    #[must_use]
    pub fn unexpected(&mut self, answer: &Answer) -> Failure {
        self.out_of_step(&format!("answered {answer:?} to question {}", self.asked))
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
    pub fn say(&mut self, ask: &Ask) -> Result<(), Failure> {
        self.asked += 1;
        let question = Question { number: self.asked, ask: ask.clone() };
        control::say(&self.to, &question).map_err(|error| self.not_heard(&error))
    }

    /// The failure for an error on the socket.
    fn not_heard(&mut self, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.died(),
            // It may answer yet. Whoever asks next drops that answer.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let waited = self.to.read_timeout().ok().flatten().unwrap_or(self.silence).as_secs();
                let session = self.session;
                Failure::new(
                    Kind::Failed,
                    format!("the GPU server of session {session} has not answered for {waited} s"),
                )
            }
            // Nothing was sent.
            io::ErrorKind::InvalidInput => {
                Failure::of(format_args!("the GPU server of session {} cannot be asked", self.session), error)
            }
            _ => self.out_of_step(&format!("cannot be understood: {error}")),
        }
    }

    fn out_of_step(&mut self, how: &str) -> Failure {
        self.kill();
        Failure::new(
            Kind::Failed,
            format!(
                "the GPU server of session {} {how}. It was killed; please report this. {}",
                self.session, LOST
            ),
        )
    }

    /// The failure for a server that is gone.
    fn died(&mut self) -> Failure {
        let until = Instant::now() + DYING;
        while self.is_running() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let how = match self.child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => {
                self.kill();
                "it closed its socket and was killed".to_owned()
            }
        };
        Failure::new(Kind::Failed, format!("the GPU server of session {} died ({how}). {LOST}", self.session))
    }
}

/// What it means that a server is gone.
const LOST: &str = "The session's CUDA calls answer errors, and its job cannot be checkpointed as long as the session's process \
                    runs; restart the job from its newest image with `dormouse restart`";

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server played by a test.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub mod fake {
    use super::*;
    use std::thread::JoinHandle;

    /// How long a fake server may be silent.
    pub const SILENCE: Duration = Duration::from_millis(200);

    /// The other end of a server's socket.
    pub struct Script {
        pub from: Lines<UnixStream>,
        pub to: UnixStream,
    }

    impl Script {
        /// The next question.
        pub fn question(&mut self) -> Question {
            self.from.receive().unwrap().unwrap()
        }

        pub fn reply(&mut self, number: u64, answer: Answer) {
            control::say(&self.to, &Reply { number, answer }).unwrap();
        }
    }

    /// A server that does as `play` says; its process only sleeps.
    pub fn server<T: Send + 'static>(
        session: u32,
        play: impl FnOnce(Script) -> T + Send + 'static,
    ) -> (ServerProcess, JoinHandle<T>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let server = ServerProcess::on(child, ours, session, SILENCE).unwrap();
        let script = Script { from: Lines::of(theirs.try_clone().unwrap()), to: theirs };
        (server, std::thread::spawn(move || play(script)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn an_answer_that_comes_too_late_is_not_taken_for_another() {
        let (mut server, script) = fake::server(1, |mut script| {
            let first = script.question();
            let second = script.question();
            script.reply(first.number, Answer::Busy { holders: vec![] });
            script.reply(second.number, Answer::Progress { done: 1, total: 2 });
            script.reply(second.number, Answer::Done);
            second.ask
        });
        let failure = server.tell(&Ask::Gate { deadline_ms: 1 }).unwrap_err();
        assert!(failure.message.contains("has not answered"), "{failure}");
        assert!(server.is_running());
        let mut steps = Vec::new();
        let answer =
            server.ask(&Ask::Ungate { keep: false }, &mut |done, total| steps.push((done, total))).unwrap();
        assert_eq!((answer, steps), (Answer::Done, vec![(1, 2)]));
        assert_eq!(script.join().unwrap(), Ask::Ungate { keep: false });
    }

    #[test]
    fn a_server_out_of_step_is_killed() {
        let check = |play: fn(&mut fake::Script, u64), word: &str| {
            let (mut server, script) = fake::server(5, move |mut script| {
                let number = script.question().number;
                play(&mut script, number);
            });
            let failure = server.tell(&Ask::Ungate { keep: false }).unwrap_err();
            assert!(
                failure.message.contains(word) && failure.message.contains("session 5"),
                "{word:?} is not in: {failure}"
            );
            assert!(!server.is_running());
            script.join().unwrap();
        };
        check(|script, number| script.reply(number + 1, Answer::Done), "was killed");
        check(|script, number| script.reply(number, Answer::Ended), "was killed");
        check(|script, _| script.to.write_all(b"nonsense\n").unwrap(), "cannot be understood");
        check(|script, _| script.to.write_all(&vec![b'1'; control::LINE_MAX + 1]).unwrap(), "no end");
    }

    #[test]
    fn a_server_that_died_is_named() {
        let (mut server, script) = fake::server(6, drop);
        script.join().unwrap();
        server.child.kill().unwrap();
        for _ in 0..2 {
            let failure = server.tell(&Ask::Ungate { keep: false }).unwrap_err();
            for word in ["session 6 died", "SIGKILL", "dormouse restart"] {
                assert!(failure.message.contains(word), "{word:?} is not in: {failure}");
            }
        }
    }
}
