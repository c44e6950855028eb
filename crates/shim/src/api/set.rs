//! Filling memory. With device memory all of it is asynchronous, as the driver's; the synchronous forms wait for pinned and managed memory.

use std::ffi::{c_uchar, c_uint, c_ushort};

use cuda_abi::{
    CuError, CuResult,
    sys::{CUdeviceptr, CUstream},
};
use wire::{ContextId, Fill};

use crate::client::{Call, Lane, Side, Wait, with};
use crate::graph::{self, Captive, Work};

/// What to fill with: its size and its bits.
#[derive(Clone, Copy)]
struct Element(u8, u32);

/// Rows to be filled: bytes from one to the next, elements of each, how many.
#[derive(Clone, Copy)]
struct Area {
    pitch: usize,
    width: usize,
    height: usize,
}

impl Area {
    fn row(count: usize) -> Self {
        Self { pitch: 0, width: count, height: 1 }
    }
}

/// What the driver refuses to set, else how it is sent: an element's size and bits, and pitch, width and height, none of them 0.
///
/// # Errors
/// `INVALID_VALUE`.
pub(in crate::api) fn checked(
    call: &Call<'_>,
    ctx: ContextId,
    dst: CUdeviceptr,
    (element, value): (u8, u32),
    (pitch, width, height): (usize, usize, usize),
) -> CuResult<graph::Fill> {
    let (width, height, size) = (width as u64, height as u64, u64::from(element));
    let row = width.checked_mul(size).ok_or(CuError::INVALID_VALUE)?;
    // A single row has no next one.
    let pitch = if height == 1 { row } else { pitch as u64 };
    let span = (height - 1).checked_mul(pitch).and_then(|rows| rows.checked_add(row));
    let span = span.ok_or(CuError::INVALID_VALUE)?;
    if pitch < row || !pitch.is_multiple_of(size) || !dst.is_multiple_of(size) {
        return Err(CuError::INVALID_VALUE);
    }
    if call.place_of(Side::Device(dst), span)?.is_local() {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(graph::Fill { ctx, dst, pitch, element, value, width, height })
}

fn fill(dst: CUdeviceptr, element: Element, area: Area, stream: CUstream, wait: Wait) -> CuResult {
    let Element(size, value) = element;
    with(|call| {
        let captured = call.capture_of(stream)?;
        let (stream, ctx) = call.any_stream(stream)?;
        if area.width == 0 || area.height == 0 {
            return call.check();
        }
        let fill = checked(call, ctx, dst, (size, value), (area.pitch, area.width, area.height))?;
        if let Some(target) = captured {
            return call.capture(target, Captive::Work(Work::Fill(fill)));
        }
        let graph::Fill { pitch, width, height, .. } = fill;
        call.submit(&Fill { ctx, stream, dst, pitch, element: size, value, width, height })?;
        // All of it is in one allocation.
        let place = call.place_of(Side::Device(dst), 1)?;
        call.wait_for_target(Lane { ctx, stream, wait }, place)
    })
}

macro_rules! fills {
    ($($doc:literal $sync:ident $asynchronous:ident ($value:ident: $ty:ty, $size:literal);)*) => {$(
        #[doc = concat!("Sets ", $doc, ".")]
        pub unsafe fn $sync(dstDevice: CUdeviceptr, $value: $ty, N: usize, default_stream: CUstream) -> CuResult {
            fill(dstDevice, Element($size, $value.into()), Area::row(N), default_stream, Wait::UntilDone)
        }

        #[doc = concat!("Sets ", $doc, " when the stream gets there.")]
        pub unsafe fn $asynchronous(dstDevice: CUdeviceptr, $value: $ty, N: usize, hStream: CUstream) -> CuResult {
            fill(dstDevice, Element($size, $value.into()), Area::row(N), hStream, Wait::No)
        }
    )*};
}

fills! {
    "bytes" cuMemsetD8_v2 cuMemsetD8Async (uc: c_uchar, 1);
    "16-bit words" cuMemsetD16_v2 cuMemsetD16Async (us: c_ushort, 2);
    "32-bit words" cuMemsetD32_v2 cuMemsetD32Async (ui: c_uint, 4);
}

macro_rules! fills_2d {
    ($($doc:literal $sync:ident $asynchronous:ident ($value:ident: $ty:ty, $size:literal);)*) => {$(
        #[doc = concat!("Sets rows of ", $doc, ".")]
        pub unsafe fn $sync(
            dstDevice: CUdeviceptr,
            dstPitch: usize,
            $value: $ty,
            Width: usize,
            Height: usize,
            default_stream: CUstream,
        ) -> CuResult {
            let area = Area { pitch: dstPitch, width: Width, height: Height };
            fill(dstDevice, Element($size, $value.into()), area, default_stream, Wait::UntilDone)
        }

        #[doc = concat!("Sets rows of ", $doc, " when the stream gets there.")]
        pub unsafe fn $asynchronous(
            dstDevice: CUdeviceptr,
            dstPitch: usize,
            $value: $ty,
            Width: usize,
            Height: usize,
            hStream: CUstream,
        ) -> CuResult {
            let area = Area { pitch: dstPitch, width: Width, height: Height };
            fill(dstDevice, Element($size, $value.into()), area, hStream, Wait::No)
        }
    )*};
}

fills_2d! {
    "bytes" cuMemsetD2D8_v2 cuMemsetD2D8Async (uc: c_uchar, 1);
    "16-bit words" cuMemsetD2D16_v2 cuMemsetD2D16Async (us: c_ushort, 2);
    "32-bit words" cuMemsetD2D32_v2 cuMemsetD2D32Async (ui: c_uint, 4);
}
