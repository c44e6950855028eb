//! Device `printf`: the driver prints to this process's stdout, which is turned into a file in memory and read from there.

use std::ffi::c_int;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Mutex, PoisonError};

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    fn __fpending(stream: *mut libc::FILE) -> libc::size_t;
}

/// What the driver printed and nobody has taken yet.
pub struct Output(Option<Mutex<File>>);

impl Output {
    /// Points stdout at a file in memory. Where that fails, device output stays on the server's stdout, with a warning.
    pub fn capture() -> Self {
        // SAFETY: a NUL-terminated name and a known flag.
        let raw = unsafe { libc::memfd_create(c"device-output".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            tracing::warn!("device printf goes to the server's stdout: {}", std::io::Error::last_os_error());
            return Self(None);
        }
        // SAFETY: a descriptor just made, owned by nobody else.
        let file = unsafe { File::from_raw_fd(raw) };
        let append: c_int = libc::O_APPEND;
        // SAFETY: plain descriptor calls; appending writes leave the file offset to the reader.
        unsafe {
            libc::fcntl(file.as_raw_fd(), libc::F_SETFL, append);
            libc::dup2(file.as_raw_fd(), libc::STDOUT_FILENO);
        }
        // The reader needs its own offset, so its own open file.
        match File::open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
            Ok(reader) => Self(Some(Mutex::new(reader))),
            Err(error) => {
                tracing::warn!("device printf is lost: {error}");
                Self(None)
            }
        }
    }

    /// What was printed since the last call.
    pub fn take(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let Some(reader) = &self.0 else { return text };
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `stdout` is libc's own stream, live for the whole process; stdio locks it.
        unsafe {
            if __fpending(stdout) > 0 {
                libc::fflush(stdout);
            }
        }
        if let Err(error) = reader.read_to_end(&mut text) {
            tracing::warn!("device output could not be read: {error}");
        }
        text
    }
}
