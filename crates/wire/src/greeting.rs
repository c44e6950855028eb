//! What is said once, over the hello socket, before a session has its files.

use crate::Machine;
use crate::codec::{DecodeError, Decoder, Encoder, Wire};

/// The longest greeting, bytes: a receive buffer of this size never truncates one.
pub const GREETING_MAX: usize = 128 << 10;

/// A message of the hello socket. Each begins with [`Greeting::MAGIC`] and a number that says which it is, so that two
/// versions of the protocol understand at least that they differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Greeting {
    /// The application asks for a session.
    Hello {
        /// [`crate::PROTOCOL_VERSION`] of the shim.
        protocol: u32,
        /// Which GPUs it wants to see: its `CUDA_VISIBLE_DEVICES`.
        visible: Option<String>,
    },
    /// The server is ready: its files are in the session's folder.
    Welcome {
        /// Number of the session.
        session: u32,
    },
    /// There will be no session.
    Refused {
        /// Why, for people.
        reason: String,
    },
    /// The application asks which GPUs there are, and wants no session.
    Devices {
        /// [`crate::PROTOCOL_VERSION`] of the shim.
        protocol: u32,
    },
    /// Those.
    Machine(Machine),
    /// A thread of the application's asks that all others of its process stand still until it closes the connection.
    Still {
        /// [`crate::PROTOCOL_VERSION`] of the shim.
        protocol: u32,
        /// The thread, by its number in the job.
        thread: u32,
    },
    /// They do.
    Stilled,
    /// The application gives its userfaultfd, which comes with it, to its session. Answered by [`Greeting::Welcome`].
    Userfault {
        /// [`crate::PROTOCOL_VERSION`] of the shim.
        protocol: u32,
    },
    /// The program itself asks for a checkpoint, through a library that was linked into it long ago: this has a version of its own.
    Ask {
        /// [`crate::ASK_VERSION`] of the library.
        version: u32,
        /// What it asks for.
        question: Question,
    },
    /// That is noted; what becomes of it will stand on the job's board.
    Asked {
        /// Under this number.
        ticket: u64,
    },
    /// That is not noted.
    NotAsked {
        /// The exit code that `dormouse checkpoint` would have had: whoever asked too often may try again, others not.
        code: u32,
        /// Why, for people.
        reason: String,
    },
}

/// What a program asks of its own job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// A checkpoint now.
    Now {
        /// The job is to end when the image is safe.
        stop: bool,
    },
    /// It is at a point that suits it, and has seen that a checkpoint is wanted.
    AtPoint,
    /// It will come to points that suit it.
    HasPoints,
}

impl Wire for Question {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Now { stop } => (1u32, u32::from(*stop)).encode(to),
            Self::AtPoint => (2u32, 0u32).encode(to),
            Self::HasPoints => (3u32, 0u32).encode(to),
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match Wire::decode(from)? {
            (1, flags @ (0 | 1u32)) => Ok(Self::Now { stop: flags == 1 }),
            (2, 0) => Ok(Self::AtPoint),
            (3, 0) => Ok(Self::HasPoints),
            (1..=3u32, flags) => {
                Err(DecodeError::Invalid { what: "flags of a question", value: flags.into() })
            }
            (other, _) => Err(DecodeError::Invalid { what: "question", value: other.into() }),
        }
    }
}

impl Greeting {
    /// First word of every greeting: `DORM`.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"DORM");
    /// Room for what follows magic and kind.
    const MACHINE_MAX: usize = GREETING_MAX - 8;
}

impl Wire for Greeting {
    fn encode(&self, to: &mut Encoder<'_>) {
        Self::MAGIC.encode(to);
        match self {
            // A process of an older image says no more.
            Self::Hello { protocol, visible: None } => {
                1u32.encode(to);
                protocol.encode(to);
            }
            Self::Hello { protocol, visible: Some(list) } => {
                12u32.encode(to);
                protocol.encode(to);
                list.encode(to);
            }
            Self::Welcome { session } => {
                2u32.encode(to);
                session.encode(to);
            }
            Self::Refused { reason } => {
                3u32.encode(to);
                reason.encode(to);
            }
            Self::Devices { protocol } => {
                4u32.encode(to);
                protocol.encode(to);
            }
            Self::Machine(machine) => {
                5u32.encode(to);
                machine.encode_within(Self::MACHINE_MAX, to);
            }
            Self::Still { protocol, thread } => {
                6u32.encode(to);
                (*protocol, *thread).encode(to);
            }
            Self::Stilled => 7u32.encode(to),
            Self::Userfault { protocol } => {
                8u32.encode(to);
                protocol.encode(to);
            }
            Self::Ask { version, question } => {
                9u32.encode(to);
                version.encode(to);
                question.encode(to);
            }
            Self::Asked { ticket } => {
                10u32.encode(to);
                ticket.encode(to);
            }
            Self::NotAsked { code, reason } => {
                11u32.encode(to);
                code.encode(to);
                reason.encode(to);
            }
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let magic = u32::decode(from)?;
        if magic != Self::MAGIC {
            return Err(DecodeError::Invalid { what: "greeting", value: magic.into() });
        }
        Ok(match u32::decode(from)? {
            1 => Self::Hello { protocol: Wire::decode(from)?, visible: None },
            12 => Self::Hello { protocol: Wire::decode(from)?, visible: Some(Wire::decode(from)?) },
            2 => Self::Welcome { session: Wire::decode(from)? },
            3 => Self::Refused { reason: Wire::decode(from)? },
            4 => Self::Devices { protocol: Wire::decode(from)? },
            5 => Self::Machine(Wire::decode(from)?),
            6 => {
                let (protocol, thread) = Wire::decode(from)?;
                Self::Still { protocol, thread }
            }
            7 => Self::Stilled,
            8 => Self::Userfault { protocol: Wire::decode(from)? },
            9 => Self::Ask { version: Wire::decode(from)?, question: Wire::decode(from)? },
            10 => Self::Asked { ticket: Wire::decode(from)? },
            11 => Self::NotAsked { code: Wire::decode(from)?, reason: Wire::decode(from)? },
            other => return Err(DecodeError::Invalid { what: "greeting kind", value: other.into() }),
        })
    }
}
