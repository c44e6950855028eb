//! The machine's GPUs as a job's programs may watch them, asked of a short-lived process: whoever asks the driver's NVML holds
//! nodes of the driver open, and initialising it may take a while.

use crate::error::{Failure, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::Builder;
use std::time::{Duration, Instant};
use wire::{Decoder, GREETING_MAX, Greeting, Machine, Wire};

/// An answer older than this is looked up again, while it is still given.
const FRESH: Duration = Duration::from_secs(1);
/// One older than this is not given any more.
const AGE_MAX: Duration = Duration::from_secs(3);
/// A process that has not answered by then is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long its end is waited for.
const GRACE: Duration = Duration::from_secs(2);

/// What was seen last, and when. Whoever asks often does not wait, and so stands in no checkpoint's way.
pub struct Watcher {
    device: String,
    last: Mutex<Option<(Instant, Machine)>>,
    /// Held while somebody looks.
    looking: Mutex<()>,
    /// Processes that were killed and have not ended: while there is one, no other is begun.
    lingering: Arc<AtomicU32>,
}

impl Watcher {
    /// Of the machine's `device`: the value of `--device`.
    pub fn new(device: String) -> Arc<Self> {
        Arc::new(Self {
            device,
            last: Mutex::default(),
            looking: Mutex::default(),
            lingering: Arc::default(),
        })
    }

    /// The GPUs as they were a moment ago. Those who ask at once are answered by one look.
    ///
    /// # Errors
    /// When nobody can tell.
    pub fn look(self: &Arc<Self>) -> Result<Machine, Failure> {
        if let Some((age, machine)) = self.last() {
            if age >= FRESH && age < AGE_MAX {
                let this = Arc::clone(self);
                // Where there is no thread the next one asks.
                let _ = Builder::new().spawn(move || {
                    if let Ok(_looking) = this.looking.try_lock()
                        && let Err(failure) = this.ask()
                    {
                        tracing::warn!("{failure}");
                    }
                });
            }
            if age < AGE_MAX {
                return Ok(machine);
            }
        }
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        match self.last() {
            Some((age, machine)) if age < FRESH => Ok(machine),
            _ => self.ask(),
        }
    }

    fn last(&self) -> Option<(Duration, Machine)> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|(when, machine)| (when.elapsed(), machine.clone()))
    }

    fn ask(&self) -> Result<Machine, Failure> {
        let machine = ask(&self.device, &self.lingering)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((Instant::now(), machine.clone()));
        Ok(machine)
    }
}

/// Runs `dormouse devices`, which answers as the hello socket does.
fn ask(device: &str, lingering: &Arc<AtomicU32>) -> Result<Machine, Failure> {
    if lingering.load(Ordering::Acquire) > 0 {
        let what = "a process that was asked which GPUs there are does not end; is one of them gone?";
        return Err(Failure::new(Kind::Unavailable, what));
    }
    let fail = |error: io::Error| Failure::of("cannot find out which GPUs there are", &error);
    let mut command = Command::new(std::env::current_exe().map_err(fail)?);
    command.args(["devices", "--greeting", "--device", device]);
    // A group of its own: what a terminal sends to the job's foreground group is not for it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(fail)?;
    let answer = listen(&mut child).map_err(fail);
    // It has said all it has to say, or too much, or nothing in time.
    let _ = child.kill();
    see_off(child, lingering, GRACE);
    understand(&answer?)
}

/// Waits for the end of a killed process, but not for ever: one that sits in a driver whose GPU is gone counts as lingering until it
/// ends.
fn see_off(mut child: Child, lingering: &Arc<AtomicU32>, grace: Duration) {
    let lingering = Arc::clone(lingering);
    let (gone, ended) = mpsc::channel();
    lingering.fetch_add(1, Ordering::AcqRel);
    let waiting = Arc::clone(&lingering);
    let waited = Builder::new().spawn(move || {
        let _ = child.wait();
        waiting.fetch_sub(1, Ordering::AcqRel);
        let _ = gone.send(());
    });
    if waited.is_err() {
        lingering.fetch_sub(1, Ordering::AcqRel);
        return;
    }
    let _ = ended.recv_timeout(grace);
}

fn understand(answer: &[u8]) -> Result<Machine, Failure> {
    const WHAT: &str = "cannot understand which GPUs there are";
    let mut from = Decoder::new(answer);
    match Greeting::decode(&mut from).and_then(|greeting| from.finish().map(|()| greeting)) {
        Ok(Greeting::Machine(machine)) => Ok(machine),
        Ok(Greeting::Refused { reason }) => Err(Failure::new(Kind::Unavailable, reason)),
        Ok(_) => Err(Failure::new(Kind::Failed, WHAT)),
        Err(error) => Err(Failure::of(WHAT, &error)),
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use wire::Encoder;

    fn says(script: &str) -> io::Result<Vec<u8>> {
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let said = listen(&mut child);
        let _ = child.kill();
        child.wait().unwrap();
        said
    }

    #[test]
    fn what_is_said_is_bounded() {
        assert_eq!(says("printf one; sleep 0.1; printf two").unwrap(), b"onetwo");
        let endless = says("exec cat /dev/zero").unwrap_err();
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn nobody_waits_for_a_process_that_does_not_end() {
        let watcher = Watcher::new("soft".to_owned());
        let begun = Instant::now();
        let mut command = Command::new("sh");
        let child = command.args(["-c", "read line"]).stdin(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let held = child.stdin.take();
        see_off(child, &watcher.lingering, Duration::from_millis(20));
        let failure = watcher.look().unwrap_err();
        assert!(failure.message.contains("does not end"), "{failure}");
        assert!(begun.elapsed() < GRACE, "{:?}", begun.elapsed());
        drop(held);
        while watcher.lingering.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        let mut command = Command::new("true");
        see_off(command.spawn().unwrap(), &watcher.lingering, Duration::from_secs(60));
        assert_eq!(watcher.lingering.load(Ordering::Acquire), 0);
    }

    #[test]
    fn only_who_waits_too_long_waits() {
        let watcher = Watcher::new("soft".to_owned());
        let seen = |age, driver: &str| {
            let machine = Machine { driver: driver.to_owned(), ..Machine::default() };
            *watcher.last.lock().unwrap() = Instant::now().checked_sub(age).map(|when| (when, machine));
        };
        // This program is no `dormouse`, so that asking it fails; what is known is told without asking, while it may be.
        for age in [Duration::ZERO, FRESH, AGE_MAX - Duration::from_millis(500)] {
            seen(age, "known");
            assert_eq!(watcher.look().unwrap().driver, "known");
        }
        seen(AGE_MAX, "too old");
        assert!(watcher.look().is_err());
    }

    #[test]
    fn answers_are_understood() {
        let said = |greeting: &Greeting| {
            let mut bytes = Vec::new();
            greeting.encode(&mut Encoder::new(&mut bytes));
            bytes
        };
        let machine = Machine { driver: "1".into(), ..Machine::default() };
        assert_eq!(understand(&said(&Greeting::Machine(machine.clone()))).unwrap(), machine);
        let refused = understand(&said(&Greeting::Refused { reason: "no driver".into() })).unwrap_err();
        assert_eq!((refused.kind, refused.message.as_str()), (Kind::Unavailable, "no driver"));
        for odd in [said(&Greeting::Welcome { session: 1 }), b"DORM".to_vec(), Vec::new()] {
            assert_eq!(understand(&odd).unwrap_err().kind, Kind::Failed, "{odd:?}");
        }
    }
}
