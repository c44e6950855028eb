//! Options of the JIT and the linker, with a log of ours.

use cudarc::driver::sys::CUjit_option as Option_;
use std::ffi::{CStr, c_void};

/// Bytes for the error log.
const LOG_BYTES: usize = 16 << 10;

/// Names and values as the driver takes them, and the log it writes to, which lives as long as this.
pub struct Jit {
    pub names: Vec<u32>,
    pub values: Vec<*mut c_void>,
    log: Vec<u8>,
}

impl Jit {
    /// The application's options but for its log buffers: addresses of the application's mean nothing here.
    pub fn new(options: &[(u32, u64)]) -> Self {
        let logs = [
            Option_::CU_JIT_INFO_LOG_BUFFER,
            Option_::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            Option_::CU_JIT_ERROR_LOG_BUFFER,
            Option_::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ]
        .map(|option| option as u32);
        let mut log = vec![0u8; LOG_BYTES];
        let (mut names, mut values): (Vec<u32>, Vec<*mut c_void>) = options
            .iter()
            .filter(|(name, _)| !logs.contains(name))
            .map(|(name, value)| (*name, *value as *mut c_void))
            .unzip();
        names.extend_from_slice(&logs[2..]);
        values.extend([log.as_mut_ptr().cast(), LOG_BYTES as *mut c_void]);
        Self { names, values, log }
    }

    /// What the driver has written.
    pub fn log(&self) -> String {
        CStr::from_bytes_until_nul(&self.log)
            .map(|text| text.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

/// A copy of an image as the driver takes it: aligned for its headers, and with a NUL behind it, in which PTX ends.
pub fn image(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len() / 8 + 1];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    words
}
