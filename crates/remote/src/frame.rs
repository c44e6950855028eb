//! How messages and pieces of memory lie in the streams. Everything is little-endian.

use std::io::{self, Read, Write};
use wire::{Encoder, Wire};

/// What both ends begin with.
pub(crate) const MAGIC: [u8; 8] = *b"DMremote";
/// Version of the protocol; both ends refuse any other.
pub(crate) const VERSION: u32 = 4;
/// Length, opcode, flags, number of the call.
pub(crate) const HEADER: usize = 16;
/// The call is made inside of `place`.
pub(crate) const IN_PLACE: u16 = 1;
/// The longest message that does not carry code, a graph or a log.
pub(crate) const SHORT_MAX: usize = 4 << 20;
/// The longest message.
pub(crate) const LONG_MAX: usize = 1 << 30;
/// The longest piece of memory in a bulk stream.
pub(crate) const PIECE: usize = 512 << 10;
/// The most bytes of memory that a message carries itself.
pub(crate) const INLINE_MAX: usize = 64 << 10;
/// Calls that the far end has not read yet, bytes.
pub(crate) const CONTROL_WINDOW: u64 = 4 << 20;
/// Contents of memory on their way in one direction, bytes: what a staging area has to hold.
pub(crate) const BULK_WINDOW: u64 = 128 << 20;

/// What stands before a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) bytes: u32,
    pub(crate) opcode: u16,
    pub(crate) flags: u16,
    pub(crate) call: u64,
}

impl Header {
    fn of(head: [u8; HEADER]) -> Self {
        let number = |at: usize, bytes: usize| {
            head[at..at + bytes].iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte))
        };
        Self {
            bytes: number(0, 4) as u32,
            opcode: number(4, 2) as u16,
            flags: number(6, 2) as u16,
            call: number(8, 8),
        }
    }
}

/// What stands before the first message of some bytes, if all of that is there.
pub(crate) fn first(bytes: &[u8]) -> Option<Header> {
    let (head, rest) = bytes.split_first_chunk()?;
    let header = Header::of(*head);
    (header.bytes as usize <= rest.len()).then_some(header)
}

/// Appends a message and its header.
pub(crate) fn append(to: &mut Vec<u8>, opcode: u16, flags: u16, call: u64, message: &impl Wire) {
    let begin = to.len();
    to.extend_from_slice(&[0; HEADER]);
    message.encode(&mut Encoder::new(to));
    let bytes = u32::try_from(to.len() - begin - HEADER).unwrap_or(u32::MAX);
    let header = &mut to[begin..begin + HEADER];
    header[..4].copy_from_slice(&bytes.to_le_bytes());
    header[4..6].copy_from_slice(&opcode.to_le_bytes());
    header[6..8].copy_from_slice(&flags.to_le_bytes());
    header[8..].copy_from_slice(&call.to_le_bytes());
}

/// Reads a message into `body`, unless it is longer than such a message may be. What is not there yet takes no memory, and what was
/// needed for a long one before is given back.
pub(crate) fn read(
    from: &mut impl Read,
    limit: impl FnOnce(&Header) -> usize,
    body: &mut Vec<u8>,
) -> io::Result<Header> {
    body.clear();
    body.shrink_to(SHORT_MAX);
    let mut head = [0; HEADER];
    from.read_exact(&mut head)?;
    let header = Header::of(head);
    let bytes = header.bytes as usize;
    if bytes > limit(&header) {
        return Err(invalid(format!("message {} of {bytes} bytes is too long", header.opcode)));
    }
    if bytes <= SHORT_MAX {
        body.resize(bytes, 0);
        from.read_exact(body)?;
    } else if from.take(bytes as u64).read_to_end(body)? != bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(header)
}

/// What stands before a piece of memory: which transfer it is of, where in it, and how long it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PieceHeader {
    pub(crate) transfer: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
}

impl PieceHeader {
    /// `saved` is how many bytes fewer than these are in the stream, because they are compressed.
    pub(crate) fn write(self, saved: usize, to: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let mut head = [0; 24];
        head[..8].copy_from_slice(&self.transfer.to_le_bytes());
        head[8..16].copy_from_slice(&self.offset.to_le_bytes());
        head[16..].copy_from_slice(&(self.bytes as u64 | (saved as u64) << 32).to_le_bytes());
        to.write_all(&head)
    }

    /// The header, and how many bytes of the stream hold the piece.
    pub(crate) fn read(from: &mut (impl Read + ?Sized)) -> io::Result<(Self, usize)> {
        let mut head = [[0; 8]; 3];
        from.read_exact(head.as_flattened_mut())?;
        let [transfer, offset, lengths] = head.map(u64::from_le_bytes);
        let (bytes, saved) = (lengths as u32 as usize, (lengths >> 32) as usize);
        if !(1..=PIECE).contains(&bytes) || saved >= bytes {
            return Err(invalid(format!("a piece of {bytes} bytes, of which {saved} are saved")));
        }
        Ok((Self { transfer, offset, bytes }, bytes - saved))
    }
}

/// The peer does not keep to the protocol.
pub(crate) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_the_first_once_it_is_whole() {
        let mut bytes = Vec::new();
        append(&mut bytes, 5, 1, 9, &7u64);
        let header = Header { bytes: 8, opcode: 5, flags: 1, call: 9 };
        assert_eq!(first(&bytes), Some(header));
        assert_eq!(read(&mut bytes.as_slice(), |_| 8, &mut Vec::new()).ok(), Some(header));
        bytes.push(0);
        assert_eq!(first(&bytes), Some(header));
        assert!((0..HEADER + 8).all(|some| first(&bytes[..some]).is_none()));
    }
}
