//! What a pointer is.

use std::ffi::{c_uint, c_void};

use cuda_abi::{
    CuError, CuResult,
    sys::{CUdeviceptr, CUmemorytype, CUpointer_attribute as Attribute},
};

use crate::client::{Allocation, Kind, with};

/// An attribute's value, with its width.
enum Value {
    Word(u64),
    Int(u32),
}

impl Value {
    /// Writes it where the application wants it.
    unsafe fn give(self, to: *mut c_void) {
        // SAFETY: the caller gives room for the attribute's type.
        unsafe {
            match self {
                Self::Word(value) => to.cast::<u64>().write_unaligned(value),
                Self::Int(value) => to.cast::<u32>().write_unaligned(value),
            }
        }
    }
}

/// `CU_DEVICE_INVALID`.
const NO_DEVICE: u32 = -2i32 as u32;
/// `CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE`.
const READ_WRITE: u32 = 3;

fn attribute(number: c_uint) -> Option<Attribute> {
    use Attribute::*;
    [
        CU_POINTER_ATTRIBUTE_CONTEXT,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPED,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
    ]
    .into_iter()
    .find(|known| *known as c_uint == number)
}

/// The value for an address in an allocation; `None` where the attribute means nothing for it.
fn value(of: Attribute, found: &Allocation, address: u64) -> Option<Value> {
    use Attribute::*;
    let out_of_reach = matches!(found.kind, Kind::Registered { file: None, .. });
    let pinned = matches!(found.kind, Kind::Pinned { .. } | Kind::Registered { .. });
    let managed = matches!(found.kind, Kind::Managed { .. });
    Some(match of {
        CU_POINTER_ATTRIBUTE_CONTEXT => Value::Word(found.owner.context.id.handle()),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE if pinned => Value::Int(CUmemorytype::CU_MEMORYTYPE_HOST as u32),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Value::Int(CUmemorytype::CU_MEMORYTYPE_DEVICE as u32),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER if out_of_reach => return None,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Value::Word(address),
        CU_POINTER_ATTRIBUTE_HOST_POINTER if pinned || managed => Value::Word(address),
        CU_POINTER_ATTRIBUTE_HOST_POINTER => return None,
        CU_POINTER_ATTRIBUTE_IS_MANAGED => Value::Int(managed.into()),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => Value::Word(found.number.into()),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Int(found.owner.context.device.0),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => {
            Value::Word(found.base)
        }
        CU_POINTER_ATTRIBUTE_RANGE_SIZE | CU_POINTER_ATTRIBUTE_MAPPING_SIZE => Value::Word(found.bytes),
        CU_POINTER_ATTRIBUTE_MAPPED => Value::Int((!out_of_reach).into()),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Value::Int(READ_WRITE),
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Value::Word(found.number.into()),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => match found.kind {
            Kind::Pooled(pool) => Value::Word(pool.handle()),
            _ => Value::Word(0),
        },
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            Value::Int(matches!(found.kind, Kind::Device).into())
        }
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Value::Word(0),
        _ => Value::Int(0),
    })
}

/// The value for an address that CUDA does not know.
fn unknown(of: Attribute) -> Value {
    use Attribute::*;
    match of {
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Int(NO_DEVICE),
        CU_POINTER_ATTRIBUTE_CONTEXT
        | CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | CU_POINTER_ATTRIBUTE_HOST_POINTER
        | CU_POINTER_ATTRIBUTE_BUFFER_ID
        | CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
        | CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        | CU_POINTER_ATTRIBUTE_MAPPING_SIZE
        | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
        | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Value::Word(0),
        _ => Value::Int(0),
    }
}

fn find(address: u64) -> CuResult<Option<Allocation>> {
    with(|call| {
        let found = call.session.memory.find(address);
        Ok(found.filter(|found| !found.is_gone()))
    })
}

/// Gives one attribute of an address.
pub unsafe fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, ptr: CUdeviceptr) -> CuResult {
    if data.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let of = self::attribute(attribute).ok_or(CuError::INVALID_VALUE)?;
    let found = find(ptr)?.ok_or(CuError::INVALID_VALUE)?;
    let value = value(of, &found, ptr).ok_or(CuError::INVALID_VALUE)?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { value.give(data) };
    Ok(())
}

/// Gives several attributes of an address. One that CUDA does not know is no error: its attributes are zero.
pub unsafe fn cuPointerGetAttributes(
    numAttributes: c_uint,
    attributes: *mut c_uint,
    data: *mut *mut c_void,
    ptr: CUdeviceptr,
) -> CuResult {
    if numAttributes == 0 || attributes.is_null() || data.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let found = find(ptr)?;
    for index in 0..numAttributes as usize {
        // SAFETY: the caller gives arrays of this length.
        let (number, to) = unsafe { (attributes.add(index).read(), data.add(index).read()) };
        let of = attribute(number).ok_or(CuError::INVALID_VALUE)?;
        if to.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        let value = found.as_ref().and_then(|found| value(of, found, ptr)).unwrap_or_else(|| unknown(of));
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { value.give(to) };
    }
    Ok(())
}

/// Sets the only attribute that can be set: that copies of this memory are synchronous. They are where it matters.
pub unsafe fn cuPointerSetAttribute(value: *const c_void, attribute: c_uint, ptr: CUdeviceptr) -> CuResult {
    if value.is_null() || attribute != Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_uint {
        return Err(CuError::INVALID_VALUE);
    }
    find(ptr)?.map(|_| ()).ok_or(CuError::INVALID_VALUE)
}
