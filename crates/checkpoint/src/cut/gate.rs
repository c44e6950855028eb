//! Closing the gates of a job's sessions, all at once.

use crate::admin::CheckpointOptions;
use crate::error::{Failure, Kind};
use crate::server_process::ServerProcess;
use crate::sessions::Session;
use crate::supervisor::Supervisor;
use server::control::{Answer, Ask};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// A job whose gate is closed; opened again when this is dropped.
pub struct Gated<'a> {
    pub servers: Vec<MutexGuard<'a, ServerProcess>>,
    /// Whether objects were made or destroyed since the last capture.
    pub table_changed: bool,
    /// Device memory to capture.
    pub bytes: u64,
}

impl Drop for Gated<'_> {
    fn drop(&mut self) {
        for server in &mut self.servers {
            if let Err(failure) = server.tell(&Ask::Ungate) {
                tracing::error!("the gate of a session does not open: {failure}");
            }
        }
    }
}

/// A job that is not idle yet, and what holds it, a sentence each.
pub struct Busy(pub Vec<String>);

/// Closes the gate of every session and waits until all are idle.
///
/// # Errors
/// [`Kind::Refused`], or when a server does not answer; all gates are open again.
pub fn close<'a>(
    job: &Supervisor,
    sessions: &'a [Arc<Session>],
    options: &CheckpointOptions,
) -> Result<Result<Gated<'a>, Busy>, Failure> {
    let ask = Ask::Gate { deadline_ms: options.gate_deadline_ms };
    let patience = Duration::from_millis(options.gate_deadline_ms);
    let mut gated = Gated { servers: Vec::new(), table_changed: false, bytes: 0 };
    let (mut holders, mut refusals, mut failed) = (Vec::new(), Vec::new(), None);
    // Everyone is asked before anyone is waited for: a session may need another to get idle. Whoever was asked is heard
    // out and let go, also when another fails.
    let mut asked = Vec::new();
    for session in sessions.iter().filter(|session| job.sessions.has(session.record.number)) {
        let mut server = session.server();
        match server.say(&ask) {
            Ok(()) => asked.push(server),
            Err(failure) => failed = Some(failure),
        }
    }
    for mut server in asked {
        match server.answer_within(patience, &mut |_, _| {}) {
            Ok(Answer::Idle { refusals: each, table_changed, bytes }) => {
                refusals.extend(each);
                gated.table_changed |= table_changed;
                gated.bytes += bytes;
                gated.servers.push(server);
            }
            Ok(Answer::Busy { holders: each }) => holders.extend(each),
            Ok(other) => failed = Some(server.unexpected(&other)),
            Err(failure) => failed = Some(failure),
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None if !refusals.is_empty() => Err(Failure::new(
            Kind::Refused,
            format!(
                "the job holds what cannot be restored; nothing was written, it runs on: {}",
                refusals.join("; ")
            ),
        )),
        None if !holders.is_empty() => Ok(Err(Busy(holders))),
        None => Ok(Ok(gated)),
    }
}
