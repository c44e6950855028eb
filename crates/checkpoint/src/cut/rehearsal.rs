//! Trying a restart before its image is published: every object at its address again, in a fresh server.

use crate::error::{Failure, Kind};
use crate::server_process::ServerProcess;
use crate::supervisor::Supervisor;
use crate::work::WorkFolder;
use server::control::{Answer, Ask, Start};
use std::path::{Path, PathBuf};

/// Replays every object table in a fresh server and compares the addresses. `Some` with a sentence when the device has no
/// room for a second set of objects beside the job's: the image is good, but nobody has tried.
///
/// # Errors
/// [`Kind::Refused`] when an address differs: a restart would fail.
pub fn rehearse(job: &Supervisor, states: &[PathBuf]) -> Result<Option<String>, Failure> {
    for state in states {
        match replay(job, state) {
            Ok(()) => {}
            Err(failure) if failure.kind == Kind::DeviceFull => {
                return Ok(Some(format!(
                    "the restart was not rehearsed, because the device's memory is used up: {failure}"
                )));
            }
            Err(failure) => {
                return Err(Failure::new(
                    Kind::Refused,
                    format!("a rehearsal of the restart failed, so nothing was published: {failure}"),
                ));
            }
        }
    }
    Ok(None)
}

fn replay(job: &Supervisor, state: &Path) -> Result<(), Failure> {
    let work = WorkFolder::new(0)?;
    let mut server = ServerProcess::start(0, &work.session(), job.sessions.device(), &Start::Rehearsal)?;
    match server.answer(&mut |_, _| {})? {
        Answer::Ready { .. } => {}
        other => return Err(server.unexpected(&other)),
    }
    server.tell(&Ask::Rehearse { state: state.to_owned() })
}
