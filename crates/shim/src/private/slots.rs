//! Tables of function pointers, in which every entry can be called.

use std::{
    ffi::{c_uint, c_void},
    ptr,
};

use cuda_abi::CuError;

use crate::report::{self, Unsupported};

/// One word of a table: a function's address, or the size that most tables start with.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Slot(*const c_void);

// SAFETY: a number, or the address of code: both are the same for every thread.
unsafe impl Sync for Slot {}

impl Slot {
    /// The word that tells a table's size in bytes.
    const fn size(bytes: usize) -> Slot {
        Slot(ptr::without_provenance(bytes))
    }

    /// A function, given as `function as *const c_void`.
    pub const fn function(address: *const c_void) -> Slot {
        Slot(address)
    }

    /// The end of a table that does not tell its size.
    pub const END: Slot = Slot(ptr::null());
}

/// A table of `N` words.
#[repr(transparent)]
pub struct Table<const N: usize>(pub [Slot; N]);

impl<const N: usize> Table<N> {
    /// A table that starts with its size, has the functions in `known` at their positions, and elsewhere ones that
    /// report their position and fail. `NAME` is its position in [`NAMES`].
    pub const fn new<const NAME: usize>(known: &[(usize, *const c_void)]) -> Table<N> {
        let mut slots = [Slot::size(N * size_of::<Slot>()); N];
        let mut at = 1;
        while at < N {
            slots[at] = Unknown::<NAME>::SLOTS[at];
            at += 1;
        }
        let mut next = 0;
        while next < known.len() {
            slots[known[next].0] = Slot::function(known[next].1);
            next += 1;
        }
        Table(slots)
    }

    /// What the application gets.
    pub fn address(&'static self) -> *const c_void {
        ptr::from_ref(self).cast()
    }
}

/// The tables, for reports.
pub const NAMES: [&str; 9] = [
    "CUDART_INTERFACE",
    "CALLBACK_HOOKS",
    "TOOLS_TLS",
    "CONTEXT_CHECKS",
    "INTEGRITY_CHECK",
    "TOOLS_CONTEXT",
    "TOOLS_FUNCTIONS",
    "PROFILER",
    "CUBLAS_LT",
];

/// An entry whose meaning is not known. Its arguments are not either, so it looks at none.
extern "C" fn unknown<const NAME: usize, const SLOT: usize>() -> c_uint {
    report::report(Unsupported::PrivateSlot { table: NAMES[NAME], slot: SLOT });
    CuError::NOT_SUPPORTED.code()
}

struct Unknown<const NAME: usize>;

macro_rules! unknown_slots {
    ($($slot:literal),* $(,)?) => {
        impl<const NAME: usize> Unknown<NAME> {
            /// As many as the longest table has words.
            const SLOTS: [Slot; 99] = [$(Slot::function(unknown::<NAME, $slot> as *const c_void)),*];
        }
    };
}

#[rustfmt::skip]
unknown_slots! [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
    27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51,
    52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76,
    77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98
];
