//! Where everything lies in the shared files, as types. A fresh file is all zeros, which is a valid empty session but for
//! the magic.

use crate::sync::{AtomicU32, AtomicU64, Sleeper};
use crate::{Result, TransportError};

/// Rings of a session: so many application threads can use CUDA at a time.
pub const MAX_RINGS: usize = 256;
/// Staging slots of a ring.
pub const SLOTS: usize = 16;
/// Bytes of a staging slot.
pub const SLOT_BYTES: usize = 1 << 20;
/// The longest message, header and dependencies included, bytes.
pub const MESSAGE_MAX: usize = 256 << 10;
/// The longest reply, bytes.
pub const REPLY_MAX: usize = (256 << 10) - 8;
/// Callbacks that can be under way at a time.
pub const CALLBACKS: usize = 1024;

/// First word of a session file: `DORMOUSE`.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"DORMOUSE");
/// Version of what follows the magic, and of the messages in it: a process that is woken from an image does not greet again, so
/// that a server learns only here what it speaks.
pub(crate) const VERSION: u32 = LAYOUT_VERSION << 16 | wire::PROTOCOL_VERSION;
/// Version of the layout alone.
const LAYOUT_VERSION: u32 = 4;

pub(crate) const CONTROL_BYTES: usize = 64 << 10;
pub(crate) const RING_STRIDE: usize = 2 << 20;
/// Where the lanes of a trace begin: those of the clients, then those of the servers.
pub(crate) const LANES: usize = CONTROL_BYTES + MAX_RINGS * RING_STRIDE;
pub(crate) const LANE_STRIDE: usize = 1 << 20;
/// Records of a lane.
pub(crate) const LANE_RECORDS: usize = (LANE_STRIDE - 4096) / 16;
pub(crate) const SESSION_BYTES: usize = LANES + 2 * MAX_RINGS * LANE_STRIDE;
pub(crate) const STAGING_BYTES: usize = MAX_RINGS * SLOTS * SLOT_BYTES;

const SUBMISSION_WORDS: usize = (1 << 20) / 8;
const REPLY_WORDS: usize = (256 << 10) / 8;

/// Number of a ring, below [`MAX_RINGS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RingIndex(u16);

impl RingIndex {
    /// The ring of that number.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`] when there is none.
    pub fn new(index: usize) -> Result<Self> {
        match u16::try_from(index) {
            Ok(small) if index < MAX_RINGS => Ok(Self(small)),
            _ => Err(TransportError::OutOfBounds { what: "ring", value: index }),
        }
    }

    /// Its number.
    #[must_use]
    pub fn get(self) -> usize {
        self.0.into()
    }

    pub(crate) fn small(self) -> u16 {
        self.0
    }

    /// Every ring.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MAX_RINGS as u16).map(Self)
    }
}

/// Keeps what one side writes off the cache lines (and their neighbours, which are fetched in pairs) of the other.
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Line<T>(pub(crate) T);

/// Starts at a page of its own (but not on the small stacks that loom gives).
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub(crate) struct Paged<T>(pub(crate) T);

/// The control page.
#[repr(C)]
pub(crate) struct ControlShared {
    pub(crate) head: Line<ControlHead>,
    /// Rung by the client when a ring becomes active; counts up.
    pub(crate) doorbell: Line<AtomicU32>,
    /// Next handle id; client.
    pub(crate) next_id: Line<AtomicU32>,
    /// The session error, packed; either side.
    pub(crate) error: Line<AtomicU64>,
    /// Not 0 while the session is traced; supervisor, and a server that takes over.
    pub(crate) traced: Line<AtomicU32>,
    /// Not 0 if managed memory that cannot have shadow pages is to be refused; server.
    pub(crate) exclusive: Line<AtomicU32>,
    /// State of each ring; either side, by compare and exchange.
    pub(crate) rings: Paged<[AtomicU32; MAX_RINGS]>,
    pub(crate) callbacks: Paged<CallbacksShared>,
    /// Not 0 for each ring whose lanes have room and are filled while the session is traced; client and supervisor.
    pub(crate) lanes: Paged<[AtomicU32; MAX_RINGS]>,
    /// For each ring the last round trip whose work is done; the device itself.
    pub(crate) fences: Paged<[Line<AtomicU64>; MAX_RINGS]>,
}

#[repr(C)]
pub(crate) struct ControlHead {
    /// [`MAGIC`]; server, once, last of all.
    pub(crate) magic: AtomicU64,
    /// [`LAYOUT_VERSION`]; server, once.
    pub(crate) version: AtomicU32,
    /// Counts restarts; server.
    pub(crate) generation: AtomicU32,
    /// [`crate::State`]; server and supervisor.
    pub(crate) state: AtomicU32,
    /// One more than the highest ring ever taken; client.
    pub(crate) next_ring: AtomicU32,
}

