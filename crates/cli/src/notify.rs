//! Telling whoever started this process how it gets on, as `sd_notify(3)` has it: a socket in `NOTIFY_SOCKET`, and lines of `NAME=value`.

use checkpoint::Failure;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// Where the socket is named.
const VARIABLE: &str = "NOTIFY_SOCKET";
/// What is said when it runs.
const READY: &str = "READY=1";
/// What comes before a failure in JSON; names of one's own begin with `X_`.
const FAILURE: &str = "X_DORMOUSE_FAILURE=";
/// The longest failure that is told whole, bytes.
const LONGEST: usize = 64 << 10;
/// How often it is looked whether the process has ended.
const LOOK: Duration = Duration::from_millis(50);

/// Somebody who waits for this process.
#[derive(Clone, Debug)]
pub struct Waiting(OsString);

impl Waiting {
    /// Whoever the environment says, if somebody does.
    pub fn of_environment() -> Option<Self> {
        std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(Self)
    }

    /// The program goes on.
    pub fn hears_that_it_runs(&self) {
        self.hears(READY);
    }

    /// It does not.
    pub fn hears_of(&self, failure: &Failure) {
        let status = format!("STATUS={}", failure.message.replace('\n', " "));
        match serde_json::to_string(failure) {
            Ok(json) if json.len() < LONGEST => self.hears(&format!("{status}\n{FAILURE}{json}")),
            _ => self.hears(&status),
        }
    }

    /// Who does not listen any more need not know.
    fn hears(&self, what: &str) {
        let told = UnixDatagram::unbound().and_then(|socket| match self.0.as_bytes().strip_prefix(b"@") {
            Some(name) => socket.send_to_addr(what.as_bytes(), &SocketAddr::from_abstract_name(name)?),
            None => socket.send_to(what.as_bytes(), PathBuf::from(&self.0)),
        });
        if let Err(error) = told {
            tracing::debug!("{VARIABLE}: {error}");
        }
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
}

/// Where a process is waited for.
pub struct Wait {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Wait {
    /// Begins to listen.
    pub fn begin() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = UnixDatagram::bind(folder.path().join("notify"))?;
        socket.set_read_timeout(Some(LOOK))?;
        Ok(Self { socket, folder })
    }

    /// What the process has to have in its environment.
    pub fn variable(&self) -> (&'static str, PathBuf) {
        (VARIABLE, self.folder.path().join("notify"))
    }

    /// Waits until the process says how it gets on, or has ended.
    pub fn wait(&self, child: &mut Child) -> io::Result<Course> {
        let mut said = vec![0; 2 * LONGEST];
        loop {
            let ended = child.try_wait()?;
            match self.socket.recv(&mut said) {
                Ok(len) => {
                    let said = String::from_utf8_lossy(&said[..len]);
                    if said.lines().any(|line| line == READY) {
                        return Ok(Course::Runs);
                    }
                    let failure = said.lines().find_map(|line| line.strip_prefix(FAILURE));
                    if let Some(failure) = failure.and_then(|json| serde_json::from_str(json).ok()) {
                        return Ok(Course::Fails(failure));
                    }
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    // What it said before its end has come by now.
                    if let Some(status) = ended {
                        return Ok(Course::Ended(status));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use checkpoint::Kind;
    use std::process::Command;

    #[test]
    fn what_is_said_is_heard_and_an_end_is_noticed() {
        let wait = Wait::begin().unwrap();
        let waiting = Waiting(wait.variable().1.into_os_string());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        waiting.hears_that_it_runs();
        assert!(matches!(wait.wait(&mut child).unwrap(), Course::Runs));
        let failure = Failure::new(Kind::Mismatch, "no\nsuch device");
        waiting.hears("STATUS=on its way");
        waiting.hears_of(&failure);
        let Course::Fails(heard) = wait.wait(&mut child).unwrap() else { panic!("it fails") };
        assert_eq!((heard.kind, heard.message), (failure.kind, failure.message));
        child.kill().unwrap();
        assert!(matches!(wait.wait(&mut child).unwrap(), Course::Ended(_)));
    }

    #[test]
    fn a_socket_without_a_file_is_one() {
        let name = format!("dormouse-test-{}", std::process::id());
        let socket =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
        Waiting(format!("@{name}").into()).hears_that_it_runs();
        let mut said = [0; 64];
        let len = socket.recv(&mut said).unwrap();
        assert_eq!(&said[..len], READY.as_bytes());
    }
}
