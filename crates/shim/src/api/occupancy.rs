//! How many blocks fit.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use cuda_abi::{CuError, CuResult, sys};
use wire::{OccupancyBlocks, OccupancyClusters, OccupancyShared};

use super::launch::described;
use crate::client::{Callable, out, with};

/// `CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE` is the only flag.
const FLAGS: c_uint = 1;

fn blocks(func: sys::CUfunction, block: c_int, shared: usize, flags: c_uint) -> CuResult<c_int> {
    if block < 1 || flags & !FLAGS != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| {
        let ctx = call.context()?.id;
        let callee = call.callable(func)?.callee;
        call.ask(&OccupancyBlocks { ctx, callee, block: block as u32, shared: shared as u64, flags })
    })
}

/// Gives the number of blocks that fit on a multiprocessor.
pub unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    numBlocks: *mut c_int,
    func: sys::CUfunction,
    blockSize: c_int,
    dynamicSMemSize: usize,
) -> CuResult {
    let numBlocks = out(numBlocks)?;
    let value = blocks(func, blockSize, dynamicSMemSize, 0)?;
    // SAFETY: the caller's to write to.
    unsafe { numBlocks.set(value) };
    Ok(())
}

/// The same, with flags.
pub unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    numBlocks: *mut c_int,
    func: sys::CUfunction,
    blockSize: c_int,
    dynamicSMemSize: usize,
    flags: c_uint,
) -> CuResult {
    let numBlocks = out(numBlocks)?;
    let value = blocks(func, blockSize, dynamicSMemSize, flags)?;
    // SAFETY: the caller's to write to.
    unsafe { numBlocks.set(value) };
    Ok(())
}

/// Gives the block size with the most resident threads, and how many blocks fill the device then.
pub unsafe fn cuOccupancyMaxPotentialBlockSize(
    minGridSize: *mut c_int,
    blockSize: *mut c_int,
    func: sys::CUfunction,
    blockSizeToDynamicSMemSize: sys::CUoccupancyB2DSize,
    dynamicSMemSize: usize,
    blockSizeLimit: c_int,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe {
        cuOccupancyMaxPotentialBlockSizeWithFlags(
            minGridSize,
            blockSize,
            func,
            blockSizeToDynamicSMemSize,
            dynamicSMemSize,
            blockSizeLimit,
            0,
        )
    }
}

/// The same, with flags. As NVIDIA's occupancy calculator does: from the largest block down in whole warps, the first size
/// that keeps more threads resident than any larger one.
pub unsafe fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    minGridSize: *mut c_int,
    blockSize: *mut c_int,
    func: sys::CUfunction,
    blockSizeToDynamicSMemSize: sys::CUoccupancyB2DSize,
    dynamicSMemSize: usize,
    blockSizeLimit: c_int,
    flags: c_uint,
) -> CuResult {
    let (minGridSize, blockSize) = (out(minGridSize)?, out(blockSize)?);
    let (callable, limits) = with(|call| {
        let device = call.context()?.device.0 as i32;
        let callable: Arc<Callable> = Arc::clone(call.callable(func)?);
        Ok((callable, call.session.device(device)?.limits))
    })?;
    let most = callable.max_threads().min(limits.threads as c_int);
    let limit = if blockSizeLimit > 0 { blockSizeLimit.min(most) } else { most };
    let warp = (limits.warp as c_int).max(1);
    let (mut best_threads, mut best) = (0, (0, 0));
    // A size that is no multiple of a warp is tried only at the limit itself.
    let mut aligned = (limit + warp - 1) / warp * warp;
    while aligned > 0 {
        let size = aligned.min(limit);
        let shared = match blockSizeToDynamicSMemSize {
            // SAFETY: the application's function of a block size, called outside of any lock.
            Some(function) => unsafe { function(size) },
            None => dynamicSMemSize,
        };
        let resident = blocks(func, size, shared, flags)?;
        if size * resident > best_threads {
            best_threads = size * resident;
            best = (resident, size);
        }
        if best_threads >= limits.threads_per_multiprocessor as c_int {
            break;
        }
        aligned -= warp;
    }
    let (resident, size) = best;
    // SAFETY: the caller's to write to.
    unsafe {
        minGridSize.set(resident * limits.multiprocessors as c_int);
        blockSize.set(size);
    }
    Ok(())
}

/// Gives the dynamic shared memory that a block may use when so many are to fit.
pub unsafe fn cuOccupancyAvailableDynamicSMemPerBlock(
    dynamicSmemSize: *mut usize,
    func: sys::CUfunction,
    numBlocks: c_int,
    blockSize: c_int,
) -> CuResult {
    let dynamicSmemSize = out(dynamicSmemSize)?;
    let value = with(|call| {
        let ctx = call.context()?.id;
        let callee = call.callable(func)?.callee;
        call.ask(&OccupancyShared { ctx, callee, blocks: numBlocks, block: blockSize })
    })?;
    // SAFETY: the caller's to write to.
    unsafe { dynamicSmemSize.set(value as usize) };
    Ok(())
}

unsafe fn clusters(
    to: *mut c_int,
    func: sys::CUfunction,
    config: *const sys::CUlaunchConfig,
    active: bool,
) -> CuResult {
    let to = out(to)?;
    let value = with(|call| {
        // SAFETY: the caller's contract is the same.
        let config = unsafe { described(call, func, config) }?;
        call.ask(&OccupancyClusters { callee: config.callee, active, config })
    })?;
    // SAFETY: the caller's to write to.
    unsafe { to.set(value) };
    Ok(())
}

/// Gives the largest cluster that can be launched.
pub unsafe fn cuOccupancyMaxPotentialClusterSize(
    clusterSize: *mut c_int,
    func: sys::CUfunction,
    config: *const sys::CUlaunchConfig,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { clusters(clusterSize, func, config, false) }
}

/// Gives the number of clusters that fit on the device.
pub unsafe fn cuOccupancyMaxActiveClusters(
    numClusters: *mut c_int,
    func: sys::CUfunction,
    config: *const sys::CUlaunchConfig,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { clusters(numClusters, func, config, true) }
}
