//! The library, the driver, and what there is of neither.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::Path;

use super::known::{anyway, machine, start, stop};
use super::out::{check_version, put, put_text};
use super::{Answer, Error, sys};
use crate::client::JOB;

/// Begins.
pub unsafe fn init() -> Answer {
    start(Path::new(JOB))
}

/// Begins. No GPU fails to be told of, and none needs to be attached to, which is what the flags are about.
pub unsafe fn init_with_flags(_flags: c_uint) -> Answer {
    start(Path::new(JOB))
}

/// Ends.
pub unsafe fn shutdown() -> Answer {
    stop()
}

/// The driver's version.
pub unsafe fn driver_version(version: *mut c_char, length: c_uint) -> Answer {
    // SAFETY: the caller's to write to.
    unsafe { put_text(version, length, &machine()?.driver) }
}

/// NVML's version.
pub unsafe fn nvml_version(version: *mut c_char, length: c_uint) -> Answer {
    // SAFETY: the caller's to write to.
    unsafe { put_text(version, length, &anyway()?.nvml) }
}

/// The newest CUDA that programs of a job get.
pub unsafe fn cuda_version(version: *mut c_int) -> Answer {
    let newest = crate::facts::driver_version().min(anyway()?.cuda);
    // SAFETY: the caller's to write to.
    unsafe { put(version, newest) }
}

/// What a process of the job is called.
pub unsafe fn process_name(pid: c_uint, name: *mut c_char, length: c_uint) -> Answer {
    machine()?;
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Error::NOT_FOUND)?;
    let program = arguments.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(program);
    let mut end = text.len().min((length as usize).saturating_sub(1));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: the caller's to write to.
    unsafe { put_text(name, length, &text[..end]) }
}

/// There is none: units, excluded devices.
pub unsafe fn count_none(count: *mut c_uint) -> Answer {
    machine()?;
    // SAFETY: the caller's to write to.
    unsafe { put(count, 0) }
}

/// A job is not in confidential computing.
pub unsafe fn conf_compute_state(state: *mut sys::nvmlConfComputeSystemState_t) -> Answer {
    machine()?;
    let none = sys::nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 };
    // SAFETY: the caller's to write to.
    unsafe { put(state, none) }
}

/// A job is not in confidential computing.
pub unsafe fn conf_compute_settings(settings: *mut sys::nvmlSystemConfComputeSettings_t) -> Answer {
    machine()?;
    // SAFETY: the caller's, which begins with its version.
    unsafe {
        check_version(settings, 1)?;
        let none = sys::nvmlSystemConfComputeSettings_t {
            version: (*settings).version,
            environment: 0,
            ccFeature: 0,
            devToolsMode: 0,
            multiGpuMode: 0,
        };
        put(settings, none)
    }
}

/// What an `nvmlReturn_t` means.
pub fn error_text(code: c_uint) -> &'static CStr {
    match code {
        sys::nvmlReturn_enum_NVML_SUCCESS => c"Success",
        sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => c"Uninitialized",
        sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT => c"Invalid Argument",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => c"Not Supported",
        sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => c"Insufficient Permissions",
        sys::nvmlReturn_enum_NVML_ERROR_ALREADY_INITIALIZED => c"Already Initialized",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND => c"Not Found",
        sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => c"Insufficient Size",
        sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER => c"Insufficient External Power",
        sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT => c"Timeout",
        sys::nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE => c"Interrupt Request Issue",
        sys::nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND => c"NVML Shared Library Not Found",
        sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND => c"Function Not Found",
        sys::nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM => c"Corrupted infoROM",
        sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => c"GPU requires reset",
        sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM => c"The operating system has blocked the request.",
        sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => c"Driver/library version mismatch",
        sys::nvmlReturn_enum_NVML_ERROR_IN_USE => c"In use by another client",
        sys::nvmlReturn_enum_NVML_ERROR_MEMORY => c"Insufficient Memory",
        sys::nvmlReturn_enum_NVML_ERROR_NO_DATA => c"No data",
        sys::nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED => c"vGPU not supported with ECC enabled",
        sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES => c"Insufficient Resources",
        sys::nvmlReturn_enum_NVML_ERROR_FREQ_NOT_SUPPORTED => c"Frequency not supported",
        sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH => c"Argument version mismatch",
        sys::nvmlReturn_enum_NVML_ERROR_DEPRECATED => c"Deprecated",
        sys::nvmlReturn_enum_NVML_ERROR_NOT_READY => c"Not ready",
        sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND => c"GPU not found",
        sys::nvmlReturn_enum_NVML_ERROR_INVALID_STATE => c"Invalid state",
        sys::nvmlReturn_enum_NVML_ERROR_RESET_TYPE_NOT_SUPPORTED => c"Reset type not supported",
        _ => c"Unknown Error",
    }
}
