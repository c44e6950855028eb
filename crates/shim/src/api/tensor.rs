//! Tensor maps: the device library makes them of their arguments, and they are the application's from then on. They hold
//! addresses, which a restart keeps.

use std::ffi::{c_int, c_uint, c_void};

use cuda_abi::{CuError, CuResult, sys};
use wire::{Tensor, TensorMap, TensorMapRequest};

use crate::client::with;

/// The most dimensions of a tensor map.
const RANK_MAX: c_uint = 5;
/// Where a `CUtensorMap` may lie.
const ALIGNMENT: usize = 64;

/// Reads a list of the application's.
///
/// # Safety
/// `list` must be NULL or hold `count` elements.
unsafe fn list<T: Copy>(list: *const T, count: usize) -> CuResult<Vec<T>> {
    if list.is_null() {
        return if count == 0 { Ok(Vec::new()) } else { Err(CuError::INVALID_VALUE) };
    }
    // SAFETY: not NULL, and as long as the caller says.
    Ok(unsafe { std::slice::from_raw_parts(list, count) }.to_vec())
}

/// What all kinds of tensor map are told, where the application has it.
struct Arguments {
    data_type: c_uint,
    rank: c_uint,
    address: *mut c_void,
    dims: *const u64,
    strides: *const u64,
    element_strides: *const u32,
    modes: [c_uint; 4],
}

impl Arguments {
    /// # Safety
    /// The lists must be as long as the rank says.
    unsafe fn read(&self) -> CuResult<Tensor> {
        if !(1..=RANK_MAX).contains(&self.rank) {
            return Err(CuError::INVALID_VALUE);
        }
        let rank = self.rank as usize;
        // SAFETY: as the caller says.
        unsafe {
            Ok(Tensor {
                data_type: self.data_type,
                address: self.address.addr() as u64,
                dims: list(self.dims, rank)?,
                strides: list(self.strides, rank - 1)?,
                element_strides: list(self.element_strides, rank)?,
                modes: self.modes,
            })
        }
    }
}

/// # Safety
/// `to` must be NULL or the caller's to write to.
unsafe fn encode(to: *mut sys::CUtensorMap, request: TensorMapRequest) -> CuResult {
    check(to)?;
    let map = with(|call| call.tensor_map(request))?;
    // SAFETY: not NULL, so the caller's to write to; as long as a `TensorMap`.
    unsafe { to.cast::<[u64; 16]>().write(map.0) };
    Ok(())
}

fn check(map: *const sys::CUtensorMap) -> CuResult {
    if map.is_null() || !map.addr().is_multiple_of(ALIGNMENT) { Err(CuError::INVALID_VALUE) } else { Ok(()) }
}

/// Makes a map of boxes.
pub unsafe fn cuTensorMapEncodeTiled(
    tensorMap: *mut sys::CUtensorMap,
    tensorDataType: c_uint,
    tensorRank: u32,
    globalAddress: *mut c_void,
    globalDim: *const u64,
    globalStrides: *const u64,
    boxDim: *const u32,
    elementStrides: *const u32,
    interleave: c_uint,
    swizzle: c_uint,
    l2Promotion: c_uint,
    oobFill: c_uint,
) -> CuResult {
    let arguments = Arguments {
        data_type: tensorDataType,
        rank: tensorRank,
        address: globalAddress,
        dims: globalDim,
        strides: globalStrides,
        element_strides: elementStrides,
        modes: [interleave, swizzle, l2Promotion, oobFill],
    };
    // SAFETY: the lists are as long as the function's contract says, and the map is the caller's.
    unsafe {
        let tensor = arguments.read()?;
        let shape = list(boxDim, tensor.dims.len())?;
        encode(tensorMap, TensorMapRequest::Tiled(tensor, shape))
    }
}

/// Makes a map of columns of pixels.
pub unsafe fn cuTensorMapEncodeIm2col(
    tensorMap: *mut sys::CUtensorMap,
    tensorDataType: c_uint,
    tensorRank: u32,
    globalAddress: *mut c_void,
    globalDim: *const u64,
    globalStrides: *const u64,
    pixelBoxLowerCorner: *const c_int,
    pixelBoxUpperCorner: *const c_int,
    channelsPerPixel: u32,
    pixelsPerColumn: u32,
    elementStrides: *const u32,
    interleave: c_uint,
    swizzle: c_uint,
    l2Promotion: c_uint,
    oobFill: c_uint,
) -> CuResult {
    let arguments = Arguments {
        data_type: tensorDataType,
        rank: tensorRank,
        address: globalAddress,
        dims: globalDim,
        strides: globalStrides,
        element_strides: elementStrides,
        modes: [interleave, swizzle, l2Promotion, oobFill],
    };
    // SAFETY: the lists are as long as the function's contract says, and the map is the caller's.
    unsafe {
        let tensor = arguments.read()?;
        let corners = tensor.dims.len().checked_sub(2).ok_or(CuError::INVALID_VALUE)?;
        let corners = (list(pixelBoxLowerCorner, corners)?, list(pixelBoxUpperCorner, corners)?);
        let pixels = [channelsPerPixel, pixelsPerColumn];
        encode(tensorMap, TensorMapRequest::Im2col(tensor, corners, pixels))
    }
}

/// Makes a map of wide columns of pixels.
pub unsafe fn cuTensorMapEncodeIm2colWide(
    tensorMap: *mut sys::CUtensorMap,
    tensorDataType: c_uint,
    tensorRank: u32,
    globalAddress: *mut c_void,
    globalDim: *const u64,
    globalStrides: *const u64,
    pixelBoxLowerCornerWidth: c_int,
    pixelBoxUpperCornerWidth: c_int,
    channelsPerPixel: u32,
    pixelsPerColumn: u32,
    elementStrides: *const u32,
    interleave: c_uint,
    mode: c_uint,
    swizzle: c_uint,
    l2Promotion: c_uint,
    oobFill: c_uint,
) -> CuResult {
    let arguments = Arguments {
        data_type: tensorDataType,
        rank: tensorRank,
        address: globalAddress,
        dims: globalDim,
        strides: globalStrides,
        element_strides: elementStrides,
        modes: [interleave, swizzle, l2Promotion, oobFill],
    };
    let corners = [pixelBoxLowerCornerWidth, pixelBoxUpperCornerWidth];
    let pixels = [channelsPerPixel, pixelsPerColumn, mode];
    // SAFETY: the lists are as long as the function's contract says, and the map is the caller's.
    unsafe { encode(tensorMap, TensorMapRequest::Im2colWide(arguments.read()?, corners, pixels)) }
}

/// Gives a map another address.
pub unsafe fn cuTensorMapReplaceAddress(
    tensorMap: *mut sys::CUtensorMap,
    globalAddress: *mut c_void,
) -> CuResult {
    check(tensorMap)?;
    // SAFETY: not NULL, so the caller's to read; as long as a `TensorMap`.
    let known = TensorMap(unsafe { tensorMap.cast::<[u64; 16]>().read() });
    // SAFETY: the caller's to write to.
    unsafe { encode(tensorMap, TensorMapRequest::Replace(known, globalAddress.addr() as u64)) }
}
