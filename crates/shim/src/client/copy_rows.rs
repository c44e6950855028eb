//! Pitched copies (`cuMemcpy2D`, `cuMemcpy3D`): rows that lie apart.

use cuda_abi::{CuError, CuResult};
use transport::SLOT_BYTES;
use wire::{Copy3D, CopyRowsFromSlot, CopyRowsToSlot, Pitched, StreamSynchronize};

use super::copy::{Lane, Side, Wait, bytes_in_slices, pieces, pointer};
use super::memory::Place;
use super::thread::Call;

/// One side of a pitched copy: where its first byte is, bytes from a row to the next, rows from a slice to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Where it is.
    pub side: Side,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Rows from a slice to the next.
    pub rows: u64,
}

/// How much is copied: bytes of a row, rows of a slice, slices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

impl Rows {
    /// Offset of a row from the first byte; `None` when it is beyond any address.
    fn offset(&self, slice: u64, row: u64) -> Option<u64> {
        slice.checked_mul(self.rows)?.checked_add(row)?.checked_mul(self.pitch)
    }

    /// Checks that rows and slices do not overlap.
    ///
    /// # Errors
    /// `INVALID_VALUE` when they do.
    pub(super) fn check(&self, Extent { width, height, depth }: Extent) -> CuResult {
        let overlap = (height > 1 || depth > 1) && self.pitch < width;
        let short = depth > 1 && self.rows < height;
        if overlap || short { Err(CuError::INVALID_VALUE) } else { Ok(()) }
    }

    /// Bytes from the first to behind the last.
    pub fn span(&self, extent: Extent) -> CuResult<u64> {
        self.offset(extent.depth - 1, extent.height - 1)
            .and_then(|last| last.checked_add(extent.width))
            .ok_or(CuError::INVALID_VALUE)
    }

    /// As messages have it.
    pub fn pitched(&self) -> Pitched {
        Pitched { address: self.side.address(), pitch: self.pitch, rows: self.rows }
    }

    /// The same from another row on. The span has been checked, so no row is beyond it.
    pub(super) fn from(&self, slice: u64, row: u64) -> Self {
        Self { side: self.side.offset(self.offset(slice, row).unwrap_or(0)), ..*self }
    }
}

/// A copy of rows within this process.
#[derive(Clone, Copy, Debug)]
pub struct LocalRows {
    /// To: the first row, bytes from a row to the next, rows from a slice to the next.
    pub dst: Pitched,
    /// From.
    pub src: Pitched,
    /// How much.
    pub extent: Extent,
}

impl LocalRows {
    /// Copies.
    ///
    /// # Safety
    /// Both sides must be there; they may overlap.
    pub unsafe fn copy(&self) {
        let Extent { width, height, depth } = self.extent;
        for (slice, row) in (0..depth).flat_map(|slice| (0..height).map(move |row| (slice, row))) {
            let at = |side: &Pitched| {
                let rows = slice.wrapping_mul(side.rows).wrapping_add(row);
                pointer(side.address.wrapping_add(rows.wrapping_mul(side.pitch)))
            };
            // SAFETY: as the caller says.
            unsafe { std::ptr::copy(at(&self.src), at(&self.dst).cast_mut(), width as usize) };
        }
    }
}

/// Some rows of one slice.
#[derive(Clone, Copy)]
struct Band {
    slice: u64,
    row: u64,
    rows: u64,
}

/// The bands of a copy that each fit in a slot.
fn bands(extent: Extent) -> impl Iterator<Item = Band> {
    let most = SLOT_BYTES as u64 / extent.width.max(1);
    (0..extent.depth)
        .flat_map(move |slice| pieces(extent.height, most).map(move |(row, rows)| Band { slice, row, rows }))
}

impl Call<'_> {
    /// What the sides of a copy of rows are, to and from; it is not empty.
    ///
    /// # Errors
    /// `INVALID_VALUE` when rows overlap, or a side is not what the caller says.
    pub fn places_of(&self, dst: &Rows, src: &Rows, extent: Extent) -> CuResult<(Place, Place)> {
        dst.check(extent)?;
        src.check(extent)?;
        Ok((self.place_of(dst.side, dst.span(extent)?)?, self.place_of(src.side, src.span(extent)?)?))
    }

    /// Copies rows.
    ///
    /// # Errors
    /// As the driver's pitched copies.
    ///
    /// # Safety
    /// A side in memory of the host must be the caller's to read or write.
    pub unsafe fn copy_rows(&mut self, lane: Lane, dst: Rows, src: Rows, extent: Extent) -> CuResult {
        let Extent { width, height, depth } = extent;
        if width == 0 || height == 0 || depth == 0 {
            return self.check();
        }
        let (to, from) = self.places_of(&dst, &src, extent)?;
        let Lane { ctx, stream, wait } = lane;
        if !to.is_local() && !from.is_local() {
            self.submit(&Copy3D {
                ctx,
                stream,
                dst: dst.pitched(),
                src: src.pitched(),
                width,
                height,
                depth,
            })?;
            return match (wait, to, from) {
                (Wait::No, ..) | (_, Place::Device, Place::Device) => Ok(()),
                _ => self.await_work(&StreamSynchronize { ctx, stream }),
            };
        }
        if width > SLOT_BYTES as u64 || (to.is_local() && from.is_local()) {
            for slice in 0..depth {
                for row in 0..height {
                    let (dst, src) = (dst.from(slice, row).side, src.from(slice, row).side);
                    // SAFETY: a row of what is the caller's.
                    unsafe { self.copy(lane, dst, src, width) }?;
                }
            }
            return Ok(());
        }
        let bytes = bytes_in_slices(width.saturating_mul(height), depth);
        if to.is_local() {
            return self.fetch_pieces(
                bytes,
                bands(extent),
                |call, slot, Band { slice, row, rows }| {
                    let src = src.from(slice, row).pitched();
                    call.submit(&CopyRowsToSlot { ctx, stream, src, slot, width, height: rows, depth: 1 })
                },
                move |slot, band| {
                    for row in 0..band.rows {
                        let to = dst.from(band.slice, band.row + row).side.address();
                        // SAFETY: a row of what is the caller's to write; the band's rows fit in the slot.
                        unsafe {
                            let from = slot.add((row * width) as usize);
                            std::ptr::copy_nonoverlapping(from, pointer(to).cast_mut(), width as usize);
                        }
                    }
                },
            );
        }
        self.wait_for_source(lane, from)?;
        self.send_pieces(
            bytes,
            bands(extent),
            move |slot, band| {
                for row in 0..band.rows {
                    let from = src.from(band.slice, band.row + row).side.address();
                    // SAFETY: a row of what is the caller's to read; the band's rows fit in the slot, which nothing uses.
                    unsafe {
                        let to = slot.add((row * width) as usize);
                        std::ptr::copy_nonoverlapping(pointer(from), to, width as usize);
                    }
                }
            },
            |call, slot, Band { slice, row, rows }| {
                let dst = dst.from(slice, row).pitched();
                call.submit(&CopyRowsFromSlot { ctx, stream, dst, slot, width, height: rows, depth: 1 })
            },
        )?;
        self.wait_for_target(lane, to)
    }
}