/// The callback ring: the server publishes, the client runs and acknowledges, in order.
#[repr(C)]
pub(crate) struct CallbacksShared {
    /// Callbacks published; server.
    pub(crate) tail: Line<AtomicU64>,
    /// The server sleeps for acknowledgements.
    pub(crate) server: Line<Sleeper>,
    /// Callbacks run; client.
    pub(crate) head: Line<AtomicU64>,
    /// The client sleeps for callbacks.
    pub(crate) client: Line<Sleeper>,
    /// The client's thread that runs them, as it is numbered where it runs; 0 before the first.
    pub(crate) thread: Line<AtomicU32>,
    /// Callback id in the low half, `CUresult` in the high half; server.
    pub(crate) entries: Paged<[AtomicU64; CALLBACKS]>,
}

/// A ring of `S` words for submissions and `R` for a reply.
#[repr(C)]
pub(crate) struct RingShared<const S: usize, const R: usize> {
    pub(crate) client: Line<ClientLine>,
    pub(crate) server: Line<ServerLine>,
    /// The application's thread sleeps for a reply. Each side looks here after every message, so it lies apart from what
    /// the other writes with every message.
    pub(crate) waiting: Line<Sleeper>,
    /// The server's thread sleeps for messages.
    pub(crate) sleeping: Line<Sleeper>,
    /// Round trips answered; server. The application's thread looks here while it waits for an answer, and the server counts what it executes
    /// before that elsewhere.
    pub(crate) reply_seq: Line<AtomicU64>,
    pub(crate) reply: Paged<[AtomicU64; R]>,
    pub(crate) submission: Paged<[AtomicU64; S]>,
}

/// What the application's thread writes.
#[repr(C)]
pub(crate) struct ClientLine {
    /// Bytes published.
    pub(crate) tail: AtomicU64,
    /// Bytes published up to the end of the last pipelined message.
    pub(crate) async_tail: AtomicU64,
    /// Round trips begun.
    pub(crate) reply_wanted: AtomicU64,
}

/// What the server's thread writes.
#[repr(C)]
pub(crate) struct ServerLine {
    /// Bytes executed.
    pub(crate) head: AtomicU64,
}

/// A lane of a trace: a queue of records, two words each.
#[repr(C)]
pub(crate) struct LaneShared {
    pub(crate) writer: Line<LaneWriter>,
    /// Records taken; supervisor.
    pub(crate) head: Line<AtomicU64>,
    pub(crate) records: Paged<[[AtomicU64; 2]; LANE_RECORDS]>,
}

/// What the side that is traced writes.
#[repr(C)]
pub(crate) struct LaneWriter {
    /// Records put.
    pub(crate) tail: AtomicU64,
    /// Records for which there was no room; the supervisor sets it back.
    pub(crate) lost: AtomicU64,
}

/// A ring as it is in a session file.
pub(crate) type Ring = RingShared<SUBMISSION_WORDS, REPLY_WORDS>;

#[cfg(not(loom))]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<ControlShared>() <= CONTROL_BYTES);
    assert!(size_of::<Ring>() <= RING_STRIDE);
    assert!(size_of::<LaneShared>() == LANE_STRIDE);
    // The numbers of docs/wire-protocol.md.
    assert!(offset_of!(ControlShared, doorbell) == 128);
    assert!(offset_of!(ControlShared, next_id) == 256);
    assert!(offset_of!(ControlShared, error) == 384);
    assert!(offset_of!(ControlShared, traced) == 512);
    assert!(offset_of!(ControlShared, exclusive) == 640);
    assert!(offset_of!(ControlShared, rings) == 4096);
    assert!(offset_of!(ControlShared, callbacks) == 8192);
    assert!(offset_of!(CallbacksShared, thread) == 512);
    assert!(offset_of!(CallbacksShared, entries) == 4096);
    assert!(offset_of!(ControlShared, lanes) == 20480);
    assert!(offset_of!(ControlShared, fences) == 24576);
    assert!(size_of::<Line<AtomicU64>>() == 128);
    assert!(offset_of!(Ring, server) == 128);
    assert!(offset_of!(Ring, waiting) == 256);
    assert!(offset_of!(Ring, sleeping) == 384);
    assert!(offset_of!(Ring, reply_seq) == 512);
    assert!(offset_of!(Ring, reply) == 4096);
    assert!(offset_of!(Ring, submission) == 4096 + (256 << 10));
    assert!(offset_of!(LaneShared, head) == 128);
    assert!(offset_of!(LaneShared, records) == 4096);
};

/// A ring in plain memory, for tests.
#[cfg(any(loom, test))]
impl<const S: usize, const R: usize> RingShared<S, R> {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            client: Line(ClientLine { tail: zero(), async_tail: zero(), reply_wanted: zero() }),
            server: Line(ServerLine { head: zero() }),
            waiting: Line(Sleeper::new()),
            sleeping: Line(Sleeper::new()),
            reply_seq: Line(zero()),
            reply: Paged(std::array::from_fn(|_| zero())),
            submission: Paged(std::array::from_fn(|_| zero())),
        }
    }
}
