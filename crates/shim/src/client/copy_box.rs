//! Copies that have an array on a side.

use std::sync::Arc;

use cuda_abi::{CuError, CuResult};
use transport::SLOT_BYTES;
use wire::{CopyBox, CopySide, StreamSynchronize};

use super::arrays::Array;
use super::copy::{Lane, Wait, bytes_in_slices, pieces, pointer};
use super::copy_rows::{Extent, Rows};
use super::memory::Place;
use super::thread::Call;

/// One side of a copy of a box.
#[derive(Clone)]
pub enum End {
    /// Rows of memory.
    Rows(Rows),
    /// A box of an array: byte of the row, row, slice.
    Array(Arc<Array>, [u64; 3]),
}

impl PartialEq for End {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rows(one), Self::Rows(other)) => one == other,
            (Self::Array(one, at), Self::Array(other, other_at)) => one.id == other.id && at == other_at,
            (Self::Rows(_), Self::Array(..)) | (Self::Array(..), Self::Rows(_)) => false,
        }
    }
}

/// A part of a box that fits in a slot: where it begins, bytes of a row, rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Band {
    x: u64,
    row: u64,
    slice: u64,
    width: u64,
    rows: u64,
}

/// The bands of a box: whole rows where they fit in a slot, pieces of rows where they do not.
fn bands(extent: Extent, slot: u64) -> impl Iterator<Item = Band> {
    let width = extent.width.min(slot).max(1);
    let most = slot / width;
    (0..extent.depth).flat_map(move |slice| {
        pieces(extent.height, most).flat_map(move |(row, rows)| {
            pieces(extent.width, width).map(move |(x, width)| Band { x, row, slice, width, rows })
        })
    })
}

impl Band {
    /// Address of one of its rows, for a side in this process's memory.
    fn address(self, rows: &Rows, row: u64) -> *const u8 {
        pointer(rows.from(self.slice, self.row + row).side.address().wrapping_add(self.x))
    }
}

impl End {
    /// The side as the server knows it, from a band's beginning on.
    fn side(&self, band: Band) -> CopySide {
        match self {
            Self::Rows(rows) => CopySide::Memory(rows.from(band.slice, band.row).pitched()),
            Self::Array(array, [x, y, z]) => {
                CopySide::Array(array.id, [x + band.x, y + band.row, z + band.slice])
            }
        }
    }

    /// The whole side as the server knows it.
    pub fn whole(&self) -> CopySide {
        self.side(Band { x: 0, row: 0, slice: 0, width: 0, rows: 0 })
    }

    /// Its rows, unless it is an array.
    pub fn rows(&self) -> Option<&Rows> {
        match self {
            Self::Rows(rows) => Some(rows),
            Self::Array(..) => None,
        }
    }

    /// Where the side is; an array is on the device.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the box lies outside.
    pub fn place(&self, call: &Call<'_>, extent: Extent) -> CuResult<Place> {
        match self {
            Self::Rows(rows) => {
                rows.check(extent)?;
                call.place_of(rows.side, rows.span(extent)?)
            }
            Self::Array(array, at) => {
                let inside = array.shape.contains(*at, [extent.width, extent.height, extent.depth]);
                if inside { Ok(Place::Device) } else { Err(CuError::INVALID_VALUE) }
            }
        }
    }
}

impl Call<'_> {
    /// Copies a box of which at least one side is an array.
    ///
    /// # Errors
    /// As the driver's copies.
    ///
    /// # Safety
    /// A side in memory of the host must be the caller's to read or write.
    pub unsafe fn copy_box(&mut self, lane: Lane, dst: &End, src: &End, extent: Extent) -> CuResult {
        let Extent { width, height, depth } = extent;
        if width == 0 || height == 0 || depth == 0 {
            return self.check();
        }
        let (to, from) = (dst.place(self, extent)?, src.place(self, extent)?);
        let Lane { ctx, stream, wait } = lane;
        if !to.is_local() && !from.is_local() {
            let (dst, src) = (dst.whole(), src.whole());
            self.submit(&CopyBox { ctx, stream, dst, src, width, height, depth })?;
            return match (wait, to, from) {
                (Wait::No, ..) | (_, Place::Device, Place::Device) => Ok(()),
                _ => self.await_work(&StreamSynchronize { ctx, stream }),
            };
        }
        let bytes = bytes_in_slices(width.saturating_mul(height), depth);
        let bands = bands(extent, SLOT_BYTES as u64);
        // An array is never local, so the other side is.
        if let (true, End::Rows(rows)) = (to.is_local(), dst) {
            let rows = *rows;
            return self.fetch_pieces(
                bytes,
                bands,
                |call, slot, band| {
                    let (dst, src) = (CopySide::Slot(slot), src.side(band));
                    let Band { width, rows: height, .. } = band;
                    call.submit(&CopyBox { ctx, stream, dst, src, width, height, depth: 1 })
                },
                move |slot, band| {
                    for row in 0..band.rows {
                        // SAFETY: a row of what is the caller's to write; the band's rows fit in the slot.
                        unsafe {
                            let from = slot.add((row * band.width) as usize);
                            let to = band.address(&rows, row).cast_mut();
                            std::ptr::copy_nonoverlapping(from, to, band.width as usize);
                        }
                    }
                },
            );
        }
        let End::Rows(rows) = *src else { return Err(CuError::UNKNOWN) };
        self.wait_for_source(lane, from)?;
        self.send_pieces(
            bytes,
            bands,
            move |slot, band| {
                for row in 0..band.rows {
                    // SAFETY: a row of what is the caller's to read; the band's rows fit in the slot, which nothing uses.
                    unsafe {
                        let to = slot.add((row * band.width) as usize);
                        std::ptr::copy_nonoverlapping(band.address(&rows, row), to, band.width as usize);
                    }
                }
            },
            |call, slot, band| {
                let (dst, src) = (dst.side(band), CopySide::Slot(slot));
                let Band { width, rows: height, .. } = band;
                call.submit(&CopyBox { ctx, stream, dst, src, width, height, depth: 1 })
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_make_up_the_box() {
        let of = |width, height, depth| bands(Extent { width, height, depth }, 64).collect::<Vec<_>>();
        let band = |x, row, slice, width, rows| Band { x, row, slice, width, rows };
        assert_eq!(
            of(30, 3, 2),
            [band(0, 0, 0, 30, 2), band(0, 2, 0, 30, 1), band(0, 0, 1, 30, 2), band(0, 2, 1, 30, 1),]
        );
        let long = [band(0, 0, 0, 64, 1), band(64, 0, 0, 36, 1), band(0, 1, 0, 64, 1), band(64, 1, 0, 36, 1)];
        assert_eq!(of(100, 2, 1), long);
    }
}
