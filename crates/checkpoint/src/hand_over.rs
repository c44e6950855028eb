//! A job that stands still, with its image published, until whoever moves it says where it goes on: in one place, whatever fails.

use crate::admin::{Word, receive};
use crate::error::{Failure, Kind};
use crate::supervisor::Supervisor;
use image::ImageId;
use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How often it is looked whether the job has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Where a job goes on that was handed over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The place.
    pub place: String,
    /// Whether it runs there for sure: whoever moved it may have gone before he knew.
    pub is_certain: bool,
}

/// What becomes of a job that stands still.
pub(crate) struct HandOver {
    words: mpsc::Receiver<Word>,
    /// Why it goes on where it was.
    kept: OnceLock<Failure>,
}

impl HandOver {
    /// As whoever is at the other end says.
    pub(crate) fn heard(mut from: BufReader<UnixStream>) -> io::Result<Self> {
        let (said, words) = mpsc::channel();
        // For as long as an image is written, and a job started elsewhere.
        from.get_ref().set_read_timeout(None)?;
        // It ends with the connection.
        std::thread::Builder::new().spawn(move || {
            while let Ok(Some(word)) = receive(&mut from) {
                if said.send(word).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { words, kept: OnceLock::new() })
    }

    /// Waits until it is known where the job goes on, and says where, if that is elsewhere.
    pub(crate) fn settle(&self, job: &Supervisor, image: ImageId) -> Option<Moved> {
        let settled = self.outcome(job, image);
        // It is settled once.
        settled.map_err(|failure| drop(self.kept.set(failure))).ok()
    }

    /// Why the job goes on where it was, if it does.
    pub(crate) fn into_kept(self) -> Option<Failure> {
        self.kept.into_inner()
    }

    fn outcome(&self, job: &Supervisor, image: ImageId) -> Result<Moved, Failure> {
        let mut starting = None;
        loop {
            match self.words.recv_timeout(LOOK) {
                Ok(Word::Starting { place }) => starting = Some(place),
                Ok(Word::Taken { place }) => return Ok(Moved { place, is_certain: true }),
                Ok(Word::Kept { why }) => return Err(goes_on(image, &why)),
                Err(RecvTimeoutError::Timeout) if job.ends_within(Duration::ZERO) => {
                    let message = format!("the job ended while it stood still; image {image} of it is there");
                    return Err(Failure::new(Kind::Ended, message));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let gone = || goes_on(image, "whoever moved it is gone");
                    return starting.map(|place| Moved { place, is_certain: false }).ok_or_else(gone);
                }
            }
        }
    }
}

fn goes_on(image: ImageId, why: &str) -> Failure {
    let message = format!("the job goes on where it was: {why}; image {image} of it was taken");
    Failure::new(Kind::Failed, message)
}
