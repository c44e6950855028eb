//! An array's bytes as one run: level after level, slice after slice, row after row, without gaps. So they are kept in an image.

use backend::{BoxSide, CopyBox, Pitched, RawArray};
use wire::ArrayShape;

/// An array, or all levels of a mipmapped one.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    /// The handle that the application knows it by.
    pub(crate) handle: u64,
    /// Its levels: an array that is not mipmapped has one.
    pub(crate) levels: Vec<(RawArray, ArrayShape)>,
}

/// A box that a part of the run is, and where in the part it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    array: RawArray,
    at: [u64; 3],
    extent: [u64; 3],
    offset: u64,
}

impl Packed {
    /// All bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.levels.iter().map(|(_, shape)| shape.bytes()).sum()
    }

    /// The copies that move `bytes` bytes of the run, from number `first` on, to host memory at `address`; `into`: from there.
    pub(crate) fn copies(
        &self,
        first: u64,
        bytes: u64,
        address: u64,
        into: bool,
    ) -> impl Iterator<Item = CopyBox> {
        self.parts(first, bytes).into_iter().map(move |part| {
            let [width, height, depth] = part.extent;
            let host =
                BoxSide::Memory(Pitched { address: address + part.offset, pitch: width, rows: height });
            let array = BoxSide::Array(part.array, part.at);
            let (dst, src) = if into { (array, host) } else { (host, array) };
            CopyBox { dst, src, width, height, depth }
        })
    }

    fn parts(&self, first: u64, bytes: u64) -> Vec<Part> {
        let mut parts = Vec::new();
        let (mut level_begin, end) = (0, first + bytes);
        for (array, shape) in &self.levels {
            let level_end = level_begin + shape.bytes();
            let (mut at, stop) = (first.max(level_begin), end.min(level_end));
            while at < stop {
                let (part, len) = part_of(*array, shape, at - level_begin, stop - at);
                parts.push(Part { offset: at - first, ..part });
                at += len;
            }
            level_begin = level_end;
        }
        parts
    }
}

/// The largest box that begins `at` bytes into an array and has at most `most` bytes side by side; and how many it has.
fn part_of(array: RawArray, shape: &ArrayShape, at: u64, most: u64) -> (Part, u64) {
    let slice = shape.row * shape.rows;
    let (z, in_slice) = (at / slice, at % slice);
    let (y, x) = (in_slice / shape.row, in_slice % shape.row);
    let extent = if in_slice == 0 && most >= slice {
        [shape.row, shape.rows, most / slice]
    } else if x == 0 && most >= shape.row {
        [shape.row, (most / shape.row).min(shape.rows - y), 1]
    } else {
        [most.min(shape.row - x), 1, 1]
    };
    (Part { array, at: [x, y, z], extent, offset: 0 }, extent.iter().product())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(row: u64, rows: u64, slices: u64) -> ArrayShape {
        ArrayShape { row, rows, slices, element: 4 }
    }

    #[test]
    fn a_piece_is_few_boxes() {
        let packed = Packed { handle: 0, levels: vec![(RawArray(1), shape(40, 3, 10))] };
        let boxes: Vec<_> = packed.parts(44, 120 * 4).iter().map(|part| (part.at, part.extent)).collect();
        let expected = [
            ([4, 1, 0], [36, 1, 1]),
            ([0, 2, 0], [40, 1, 1]),
            ([0, 0, 1], [40, 3, 3]),
            ([0, 0, 4], [40, 1, 1]),
            ([0, 1, 4], [4, 1, 1]),
        ];
        assert_eq!(boxes, expected);
    }

    proptest! {
        /// The parts of all pieces touch every byte once, in order.
        #[test]
        fn pieces_make_up_the_whole(row in 1..6u64, rows in 1..4u64, slices in 1..4u64, piece in 1..40u64) {
            let levels = vec![(RawArray(1), shape(row * 4, rows, slices)), (RawArray(2), shape(4, 1, slices))];
            let packed = Packed { handle: 0, levels };
            let piece = piece * 4;
            let mut next = 0;
            while next < packed.bytes() {
                let bytes = piece.min(packed.bytes() - next);
                for part in packed.parts(next, bytes) {
                    let (_, shape) = packed.levels[part.array.0 as usize - 1];
                    prop_assert!(shape.contains(part.at, part.extent));
                    let before = if part.array.0 == 1 { 0 } else { packed.levels[0].1.bytes() };
                    let [x, y, z] = part.at;
                    prop_assert_eq!(before + (z * shape.rows + y) * shape.row + x, next);
                    next += part.extent.iter().product::<u64>();
                }
            }
            prop_assert_eq!(next, packed.bytes());
        }
    }
}
