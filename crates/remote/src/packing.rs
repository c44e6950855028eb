//! Pieces that are compressed (lz4) where that takes less time than it saves: on slow lines.

use crate::frame::{PIECE, PieceHeader, invalid};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// A stream that carries as much in a second as this is not worth a try: several of them keep a processor busy by themselves.
const FAST: f64 = 128e6;
/// What a stream's speed is measured by, bytes: more than the buffers before a line take at once.
const MEASURED: f64 = 8e6;
/// After how long a slow line may have become a fast one.
const AGAIN: Duration = Duration::from_secs(10);

/// The sending side of one bulk stream, and what it knows of its line.
#[derive(Default)]
pub(crate) struct Packer {
    /// Bytes of late, and the seconds that they took.
    bytes: f64,
    seconds: f64,
    /// A slow line's seconds for a byte, and until when that is believed.
    slow: Option<(f64, Instant)>,
    spare: Vec<u8>,
}

impl Packer {
    /// Sends a piece, in fewer bytes where that is worth it.
    pub(crate) fn send(
        &mut self,
        head: PieceHeader,
        bytes: &[u8],
        to: &mut (impl Write + ?Sized),
    ) -> io::Result<()> {
        let packed = self.pack(bytes).unwrap_or(bytes.len());
        let sent = if packed < bytes.len() { &self.spare[..packed] } else { bytes };
        let begun = Instant::now();
        head.write(bytes.len() - packed, to)?;
        to.write_all(sent)?;
        to.flush()?;
        self.measure(packed, begun.elapsed());
        Ok(())
    }

    /// Compresses a piece into `spare`, if that saves time.
    fn pack(&mut self, bytes: &[u8]) -> Option<usize> {
        let (per_byte, _) = self.slow?;
        self.spare.resize(lz4_flex::block::get_maximum_output_size(PIECE), 0);
        let begun = Instant::now();
        let packed = lz4_flex::block::compress_into(bytes, &mut self.spare).ok()?;
        let saves = bytes.len().saturating_sub(packed) as f64 * per_byte;
        (saves > begun.elapsed().as_secs_f64()).then_some(packed)
    }

    /// Learns of the line. What is compressed may not fill it, and says nothing about how fast it is.
    fn measure(&mut self, bytes: usize, took: Duration) {
        if let Some((_, until)) = self.slow {
            if Instant::now() >= until {
                *self = Self { spare: std::mem::take(&mut self.spare), ..Self::default() };
            }
            return;
        }
        self.bytes += bytes as f64;
        self.seconds += took.as_secs_f64();
        if self.bytes > MEASURED {
            let per_byte = self.seconds / self.bytes;
            if per_byte > 1.0 / FAST {
                self.slow = Some((per_byte, Instant::now() + AGAIN));
            }
            (self.bytes, self.seconds) = (self.bytes / 2.0, self.seconds / 2.0);
        }
    }
}

/// Reads a piece that `held` bytes of the stream hold. Where it is not what the header says, there is an error, and `to` is anything.
pub(crate) fn receive(
    from: &mut (impl Read + ?Sized),
    held: usize,
    to: &mut [u8],
    spare: &mut Vec<u8>,
) -> io::Result<()> {
    if held == to.len() {
        return from.read_exact(to);
    }
    spare.resize(held, 0);
    from.read_exact(spare)?;
    match lz4_flex::block::decompress_into(spare, to) {
        Ok(bytes) if bytes == to.len() => Ok(()),
        _ => Err(invalid("a piece is not what it says")),
    }
}

#[cfg(test)]
mod tests {
    // A test says what it saw by panicking.
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn there(packer: &mut Packer, bytes: &[u8]) -> usize {
        let head = PieceHeader { transfer: 7, offset: 9, bytes: bytes.len() };
        let mut stream = Vec::new();
        packer.send(head, bytes, &mut stream).unwrap();
        let from = &mut stream.as_slice();
        let (came, held) = PieceHeader::read(from).unwrap();
        let mut back = vec![0; came.bytes];
        receive(from, held, &mut back, &mut Vec::new()).unwrap();
        assert_eq!((came, from.len()), (head, 0));
        assert!(back == bytes, "other bytes came");
        stream.len()
    }

    fn after(seconds_for_a_piece: f64) -> Packer {
        let mut packer = Packer::default();
        (0..20).for_each(|_| packer.measure(PIECE, Duration::from_secs_f64(seconds_for_a_piece)));
        packer
    }

    #[test]
    fn slow_lines_carry_less() {
        // Whatever the processor is busy with, compressing takes less.
        let mut packer = after(1e6);
        let (same, noise) = (vec![5; PIECE], noise(PIECE));
        assert!(there(&mut packer, &same) < PIECE / 20);
        assert_eq!(there(&mut packer, &noise), PIECE + 24);
        assert!(there(&mut packer, &same[..100]) < 124);
    }

    #[test]
    fn fast_lines_carry_what_there_is() {
        let mut packer = after(0.001);
        assert_eq!(there(&mut packer, &vec![5; PIECE]), PIECE + 24);
        assert_eq!(packer.spare.len(), 0, "it was tried");
    }

    fn noise(bytes: usize) -> Vec<u8> {
        let mixed = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(at | 1);
        (1..=bytes as u64).map(|at| (mixed(at) >> 40) as u8).collect()
    }

    proptest! {
        #[test]
        fn garbage_is_no_piece(garbage in proptest::collection::vec(any::<u8>(), 0..200), bytes in 1usize..2000) {
            let mut to = vec![0; bytes];
            let came = receive(&mut garbage.as_slice(), garbage.len(), &mut to, &mut Vec::new());
            // What is understood is all of the piece, which garbage seldom is.
            if garbage.len() < bytes / 300 {
                prop_assert!(came.is_err());
            }
        }
    }
}
