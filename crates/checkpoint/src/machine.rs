//! The machine's GPUs as a job's programs may watch them, asked of a short-lived process: whoever asks the driver's NVML holds nodes of the
//! driver open, and initialising it may take a while.

use crate::error::{Failure, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::{Decoder, GREETING_MAX, Greeting, Machine, Wire};

/// How old an answer may be.
const AGE_MAX: Duration = Duration::from_secs(1);
/// A process that has not answered by then is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// What was seen last, and when.
pub struct Watcher {
    device: String,
    last: Mutex<Option<(Instant, Machine)>>,
}

impl Watcher {
    /// Of the machine's `device`: the value of `--device`.
    pub fn new(device: String) -> Self {
        Self { device, last: Mutex::default() }
    }

    /// The GPUs as they were a moment ago. Those who ask at once are answered by one look.
    ///
    /// # Errors
    /// When nobody can tell.
    pub fn look(&self) -> Result<Machine, Failure> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, machine)) = &*last
            && when.elapsed() < AGE_MAX
        {
            return Ok(machine.clone());
        }
        let machine = ask(&self.device)?;
        *last = Some((Instant::now(), machine.clone()));
        Ok(machine)
    }
}

/// Runs `dormouse devices`, which answers as the hello socket does.
fn ask(device: &str) -> Result<Machine, Failure> {
    let fail = |error: io::Error| Failure::of("cannot find out which GPUs there are", &error);
    let mut command = Command::new(std::env::current_exe().map_err(fail)?);
    command.args(["devices", "--greeting", "--device", device]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(fail)?;
    let answer = listen(&mut child).map_err(fail);
    // It has said all it has to say, or too much, or nothing in time.
    let _ = child.kill();
    let _ = child.wait();
    let answer = answer?;
    let mut from = Decoder::new(&answer);
    match Greeting::decode(&mut from).and_then(|greeting| from.finish().map(|()| greeting)) {
        Ok(Greeting::Machine(machine)) => Ok(machine),
        Ok(Greeting::Refused { reason }) => Err(Failure::new(Kind::Unavailable, reason)),
        Ok(_) => Err(fail(io::ErrorKind::InvalidData.into())),
        Err(error) => Err(Failure::of("cannot understand which GPUs there are", &error)),
    }
}

/// What a process says until it closes its standard output.
fn listen(child: &mut Child) -> io::Result<Vec<u8>> {
    let Some(mut output) = child.stdout.take() else { return Ok(Vec::new()) };
    let (until, mut said, mut buffer) = (Instant::now() + PATIENCE, Vec::new(), [0; 4096]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match output.read(&mut buffer)? {
            0 => return Ok(said),
            count if said.len() + count > GREETING_MAX => return Err(io::ErrorKind::FileTooLarge.into()),
            count => said.extend_from_slice(&buffer[..count]),
        }
    }
}
