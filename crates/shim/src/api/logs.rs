//! The driver's error log.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cuda_abi::{CuError, CuResult, sys};

use crate::client::{handle, out};
use crate::journal::{self, Listener};
use crate::log::Level;

/// `CUlogsCallback`, with the level as the number that it is.
type Callback = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_char, usize);

/// `CU_LOG_LEVEL_ERROR` and `_WARNING`.
fn number(level: Level) -> c_uint {
    if level == Level::Error { 0 } else { 1 }
}

fn tell(listener: &Listener, level: Level, text: &str) {
    let mut text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).chain([0]).collect();
    // SAFETY: `cuLogsRegisterCallback` put the address of such a function there.
    let function = unsafe { std::mem::transmute::<usize, Callback>(listener.function) };
    let data = std::ptr::with_exposed_provenance_mut(listener.data);
    // SAFETY: the application's own function with its own data; a text that ends with a NUL, and its length without.
    unsafe { function(data, number(level), text.as_mut_ptr().cast(), text.len() - 1) };
}

/// Has the application told of messages.
pub unsafe fn cuLogsRegisterCallback(
    callbackFunc: sys::CUlogsCallback,
    userData: *mut c_void,
    callback_out: *mut sys::CUlogsCallbackHandle,
) -> CuResult {
    let function = callbackFunc.ok_or(CuError::INVALID_VALUE)?;
    let id = journal::listen(function as usize, userData.expose_provenance(), tell);
    if let Ok(callback_out) = out(callback_out) {
        // SAFETY: the caller's to write to.
        unsafe { callback_out.set(handle(id as u64)) };
    }
    Ok(())
}

/// Has it told no more.
pub unsafe fn cuLogsUnregisterCallback(callback: sys::CUlogsCallbackHandle) -> CuResult {
    if journal::forget(callback.addr()) { Ok(()) } else { Err(CuError::INVALID_VALUE) }
}

/// Gives the place where the next message will be.
pub unsafe fn cuLogsCurrent(iterator_out: *mut sys::CUlogIterator, flags: c_uint) -> CuResult {
    let iterator_out = out(iterator_out)?;
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller's to write to.
    unsafe { iterator_out.set(journal::next()) };
    Ok(())
}

/// The messages from a place on, if they fit; the place moves on.
unsafe fn take(iterator: *mut sys::CUlogIterator, flags: c_uint, room: usize) -> CuResult<String> {
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: where not NULL, the caller's to read.
    let from = (!iterator.is_null()).then(|| unsafe { iterator.read() });
    let (text, next) = journal::since(from, room).ok_or(CuError::INVALID_VALUE)?;
    if let Ok(iterator) = out(iterator) {
        // SAFETY: the caller's to write to.
        unsafe { iterator.set(next) };
    }
    Ok(text)
}

/// Writes messages to a file.
pub unsafe fn cuLogsDumpToFile(
    iterator: *mut sys::CUlogIterator,
    pathToFile: *const c_char,
    flags: c_uint,
) -> CuResult {
    if pathToFile.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so a text of the caller's that ends with a NUL.
    let path = unsafe { CStr::from_ptr(pathToFile) };
    // SAFETY: the caller's contract is the same.
    let text = unsafe { take(iterator, flags, usize::MAX) }?;
    let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    std::fs::write(path, text).map_err(|_| CuError::INVALID_VALUE)
}

/// Writes messages to memory, with a NUL behind them that does not count.
pub unsafe fn cuLogsDumpToMemory(
    iterator: *mut sys::CUlogIterator,
    buffer: *mut c_char,
    size: *mut usize,
    flags: c_uint,
) -> CuResult {
    let written = out(size)?;
    // SAFETY: not NULL, so the caller's to read.
    let room = unsafe { size.read() };
    if buffer.is_null() || room == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller's contract is the same.
    let taken = unsafe { take(iterator, flags, room - 1) };
    let text = taken.as_deref().unwrap_or_default();
    // SAFETY: the text and its NUL are at most the `room` bytes that the caller's buffer has.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text.len());
        buffer.add(text.len()).write(0);
        written.set(text.len());
    }
    taken.map(|_| ())
}
