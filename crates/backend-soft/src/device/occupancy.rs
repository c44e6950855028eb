//! How many blocks fit a multiprocessor, by NVIDIA's rules for compute capability 9.0.

use super::facts::{
    BLOCKS_PER_MULTIPROCESSOR, REGISTERS, SHARED_PER_MULTIPROCESSOR, THREADS_PER_MULTIPROCESSOR,
};
use crate::module::Kernel;

/// Registers are given out to warps in units of this many.
const REGISTER_UNIT: u32 = 256;
/// Shared memory is given out in units of this many bytes.
const SHARED_UNIT: u64 = 128;

/// Blocks of `threads` threads and `dynamic` bytes of dynamic shared memory that are resident on one multiprocessor.
pub fn blocks(kernel: &Kernel, threads: u32, dynamic: u64) -> u32 {
    if threads == 0 || threads > kernel.max_threads {
        return 0;
    }
    let warps = threads.div_ceil(32);
    let by_warps = THREADS_PER_MULTIPROCESSOR / 32 / warps;
    let registers = (kernel.registers * 32).next_multiple_of(REGISTER_UNIT) * warps;
    let by_registers = REGISTERS / registers.max(1);
    let shared = (kernel.dynamic_shared_base + dynamic).next_multiple_of(SHARED_UNIT);
    let by_shared = u32::try_from(SHARED_PER_MULTIPROCESSOR / shared).unwrap_or(u32::MAX);
    BLOCKS_PER_MULTIPROCESSOR.min(by_warps).min(by_registers).min(by_shared)
}

/// Dynamic shared memory that each of `count` resident blocks can have, bytes.
pub fn dynamic_shared(kernel: &Kernel, count: u32, limit: u64) -> u64 {
    let each = SHARED_PER_MULTIPROCESSOR / u64::from(count.max(1)) / SHARED_UNIT * SHARED_UNIT;
    each.saturating_sub(kernel.dynamic_shared_base).min(limit)
}
