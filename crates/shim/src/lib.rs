//! The `libcuda.so.1` that applications load in place of the driver's.
//!
//! The way of a call: `exports` (one symbol per function of the list, generated) → [`api`] (what each function
//! does, by chapter) → the session [`client`], or an answer made here. [`private`] holds the tables that cudart asks for
//! beside the public functions; they are computed in this process.
//!
//! # How to implement a function
//!
//! 1. Write it in `api/<chapter>.rs` (the chapter is the name of its file in `crates/cuda-list/list`; a chapter of
//!    many functions may be a folder that re-exports them):
//!    ```text
//!    pub unsafe fn cuMemAlloc_v2(dptr: *mut sys::CUdeviceptr, bytesize: usize) -> CuResult { … }
//!    ```
//!    The name is that of the version's symbol; versions with the same parameters share the implementation of the
//!    newest of them (`cuCtxDestroy` runs `cuCtxDestroy_v2`). Parameters are the header's, with types from
//!    [`cuda_abi::sys`] and C integers from `std::ffi`; `size_t` is `usize`, and every enumeration is a `c_uint`,
//!    because an application may pass any number. The answer is a [`CuResult`](cuda_abi::CuResult).
//! 2. Delete the function's `unsupported` line from the list. The build then exports your function under all its
//!    symbols, and fails where the prototype differs.
//! 3. `cargo xtask coverage` writes `docs/api-coverage.md` again.
//!
//! A `_ptsz` symbol calls the same implementation, with [`default_stream::PER_THREAD`] in place of a NULL stream. Where
//! the stream is no parameter (`cuMemcpy`, `cuLaunchKernelEx`, `cuGraphInstantiateWithParams`) the implementation takes
//! one more argument at the end, `default_stream: sys::CUstream`, which is [`default_stream::LEGACY`] or `PER_THREAD`.
//!
//! This library is the job's `libnvidia-ml.so.1` too: see [`nvml`].
//!
//! # Rules
//!
//! Pointers from the application are trusted exactly as far as the driver trusts them: checked for NULL where the
//! driver's documentation says so, and written only on success. The shim never loads the real driver, keeps no thread
//! waiting that is not in a call, and drops no error.

pub mod api;
pub mod client;
pub mod default_stream;
mod exclude;
mod exports;
pub mod facts;
pub mod graph;
mod journal;
pub mod log;
pub mod nvml;
pub mod private;
pub mod report;
mod trace;

pub use exports::address;

/// Tells this library from the driver's: a GPU server that finds it in the driver's place refuses to load it.
#[unsafe(export_name = "dormouse_shim")]
pub static MARKER: u8 = 1;
