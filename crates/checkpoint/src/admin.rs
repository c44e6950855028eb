//! What is asked of a running job's supervisor, and how it answers: one JSON object a line over `admin.sock`.

use crate::error::{Failure, Kind};
use crate::gpus;
use image::Compress;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use store::Access;

/// The longest line either side reads.
const LINE_MAX: u64 = 1 << 20;
/// After how long a silence a supervisor may be suspended.
const SILENCE: Duration = Duration::from_secs(10);

/// What can be asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub enum Request {
    /// Take a checkpoint.
    Checkpoint(CheckpointOptions),
    /// Take a checkpoint of a job that is to go on elsewhere: it stands still from then on, until a [`Word`] says what becomes of it.
    HandOver(CheckpointOptions),
    /// Have the job stand still and give up its devices.
    Suspend(SuspendOptions),
    /// Have a job that was suspended go on.
    Resume(ResumeOptions),
}

/// What whoever moves a job says while it stands still, on the connection on which he asked for that. If he is gone before he has said
/// anything, the job goes on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "word")]
pub enum Word {
    /// It is about to be started there, and may run there from now on: if nothing more is heard, it must not go on here.
    Starting {
        /// Where.
        place: String,
    },
    /// It goes on there, and ends here.
    Taken {
        /// Where.
        place: String,
    },
    /// It does not go on there, and does here.
    Kept {
        /// Why.
        why: String,
    },
}

/// How to suspend a job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SuspendOptions {
    /// Keep device memory beside the images in the job's store, instead of in this machine's memory.
    #[serde(default)]
    pub to_store: bool,
    /// How long to wait for the device to get idle before the gate reopens, ms.
    pub gate_deadline_ms: u64,
    /// How often to try again, with growing pauses, when it did not.
    pub retries: u32,
}

/// How to have a job go on.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ResumeOptions {
    /// The GPUs that it has from then on, if not those that it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<gpus::List>,
}

/// How to take a checkpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CheckpointOptions {
    /// End the job when the image is published.
    pub stop: bool,
    /// How long to wait for the device to get idle before the gate reopens, ms.
    pub gate_deadline_ms: u64,
    /// How often to try again, with growing pauses, when it did not.
    pub retries: u32,
    /// How to compress chunks.
    pub compress: Compress,
    /// How much memory writing takes at most, bytes, if that was said.
    #[serde(default)]
    pub memory: Option<u64>,
    /// How many threads hash and compress at most, if that was said.
    #[serde(default)]
    pub threads: Option<NonZeroUsize>,
    /// Read all device memory, also what its hash says has not changed since the last checkpoint.
    #[serde(default)]
    pub paranoid: bool,
    /// The store, a folder by its absolute path; without one, the job's own. Without a key, those of the job's own are tried.
    #[serde(default)]
    pub store: Option<Access>,
    /// How long to wait for a point that suits the program, ms, if it comes to such; as the job was told, if nothing is said.
    #[serde(default)]
    pub point_wait_ms: Option<u64>,
    /// Whether whoever asks removes the image soon: it is not what the job is continued from.
    #[serde(default)]
    pub passing: bool,
    /// Whether nobody has asked for it: it was time for one. What comes from outside was asked for.
    #[serde(skip)]
    pub regular: bool,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self {
            stop: false,
            gate_deadline_ms: 2000,
            retries: 3,
            compress: Compress::default(),
            memory: None,
            threads: None,
            paranoid: false,
            store: None,
            point_wait_ms: None,
            passing: false,
            regular: false,
        }
    }
}

/// What comes back, until [`Event::is_last`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// A step of the checkpoint began.
    Step {
        /// Its name, for people.
        step: String,
    },
    /// The gate reopened, since the job did not get idle; it is closed again after a pause.
    Retry {
        /// Which further attempt this is, from 1.
        number: u32,
        /// How many there are at most.
        of: u32,
        /// What held the job, for people.
        held_by: String,
    },
    /// This image is being written, of a job that is handed over: what is whole of it can go ahead.
    Begun {
        /// Its id.
        image: String,
    },
    /// Bytes captured so far.
    Progress {
        /// Done.
        done: u64,
        /// Of how many; 0 when not known yet.
        total: u64,
    },
    /// The image is published.
    Published(Report),
    /// The same, and the job stands still until a [`Word`] says what becomes of it.
    Standing {
        /// About the image.
        report: Report,
        /// For how long it has stood still already, from closing the gate on, ms.
        since_ms: f64,
    },
    /// The job is suspended.
    Suspended(SuspendReport),
    /// It goes on.
    Resumed(ResumeReport),
    /// What was asked for did not happen.
    Failed(Failure),
}

impl Event {
    /// Whether nothing follows it.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Published(_) | Self::Suspended(_) | Self::Resumed(_) | Self::Failed(_))
    }
}

