//! Trying a restart before its image is published: every object at its address again, in a fresh server. That takes the driver a third of a second, so
//! it is done while the image is written.

use super::capture::{Tables, leave};
use super::gate::Servers;
use crate::error::{Failure, Kind};
use crate::server_process::ServerProcess;
use crate::sessions::{Destination, panicked};
use crate::supervisor::Supervisor;
use crate::work::WorkFolder;
use server::control::{Answer, Ask, Start};
use server::memory::Managed;
use std::path::Path;
use std::thread::Builder;
use std::time::Instant;

/// Where less memory of the host is left than that, or of a device, the image is written first, bytes: a process with a context has 0.5 GB of either.
const HOST_BESIDE_WRITING: u64 = 1 << 30;
const DEVICE_BESIDE_WRITING: u64 = 2 << 30;

/// The object tables of a job that are to be rehearsed.
pub struct Rehearsal<'a> {
    job: &'a Supervisor,
    tables: Tables,
}

/// What came of it.
#[derive(PartialEq, Debug)]
pub enum Outcome {
    /// Everything was at its address.
    Rehearsed,
    /// It could not be tried while there is so little room on the device, a sentence.
    NoRoom(String),
    /// It could not be tried, a sentence.
    Untried(String),
}

impl<'a> Rehearsal<'a> {
    /// Has these servers leave what they have captured and not written yet in a folder; but not what has been rehearsed already.
    ///
    /// # Errors
    /// The first server's that fails.
    pub fn of(job: &'a Supervisor, servers: &mut Servers<'_>, states: &Path) -> Result<Self, Failure> {
        let tables = if job.is_rehearsed() { Tables::default() } else { leave(servers, states)? };
        Ok(Self { job, tables })
    }

    /// Replays the tables while the image is written, if there is memory for that beside what `write` takes of the host's for the image itself, bytes.
    ///
    /// # Errors
    /// Those of `write`, and [`Self::replay`]'s.
    pub fn beside<T>(
        &self,
        takes: u64,
        write: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(T, Option<Outcome>), Failure> {
        let has_room = self.tables.free >= DEVICE_BESIDE_WRITING
            && host::memory::available() >= takes.saturating_add(HOST_BESIDE_WRITING);
        if self.tables.files.is_empty() || !has_room {
            return Ok((write()?, None));
        }
        let began = Instant::now();
        let replay = || {
            let outcome = self.replay();
            if let Some(trace) = self.job.sessions.trace() {
                trace.span("rehearsing", began);
            }
            outcome
        };
        std::thread::scope(|scope| {
            let rehearsing = Builder::new().name("rehearsal".to_owned()).spawn_scoped(scope, replay).ok();
            let written = write()?;
            let outcome = rehearsing.map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
            Ok((written, outcome.transpose()?))
        })
    }

    /// What is to be said of the image, if it was not rehearsed. What found no room before is replayed now, when what was copied has made room; `begins` hears of that.
    ///
    /// # Errors
    /// As [`Self::replay`]'s.
    pub fn finish(&self, before: Option<Outcome>, begins: impl FnOnce()) -> Result<Option<String>, Failure> {
        let outcome = match before {
            None if self.tables.files.is_empty() => Outcome::Rehearsed,
            None | Some(Outcome::NoRoom(_)) => {
                begins();
                self.replay()?
            }
            Some(outcome) => outcome,
        };
        Ok(match outcome {
            Outcome::Rehearsed => None,
            Outcome::NoRoom(warning) | Outcome::Untried(warning) => Some(warning),
        })
    }

    /// Replays every object table in a fresh server and compares the addresses. Where that cannot be tried the image may well be good, but nobody knows.
    ///
    /// # Errors
    /// [`Kind::Refused`] when an object or an address differs: a restart would fail.
    fn replay(&self) -> Result<Outcome, Failure> {
        verdict(self.tables.files.iter().map(|(session, state)| replay(self.job, *session, state)))
    }
}

fn verdict(replays: impl Iterator<Item = Result<(), Failure>>) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::Rehearsed;
    for replay in replays {
        match replay {
            Ok(()) => {}
            Err(failure) if failure.kind == Kind::Refused => {
                return Err(Failure::new(
                    Kind::Refused,
                    format!("a rehearsal of the restart failed, so nothing was published: {failure}"),
                ));
            }
            Err(failure) if failure.kind == Kind::DeviceFull => {
                outcome = Outcome::NoRoom(format!(
                    "the restart was not rehearsed, because the device's memory is used up: {failure}"
                ));
            }
            // What found no room can be tried again.
            Err(_) if matches!(outcome, Outcome::NoRoom(_)) => {}
            Err(failure) => {
                outcome = Outcome::Untried(format!("the restart was not rehearsed: {failure}"));
            }
        }
    }
    Ok(outcome)
}

fn replay(job: &Supervisor, session: u32, state: &Path) -> Result<(), Failure> {
    let work = WorkFolder::new(0)?;
    let target = Destination { managed: Managed::Coherent, ..job.sessions.target().clone() };
    let visible = job.sessions.visible_to(session);
    let mut server = ServerProcess::start(0, &work.session(), (&target, visible), &Start::Rehearsal, None)?;
    let process = server.pidfd().map_err(|error| Failure::of("a rehearsal cannot be watched", &error))?;
    let rehearsing = job.sessions.broker().rehearses(process);
    let replayed = replay_in(&mut server, state);
    // What it has of a device is given back first, and whoever asks for it meanwhile waits for that.
    server.kill();
    let has_given_way = rehearsing.has_given_way();
    drop(rehearsing);
    if replayed.is_err() && has_given_way {
        let message = "the program needed what the rehearsal had of it";
        return Err(Failure::new(Kind::DeviceFull, message));
    }
    replayed
}

fn replay_in(server: &mut ServerProcess, state: &Path) -> Result<(), Failure> {
    match server.answer(&mut |_, _| {})? {
        Answer::Ready { .. } => {}
        other => return Err(server.unexpected(&other)),
    }
    server.tell(&Ask::Rehearse { state: state.into() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(kinds: &[Option<Kind>]) -> Result<Outcome, Failure> {
        let replay = |kind: &Option<Kind>| match kind {
            None => Ok(()),
            Some(kind) => Err(Failure::new(*kind, "so it is")),
        };
        verdict(kinds.iter().map(replay))
    }

    #[test]
    fn only_what_differs_is_refused() {
        assert_eq!(of(&[None, None]), Ok(Outcome::Rehearsed));
        for kind in [Kind::Failed, Kind::DeviceFull, Kind::Store] {
            let outcome = of(&[None, Some(kind)]).unwrap();
            let (Outcome::NoRoom(warning) | Outcome::Untried(warning)) = &outcome else {
                panic!("{outcome:?}")
            };
            assert!(warning.contains("not rehearsed") && warning.ends_with("so it is"), "{warning}");
            assert_eq!(matches!(outcome, Outcome::NoRoom(_)), kind == Kind::DeviceFull);
        }
        assert!(matches!(of(&[Some(Kind::DeviceFull), Some(Kind::Failed)]), Ok(Outcome::NoRoom(_))));
        assert_eq!(of(&[Some(Kind::Failed), Some(Kind::Refused)]).unwrap_err().kind, Kind::Refused);
    }
}
