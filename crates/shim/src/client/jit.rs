//! JIT options: numbers go to the server, buffers stay here.

use std::ffi::{c_uint, c_void};

use cuda_abi::{CuError, CuResult, sys::CUjit_option};

/// A log buffer of the application's, and where its size is given and told.
#[derive(Default)]
struct LogBuffer {
    text: Option<*mut u8>,
    size: Option<*mut *mut c_void>,
}

/// The options of one load.
#[derive(Default)]
pub struct JitOptions {
    /// Those for the server.
    pub send: Vec<(u32, u64)>,
    info: LogBuffer,
    error: LogBuffer,
}

impl JitOptions {
    /// Reads the arrays of a call.
    ///
    /// # Errors
    /// `INVALID_VALUE` for missing arrays, `NOT_SUPPORTED` for options that name host symbols.
    ///
    /// # Safety
    /// The arrays must have `count` elements, and stay until [`JitOptions::finish`].
    pub unsafe fn read(count: c_uint, options: *const c_uint, values: *mut *mut c_void) -> CuResult<Self> {
        let mut found = Self::default();
        if count == 0 {
            return Ok(found);
        }
        if options.is_null() || values.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        for index in 0..count as usize {
            // SAFETY: the arrays have `count` elements.
            let (option, place) = unsafe { (options.add(index).read(), values.add(index)) };
            // SAFETY: as above.
            let value = unsafe { place.read() };
            let is = |known: CUjit_option| option == known as c_uint;
            if wire::is_jit_number(option) {
                found.send.push((option, value.addr() as u64));
            } else if is(CUjit_option::CU_JIT_INFO_LOG_BUFFER) {
                found.info.text = Some(value.cast());
            } else if is(CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) {
                found.info.size = Some(place);
            } else if is(CUjit_option::CU_JIT_ERROR_LOG_BUFFER) {
                found.error.text = Some(value.cast());
            } else if is(CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
                found.error.size = Some(place);
            } else if is(CUjit_option::CU_JIT_GLOBAL_SYMBOL_NAMES)
                || is(CUjit_option::CU_JIT_GLOBAL_SYMBOL_ADDRESSES)
            {
                return Err(CuError::NOT_SUPPORTED);
            }
            // The others are hints about speed, or tell a time.
        }
        Ok(found)
    }

    /// Fills the log buffers: with what the JIT says of what it did, or with why it did not.
    ///
    /// # Errors
    /// That of the load.
    pub fn finish(&self, loaded: Result<String, (CuError, String)>) -> CuResult {
        let (info, reason) = match &loaded {
            Ok(info) => (info.as_str(), ""),
            Err((_, reason)) => ("", reason.as_str()),
        };
        self.info.fill(info);
        self.error.fill(reason);
        loaded.map(drop).map_err(|(error, _)| error)
    }
}

impl LogBuffer {
    fn fill(&self, text: &str) {
        let Some(size) = self.size else { return };
        // SAFETY: an element of the application's array, which stays until now.
        let room = unsafe { size.read() }.addr();
        let written = match self.text {
            Some(buffer) if !buffer.is_null() && room > 0 => {
                let count = text.len().min(room - 1);
                // SAFETY: the application says that the buffer has `room` bytes, and `count + 1` is no more.
                unsafe {
                    std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, count);
                    buffer.add(count).write(0);
                }
                if count == 0 { 0 } else { count + 1 }
            }
            _ => 0,
        };
        // SAFETY: as above.
        unsafe { size.write(std::ptr::without_provenance_mut(written)) };
    }
}
