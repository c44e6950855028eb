//! The default streams, as the handles that always mean them.

use std::ptr;

use cuda_abi::{STREAM_LEGACY, STREAM_PER_THREAD, sys};

/// The legacy default stream (`CU_STREAM_LEGACY`), also meant by NULL outside `_ptsz` functions.
pub const LEGACY: sys::CUstream = ptr::without_provenance_mut(STREAM_LEGACY);

/// The calling thread's default stream (`CU_STREAM_PER_THREAD`).
pub const PER_THREAD: sys::CUstream = ptr::without_provenance_mut(STREAM_PER_THREAD);

/// What a stream argument means in a `_ptsz` function.
pub fn or_per_thread(stream: sys::CUstream) -> sys::CUstream {
    if stream.is_null() { PER_THREAD } else { stream }
}
