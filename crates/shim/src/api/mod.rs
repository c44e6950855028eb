//! What each supported function does: one module per chapter of the list.

#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

pub mod array;
mod atomics;
pub mod capture;
pub mod context;
pub mod copy;
pub mod coredump;
pub mod device;
pub mod entry_point;
pub mod error;
pub mod event;
pub mod graph;
pub mod graph_exec;
pub mod graph_node;
pub mod green;
pub mod host_memory;
pub mod initialization;
pub mod ipc;
pub mod launch;
pub mod library;
pub mod link;
mod location;
pub mod logs;
pub mod managed;
pub mod memop;
pub mod memory;
pub mod module;
pub mod occupancy;
pub mod peer;
pub mod pool;
pub mod primary_context;
pub mod profiler;
pub mod set;
pub mod stream;
mod stream_attributes;
pub mod tensor;
pub mod texture;
pub mod unified;
pub mod vmm;

use std::ffi::c_char;

use cuda_abi::sys::CUdeviceptr;
use cuda_abi::{CuError, CuResult};

use crate::client::{Call, text, with};

/// Writes an address and a size, each where it is wanted.
///
/// # Safety
/// Both pointers must be NULL or the caller's to write to.
unsafe fn give_range(to: (*mut CUdeviceptr, *mut usize), range: (u64, u64)) {
    // SAFETY: as the caller says.
    unsafe {
        if !to.0.is_null() {
            to.0.write(range.0);
        }
        if !to.1.is_null() {
            to.1.write(range.1 as usize);
        }
    }
}

/// Gives the address and size of the variable of that name, which `find` finds; either may be left out.
///
/// # Safety
/// As [`give_range`] and [`text`].
unsafe fn give_variable(
    to: (*mut CUdeviceptr, *mut usize),
    name: *const c_char,
    find: impl FnOnce(&mut Call<'_>, &str) -> CuResult<(u64, u64)>,
) -> CuResult {
    // SAFETY: as the caller says.
    let name = unsafe { text(name) }?;
    if to.0.is_null() && to.1.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let found = with(|call| find(call, name))?;
    // SAFETY: as the caller says.
    unsafe { give_range(to, found) };
    Ok(())
}
