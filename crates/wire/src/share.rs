//! What processes of a job share: its names, and the 64 bytes in which an application carries them to another process.

use crate::codec::{DecodeError, Decoder, Encoder, Wire};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a `CUipcMemHandle` and its like.
pub const SHARED_BYTES: usize = 64;

/// The name of device memory or of an event that several processes of a job may hold: drawn at random when it is first given out,
/// and the same after each restart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShareId(pub [u8; 16]);

impl fmt::Display for ShareId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ShareId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShareId({self})")
    }
}

impl Wire for ShareId {
    fn encode(&self, to: &mut Encoder<'_>) {
        to.put(&self.0);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut id = [0; 16];
        id.copy_from_slice(from.take(16)?);
        Ok(Self(id))
    }
}

record! {
    /// An allocation, as a part of the block of device memory that is shared.
    #[derive(Copy, Eq, Serialize, Deserialize)]
    Claim {
        /// The block.
        share: ShareId,
        /// Where in it the allocation begins.
        offset: u64,
        /// Bytes of the allocation.
        bytes: u64,
        /// Which allocation at that place: another one later has another number.
        number: u64,
    }
}

/// What an application is given to carry to another process: a handle of ours, in place of the driver's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shared {
    /// An allocation (`CUipcMemHandle`).
    Memory(Claim),
    /// An event (`CUipcEventHandle`).
    Event(ShareId),
    /// A piece of memory (`cuMemExportToShareableHandle`): the contents of the file behind the descriptor.
    Piece(ShareId),
}

/// The first bytes of each.
const MAGIC: [u8; 8] = *b"DORMOUSE";

impl Shared {
    /// As bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SHARED_BYTES] {
        let mut body = Vec::with_capacity(SHARED_BYTES);
        let mut to = Encoder::new(&mut body);
        match self {
            Self::Memory(claim) => {
                1u64.encode(&mut to);
                claim.encode(&mut to);
            }
            Self::Event(share) => {
                2u64.encode(&mut to);
                share.encode(&mut to);
            }
            Self::Piece(share) => {
                3u64.encode(&mut to);
                share.encode(&mut to);
            }
        }
        let mut bytes = [0; SHARED_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..8 + body.len()].copy_from_slice(&body);
        bytes
    }

    /// What the bytes say; `None` for those of anybody else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; SHARED_BYTES]) -> Option<Self> {
        let mut from = Decoder::new(bytes.strip_prefix(&MAGIC)?);
        let shared = match u64::decode(&mut from).ok()? {
            1 => Self::Memory(Wire::decode(&mut from).ok()?),
            2 => Self::Event(Wire::decode(&mut from).ok()?),
            3 => Self::Piece(Wire::decode(&mut from).ok()?),
            _ => return None,
        };
        (shared.to_bytes() == *bytes).then_some(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_is_what_was_given() {
        let share = ShareId([0xab; 16]);
        let claim = Claim { share, offset: 512, bytes: 100, number: u64::MAX };
        for shared in [Shared::Memory(claim), Shared::Event(share), Shared::Piece(share)] {
            let bytes = shared.to_bytes();
            assert_eq!(Shared::from_bytes(&bytes), Some(shared));
            for at in (0..16).chain([SHARED_BYTES - 1]) {
                let mut other = bytes;
                other[at] ^= 1;
                assert_ne!(Shared::from_bytes(&other), Some(shared), "byte {at}");
            }
        }
        assert_eq!(Shared::from_bytes(&[0; SHARED_BYTES]), None);
    }
}