/// About a job that is suspended; times in milliseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SuspendReport {
    /// The job.
    pub job: String,
    /// How often the gate had to reopen before.
    pub retries: u32,
    /// From the request until nothing of it was on a device.
    pub total_ms: f64,
    /// Of it, closing the gate and waiting for the device.
    pub drain_ms: f64,
    /// Of it, copying device memory, and trying that it can be had again.
    pub copy_ms: f64,
    /// Device memory, zeros included.
    pub device_bytes: u64,
    /// What it takes of the host's memory.
    pub host_bytes: u64,
    /// Or of the job's store.
    pub store_bytes: u64,
    /// What may not come back.
    pub warnings: Vec<String>,
}

/// About a job that goes on; times in milliseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ResumeReport {
    /// The job.
    pub job: String,
    /// How long it was suspended.
    pub asleep_ms: f64,
    /// From the request until it went on.
    pub total_ms: f64,
    /// How many of its processes have a GPU session again.
    pub sessions: usize,
    /// The GPUs that it has; without a list, all of the machine.
    pub gpus: Option<String>,
}

/// About a published image; times in milliseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The image.
    pub image: String,
    /// Its job.
    pub job: String,
    /// How often the gate had to reopen before.
    pub retries: u32,
    /// From the request to the published image.
    pub total_ms: f64,
    /// Closing the gate and waiting for the device.
    pub drain_ms: f64,
    /// The longest any thread was stopped: from closing the gate to opening it.
    pub stall_ms: f64,
    /// Of it, capturing device memory.
    pub device_ms: f64,
    /// Of it, capturing pinned memory and the rest of what application and server share.
    pub shared_ms: f64,
    /// Of it, CRIU's freeze and dump.
    pub host_ms: f64,
    /// From then on (when the job is to stop: from when it was captured) to the published image.
    #[serde(default)]
    pub write_ms: f64,
    /// Whether the addresses were rehearsed.
    pub rehearsed: bool,
    /// Bytes that the image stands for, zeros and holes of files included.
    pub bytes: u64,
    /// Of them, those that are not zero.
    pub data_bytes: u64,
    /// Launches of marked kernels that it has half-way.
    #[serde(default)]
    pub half_way: u64,
    /// Device memory in the image, zeros included.
    pub device_bytes: u64,
    /// Of that, what was zero, or as it was at the last checkpoint, by the device's hash: it was neither copied nor read.
    #[serde(default)]
    pub unchanged: u64,
    /// Of that, what the program has excluded: it was neither copied nor read.
    #[serde(default)]
    pub device_excluded: u64,
    /// Of that, what was copied on the device, and written when the job had gone on.
    #[serde(default)]
    pub copied_on_device: u64,
    /// Of that, what was copied to the host's memory, and written when the job had gone on. What was copied nowhere was written while it stood
    /// still.
    #[serde(default)]
    pub copied_on_host: u64,
    /// Private memory of the job's processes that was read from copies of them when the job had gone on.
    #[serde(default)]
    pub private_forked: u64,
    /// Private memory that was copied while the job stood still. What is in neither CRIU wrote then.
    #[serde(default)]
    pub private_copied: u64,
    /// Of both, that of which CRIU has not heard: it costs nothing while the job stands still but to be forked or copied.
    #[serde(default)]
    pub private_withheld: u64,
    /// Private memory that the program has excluded, and that is not in the image.
    #[serde(default)]
    pub private_excluded: u64,
    /// Shared memory without a name, deleted files among it, that was copied while the job stood still.
    #[serde(default)]
    pub shared_copied: u64,
    /// Bytes written to the store, compressed.
    pub written: u64,
    /// What a restart of this image will not bring back.
    pub warnings: Vec<String>,
}

