//! One session, and what an image has of it.

use crate::error::Failure;
use crate::gpus::Seen;
use crate::server_process::ServerProcess;
use host::InnerPid;
use plan::follow::Passed;
use serde::{Deserialize, Serialize};
use server::control::Ask;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What an image records of a session, beside its server's own state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Its number: its folder is `s<number>`.
    pub number: u32,
    /// Its process.
    pub inner_pid: InnerPid,
    /// Which GPUs it sees.
    #[serde(default, skip_serializing_if = "Seen::is_jobs")]
    pub seen: Seen,
    /// Whether its managed memory has shadow pages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadows: bool,
    /// Whether its process may have the userfaultfd that they take only where every process may.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unprivileged: bool,
    /// How far it was in its plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<Passed>,
}

/// One session.
pub struct Session {
    /// What an image records of it.
    pub record: SessionRecord,
    pub(super) dir: PathBuf,
    pub(super) server: Mutex<ServerProcess>,
    /// Its process.
    pub(super) server_fd: OwnedFd,
    /// The process's faults, if its managed memory has shadow pages. Without a holder its pages would read as zeros: with this, who
    /// touches one when the server is gone waits.
    pub(super) userfault: OnceLock<OwnedFd>,
    /// How far it was in its plan at the last cut.
    pub(super) passed: Mutex<Option<Passed>>,
    /// Its server was ended while its process stood still: what it shares with that is still needed.
    pub(super) asleep: AtomicBool,
    /// Its process has no right of its own to a userfaultfd.
    pub(super) unprivileged: AtomicBool,
}

impl Session {
    /// What an image records of it.
    #[must_use]
    pub fn recorded(&self) -> SessionRecord {
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let unprivileged = self.unprivileged.load(Ordering::Acquire);
        SessionRecord { shadows: self.has_shadows(), unprivileged, passed, ..self.record.clone() }
    }

    /// Notes whether its process has no right of its own to a userfaultfd.
    pub fn set_unprivileged(&self, unprivileged: bool) {
        self.unprivileged.store(unprivileged, Ordering::Release);
    }

    /// It was so far in its plan at the cut.
    pub fn has_passed(&self, passed: Option<Passed>) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = passed;
    }

    /// Whether the process's managed memory has shadow pages.
    #[must_use]
    pub fn has_shadows(&self) -> bool {
        self.userfault.get().is_some()
    }

    /// A duplicate of the process's userfaultfd, if its managed memory has shadow pages.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn userfault(&self) -> io::Result<Option<OwnedFd>> {
        self.userfault.get().map(OwnedFd::try_clone).transpose()
    }

    /// Has it execute calls again. Where it does not, its server is ended, and whoever watches it sees to its process, which is ended where it has
    /// managed memory: nobody would serve that.
    ///
    /// # Errors
    /// When the server is gone, or does not answer.
    pub(crate) fn ungate(&self) -> Result<(), Failure> {
        let mut server = self.server();
        let ungated = server.tell(&Ask::Ungate { keep: false });
        if ungated.is_err() {
            server.kill();
        }
        ungated
    }

    /// The server, for the caller alone.
    pub fn server(&self) -> MutexGuard<'_, ServerProcess> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
