//! Telling whoever started this process how it gets on, as `sd_notify(3)` has it: a socket in `NOTIFY_SOCKET`, and lines of `NAME=value`.

use checkpoint::Failure;
use checkpoint::restart::Ready;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Where the socket is named.
const VARIABLE: &str = "NOTIFY_SOCKET";
/// The pipe beside the socket, by which one who decides says that the program may run.
const WORD: &str = "may-run";
/// What is said when it runs.
const READY: &str = "READY=1";
/// What is said just before; names of one's own begin with `X_`.
const MAY_RUN: &str = "X_DORMOUSE_MAY_RUN=1";
/// What comes before a failure in JSON.
const FAILURE: &str = "X_DORMOUSE_FAILURE=";
/// The longest failure that is told whole, bytes.
const LONGEST: usize = 64 << 10;
/// How often it is looked whether the process has ended.
const LOOK: Duration = Duration::from_millis(50);

/// What somebody who waits for a process has to do with when its program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// It may run without his knowing.
    MayMiss,
    /// Not unless he hears of it.
    Hears,
    /// Nor before he says so ([`Wait::lets_run`]).
    Decides,
}

/// Somebody who waits for this process.
#[derive(Debug)]
pub struct Waiting {
    socket: UnixDatagram,
    part: Part,
    /// Where he says that the program may run; its end is his.
    word: Option<File>,
}

impl Waiting {
    /// Whoever the environment says, if somebody does, and is there still if he has to be.
    ///
    /// # Errors
    /// When he does not listen there.
    pub fn of_environment(part: Part) -> Result<Option<Self>, Failure> {
        let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        name.map_or(Ok(None), |name| Self::named(&name, part))
    }

    fn named(name: &OsStr, part: Part) -> Result<Option<Self>, Failure> {
        match Self::at(name, part) {
            Ok(waiting) => Ok(Some(waiting)),
            // He may have gone before this process came so far.
            Err(error) if part == Part::MayMiss => {
                tracing::debug!("{VARIABLE}: {error}");
                Ok(None)
            }
            Err(error) => Err(Failure::of(
                format_args!("nobody listens at {}, which {VARIABLE} names", name.display()),
                &error,
            )),
        }
    }

    fn at(name: &OsStr, part: Part) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        match name.as_bytes().strip_prefix(b"@") {
            Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
            None => socket.connect(name)?,
        }
        let word = (part == Part::Decides).then(|| File::open(Path::new(name).with_file_name(WORD)));
        Ok(Self { socket, part, word: word.transpose()? })
    }

    /// Waits until he says that the program may run.
    fn decides(&self) -> io::Result<()> {
        self.word.as_ref().map_or(Ok(()), |mut word| word.read_exact(&mut [0]))
    }

    /// It does not go on.
    pub fn hears_of(&self, failure: &Failure) {
        let status = format!("STATUS={}", failure.message.replace('\n', " "));
        let told = match serde_json::to_string(failure) {
            Ok(json) if json.len() < LONGEST => self.hears(&format!("{status}\n{FAILURE}{json}")),
            _ => self.hears(&status),
        };
        // Its end says so, too.
        told.unwrap_or_else(|error| tracing::debug!("{VARIABLE}: {error}"));
    }

    fn hears(&self, what: &str) -> io::Result<()> {
        self.socket.send(what.as_bytes()).map(drop)
    }
}

impl Ready for Waiting {
    fn may_run(&self) -> Result<(), Failure> {
        match self.decides().and_then(|()| self.hears(MAY_RUN)) {
            Err(error) if self.part != Part::MayMiss => {
                Err(Failure::of("whoever has to know that the job goes on is gone", &error))
            }
            _ => Ok(()),
        }
    }

    fn runs(&self) {
        // He has heard that it may.
        self.hears(READY).unwrap_or_else(|error| tracing::debug!("{VARIABLE}: {error}"));
    }
}

/// How a process has got on that was started.
pub enum Course {
    /// It runs.
    Runs,
    /// It does not, and says why.
    Fails(Failure),
    /// It has ended without a word.
    Ended(ExitStatus),
    /// It has not said for too long that the program may run.
    Late,
}

/// Where a process is waited for.
pub struct Wait {
    socket: UnixDatagram,
    /// As long as it is open the process may still be told that its program may run.
    word: File,
    folder: tempfile::TempDir,
    /// Whether it has said that its program may run.
    may_run: bool,
}

impl Wait {
    /// Begins to listen.
    pub fn begin() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = UnixDatagram::bind(folder.path().join("notify"))?;
        socket.set_read_timeout(Some(LOOK))?;
        let word = folder.path().join(WORD);
        mknodat(CWD, &word, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        // For both, so that it is open before anybody reads.
        let word = OpenOptions::new().read(true).write(true).open(word)?;
        Ok(Self { socket, word, folder, may_run: false })
    }

