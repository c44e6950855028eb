//! Options of the JIT and the linker, with logs of ours.

use cudarc::driver::sys::CUjit_option as Option_;
use std::ffi::{CStr, c_void};

/// Bytes for each log.
const LOG_BYTES: usize = 16 << 10;

/// Names and values as the driver takes them, and the logs it writes to, which live as long as this.
pub struct Jit {
    pub names: Vec<u32>,
    pub values: Vec<*mut c_void>,
    info: Vec<u8>,
    errors: Vec<u8>,
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
        let (mut info, mut errors) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
        let (mut names, mut values): (Vec<u32>, Vec<*mut c_void>) = options
            .iter()
            .filter(|(name, _)| !logs.contains(name))
            .map(|(name, value)| (*name, *value as *mut c_void))
            .unzip();
        names.extend_from_slice(&logs);
        for log in [&mut info, &mut errors] {
            values.extend([log.as_mut_ptr().cast(), LOG_BYTES as *mut c_void]);
        }
        Self { names, values, info, errors }
    }

    /// What the driver has written of what it did.
    pub fn info(&self) -> String {
        text(&self.info)
    }

    /// What it has written of what is wrong.
    pub fn errors(&self) -> String {
        text(&self.errors)
    }
}

fn text(log: &[u8]) -> String {
    CStr::from_bytes_until_nul(log).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_ours() {
        // The application's buffers (3 to 6) lie where nothing of ours does; that it wants to hear more (12) is passed on.
        let mut jit = Jit::new(&[(3, 0x10), (4, 0x20), (12, 1), (5, 0x30), (6, 0x40)]);
        assert_eq!(jit.names, [12, 3, 4, 5, 6]);
        assert_eq!((jit.values[2] as usize, jit.values[4] as usize), (LOG_BYTES, LOG_BYTES));
        for (place, text) in [(1, c"said"), (3, c"wrong")] {
            let log = jit.values[place].cast::<u8>();
            // SAFETY: as the driver does: the text is shorter than the log.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), log, text.count_bytes() + 1) };
        }
        assert_eq!((jit.info(), jit.errors()), ("said".to_owned(), "wrong".to_owned()));
        jit.info.fill(b'x');
        assert_eq!(jit.info(), "", "without an end it is no text");
    }
}
