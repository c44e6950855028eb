//! The register file: structure of arrays, one [`Row`] of 32 lanes for each 32 bits of a register.

/// Lanes of a warp.
pub const LANES: usize = 32;

/// 32 bits of each lane of a warp. A 64-bit register is two consecutive rows that hold 32 `u64`.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Row(pub [u32; LANES]);

impl Row {
    /// All lanes zero.
    pub const ZERO: Row = Row([0; LANES]);

    /// The same value in every lane.
    pub fn splat(value: u32) -> Self {
        Row([value; LANES])
    }

    /// Two rows with the same 64-bit value in every lane.
    pub fn splat64(value: u64) -> [Row; 2] {
        let halves = |index: usize| (value >> (32 * (index % 2))) as u32;
        [Row(std::array::from_fn(halves)), Row(std::array::from_fn(halves))]
    }
}

/// Where an operand lies: a row of the frame (from 0 up), or of the function's constants (below 0, complemented).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Slot(i32);

impl Slot {
    /// A row of the frame.
    pub fn register(row: usize) -> Self {
        Slot(row as i32)
    }

    /// A row of the constants.
    pub fn constant(row: usize) -> Self {
        Slot(!(row as i32))
    }

    /// The row of the constants, if it is one.
    pub fn as_constant(self) -> Option<usize> {
        (self.0 < 0).then_some(!self.0 as usize)
    }

    /// The row of the frame; of a constant, its row of the constants.
    #[inline(always)]
    pub fn index(self) -> usize {
        (if self.0 < 0 { !self.0 } else { self.0 }) as usize
    }
}

/// A predicate register: an index into the masks of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Pred(pub u16);

impl Pred {
    /// The carry flag.
    pub const CARRY: Pred = Pred(0);
    /// Always false.
    pub const FALSE: Pred = Pred(1);
    /// Always true.
    pub const TRUE: Pred = Pred(2);
    /// Written and never read.
    pub const SINK: Pred = Pred(3);
    /// Written and read within what one instruction became.
    pub const SCRATCH: Pred = Pred(4);
    /// Predicates of a frame before the first register's.
    pub const RESERVED: usize = 5;
}

/// A value of one lane as an instruction sees it.
pub trait Elem: Copy + Default + 'static {
    /// Reads a lane.
    ///
    /// # Safety
    /// `rows` points to the rows of a register of this type; `lane` is below [`LANES`].
    unsafe fn read(rows: *const Row, lane: usize) -> Self;
    /// Writes a lane.
    ///
    /// # Safety
    /// `rows` points to the rows of a register of this type; `lane` is below [`LANES`].
    unsafe fn write(rows: *mut Row, lane: usize, value: Self);
    /// Writes a lane if it is `taken`; leaves all its bits as they are if it is not: a lane that is elsewhere may have a wider register there.
    ///
    /// # Safety
    /// As [`Elem::write`].
    #[inline(always)]
    unsafe fn blend(rows: *mut Row, lane: usize, value: Self, taken: bool) {
        // SAFETY: this function's contract.
        unsafe {
            let old = Self::read(rows, lane);
            Self::write(rows, lane, if taken { value } else { old });
        }
    }
}

macro_rules! whole_elements {
    ($($ty:ty),*) => {$(
        impl Elem for $ty {
            #[inline(always)]
            unsafe fn read(rows: *const Row, lane: usize) -> Self {
                // SAFETY: the rows hold 32 values of this type (this function's contract); any bits are valid.
                unsafe { *rows.cast::<$ty>().add(lane) }
            }
            #[inline(always)]
            unsafe fn write(rows: *mut Row, lane: usize, value: Self) {
                // SAFETY: as above.
                unsafe { *rows.cast::<$ty>().add(lane) = value }
            }
        }
    )*};
}
whole_elements!(u32, i32, f32, u64, i64, f64);

/// Shorter values live in the low bits of a 32-bit lane; the rest is zero.
macro_rules! short_elements {
    ($($ty:ty as $unsigned:ty),*) => {$(
        impl Elem for $ty {
            #[inline(always)]
            unsafe fn read(rows: *const Row, lane: usize) -> Self {
                // SAFETY: this function's contract.
                unsafe { *rows.cast::<u32>().add(lane) as $ty }
            }
            #[inline(always)]
            unsafe fn write(rows: *mut Row, lane: usize, value: Self) {
                // SAFETY: this function's contract.
                unsafe { *rows.cast::<u32>().add(lane) = u32::from(value as $unsigned) }
            }
            #[inline(always)]
            unsafe fn blend(rows: *mut Row, lane: usize, value: Self, taken: bool) {
                // SAFETY: this function's contract; the lane has 32 bits.
                unsafe { u32::blend(rows, lane, u32::from(value as $unsigned), taken) }
            }
        }
    )*};
}
short_elements!(u8 as u8, i8 as u8, u16 as u16, i16 as u16);

macro_rules! wrapped_elements {
    ($($(#[$doc:meta])* $name:ident($bits:ty)),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct $name(pub $bits);
        impl Elem for $name {
            #[inline(always)]
            unsafe fn read(rows: *const Row, lane: usize) -> Self {
                // SAFETY: this function's contract.
                Self(unsafe { <$bits>::read(rows, lane) })
            }
            #[inline(always)]
            unsafe fn write(rows: *mut Row, lane: usize, value: Self) {
                // SAFETY: this function's contract.
                unsafe { <$bits>::write(rows, lane, value.0) }
            }
            #[inline(always)]
            unsafe fn blend(rows: *mut Row, lane: usize, value: Self, taken: bool) {
                // SAFETY: this function's contract.
                unsafe { <$bits>::blend(rows, lane, value.0, taken) }
            }
        }
    )*};
}
wrapped_elements!(
    /// Half precision.
    Half(u16),
    /// bfloat16.
    Bfloat(u16),
    /// Two half-precision values, the first in the low bits.
    HalfPair(u32),
    /// Two bfloat16 values, the first in the low bits.
    BfloatPair(u32)
);

/// Writes the lanes of `mask`.
///
/// # Safety
/// `rows` points to the rows of a register of type `D` that nothing else refers to.
#[inline(always)]
pub unsafe fn commit<D: Elem>(rows: *mut Row, out: &[D; LANES], mask: u32) {
    if mask == !0 {
        for (lane, value) in out.iter().enumerate() {
            // SAFETY: this function's contract; `lane` is below LANES.
            unsafe { D::write(rows, lane, *value) }
        }
    } else {
        for (lane, value) in out.iter().enumerate() {
            // SAFETY: as above.
            unsafe { D::blend(rows, lane, *value, mask >> lane & 1 != 0) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers share rows, and lanes that are at other instructions have other registers there.
    #[test]
    fn lanes_that_are_not_written_keep_all_their_bits() {
        let mut row = Row::splat(0x4040_1234);
        // SAFETY: a row of narrow registers, and two values of 32 lanes.
        unsafe {
            commit(&raw mut row, &[7u16; LANES], 1);
            commit(&raw mut row, &[-1i8; LANES], 2);
            commit(&raw mut row, &[Half(9); LANES], 4);
        }
        assert_eq!(row.0[..4], [7, 0xff, 9, 0x4040_1234]);
    }
}
