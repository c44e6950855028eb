//! Facts about the devices.

use crate::api::{Api, check};
use backend::Result;
use cudarc::driver::sys;
use std::ffi::{CStr, c_char};
use sys::CUdevice_attribute as Attribute;
use wire::DeviceFacts;

/// Every device and its facts, in the driver's order.
pub fn all(api: &Api) -> Result<(Vec<sys::CUdevice>, Vec<DeviceFacts>)> {
    let mut count = 0;
    // SAFETY: writes the count.
    check(unsafe { (api.cuDeviceGetCount)(&raw mut count) })?;
    let devices = (0..count)
        .map(|ordinal| {
            let mut device = 0;
            // SAFETY: writes the device.
            check(unsafe { (api.cuDeviceGet)(&raw mut device, ordinal) }).map(|()| device)
        })
        .collect::<Result<Vec<_>>>()?;
    let facts = devices.iter().map(|device| facts(api, *device)).collect::<Result<_>>()?;
    Ok((devices, facts))
}

fn facts(api: &Api, device: sys::CUdevice) -> Result<DeviceFacts> {
    let name = text(|buffer, bytes| {
        // SAFETY: the buffer has that many bytes.
        unsafe { (api.cuDeviceGetName)(buffer, bytes, device) }
    })?;
    let pci_bus_id = text(|buffer, bytes| {
        // SAFETY: the buffer has that many bytes.
        unsafe { (api.cuDeviceGetPCIBusId)(buffer, bytes, device) }
    })?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes the 16 bytes.
    check(unsafe { (api.cuDeviceGetUuid_v2)(&raw mut uuid, device) })?;
    let mut total_memory = 0;
    // SAFETY: writes the size.
    check(unsafe { (api.cuDeviceTotalMem_v2)(&raw mut total_memory, device) })?;
    let attributes = (1..Attribute::CU_DEVICE_ATTRIBUTE_MAX as u32)
        .filter_map(|attribute| {
            let mut value = 0;
            // SAFETY: writes the value; the driver refuses attributes it does not know.
            let known = check(unsafe { (api.cuDeviceGetAttribute)(&raw mut value, attribute, device) });
            known.ok().map(|()| (attribute as i32, value))
        })
        .collect();
    Ok(DeviceFacts {
        name,
        uuid: uuid.bytes.map(|byte| byte as u8),
        total_memory: total_memory as u64,
        pci_bus_id,
        attributes,
        // The range needs a context to be asked for; it is 0 to -5 on every device of compute capability 7.0 and newer.
        stream_priorities: (0, -5),
    })
}

fn text(fill: impl FnOnce(*mut c_char, i32) -> u32) -> Result<String> {
    let mut buffer = [0u8; 256];
    check(fill(buffer.as_mut_ptr().cast(), buffer.len() as i32))?;
    Ok(CStr::from_bytes_until_nul(&buffer)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default())
}

/// Plain device memory that can be exported to another server and, where the device can, reached by GPUDirect.
pub fn block_properties(device: sys::CUdevice, facts: &DeviceFacts) -> sys::CUmemAllocationProp {
    let has = |attribute: Attribute| facts.attributes.contains(&(attribute as i32, 1));
    // SAFETY: a plain record of numbers and a pointer, for which zero is "none".
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    if has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) {
        properties.requestedHandleTypes =
            sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.allocFlags.gpuDirectRDMACapable =
        u8::from(has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
    properties
}
