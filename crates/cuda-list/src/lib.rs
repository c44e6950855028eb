//! The annotated list of CUDA driver functions.
//!
//! `list/*.abi` names every function of CUDA 13.0's `cuda.h` in every version, once. From it come the symbols that
//! the shim exports, the table behind `cuGetProcAddress`, [`cuda_abi::FunctionId`] and `docs/api-coverage.md`;
//! [`headers`] checks it by machine against NVIDIA's own headers.
//!
//! [`cuda_abi::FunctionId`]: ../cuda_abi/enum.FunctionId.html
//!
//! # The format
//!
//! One file is one chapter. `#` starts a comment line.
//!
//! ```text
//! chapter Copies
//!
//! fn cuMemcpyHtoDAsync
//!   class pipelined
//!   touches current
//!   2000  cuMemcpyHtoDAsync(CUdeviceptr_v1 dstDevice, const void *srcHost in[ByteCount], unsigned int ByteCount,
//!         CUstream hStream)
//!         unsupported 32-bit addresses and sizes ended with CUDA 3.2
//!   3020  cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost in[ByteCount], size_t ByteCount,
//!         CUstream hStream stream)
//!   7000  cuMemcpyHtoDAsync_v2_ptsz
//! ```
//!
//! - `class`: `client` (answered in the application's process), `pipelined` (sent, and known to succeed when it is
//!   sent), `roundtrip` (the caller waits for the server).
//! - `touches`: what it uses beyond the handles among its parameters: `current`, the calling thread's context.
//! - `replay`: what a restart must know of it: `creates KIND WHAT`, `destroys KIND WHAT`, `changes KIND [WHAT]`.
//!   Absent: nothing.
//! - `unsupported REASON`: answers `CUDA_ERROR_NOT_SUPPORTED`; the reason is what the user is told. Under `fn` it
//!   covers every version, under a version that one.
//! - `limits REASON`: a supported function answers `CUDA_ERROR_NOT_SUPPORTED` in some cases, or does less than the driver's; the
//!   reason is what the user is told.
//! - `never REASON`: a function that is there and never succeeds, since what it is about cannot be made; the driver answers the same
//!   for everything else. It counts as not supported.
//! - A version: the first CUDA release that has it (as `cudaTypedefs.h` says), its symbol and its parameters. A
//!   version without parentheses takes the parameters of the one above, and shares its implementation. `_ptsz` and
//!   `_ptds` symbols are their version with the per-thread default stream.
//! - A parameter: C type, name, role. Pointers are `in`, `out` or `inout`, with the number of elements (bytes for
//!   `void`) in brackets where it is not one; `opaque` is an address nobody follows. `stream` is the stream for which
//!   NULL means the default stream.
//! - Counts that are not expressions of parameters: `cstr` (to the NUL), `image` (a module image, which says its own
//!   length), `params` and `extra` (the two ways to pass kernel parameters), `attribute`, `attr`, `handleType`,
//!   `shHandleType` (as that parameter's value says).

#![forbid(unsafe_code)]

pub mod coverage;
pub mod ctype;
pub mod headers;
mod model;
mod parse;

pub use model::{Chapter, Class, Count, Function, Implicit, List, Param, PerThread, Replay, Role, Version};
pub use parse::{ParseError, parse_chapter};

/// The chapters in reading order: name (also the shim's module for it) and text.
macro_rules! chapters {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../list/", $name, ".abi")))),*]
    };
}

/// Name and text of every chapter file.
pub const TEXT: &[(&str, &str)] = chapters![
    "enums",
    "initialization",
    "error",
    "entry_point",
    "device",
    "primary_context",
    "context",
    "module",
    "library",
    "link",
    "launch",
    "occupancy",
    "memory",
    "host_memory",
    "copy",
    "set",
    "unified",
    "stream",
    "event",
    "capture",
    "graph",
    "graph_node",
    "graph_exec",
    "managed",
    "pool",
    "vmm",
    "multicast",
    "array",
    "texture",
    "texref",
    "tensor",
    "memop",
    "peer",
    "ipc",
    "external",
    "graphics",
    "green",
    "profiler",
    "logs",
    "coredump",
    "checkpoint",
];

/// Parses the list that is built into this crate.
///
/// # Errors
/// The first mistake in the text, with its file and line.
pub fn list() -> Result<List, ParseError> {
    let mut list = List::default();
    for (name, text) in TEXT {
        parse_chapter(&mut list, name, text)?;
    }
    Ok(list)
}
