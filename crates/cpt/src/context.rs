//! What a marked kernel finds behind its last parameter, in device memory; all numbers little-endian, offsets in bytes.

/// `u32`: not 0 when threads are to stop at their next marker. The only word that changes while the kernel runs.
pub const STOP: u64 = 0;
/// `u32`: how many blocks there is room for in [`FRAMES_INTO`]. A block that finds none goes on.
pub const CAPACITY: u64 = 4;
/// `u32`: how many have asked for room; 0 at a launch.
pub const TAKEN: u64 = 8;
/// `u64`: a bit for each thread that is done, by words of 32: [`words`] for each block.
pub const DONE: u64 = 16;
/// `u64`: for each block a `u32`, 1 more than which of [`FRAMES_FROM`] it goes on from; from none where it is 0 or [`NO_ROOM`]. 0 in place of the
/// address when no thread has begun, and none is done.
pub const FROM: u64 = 24;
/// `u64`: the same of [`FRAMES_INTO`]; all 0 at a launch.
pub const INTO: u64 = 32;
/// `u64`: frames of the stop before. (`Frame` says what is in one.)
pub const FRAMES_FROM: u64 = 40;
/// `u64`: frames to stop into; all 0 at a launch.
pub const FRAMES_INTO: u64 = 48;
/// Two `u32`, in turn for one barrier of the whole grid and the next: not 0 when all threads are to stop behind it; 0 at a launch.
pub const DECIDED: u64 = 56;
/// Bytes of all.
pub const BYTES: u64 = 64;

/// In [`INTO`] while a block is asking for room.
pub const ASKING: u32 = u32::MAX;
/// In [`INTO`] when there was none.
pub const NO_ROOM: u32 = u32::MAX - 1;

/// What a launch begins with, but for the address of the context itself.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// See [`CAPACITY`].
    pub capacity: u32,
    /// See [`DONE`].
    pub done: u64,
    /// See [`FROM`].
    pub from: u64,
    /// See [`INTO`].
    pub into: u64,
    /// See [`FRAMES_FROM`].
    pub frames_from: u64,
    /// See [`FRAMES_INTO`].
    pub frames_into: u64,
}

impl Head {
    /// The context of a launch that is not to stop.
    #[must_use]
    pub fn to_bytes(self) -> [u8; BYTES as usize] {
        let words = [
            (CAPACITY, self.capacity.into()),
            (DONE, self.done),
            (FROM, self.from),
            (INTO, self.into),
            (FRAMES_FROM, self.frames_from),
            (FRAMES_INTO, self.frames_into),
        ];
        let mut bytes = [0; BYTES as usize];
        for (offset, word) in words {
            bytes[offset as usize..][..8].copy_from_slice(&u64::to_le_bytes(word));
        }
        bytes
    }
}

/// Words of [`DONE`] that a block of so many threads has.
#[must_use]
pub fn words(threads: u64) -> u64 {
    threads.div_ceil(32)
}
