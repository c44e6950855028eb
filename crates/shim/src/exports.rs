//! The exported symbols, generated from the list, and their addresses.

#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::mem::MaybeUninit;

use cuda_abi::{CuResult, FunctionId, sys};

use crate::{log, trace};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// The address of an exported function.
struct Address(*const c_void);

// SAFETY: the address of code, which every thread may call.
unsafe impl Sync for Address {}

/// Where an exported function starts: what `cuGetProcAddress` hands out.
pub fn address(id: FunctionId) -> *const c_void {
    ADDRESSES[id as usize].0
}

/// Runs an implementation and turns what it answers into a `CUresult`.
#[inline]
fn answer(id: FunctionId, implementation: impl FnOnce() -> CuResult) -> c_uint {
    let result = if trace::is_on() { trace::call(id, implementation) } else { implementation() };
    if log::enabled(log::Level::Trace) {
        log::trace_call(id, result);
    }
    result.map_or_else(|error| error.code(), |()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_its_own_address() {
        let mut addresses: Vec<_> = FunctionId::all().map(address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), FunctionId::COUNT);
    }
}
