//! Sessions as the front knows them: a process, and how far it is.

use super::half_open::Waiting;
use crate::far_end::PATIENCE;
use crate::fingerprint::Fingerprint;
use crate::packet::{self, ToFarEnd};
use rustix::net::SendFlags;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

/// How long a known client's session may take to begin: devices are opened meanwhile.
const BEGINNING: Duration = Duration::from_secs(30);

/// A process that serves a client, or will.
#[derive(Debug)]
pub struct Session {
    pub child: Child,
    pub control: OwnedFd,
    pub source: IpAddr,
    pub since: Instant,
    pub stage: Stage,
    /// The word of its client's table in which it counts its memory.
    pub word: Option<u32>,
    /// How many handshakes may be signed for it yet: one for each connection that it was handed.
    pub signatures: usize,
}

/// How far a session is.
#[derive(Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nobody knows who it is.
    Starting,
    /// Its client is known, and its connections come.
    Joining(Holder),
    /// It has all of them.
    Ready(Holder),
}

/// Whose session it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    pub key: Option<Fingerprint>,
}

impl Session {
    pub fn holder(&self) -> Option<&Holder> {
        match &self.stage {
            Stage::Starting => None,
            Stage::Joining(holder) | Stage::Ready(holder) => Some(holder),
        }
    }

    /// Says something, which it waits for or need not have.
    pub fn tell(&self, packet: &ToFarEnd) {
        self.tell_with(packet, None);
    }

    /// The same, with a descriptor; whether it has been said.
    pub fn tell_with(&self, packet: &ToFarEnd, file: Option<BorrowedFd<'_>>) -> bool {
        let said = packet::send(&self.control, packet, file, SendFlags::DONTWAIT);
        if let Err(error) = &said {
            tracing::debug!("a session of {} hears nothing: {error}", self.source);
        }
        said.is_ok()
    }

    /// Hands a connection to its process, which may be too busy for it.
    pub fn pass(&mut self, plain: bool, waiting: &Waiting) {
        let packet = ToFarEnd::Connection { plain, source: waiting.source };
        let socket = Some(waiting.socket.as_fd());
        match packet::send(&self.control, &packet, socket, SendFlags::DONTWAIT) {
            Ok(()) => self.signatures += 1,
            Err(error) => {
                tracing::debug!("a connection from {} finds its session busy: {error}", waiting.source);
            }
        }
    }

    /// When it is given up if it does not get further.
    pub fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Starting => Some(self.since + PATIENCE),
            Stage::Joining(_) => Some(self.since + BEGINNING),
            Stage::Ready(_) => None,
        }
    }
}