    /// Lets the program run, if that is for this one to say ([`Part::Decides`]).
    pub fn lets_run(&self) -> io::Result<()> {
        (&self.word).write_all(&[1])
    }

    /// What the process has to have in its environment.
    pub fn variable(&self) -> (&'static str, PathBuf) {
        (VARIABLE, self.folder.path().join("notify"))
    }

    /// Waits until the process says how it gets on, or has ended, or for `patience`, as long as its program may not run: from then on each step has a limit there.
    pub fn wait(&mut self, child: &mut Child, patience: Duration) -> io::Result<Course> {
        let began = Instant::now();
        loop {
            let ended = child.try_wait()?;
            match self.hear()? {
                Some(said) if said.lines().any(|line| line == READY) => return Ok(Course::Runs),
                Some(said) => {
                    let failure = said.lines().find_map(|line| line.strip_prefix(FAILURE));
                    if let Some(failure) = failure.and_then(|json| serde_json::from_str(json).ok()) {
                        return Ok(Course::Fails(failure));
                    }
                }
                // What it said before its end has come by now.
                None => match ended {
                    Some(status) => return Ok(Course::Ended(status)),
                    None if !self.may_run && began.elapsed() >= patience => return Ok(Course::Late),
                    None => {}
                },
            }
        }
    }

    /// Whether the program of a process that has ended may have run. It may have said so after it was last waited for.
    pub fn may_have_run(&mut self) -> bool {
        loop {
            match self.hear() {
                Ok(Some(_)) => {}
                Ok(None) => return self.may_run,
                Err(error) => {
                    tracing::debug!(%error, "what dormouse restart said last is not heard");
                    return true;
                }
            }
        }
    }

    /// What is said next, if that is soon.
    fn hear(&mut self) -> io::Result<Option<String>> {
        let mut said = vec![0; 2 * LONGEST];
        let len = loop {
            match self.socket.recv(&mut said) {
                Ok(len) => break len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        let said = String::from_utf8_lossy(&said[..len]).into_owned();
        self.may_run |= said.lines().any(|line| line == MAY_RUN);
        Ok(Some(said))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use checkpoint::Kind;
    use std::process::Command;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_said_is_heard_and_an_end_is_noticed() {
        let mut wait = Wait::begin().unwrap();
        let waiting = Waiting::at(wait.variable().1.as_os_str(), Part::Hears).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(matches!(wait.wait(&mut child, Duration::ZERO).unwrap(), Course::Late));
        let failure = Failure::new(Kind::Mismatch, "no\nsuch device");
        waiting.hears("STATUS=on its way").unwrap();
        waiting.hears_of(&failure);
        let Course::Fails(heard) = wait.wait(&mut child, LONG).unwrap() else { panic!("it fails") };
        assert_eq!((heard.kind, heard.message), (failure.kind, failure.message));
        waiting.runs();
        assert!(matches!(wait.wait(&mut child, LONG).unwrap(), Course::Runs));
        child.kill().unwrap();
        assert!(matches!(wait.wait(&mut child, LONG).unwrap(), Course::Ended(_)));
        assert!(!wait.may_have_run());
        // As one does that is ended because it is late.
        waiting.may_run().unwrap();
        assert!(wait.may_have_run());
        let other = Waiting::at(wait.variable().1.as_os_str(), Part::MayMiss).unwrap();
        let (_, name) = wait.variable();
        drop(wait);
        assert!(waiting.may_run().is_err(), "nobody would know");
        other.may_run().unwrap();
        // The same of who comes too late to find anybody.
        assert!(Waiting::named(name.as_os_str(), Part::Hears).is_err());
        assert!(Waiting::named(name.as_os_str(), Part::MayMiss).unwrap().is_none());
    }

    #[test]
    fn who_decides_says_when_and_his_end_is_no_word() {
        let wait = Wait::begin().unwrap();
        let waiting = Waiting::at(wait.variable().1.as_os_str(), Part::Decides).unwrap();
        let another = Waiting::at(wait.variable().1.as_os_str(), Part::Decides).unwrap();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| waiting.may_run());
            std::thread::sleep(2 * LOOK);
            assert!(!running.is_finished());
            wait.lets_run().unwrap();
            running.join().unwrap().unwrap();
        });
        drop(wait);
        assert!(another.may_run().is_err());
    }

    #[test]
    fn a_socket_without_a_file_is_one() {
        let name = format!("dormouse-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        Waiting::at(OsStr::new(&format!("@{name}")), Part::Hears).unwrap().runs();
        let mut said = [0; 64];
        let len = socket.recv(&mut said).unwrap();
        assert_eq!(&said[..len], READY.as_bytes());
        assert!(Waiting::at(OsStr::new("/no/such/socket"), Part::Hears).is_err());
    }
}
