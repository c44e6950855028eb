//! Authenticated connections between the machine of a program and the machine of its GPU, or the one that it moves to.
//!
//! A *session* is what one process of a program has on the other machine. It consists of several TCP connections, each with a TLS of its own and each
//! used in one direction only once it stands: [`Wires`]. A connection that breaks is made again for a time of grace, and its stream goes on where it was (`line`). [`dial()`] opens them; on the other side [`front`] accepts, has the key, and gives each session a
//! process ([`mod@far_end`]), which alone has TLS and data. Who may talk to whom is in [`keys`].
//!
//! `docs/security.md` says what all that protects from, and from what it does not.

pub mod address;
mod confine;
pub mod dial;
pub mod far_end;
pub mod fingerprint;
pub mod front;
pub mod keys;
mod lane;
mod ledger;
mod line;
mod lines;
mod mend;
mod packet;
mod protocol;
pub mod rdma;
mod tls;

pub use address::Address;
pub use confine::{ConfineError, Confinement, User};
pub use dial::{DialError, DialOptions, Trust, dial};
pub use far_end::{ClientFacts, far_end};
pub use fingerprint::Fingerprint;
pub use front::{Front, FrontError, FrontOptions};
pub use keys::{Keys, KeysError, Quota};
pub use ledger::MemoryShare;
pub use protocol::{Refusal, Service};
pub use wires::Wires;

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bytes are refused or understood as each message that is said before a connection carries data, and between the front and a session's process.
///
/// # Panics
/// When what is understood does not come back as it was.
#[cfg(feature = "fuzzing")]
pub fn come_back(bytes: &[u8]) {
    protocol::come_back(bytes);
    packet::come_back(bytes);
}

/// What a server says of itself when it takes a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Its release of Dormouse.
    pub release: String,
    /// Its newest key, where that is not the one that it was known by: `dormouse keys trust --replace` remembers it.
    pub new_key: Option<Fingerprint>,
    /// The most memory of the device that this session may take.
    pub memory: Option<u64>,
    /// For how long connections that break are made again; not at all where it is none.
    pub grace: Duration,
}
