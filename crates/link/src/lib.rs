//! Authenticated connections between the machine of a program and the machine of its GPU.
//!
//! A *session* is what one process of a program has on the other machine. It consists of several TCP connections, each with a TLS of its own and each
//! used in one direction only once it stands: [`Wires`]. [`dial()`] opens them; on the other side [`front`] accepts, has the key, and gives each session a
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
mod packet;
mod protocol;
mod tls;

pub use address::Address;
pub use confine::{ConfineError, User};
pub use dial::{DialError, DialOptions, Trust, dial};
pub use far_end::{ClientFacts, far_end};
pub use fingerprint::Fingerprint;
pub use front::{Front, FrontError, FrontOptions};
pub use keys::{Keys, KeysError, Quota};
pub use protocol::Refusal;

use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::sync::Arc;

/// The streams of one session, each of which carries data one way.
pub struct Wires {
    /// Messages to the other side.
    pub control_out: Box<dyn Write + Send>,
    /// Messages from it.
    pub control_in: Box<dyn Read + Send>,
    /// Bytes of memory to the other side.
    pub bulk_out: Vec<Box<dyn Write + Send>>,
    /// Bytes of memory from it.
    pub bulk_in: Vec<Box<dyn Read + Send>>,
    /// Ends all of them at once, so that whoever reads or writes one is told.
    pub hang_up: Arc<dyn Fn() + Send + Sync>,
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
}
