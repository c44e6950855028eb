//! What can go wrong between the two sides.

use std::path::PathBuf;
use thiserror::Error;

/// Why a transport operation failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// A file or socket of the session could not be used.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: rustix::io::Errno,
    },
    /// The other side's Dormouse is another one: in an image, that with which the program was begun.
    #[error(
        "the session's files have version {} of Dormouse's protocol, and this Dormouse {}: both sides have to be of one version, and a job that was \
         checkpointed goes on with the Dormouse that began it",
        shown(*.version),
        shown(crate::layout::VERSION)
    )]
    OtherVersion {
        /// The layout's version in the upper half, the messages' in the lower.
        version: u32,
    },
    /// The file is no session.
    #[error("{} is not a session file ({what} is {value:#x})", path.display())]
    NotASession {
        /// The file.
        path: PathBuf,
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The other side wrote something impossible into the shared memory.
    #[error("the other side of ring {ring} wrote an impossible {what}: {value:#x}")]
    Corrupt {
        /// The ring.
        ring: u16,
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The GPU server of this session is dead.
    #[error("the GPU server of this session is dead")]
    Dead,
    /// Every ring is taken by another thread.
    #[error("every ring of the session is in use")]
    NoRing,
    /// The job's shared memory is used up.
    #[error("the job's shared memory is full; `dormouse run --shared-memory` gives it more")]
    NoRoom,
    /// A ring, slot or message is outside of its bounds: a mistake of the caller.
    #[error("{what} {value} is out of bounds")]
    OutOfBounds {
        /// What.
        what: &'static str,
        /// Its value.
        value: usize,
    },
    /// The other end of the hello socket spoke another protocol, or none.
    #[error("bad greeting: {0}")]
    Greeting(#[from] wire::DecodeError),
    /// The job's supervisor refused the session.
    #[error("the supervisor refused a session: {0}")]
    Refused(String),
    /// The job's supervisor does not note what the program has asked for.
    #[error("the supervisor does not note the question: {reason}")]
    NotAsked {
        /// The exit code that `dormouse checkpoint` would have had.
        code: u32,
        /// Why, for people.
        reason: String,
    },
    /// Nobody answered in time.
    #[error("nothing was said in time on {}", path.display())]
    Timeout {
        /// The socket.
        path: PathBuf,
    },
}

/// A version as it is said to people.
fn shown(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

impl TransportError {
    pub(crate) fn io(
        operation: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(rustix::io::Errno) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { operation, path, source }
    }
}
