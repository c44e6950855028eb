//! Trying a restart before its image is published: every object at its address again, in a fresh server.

use crate::error::{Failure, Kind};
use crate::server_process::ServerProcess;
use crate::sessions::Destination;
use crate::supervisor::Supervisor;
use crate::work::WorkFolder;
use server::control::{Answer, Ask, Start};
use server::memory::Managed;
use std::path::{Path, PathBuf};

/// Replays every object table in a fresh server and compares the addresses. `Some` with a sentence when that could not be tried,
/// for want of device memory or of a server: the image may well be good, but nobody knows.
///
/// # Errors
/// [`Kind::Refused`] when an object or an address differs: a restart would fail.
pub fn rehearse(job: &Supervisor, states: &[(u32, PathBuf)]) -> Result<Option<String>, Failure> {
    verdict(states.iter().map(|(session, state)| replay(job, *session, state)))
}

fn verdict(replays: impl Iterator<Item = Result<(), Failure>>) -> Result<Option<String>, Failure> {
    let mut untried = None;
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
                untried = Some(format!(
                    "the restart was not rehearsed, because the device's memory is used up: {failure}"
                ));
            }
            Err(failure) => untried = Some(format!("the restart was not rehearsed: {failure}")),
        }
    }
    Ok(untried)
}

fn replay(job: &Supervisor, session: u32, state: &Path) -> Result<(), Failure> {
    let work = WorkFolder::new(0)?;
    let target = Destination { managed: Managed::Coherent, ..job.sessions.target().clone() };
    let visible = job.sessions.visible_to(session);
    let mut server = ServerProcess::start(0, &work.session(), (&target, visible), &Start::Rehearsal, None)?;
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

    fn of(kinds: &[Option<Kind>]) -> Result<Option<String>, Failure> {
        let replay = |kind: &Option<Kind>| match kind {
            None => Ok(()),
            Some(kind) => Err(Failure::new(*kind, "so it is")),
        };
        verdict(kinds.iter().map(replay))
    }

    #[test]
    fn only_what_differs_is_refused() {
        assert_eq!(of(&[None, None]), Ok(None));
        for kind in [Kind::Failed, Kind::DeviceFull, Kind::Store] {
            let warning = of(&[None, Some(kind)]).unwrap().unwrap();
            assert!(warning.contains("not rehearsed") && warning.ends_with("so it is"), "{warning}");
        }
        assert_eq!(of(&[Some(Kind::Failed), Some(Kind::Refused)]).unwrap_err().kind, Kind::Refused);
    }
}
