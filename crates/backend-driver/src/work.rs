//! Launches, copies, fills and host functions.

use crate::api::{Api, check};
use crate::copy;
use crate::driver::stream;
use backend::{Copy3D, Fill, HostFunction, Launch, Result, StreamArg};
use cudarc::driver::sys;
use std::ffi::{c_char, c_void};
use wire::{CuError, LaunchValue};

/// `CU_LAUNCH_PARAM_BUFFER_POINTER`, `_SIZE` and `_END` of cuda.h, which are macros there.
const PARAM_BUFFER: *mut c_void = std::ptr::without_provenance_mut(1);
const PARAM_BYTES: *mut c_void = std::ptr::without_provenance_mut(2);
const PARAM_END: *mut c_void = std::ptr::null_mut();

/// `CUlaunchAttribute`, with the id as a number: the application may know attributes that today's enum does not.
#[repr(C)]
struct Attribute {
    id: u32,
    pad: [c_char; 4],
    value: [u64; 8],
}
const _: () = assert!(size_of::<Attribute>() == size_of::<sys::CUlaunchAttribute>());

/// A value as the driver's record holds it.
pub fn words(value: &LaunchValue) -> [u64; 8] {
    std::array::from_fn(|at| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&value.0[at * 8..at * 8 + 8]);
        u64::from_ne_bytes(bytes)
    })
}

fn attributes(list: &[(u32, LaunchValue)]) -> Vec<Attribute> {
    list.iter().map(|(id, value)| Attribute { id: *id, pad: [0; 4], value: words(value) }).collect()
}

/// A kernel's parameter buffer as the driver's `extra`; both arguments must outlive it.
pub fn param_buffer(params: &[u8], bytes: &mut usize) -> [*mut c_void; 5] {
    [PARAM_BUFFER, params.as_ptr().cast_mut().cast(), PARAM_BYTES, (&raw mut *bytes).cast(), PARAM_END]
}

fn config(launch: &Launch<'_>, attributes: &mut [Attribute]) -> sys::CUlaunchConfig {
    sys::CUlaunchConfig {
        gridDimX: launch.grid[0],
        gridDimY: launch.grid[1],
        gridDimZ: launch.grid[2],
        blockDimX: launch.block[0],
        blockDimY: launch.block[1],
        blockDimZ: launch.block[2],
        sharedMemBytes: launch.shared,
        hStream: stream(launch.stream),
        attrs: attributes.as_mut_ptr().cast(),
        numAttrs: attributes.len() as u32,
    }
}

pub fn launch(api: &Api, launch: &Launch<'_>) -> Result<()> {
    let mut attributes = attributes(launch.attributes);
    let config = config(launch, &mut attributes);
    let mut bytes = launch.params.len();
    let mut extra = param_buffer(launch.params, &mut bytes);
    let function = launch.function.0 as sys::CUfunction;
    // SAFETY: the server has checked that the buffer is as long as the function's parameters; the driver copies it
    // before it returns.
    check(unsafe {
        (api.cuLaunchKernelEx)(&raw const config, function, std::ptr::null_mut(), extra.as_mut_ptr())
    })
}

pub fn occupancy_clusters(api: &Api, active: bool, launch: &Launch<'_>) -> Result<i32> {
    let mut attributes = attributes(launch.attributes);
    let config = config(launch, &mut attributes);
    let mut answer = 0;
    let function = launch.function.0 as sys::CUfunction;
    let ask = if active { api.cuOccupancyMaxActiveClusters } else { api.cuOccupancyMaxPotentialClusterSize };
    // SAFETY: a live function and a whole configuration.
    check(unsafe { ask(&raw mut answer, function, &raw const config) })?;
    Ok(answer)
}

pub fn copy_3d(api: &Api, arg: StreamArg, copy: &Copy3D) -> Result<()> {
    copy::submit(api, arg, &(*copy).into())
}

pub fn fill(api: &Api, arg: StreamArg, fill: &Fill) -> Result<()> {
    let (dst, stream) = (fill.dst, stream(arg));
    let (pitch, width, height) = (fill.pitch as usize, fill.width as usize, fill.height as usize);
    // SAFETY: the server has checked the range against its tables.
    check(unsafe {
        match (fill.element, height) {
            (1, 1) => (api.cuMemsetD8Async)(dst, fill.value as u8, width, stream),
            (2, 1) => (api.cuMemsetD16Async)(dst, fill.value as u16, width, stream),
            (4, 1) => (api.cuMemsetD32Async)(dst, fill.value, width, stream),
            (1, _) => (api.cuMemsetD2D8Async)(dst, pitch, fill.value as u8, width, height, stream),
            (2, _) => (api.cuMemsetD2D16Async)(dst, pitch, fill.value as u16, width, height, stream),
            (4, _) => (api.cuMemsetD2D32Async)(dst, pitch, fill.value, width, height, stream),
            _ => return Err(CuError::INVALID_VALUE),
        }
    })
}

pub fn host_function(api: &Api, arg: StreamArg, function: HostFunction) -> Result<()> {
    unsafe extern "C" fn run(data: *mut c_void) {
        // SAFETY: the pointer is the box given below, and the driver runs a host function once.
        let function = unsafe { Box::from_raw(data.cast::<HostFunction>()) };
        // The driver runs host functions only in streams without an error.
        function(Ok(()));
    }
    let data = Box::into_raw(Box::new(function));
    // SAFETY: `run` takes the box it is given.
    let code = unsafe { (api.cuLaunchHostFunc)(stream(arg), Some(run), data.cast()) };
    check(code).inspect_err(|_| {
        // SAFETY: the driver refused it and will not run it.
        drop(unsafe { Box::from_raw(data) });
    })
}
