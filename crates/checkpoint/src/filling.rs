//! A job that goes on before all its device memory is filled (`dormouse restart --lazy`): how far that is, and what becomes of the job if
//! it never will be.

use crate::admin::Event;
use crate::error::{Failure, Kind};
use crate::runtime::{Filled, JobFolder};
use crate::sessions::{Session, Sessions};
use crate::supervisor::{Supervisor, ended_before};
use server::control::{Answer, Ask};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// How far it is, for whoever waits for it.
#[derive(Default)]
pub(crate) struct Filling {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None once it is over.
    left: Option<Filled>,
    failure: Option<Failure>,
}

impl Filling {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, left: Option<Filled>) {
        self.state().left = left;
    }

    fn fail(&self, failure: Failure) {
        self.state().failure = Some(failure);
    }

    /// Why the job was ended, if it was.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state().failure.clone()
    }
}

impl Sessions {
    /// How much of all sessions' memory is filled.
    ///
    /// # Errors
    /// When some of it never will be.
    pub(crate) fn filled(&self) -> Result<Filled, Failure> {
        self.all().iter().try_fold(Filled::default(), |all, session| {
            let Filled { done, total } = session.filled()?;
            Ok(Filled { done: all.done.saturating_add(done), total: all.total.saturating_add(total) })
        })
    }
}

impl Session {
    /// How much of its memory is filled.
    ///
    /// # Errors
    /// When some of it never will be.
    pub(crate) fn filled(&self) -> Result<Filled, Failure> {
        let mut server = self.server();
        match server.ask(&Ask::Filling, &mut |_, _| {}) {
            Ok(Answer::Filling { done, total }) => Ok(Filled { done, total }),
            Ok(other) => Err(server.unexpected(&other)),
            Err(failure) if failure.kind == Kind::Store => Err(failure),
            // A session whose server or process is gone has nothing more to be filled, and somebody else says so.
            Err(failure) => {
                tracing::debug!("{failure}");
                Ok(Filled::default())
            }
        }
    }
}

impl Supervisor {
    /// Looks on until the memory of all sessions is filled, or the job has ended; ends it where some never will be.
    pub(crate) fn see_filled(&self, folder: &JobFolder) {
        loop {
            match self.sessions.filled() {
                Ok(filled) => {
                    let left = (filled.done < filled.total).then_some(filled);
                    folder.notes().note_filling(left);
                    self.filling.note(left);
                    if left.is_none() {
                        tracing::info!("{} bytes of device memory are filled", filled.total);
                        return;
                    }
                }
                Err(failure) => {
                    self.filling.fail(never(&failure));
                    if let Err(error) = self.job.kill() {
                        tracing::error!("the job cannot be ended: {error}");
                    }
                    return;
                }
            }
            if self.ends_within(LOOK) {
                return;
            }
        }
    }

    /// Before anybody looks: not all is filled.
    pub(crate) fn begin_filling(&self) {
        self.filling.note(Some(Filled::default()));
    }

    /// Waits until all device memory is filled, which a checkpoint could not read before.
    pub(crate) fn await_filled(&self, events: &Sender<Event>) -> Result<(), Failure> {
        let mut told = false;
        loop {
            let left = {
                let state = self.filling.state();
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                let Some(left) = state.left else { return Ok(()) };
                left
            };
            // Whoever asked may have gone; the checkpoint goes on.
            if !std::mem::replace(&mut told, true) {
                let step = "waiting for memory that is still being filled".to_owned();
                let _ = events.send(Event::Step { step });
            }
            let _ = events.send(Event::Progress { done: left.done, total: left.total });
            if self.ends_within(LOOK) {
                return Err(ended_before());
            }
        }
    }
}

fn never(failure: &Failure) -> Failure {
    let message = format!(
        "the job was ended, because not all of its memory can be had (restart --lazy): {}. It has seen none that was wrong; `dormouse verify` says what \
         is wrong with the image",
        failure.message
    );
    Failure::new(failure.kind, message)
}
