//! `libdormouse`: a program asks for its own checkpoint, says where one suits it, and hears that it has been restarted
//! (`docs/self-checkpoint.md`); or says what of its memory need not be saved. What C programs see is in `include/dormouse.h`; this is the same for Rust, and what the Python package is made of.
//!
//! It is linked into programs that also run without Dormouse: there every call answers [`Refusal::NotHere`] at once. No call needs CUDA, and
//! none keeps anything open that a checkpoint could not hold: whoever asks gets a ticket, hangs up, and looks on the job's board.

mod callbacks;
mod exclude;
mod ffi;
mod job;
mod points;

#[doc(hidden)]
pub use ffi::layout;

pub use callbacks::{Callback, Event, Registration, on};
pub use exclude::{exclude, include};
pub use points::{convenient_point, is_wanted};

use callbacks::Moment;
use job::Job;
use std::time::Duration;
use transport::TransportError;
use transport::board::Outcome;
use wire::Question;

/// The first and the longest pause between two looks at the board.
const NAPS: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(2));

/// How a checkpoint is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Go on as soon as the checkpoint is taken, while its image is being written.
    pub no_wait: bool,
    /// End the job when the image is safe: who asks goes on only in the restarted job.
    pub stop: bool,
}

/// What has become of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The image is there and safe; this is the run that goes on.
    Published {
        /// Its id.
        image: String,
    },
    /// The checkpoint is taken and its image is being written; [`wait`] tells what becomes of it.
    Taken {
        /// The number to ask for.
        ticket: u64,
    },
    /// This is the run that was restarted from it.
    Restarted {
        /// The image's id.
        image: String,
    },
}

/// Why there is no checkpoint. The program goes on as if it had not asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The program does not run under Dormouse, or under one that does not answer such questions.
    NotHere,
    /// It was tried.
    Failed {
        /// The exit code that `dormouse checkpoint` would have had.
        code: u32,
        /// Why, for people.
        text: String,
    },
}

impl Refusal {
    /// Exit codes of `dormouse checkpoint`.
    const FAILED: u32 = 1;
    const USAGE: u32 = 2;
    const BUSY: u32 = 4;
    const REFUSED: u32 = 6;

    fn failed(text: impl Into<String>) -> Self {
        Self::Failed { code: Self::FAILED, text: text.into() }
    }

    fn usage(text: impl Into<String>) -> Self {
        Self::Failed { code: Self::USAGE, text: text.into() }
    }

    fn refused(text: impl Into<String>) -> Self {
        Self::Failed { code: Self::REFUSED, text: text.into() }
    }

    fn busy(text: impl Into<String>) -> Self {
        Self::Failed { code: Self::BUSY, text: text.into() }
    }

    fn of(error: TransportError) -> Self {
        match error {
            // The supervisor's own words: of these, the former come of another version.
            TransportError::Refused(reason) => Self::failed(reason),
            TransportError::NotAsked { code, reason } => Self::Failed { code, text: reason },
            other => Self::failed(other.to_string()),
        }
    }
}

/// Whether the program runs under a Dormouse that answers.
#[must_use]
pub fn is_available() -> bool {
    job::here().is_some()
}

/// Takes a checkpoint of the whole job, and waits until its image is safe or there is none.
///
/// # Errors
/// [`Refusal`].
pub fn checkpoint(options: Options) -> Result<Answer, Refusal> {
    let job = job::here().ok_or(Refusal::NotHere)?;
    callbacks::around(|| {
        let ticket = job.ask(Question::Now { stop: options.stop }).map_err(Refusal::of)?;
        // One that is not asked to go on before the image is safe is not let go on either where the job ends then.
        answer(job, ticket, options.no_wait && !options.stop)
            .and_then(|answer| answer.ok_or_else(|| Refusal::failed("no checkpoint was wanted")))
    })
}

/// Waits for what becomes of a checkpoint that was [`Answer::Taken`].
///
/// # Errors
/// [`Refusal`]; also when so many others were taken since that it is forgotten.
pub fn wait(ticket: u64) -> Result<Answer, Refusal> {
    let job = job::here().ok_or(Refusal::NotHere)?;
    answer(job, ticket, false)
        .and_then(|answer| answer.ok_or_else(|| Refusal::failed("no checkpoint was wanted")))
}

/// How often this run has been restarted: 0 where it has not, or does not run under Dormouse.
#[must_use]
pub fn restarts() -> u32 {
    job::here().map_or(0, |job| job.board.restarts())
}

/// The image that this run was restarted from, if it was.
#[must_use]
pub fn image() -> Option<String> {
    job::here()?.board.image()
}

/// Waits for what becomes of a ticket; `None` where no checkpoint was wanted.
fn answer(job: &Job, ticket: u64, no_wait: bool) -> Result<Option<Answer>, Refusal> {
    let mut nap = NAPS.0;
    loop {
        // In the middle of this the process may be restarted: the board says so then.
        match job.board.outcome(ticket) {
            Outcome::Taken if no_wait => return Ok(Some(Answer::Taken { ticket })),
            Outcome::Pending | Outcome::Taken => {}
            Outcome::Published { image } => return Ok(Some(Answer::Published { image })),
            Outcome::Restarted { image } => return Ok(Some(Answer::Restarted { image })),
            Outcome::Failed { code, text } => return Err(Refusal::Failed { code, text }),
            Outcome::Unwanted => return Ok(None),
            Outcome::Forgotten => {
                return Err(Refusal::failed(
                    "so many have asked since that what became of this is forgotten",
                ));
            }
        }
        std::thread::sleep(nap);
        nap = (nap * 5 / 4).min(NAPS.1);
    }
}

/// What callbacks are to hear of an end.
fn moment(ended: &Result<Answer, Refusal>) -> Moment {
    match ended {
        Ok(Answer::Restarted { .. }) => Moment::Restarted,
        _ => Moment::Ended,
    }
}
