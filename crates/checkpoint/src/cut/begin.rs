//! What a checkpoint begins with: a store that answers, a draft in it, and who writes into that.

use crate::admin::{CheckpointOptions, Event};
use crate::error::{Failure, Kind, no_thread};
use crate::folder::write_failure;
use crate::hand_over::HandOver;
use crate::sessions::panicked;
use crate::stores::open_store_for_job;
use crate::supervisor::{Supervisor, ended_before};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;
use store::{Access, ChunkWriter, Draft, Store, WriteOptions};

/// How often it is looked whether somebody still waits for it.
const LOOK: Duration = Duration::from_millis(200);

/// Opens the store at `at` and begins an image there. A store may take long to answer, so this is left to a thread, of which nobody waits for the
/// end when the job has ended, or whoever asked is gone: what it has begun by then it takes back by itself.
///
/// # Errors
/// Those of the store; [`Kind::Ended`], or [`Kind::Failed`] where nobody wants the checkpoint any more.
pub fn begin(
    job: &Supervisor,
    at: &Access,
    options: WriteOptions,
    (events, unwatched): (&Sender<Event>, Unwatched),
) -> Result<(Store, Draft, ChunkWriter), Failure> {
    let (begun, is_begun) = channel();
    let at = at.clone();
    let beginning = Builder::new().spawn(move || {
        // Dropped, where nobody waits for it any more.
        let _ = begun.send(begin_at(&at, &options));
    });
    beginning.map_err(|error| no_thread(&error))?;
    loop {
        match is_begun.recv_timeout(LOOK) {
            Ok(begun) => return begun,
            Err(RecvTimeoutError::Disconnected) => return Err(panicked()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if job.ends_within(Duration::ZERO) {
            return Err(ended_before());
        }
        unwatched.still_wanted(events, "waiting for the store")?;
    }
}

/// What becomes of what somebody asked for when he is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwatched {
    /// It is given up, as long as that disturbs nobody.
    IsGivenUp,
    /// It goes on: a job that somebody wanted stopped had better not be killed without its image because he was killed first.
    GoesOn,
}

impl Unwatched {
    /// Of a checkpoint.
    pub fn checkpoint(options: &CheckpointOptions, hand_over: Option<&HandOver>) -> Self {
        if options.stop && hand_over.is_none() { Self::GoesOn } else { Self::IsGivenUp }
    }

    /// Tells whoever asked what happens.
    ///
    /// # Errors
    /// [`Kind::Failed`] where he is gone, and it is given up.
    pub fn still_wanted(self, events: &Sender<Event>, step: &str) -> Result<(), Failure> {
        match events.send(Event::Step { step: step.to_owned() }) {
            Err(_) if self == Self::IsGivenUp => {
                Err(Failure::new(Kind::Failed, "whoever asked for this does not wait for it any more"))
            }
            _ => Ok(()),
        }
    }
}

fn begin_at(at: &Access, options: &WriteOptions) -> Result<(Store, Draft, ChunkWriter), Failure> {
    let store = open_store_for_job(at)?;
    let draft = store.begin().map_err(write_failure)?;
    // Made before the gate closes: it reads the store's indexes.
    let writer = draft.writer(options).map_err(write_failure)?;
    Ok((store, draft, writer))
}
