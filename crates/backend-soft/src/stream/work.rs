//! What streams do.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use wire::{ConditionKind, CuError, MemoryOperation};

use super::{Interprocess, Signal};
use crate::conditions::Condition;
use crate::exec::Launch;
use crate::memory::{Extents, Memory};

/// A host function in a stream; it is told the error the context is in, if any.
pub type HostFunction = Box<dyn FnOnce(Result<(), CuError>) + Send>;

/// One side of a pitched copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Where the first byte lies.
    pub address: u64,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Bytes from a slice to the next.
    pub slice: u64,
}

/// A copy of `depth` slices of `height` rows of `width` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy3 {
    /// To.
    pub dst: Side,
    /// From.
    pub src: Side,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

/// A piece of work.
pub enum Work {
    /// A grid, and how many of its blocks may be resident.
    Launch(Box<Launch>, usize),
    /// A copy.
    Copy(Copy3),
    /// A copy from bytes that the call has taken.
    CopyFrom(u64, Vec<u8>),
    /// Sets `width` elements, in each of `height` rows `pitch` bytes apart, to the bytes of `value`.
    Fill {
        /// Where.
        dst: u64,
        /// Bytes from a row to the next.
        pitch: u64,
        /// The element's bytes.
        value: Vec<u8>,
        /// Elements of a row.
        width: u64,
        /// Rows.
        height: u64,
    },
    /// Operations on words of memory.
    Operations(Vec<MemoryOperation>),
    /// A host function.
    Host(HostFunction),
    /// A graph begins to run: its conditions take their initial values.
    Begin(Vec<Arc<Condition>>),
    /// Runs the work of a body, as a condition says.
    Choice(Choice),
    /// Notes the time.
    Mark(Arc<OnceLock<Instant>>),
    /// Completes a record of an event that other processes see.
    Signal(Signal),
    /// Waits for such a record.
    Await(Arc<Interprocess>, u64),
    /// Only waits for its tickets.
    Nothing,
}

/// A conditional node with all that it decides about: grids, copies, fills and other choices, each in order.
pub struct Choice {
    /// What it looks at.
    pub condition: Arc<Condition>,
    /// What that means.
    pub kind: ConditionKind,
    /// The bodies.
    pub bodies: Vec<Vec<Work>>,
}

impl Choice {
    /// The body that is to run next; `None` for none.
    pub fn next(&self) -> Option<&[Work]> {
        let value = self.condition.get() as usize;
        let body = match self.kind {
            ConditionKind::If => usize::from(value == 0),
            ConditionKind::While if value == 0 => return None,
            ConditionKind::While => 0,
            ConditionKind::Switch => value,
        };
        self.bodies.get(body).map(Vec::as_slice)
    }
}

impl Side {
    /// One past the last byte, and the first; `None` when that wraps.
    fn span(&self, copy: &Copy3) -> Option<(u64, u64)> {
        let last = (copy.depth - 1)
            .checked_mul(self.slice)?
            .checked_add((copy.height - 1).checked_mul(self.pitch)?)?;
        Some((self.address, self.address.checked_add(last)?.checked_add(copy.width)?))
    }
}

impl Copy3 {
    /// A copy without pitches.
    pub fn linear(dst: u64, src: u64, bytes: u64) -> Self {
        let side = |address| Side { address, pitch: bytes, slice: bytes };
        Self { dst: side(dst), src: side(src), width: bytes, height: 1, depth: 1 }
    }

    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// Whether either side is host memory that is not registered.
    pub fn plain_sides(&self, memory: &Memory) -> (bool, bool) {
        let plain = |side: &Side| {
            let known = memory.extents().find(side.address, 1).is_some();
            !known && !memory.is_device(side.address)
        };
        (plain(&self.dst), plain(&self.src))
    }

    /// Whether all device and registered memory that it names is there; gives what must be held while it runs.
    fn check(&self, memory: &Memory) -> Result<Arc<Extents>, CuError> {
        let (dst_plain, src_plain) = self.plain_sides(memory);
        let extents = memory.extents();
        for (side, plain) in [(&self.dst, dst_plain), (&self.src, src_plain)] {
            let (start, end) = side.span(self).ok_or(CuError::INVALID_VALUE)?;
            if !plain && extents.find(start, end - start).is_none() {
                return Err(CuError::INVALID_VALUE);
            }
        }
        Ok(extents)
    }

    /// Whether it could run now.
    ///
    /// # Errors
    /// When device memory is addressed where there is none.
    pub fn validate(&self, memory: &Memory) -> Result<(), CuError> {
        if self.is_empty() { Ok(()) } else { self.check(memory).map(drop) }
    }

    /// Copies.
    ///
    /// # Errors
    /// When device memory is addressed where there is none any more.
    pub fn run(&self, memory: &Memory) -> Result<(), CuError> {
        if self.is_empty() {
            return Ok(());
        }
        let _held = self.check(memory).map_err(|_| CuError::ILLEGAL_ADDRESS)?;
        for z in 0..self.depth {
            for y in 0..self.height {
                let at = |side: &Side| side.address + z * side.slice + y * side.pitch;
                // SAFETY: device and registered memory was found above and stays while the extents are held; other memory
                // is the caller's, who promises that it is there (`Backend::copy`). Rows may overlap.
                unsafe {
                    std::ptr::copy(at(&self.src) as *const u8, at(&self.dst) as *mut u8, self.width as usize);
                }
            }
        }
        Ok(())
    }
}

/// Writes bytes that the call has taken.
///
/// # Errors
/// When there is no memory.
pub fn copy_from(memory: &Memory, dst: u64, bytes: &[u8]) -> Result<(), CuError> {
    Copy3::linear(dst, bytes.as_ptr() as u64, bytes.len() as u64).run(memory)
}

/// Whether rows to be filled are there now.
///
/// # Errors
/// When they are not.
pub fn validate_fill(memory: &Memory, dst: u64, pitch: u64, row: u64, height: u64) -> Result<(), CuError> {
    if row == 0 || height == 0 {
        return Ok(());
    }
    let whole = (height - 1).checked_mul(pitch).and_then(|rows| rows.checked_add(row));
    let found = whole.and_then(|whole| memory.extents().find(dst, whole));
    found.map(drop).ok_or(CuError::INVALID_VALUE)
}

/// Fills rows.
///
/// # Errors
/// When there is no memory.
pub fn fill(
    memory: &Memory,
    dst: u64,
    pitch: u64,
    value: &[u8],
    width: u64,
    height: u64,
) -> Result<(), CuError> {
    let row = width.checked_mul(value.len() as u64).ok_or(CuError::INVALID_VALUE)?;
    if row == 0 || height == 0 {
        return Ok(());
    }
    let whole = (height - 1).checked_mul(pitch).and_then(|rows| rows.checked_add(row));
    let whole = whole.ok_or(CuError::INVALID_VALUE)?;
    let extents = memory.extents();
    extents.find(dst, whole).ok_or(CuError::ILLEGAL_ADDRESS)?;
    let same = value.iter().all(|byte| *byte == value[0]);
    for y in 0..height {
        let start = (dst + y * pitch) as *mut u8;
        // SAFETY: the whole range was found above and stays while the extents are held.
        unsafe {
            if same {
                start.write_bytes(value[0], row as usize);
            } else {
                for element in 0..width as usize {
                    start.add(element * value.len()).copy_from_nonoverlapping(value.as_ptr(), value.len());
                }
            }
        }
    }
    Ok(())
}
