//! Where memory is and who reaches it, as pools and virtual memory management say it. The enumerations in the application's
//! records may be any numbers.

use std::ffi::{c_int, c_uint};

use cuda_abi::{CuError, CuResult, sys};
use wire::Device;

use crate::client::{Home, session};

/// A `CUmemLocation`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    kind: c_uint,
    id: c_int,
}

impl Location {
    /// Reads one.
    ///
    /// # Safety
    /// `from` must be the caller's to read.
    pub unsafe fn read(from: *const sys::CUmemLocation) -> Self {
        // SAFETY: as the caller says; the enumeration is read as a number.
        unsafe { Self { kind: (&raw const (*from).type_).cast::<c_uint>().read(), id: (*from).id } }
    }

    /// Reads one that the application must give.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL.
    ///
    /// # Safety
    /// `from` must be NULL or the caller's to read.
    pub unsafe fn given(from: *const sys::CUmemLocation) -> CuResult<Self> {
        if from.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not NULL, and as the caller says.
        Ok(unsafe { Self::read(from) })
    }

    /// That of a device by its ordinal, or of the host (`CU_DEVICE_CPU`).
    pub fn of_device(ordinal: c_int) -> Self {
        use sys::CUmemLocationType as Kind;
        let kind =
            if ordinal == -1 { Kind::CU_MEM_LOCATION_TYPE_HOST } else { Kind::CU_MEM_LOCATION_TYPE_DEVICE };
        Self { kind: kind as c_uint, id: ordinal }
    }

    /// Where it has managed memory be.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, and `INVALID_VALUE` for what is no location.
    pub fn home(self) -> CuResult<Home> {
        use sys::CUmemLocationType as Kind;
        const HOST: c_uint = Kind::CU_MEM_LOCATION_TYPE_HOST as c_uint;
        const NUMA: c_uint = Kind::CU_MEM_LOCATION_TYPE_HOST_NUMA as c_uint;
        const NEAREST: c_uint = Kind::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT as c_uint;
        match self.kind {
            HOST | NEAREST => Ok(Home::Host),
            NUMA => u32::try_from(self.id).map(Home::Numa).map_err(|_| CuError::INVALID_VALUE),
            _ => self.device().map(|device| Home::Device(device.0)),
        }
    }

    /// The device that it names.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for memory of the host, `INVALID_DEVICE`, and `INVALID_VALUE` for what is no location.
    pub fn device(self) -> CuResult<Device> {
        use sys::CUmemLocationType as Kind;
        const DEVICE: c_uint = Kind::CU_MEM_LOCATION_TYPE_DEVICE as c_uint;
        const HOST: c_uint = Kind::CU_MEM_LOCATION_TYPE_HOST as c_uint;
        const NUMA: c_uint = Kind::CU_MEM_LOCATION_TYPE_HOST_NUMA as c_uint;
        const NEAREST: c_uint = Kind::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT as c_uint;
        match self.kind {
            DEVICE => {
                session()?.device(self.id)?;
                Ok(Device(self.id as u32))
            }
            HOST | NUMA | NEAREST => Err(CuError::NOT_SUPPORTED),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

/// A `CUmemAccess_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Not at all.
    None = 0,
    /// Reads.
    Read = 1,
    /// Reads and writes.
    ReadWrite = 3,
    /// A number that means nothing.
    Invalid,
}

impl Access {
    /// Reads a `CUmemAccessDesc`.
    ///
    /// # Safety
    /// `from` must be the caller's to read.
    pub unsafe fn read(from: *const sys::CUmemAccessDesc) -> (Location, Self) {
        // SAFETY: as the caller says; the enumerations are read as numbers.
        let (location, flags) = unsafe {
            (Location::read(&raw const (*from).location), (&raw const (*from).flags).cast::<c_uint>().read())
        };
        let access = match flags {
            0 => Self::None,
            1 => Self::Read,
            3 => Self::ReadWrite,
            _ => Self::Invalid,
        };
        (location, access)
    }
}
