//! What the device says of itself: a small GPU of compute capability 9.0 (unless tests want another), the same on every machine.

use cudarc::driver::sys::CUdevice_attribute as A;
use wire::DeviceFacts;

use super::backend::Options;
use crate::memory::RESERVED_SHARED;
use crate::module::COMPUTE_CAPABILITY;
use crate::texture::LIMITS;

/// Multiprocessors.
pub const MULTIPROCESSORS: u32 = 16;
/// Threads a multiprocessor holds.
pub const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
/// Blocks a multiprocessor holds.
pub const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
/// Registers of a multiprocessor, and of a block at most.
pub const REGISTERS: u32 = 65536;
/// Shared memory of a multiprocessor, bytes.
pub const SHARED_PER_MULTIPROCESSOR: u64 = 228 << 10;
/// Shared memory of a block without opting in, bytes.
pub const SHARED_PER_BLOCK: u64 = 48 << 10;
/// Shared memory of a block at most, bytes.
pub const SHARED_OPTIN: u64 = 227 << 10;
/// Largest grid.
pub const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65535, 65535];
/// Largest block in each dimension.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];

/// The UUID of device `index`.
pub fn uuid(index: usize) -> [u8; 16] {
    let mut uuid = *b"Dormouse\x00soft\x00\x00\x00";
    uuid[15] = index as u8 + 1;
    uuid
}

/// Device `index`.
pub fn facts(index: usize, options: &Options) -> DeviceFacts {
    DeviceFacts {
        name: name(options.capability),
        uuid: uuid(index),
        total_memory: options.memory,
        pci_bus_id: format!("0000:{:02X}:00.0", index + 1),
        attributes: attributes(index, options.capability),
        stream_priorities: (0, -5),
    }
}

/// What a model is called.
fn name(capability: u32) -> String {
    const NAME: &str = "Dormouse Soft Device";
    if capability == COMPUTE_CAPABILITY {
        return NAME.to_owned();
    }
    format!("{NAME} {}.{}", capability / 10, capability % 10)
}

#[rustfmt::skip]
fn attributes(index: usize, capability: u32) -> Vec<(i32, i32)> {
    let clock_khz = 1_500_000;
    [
        (A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, MAX_BLOCK[0] as i32),
        (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, MAX_BLOCK[1] as i32),
        (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, MAX_BLOCK[2] as i32),
        (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, MAX_GRID[0] as i32),
        (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, MAX_GRID[1] as i32),
        (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, MAX_GRID[2] as i32),
        (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SHARED_PER_BLOCK as i32),
        (A::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10),
        (A::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (A::CU_DEVICE_ATTRIBUTE_MAX_PITCH, i32::MAX),
        (A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, REGISTERS as i32),
        (A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, clock_khz),
        (A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512),
        (A::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1),
        (A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, MULTIPROCESSORS as i32),
        (A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
        (A::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512),
        (A::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
        (A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, index as i32 + 1),
        (A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0),
        (A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0),
        (A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, clock_khz),
        (A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 512),
        (A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 32 << 20),
        (A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, THREADS_PER_MULTIPROCESSOR as i32),
        (A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2),
        (A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (A::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32),
        (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, (capability / 10) as i32),
        (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, (capability % 10) as i32),
        (A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, SHARED_PER_MULTIPROCESSOR as i32),
        (A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, REGISTERS as i32),
        (A::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2),
        (A::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
        (A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1),
        (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SHARED_OPTIN as i32),
        (A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, BLOCKS_PER_MULTIPROCESSOR as i32),
        (A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1),
        (A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1),
        (A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1),
        (A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
        (A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
        (A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, RESERVED_SHARED as i32),
        (A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_NUMA_ID, -1),
    ]
    .iter()
    .chain(LIMITS)
    .map(|(attribute, value)| (*attribute as i32, *value))
    .collect()
}
