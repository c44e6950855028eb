//! What an application may know of a device: features that Dormouse does not carry are hidden, so that libraries take
//! another way instead of meeting `CUDA_ERROR_NOT_SUPPORTED`.

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use wire::DeviceFacts;

/// Attributes answered 0.
const HIDDEN: &[Attribute] = &[
    // Memory that the host shares without asking.
    Attribute::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
    Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
    // Memory shared in other ways than by descriptors.
    Attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
    Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
    Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    // What reaches beyond the process.
    Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
    Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
    Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
    Attribute::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES,
    Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
    Attribute::CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,
    // Arrays of other kinds.
    Attribute::CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
    Attribute::CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
    Attribute::CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
];

/// Attributes answered 1: what every device has here.
const EVERYWHERE: [Attribute; 2] =
    [Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS];

/// Sets the attributes of features that are not carried to 0, and of those that every device has here to 1.
pub(crate) fn tell_what_is_carried(device: &mut DeviceFacts) {
    let everywhere = EVERYWHERE.map(|attribute| attribute as i32);
    device.attributes.retain(|(attribute, _)| !everywhere.contains(attribute));
    device.attributes.extend(everywhere.map(|attribute| (attribute, 1)));
    for (attribute, value) in &mut device.attributes {
        if HIDDEN.iter().any(|hidden| *hidden as i32 == *attribute) {
            *value = 0;
        }
    }
}

/// A device's compute capability: major × 10 + minor; 0 when it does not tell.
pub(crate) fn compute_capability(device: &DeviceFacts) -> u32 {
    value(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10
        + value(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
}

/// How many multiprocessors a device has; 0 when it does not tell.
pub(crate) fn multiprocessors(device: &DeviceFacts) -> u32 {
    value(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
}

fn value(device: &DeviceFacts, wanted: Attribute) -> u32 {
    device.attribute(wanted as i32).and_then(|value| u32::try_from(value).ok()).unwrap_or(0)
}
