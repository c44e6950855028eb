//! What an image relies on outside the store becomes durable while the image is written.

use super::LOOK;
use crate::error::{Failure, no_thread};
use std::io;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// How often it is looked whether they are there.
const PAUSE: Duration = Duration::from_millis(3);

/// A job's files on their way to disk. Dropped, they go on, and nobody hears of it.
#[must_use = "an image must not be published before they are there"]
pub struct Syncing(JoinHandle<io::Result<()>>);

impl Syncing {
    /// Has `sync` make the files durable. Best when the job goes on: it takes as long as the disk takes.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn begin(sync: impl FnOnce() -> io::Result<()> + Send + 'static) -> Result<Self, Failure> {
        Builder::new().name("files".to_owned()).spawn(sync).map(Self).map_err(|error| no_thread(&error))
    }

    /// Waits for them, and says so if that takes any time; until `still_wanted` fails, which is asked now and then: a server may never answer.
    ///
    /// # Errors
    /// Those of `still_wanted`; when not all are durable. Either way the image must not be published.
    pub fn finish(
        self,
        waiting: impl FnOnce(),
        mut still_wanted: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.0.is_finished() {
            waiting();
        }
        let mut looked = Instant::now();
        while !self.0.is_finished() {
            if looked.elapsed() >= LOOK {
                still_wanted()?;
                looked = Instant::now();
            }
            sleep(PAUSE);
        }
        let synced = self.0.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        synced.map_err(|error| Failure::of("there is no image", &error))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A sync that waits until it is told to go on, and tells when it is over.
    fn held() -> (Sender<()>, Receiver<()>, impl FnOnce() -> io::Result<()> + Send) {
        let (go_on, waits) = channel();
        let (done, is_done) = channel();
        let sync = move || {
            waits.recv().map_err(io::Error::other)?;
            done.send(()).map_err(io::Error::other)
        };
        (go_on, is_done, sync)
    }

    #[test]
    fn files_that_do_not_become_durable_are_a_failure() {
        let failing = || Err(io::Error::other("file loss.log: No space left on device"));
        let failure = Syncing::begin(failing).unwrap().finish(|| (), || Ok(())).unwrap_err();
        assert_eq!(failure.kind, Kind::Failed);
        assert_eq!(failure.message, "there is no image: file loss.log: No space left on device");
    }

    #[test]
    fn files_that_take_longer_are_waited_for_and_nobody_waits_before() {
        let (go_on, is_done, sync) = held();
        let syncing = Syncing::begin(sync).unwrap();
        syncing.finish(|| go_on.send(()).unwrap(), || Ok(())).unwrap();
        is_done.try_recv().unwrap();
    }

    #[test]
    fn files_that_never_get_there_are_waited_for_as_long_as_somebody_wants_them() {
        let (go_on, is_done, sync) = held();
        let mut looks = 0;
        let still_wanted = || {
            looks += 1;
            if looks < 2 { Ok(()) } else { Err(Failure::new(Kind::Ended, "the job ended")) }
        };
        let failure = Syncing::begin(sync).unwrap().finish(|| (), still_wanted).unwrap_err();
        assert_eq!((failure.kind, looks), (Kind::Ended, 2));
        // It goes on by itself.
        go_on.send(()).unwrap();
        is_done.recv().unwrap();
    }
}
