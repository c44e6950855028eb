//! Managed memory: allocation, and hints about where it should be. They are told again; the server makes of them what it can.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::mem::MaybeUninit;

use cuda_abi::{CuError, CuResult, sys};
use sys::{CUmem_range_attribute as Attribute, CUmemLocationType as LocationKind};

use super::location::Location;
use crate::client::{Advice, Call, Holder, Home, Kind, Managed, out, with};

/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST`, `CU_MEM_ATTACH_SINGLE`.
const GLOBAL: c_uint = 1;
const HOST: c_uint = 2;
const SINGLE: c_uint = 4;

/// `CU_DEVICE_CPU`.
const CPU: c_int = -1;
/// `CU_DEVICE_INVALID`.
const NO_DEVICE: c_int = -2;

/// Allocates managed memory.
pub unsafe fn cuMemAllocManaged(dptr: *mut sys::CUdeviceptr, bytesize: usize, flags: c_uint) -> CuResult {
    let dptr = out(dptr)?;
    if bytesize == 0 || !matches!(flags, GLOBAL | HOST) {
        return Err(CuError::INVALID_VALUE);
    }
    let address = with(|call| {
        call.unsafe_in_capture()?;
        call.allocate_managed(bytesize as u64, Holder::Application)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { dptr.set(address) };
    Ok(())
}

/// Says whose work may touch managed memory: a hint, since all may.
pub unsafe fn cuStreamAttachMemAsync(
    hStream: sys::CUstream,
    dptr: sys::CUdeviceptr,
    length: usize,
    flags: c_uint,
) -> CuResult {
    with(|call| {
        let (name, ctx) = call.any_stream(hStream)?;
        call.refuse_in_capture((name, ctx))?;
        if !matches!(flags, GLOBAL | HOST | SINGLE) || flags == SINGLE && name == wire::Stream::Legacy {
            return Err(CuError::INVALID_VALUE);
        }
        let found = call.session.memory.find(dptr).ok_or(CuError::INVALID_VALUE)?;
        // A variable is a part of what lies there together.
        let own = matches!(found.kind, Kind::Managed { holder: Holder::Application, .. });
        // No length is the allocation's.
        let bytes = match (length, own) {
            (0, true) => found.bytes,
            (0, false) => found.bytes - (dptr - found.base),
            _ => length as u64,
        };
        let managed = call.managed(dptr, bytes)?;
        let whole = !own || dptr == found.base && managed.is_whole(found.bytes);
        if whole { Ok(()) } else { Err(CuError::INVALID_VALUE) }
    })
}

/// What is said of memory.
enum Said {
    ReadMostly(bool),
    Preferred(Home),
    AccessedBy(Home, bool),
}

impl Said {
    /// Reads a `CUmem_advise`; `home` is asked for only by advice that has one.
    fn read(advice: c_uint, home: impl FnOnce() -> CuResult<Home>) -> CuResult<Self> {
        Ok(match advice {
            1 | 2 => Self::ReadMostly(advice == 1),
            3 => Self::Preferred(home()?),
            4 => Self::Preferred(Home::Nowhere),
            5 | 6 => match home()? {
                Home::Numa(_) => return Err(CuError::INVALID_VALUE),
                home => Self::AccessedBy(home, advice == 5),
            },
            _ => return Err(CuError::INVALID_VALUE),
        })
    }

    fn note(&self, advice: &mut Advice) {
        match *self {
            Self::ReadMostly(mostly) => advice.read_mostly = mostly,
            Self::Preferred(home) => advice.preferred = home,
            Self::AccessedBy(home, true) => drop(advice.accessed_by.insert(home)),
            Self::AccessedBy(home, false) => drop(advice.accessed_by.remove(&home)),
        }
    }
}

fn advise(address: u64, bytes: usize, advice: c_uint, home: impl FnOnce() -> CuResult<Home>) -> CuResult {
    let said = Said::read(advice, home)?;
    with(|call| {
        call.context()?;
        call.managed(address, bytes as u64)?
            .with_advice(|advised, bytes| advised.change(bytes, |advice| said.note(advice)));
        match said {
            Said::Preferred(home) => call.hint(address, home),
            Said::ReadMostly(_) | Said::AccessedBy(..) => Ok(()),
        }
    })
}

/// Says how memory will be used.
pub unsafe fn cuMemAdvise(
    devPtr: sys::CUdeviceptr,
    count: usize,
    advice: c_uint,
    device: sys::CUdevice,
) -> CuResult {
    advise(devPtr, count, advice, || Location::of_device(device).home())
}

/// Says how memory will be used.
pub unsafe fn cuMemAdvise_v2(
    devPtr: sys::CUdeviceptr,
    count: usize,
    advice: c_uint,
    location: MaybeUninit<sys::CUmemLocation>,
) -> CuResult {
    // SAFETY: the caller's argument.
    let location = unsafe { Location::read(location.as_ptr()) };
    advise(devPtr, count, advice, || location.home())
}

/// Checks that hints can be given in a stream: for a batch never in the legacy one.
fn check_stream(call: &mut Call<'_>, stream: sys::CUstream, batch: bool) -> CuResult {
    call.check()?;
    let (name, ctx) = call.any_stream(stream)?;
    call.refuse_in_capture((name, ctx))?;
    if batch && name == wire::Stream::Legacy { Err(CuError::INVALID_VALUE) } else { Ok(()) }
}

/// Notes where memory is wanted by what a stream does next.
fn prefetch(ranges: &[(u64, usize, Home)], stream: sys::CUstream, batch: bool) -> CuResult {
    with(|call| {
        check_stream(call, stream, batch)?;
        let found: CuResult<Vec<Managed>> =
            ranges.iter().map(|(address, bytes, _)| call.managed(*address, *bytes as u64)).collect();
        for (managed, (_, _, home)) in found?.iter().zip(ranges) {
            managed.with_advice(|advised, bytes| advised.change(bytes, |advice| advice.prefetched = *home));
        }
        ranges.iter().try_for_each(|(address, _, home)| call.hint(*address, *home))
    })
}

/// Moves memory to where it will be used.
pub unsafe fn cuMemPrefetchAsync(
    devPtr: sys::CUdeviceptr,
    count: usize,
    dstDevice: sys::CUdevice,
    hStream: sys::CUstream,
) -> CuResult {
    prefetch(&[(devPtr, count, Location::of_device(dstDevice).home()?)], hStream, false)
}

/// Moves memory to where it will be used.
pub unsafe fn cuMemPrefetchAsync_v2(
    devPtr: sys::CUdeviceptr,
    count: usize,
    location: MaybeUninit<sys::CUmemLocation>,
    flags: c_uint,
    hStream: sys::CUstream,
) -> CuResult {
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller's argument.
    let location = unsafe { Location::read(location.as_ptr()) };
    prefetch(&[(devPtr, count, location.home()?)], hStream, false)
}

/// Moves several pieces of memory to where they will be used: each to the location that the last index up to its own names.
pub unsafe fn cuMemPrefetchBatchAsync(
    dptrs: *mut sys::CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    prefetchLocs: *mut sys::CUmemLocation,
    prefetchLocIdxs: *mut usize,
    numPrefetchLocs: usize,
    flags: c_ulonglong,
    hStream: sys::CUstream,
) -> CuResult {
    let missing = prefetchLocs.is_null() || prefetchLocIdxs.is_null();
    if missing || numPrefetchLocs == 0 || numPrefetchLocs > count {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller gives arrays of these lengths.
    let (ranges, homes) = unsafe {
        let homes = (0..numPrefetchLocs).map(|index| {
            let home = Location::read(prefetchLocs.add(index)).home()?;
            Ok((prefetchLocIdxs.add(index).read(), home))
        });
        (read_ranges(dptrs, sizes, count, flags)?, homes.collect::<CuResult<Vec<_>>>()?)
    };
    let ascending = homes.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if homes[0].0 != 0 || !ascending || homes[homes.len() - 1].0 >= count {
        return Err(CuError::INVALID_VALUE);
    }
    let with_homes = ranges.into_iter().enumerate().map(|(index, (address, bytes))| {
        let next = homes.partition_point(|(first, _)| *first <= index);
        (address, bytes, homes[next - 1].1)
    });
    prefetch(&with_homes.collect::<Vec<_>>(), hStream, true)
}

/// Reads the pieces of memory of a batch, without flags.
unsafe fn read_ranges(
    dptrs: *const sys::CUdeviceptr,
    sizes: *const usize,
    count: usize,
    flags: c_ulonglong,
) -> CuResult<Vec<(u64, usize)>> {
    if dptrs.is_null() || sizes.is_null() || count == 0 || flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller gives arrays of this length.
    Ok((0..count).map(|index| unsafe { (dptrs.add(index).read(), sizes.add(index).read()) }).collect())
}

/// Says that the contents of memory are not needed any more; they may stay.
pub unsafe fn cuMemDiscardBatchAsync(
    dptrs: *mut sys::CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: c_ulonglong,
    hStream: sys::CUstream,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    let ranges = unsafe { read_ranges(dptrs, sizes, count, flags)? };
    with(|call| {
        check_stream(call, hStream, true)?;
        ranges.iter().try_for_each(|(address, bytes)| call.managed(*address, *bytes as u64).map(drop))
    })
}

/// Says that the contents of memory are not needed any more, and where it will be used: they may stay.
pub use self::cuMemPrefetchBatchAsync as cuMemDiscardAndPrefetchBatchAsync;

/// A home as one number: a device's ordinal, or one of the two that are none's.
fn as_device(home: Home) -> c_int {
    match home {
        Home::Nowhere => NO_DEVICE,
        Home::Device(ordinal) => ordinal as c_int,
        Home::Host | Home::Numa(_) => CPU,
    }
}

/// A home's kind as a `CUmemLocationType`, and its number.
fn as_location(home: Home) -> (c_int, c_int) {
    match home {
        Home::Nowhere => (LocationKind::CU_MEM_LOCATION_TYPE_INVALID as c_int, NO_DEVICE),
        Home::Device(ordinal) => (LocationKind::CU_MEM_LOCATION_TYPE_DEVICE as c_int, ordinal as c_int),
        Home::Host => (LocationKind::CU_MEM_LOCATION_TYPE_HOST as c_int, CPU),
        Home::Numa(node) => (LocationKind::CU_MEM_LOCATION_TYPE_HOST_NUMA as c_int, node as c_int),
    }
}

/// What all of the memory has in common; nothing where it differs.
fn common(managed: &Managed, home: impl Fn(&Advice) -> Home) -> Home {
    managed.with_advice(|advised, bytes| {
        let mut homes = advised.of(bytes).map(home);
        let first = homes.next().unwrap_or_default();
        if homes.all(|home| home == first) { first } else { Home::Nowhere }
    })
}

/// The numbers that an attribute of the memory has, where there is room for `room`: all that there are, or one.
fn values(managed: &Managed, attribute: c_uint, room: usize) -> CuResult<Vec<c_int>> {
    const READ_MOSTLY: c_uint = Attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY as c_uint;
    const PREFERRED: c_uint = Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION as c_uint;
    const ACCESSED_BY: c_uint = Attribute::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY as c_uint;
    const PREFETCHED: c_uint = Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION as c_uint;
    const PREFERRED_TYPE: c_uint = Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE as c_uint;
    const PREFERRED_ID: c_uint = Attribute::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID as c_uint;
    const PREFETCHED_TYPE: c_uint = Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE as c_uint;
    const PREFETCHED_ID: c_uint = Attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID as c_uint;
    let preferred = || common(managed, |advice| advice.preferred);
    let prefetched = || common(managed, |advice| advice.prefetched);
    let value = match attribute {
        ACCESSED_BY => {
            let mut homes = managed.with_advice(|advised, bytes| {
                let sets = advised.of(bytes).map(|advice| advice.accessed_by.clone());
                sets.reduce(|all, next| &all & &next).unwrap_or_default()
            });
            homes.remove(&Home::Nowhere);
            return Ok(homes.into_iter().map(as_device).collect());
        }
        _ if room != 1 => return Err(CuError::INVALID_VALUE),
        READ_MOSTLY => {
            managed.with_advice(|advised, bytes| advised.of(bytes).all(|advice| advice.read_mostly).into())
        }
        PREFERRED => as_device(preferred()),
        PREFETCHED => as_device(prefetched()),
        PREFERRED_TYPE => as_location(preferred()).0,
        PREFERRED_ID => as_location(preferred()).1,
        PREFETCHED_TYPE => as_location(prefetched()).0,
        PREFETCHED_ID => as_location(prefetched()).1,
        _ => return Err(CuError::INVALID_VALUE),
    };
    Ok(vec![value])
}

/// Gives what has been said of memory.
pub unsafe fn cuMemRangeGetAttribute(
    data: *mut c_void,
    dataSize: usize,
    attribute: c_uint,
    devPtr: sys::CUdeviceptr,
    count: usize,
) -> CuResult {
    let width = size_of::<c_int>();
    if data.is_null() || dataSize == 0 || !dataSize.is_multiple_of(width) {
        return Err(CuError::INVALID_VALUE);
    }
    let managed = with(|call| {
        call.context()?;
        call.managed(devPtr, count as u64)
    })?;
    let values = values(&managed, attribute, dataSize / width)?;
    let values = values.into_iter().chain(std::iter::repeat(NO_DEVICE));
    for (index, value) in values.take(dataSize / width).enumerate() {
        // SAFETY: the caller gives room for `dataSize` bytes, aligned as it likes, which is that many numbers.
        unsafe { data.cast::<c_int>().add(index).write_unaligned(value) };
    }
    Ok(())
}

/// Gives several things that have been said of memory.
pub unsafe fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    dataSizes: *mut usize,
    attributes: *mut c_uint,
    numAttributes: usize,
    devPtr: sys::CUdeviceptr,
    count: usize,
) -> CuResult {
    if data.is_null() || dataSizes.is_null() || attributes.is_null() || numAttributes == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    for index in 0..numAttributes {
        // SAFETY: the caller gives arrays of this length, and room for each.
        unsafe {
            let (to, room) = (data.add(index).read(), dataSizes.add(index).read());
            cuMemRangeGetAttribute(to, room, attributes.add(index).read(), devPtr, count)?;
        }
    }
    Ok(())
}