/// Sends one line.
///
/// # Errors
/// As the stream's.
pub fn send<T: Serialize>(mut to: impl Write, message: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Receives one line; `None` at the end.
///
/// # Errors
/// As the stream's, or when the line is too long or not a message.
pub fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(LINE_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if !line.ends_with(b"\n") {
        let what = format!("a line has no end after {} bytes", line.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

/// Asks a job's supervisor and passes on each event; answers with the last.
///
/// # Errors
/// [`Kind::NotFound`] when nobody listens, [`Kind::Ended`] when the supervisor ends before it has answered, [`Kind::Failed`] when it
/// is suspended.
pub fn ask(socket: &Path, request: &Request, each: impl FnMut(&Event)) -> Result<Event, Failure> {
    Asked::of(socket, request)?.until(Event::is_last, each)
}

/// A supervisor that has been asked for something.
#[derive(Debug)]
pub struct Asked {
    from: BufReader<UnixStream>,
    /// The supervisor, if that is known.
    listener: Option<i32>,
    /// Whether it has said anything. The first event comes at once; what is asked of one that is stopped before it is forgotten.
    begun: bool,
}

impl Asked {
    /// Asks.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when nobody listens.
    pub fn of(socket: &Path, request: &Request) -> Result<Self, Failure> {
        let stream = UnixStream::connect(socket).map_err(|error| {
            let message = format!(
                "the job has just ended, or has only begun: nobody answers at {}: {error}",
                socket.display()
            );
            Failure::new(Kind::NotFound, message)
        })?;
        send(&stream, request).map_err(no_answer)?;
        let listener = rustix::net::sockopt::socket_peercred(&stream).ok();
        let listener = listener.map(|peer| peer.pid.as_raw_nonzero().get());
        Ok(Self { from: BufReader::new(stream), listener, begun: false })
    }

    /// Says what becomes of a job that stands still.
    ///
    /// # Errors
    /// [`Kind::Ended`] when nobody listens any more.
    pub fn say(&self, word: &Word) -> Result<(), Failure> {
        send(self.from.get_ref(), word).map_err(no_answer)
    }

    /// Passes on each event; answers with the first that is wanted.
    ///
    /// # Errors
    /// [`Kind::Ended`] when the supervisor ends before that, [`Kind::Failed`] when it is suspended.
    pub fn until(
        &mut self,
        is_wanted: impl Fn(&Event) -> bool,
        mut each: impl FnMut(&Event),
    ) -> Result<Event, Failure> {
        loop {
            let event = self.next(&mut each)?;
            each(&event);
            if is_wanted(&event) || event.is_last() {
                return Ok(event);
            }
        }
    }

    fn next(&mut self, each: &mut impl FnMut(&Event)) -> Result<Event, Failure> {
        let patience = |from: &BufReader<UnixStream>, patience| {
            from.get_ref().set_read_timeout(patience).map_err(no_answer)
        };
        patience(&self.from, Some(SILENCE))?;
        let mut told = false;
        while let Err(error) = self.from.fill_buf() {
            match (error.kind(), self.listener) {
                (io::ErrorKind::WouldBlock, Some(pid)) if !told && is_stopped(pid) => {
                    if !self.begun {
                        return Err(suspended(pid, "ask again"));
                    }
                    told = true;
                    each(&Event::Step { step: suspended(pid, "the checkpoint goes on").message });
                }
                (io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted, _) => {}
                _ => return Err(no_answer(error)),
            }
        }
        // What has begun to come comes whole.
        patience(&self.from, None)?;
        self.begun = true;
        receive::<Event>(&mut self.from).map_err(no_answer)?.ok_or_else(ended)
    }
}

fn ended() -> Failure {
    Failure::new(
        Kind::Ended,
        "the job's supervisor ended before it answered, so what came of this is not known: `dormouse ls` has its images",
    )
}

fn no_answer(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ended(),
        _ => Failure::of("the job's supervisor does not answer", &error),
    }
}

/// Whether a process is stopped, as by SIGTSTP.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name comes in parentheses and may hold anything.
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('T'))
}

fn suspended(pid: i32, then: &str) -> Failure {
    let how = format!("let it go on with `kill -CONT {pid}`, and {then}");
    Failure::new(Kind::Failed, format!("the job's supervisor, process {pid}, is stopped: {how}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_told_from_one_that_runs() {
        use rustix::process::{Pid, Signal, kill_process};
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let becomes = |stopped: bool| {
            let until = std::time::Instant::now() + Duration::from_secs(30);
            while is_stopped(pid.as_raw_nonzero().get()) != stopped {
                assert!(std::time::Instant::now() < until, "it does not become so: {stopped}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        becomes(false);
        kill_process(pid, Signal::STOP).unwrap();
        becomes(true);
        kill_process(pid, Signal::CONT).unwrap();
        becomes(false);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn messages_are_lines() {
        let mut buffer = Vec::new();
        let request = Request::Checkpoint(CheckpointOptions { stop: true, ..Default::default() });
        send(&mut buffer, &request).unwrap();
        send(&mut buffer, &Event::Step { step: "writing".into() }).unwrap();
        let mut from = &buffer[..];
        assert_eq!(receive::<Request>(&mut from).unwrap(), Some(request));
        assert_eq!(receive::<Event>(&mut from).unwrap(), Some(Event::Step { step: "writing".into() }));
        assert_eq!(receive::<Request>(&mut from).unwrap(), None);
        assert!(receive::<Request>(&mut &b"nonsense\n"[..]).is_err());
        // A number that goes on beyond the longest line is not taken for a shorter one.
        let long = vec![b'1'; LINE_MAX as usize + 1];
        assert_eq!(receive::<u64>(&mut &long[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(receive::<u64>(&mut &b"12"[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_supervisor_that_goes_away_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let request = Request::Checkpoint(CheckpointOptions::default());
        assert_eq!(ask(&path, &request, |_| {}).unwrap_err().kind, Kind::NotFound);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let serve = std::thread::spawn(move || drop(listener.accept()));
        let failure = ask(&path, &request, |_| {}).unwrap_err();
        assert!(matches!(failure.kind, Kind::Ended | Kind::Failed), "{failure}");
        serve.join().unwrap();
    }
}
