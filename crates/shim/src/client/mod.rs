//! The client of a GPU server: what an application process keeps of its session, and how a call reaches the server.
//!
//! `cuInit` starts the session ([`start`]); every other call goes through [`with`], which hands out the calling thread's
//! ring, context stack and caches, and the session's tables. Handles are looked up here, errors that CUDA gives at the call
//! are decided here, and only what is well formed is sent.

mod advice;
mod arrays;
mod callbacks;
mod code;
mod connect;
mod context;
mod copiers;
mod copy;
mod copy_box;
mod copy_rows;
pub mod descriptor;
mod fork;
mod forking;
mod greens;
mod image;
mod jit;
mod links;
mod managed;
mod memory;
mod moving;
mod objects;
mod output;
pub mod pinned;
mod pools;
mod registered;
mod registry;
mod reserved;
mod session;
mod slabs;
mod tensor_maps;
mod thread;
mod variables;

pub use advice::{Advice, Advised, Home};
pub use arrays::{Array, Mipmap, Plain, TexelDescs, TexelKind};
pub use callbacks::Callback;
pub use connect::{JOB, start};
pub use context::{Context, Green, Owner};
pub use copy::{Lane, Side, Wait};
pub use copy_box::End;
pub use copy_rows::{Extent, LocalRows, Rows};
pub use image::Upload;
pub use jit::JitOptions;
pub use links::{Link, LinkInput, LinkOptions};
pub use managed::Managed;
pub use memory::{Allocation, File, Holder, Kind, Place};
pub use objects::{Callable, Event, Library, Module, OldForm, Origin, Stream};
pub use pools::Pool;
pub use registry::{Object, Registry};
pub use session::{Session, session};
pub use thread::{Call, with};
pub use variables::Variables;

pub use session::{API_VERSION, context_gone};

use cuda_abi::{CuError, CuResult};

/// A pointer that the application wants written: never NULL.
///
/// # Errors
/// `INVALID_VALUE` for NULL.
pub fn out<T>(pointer: *mut T) -> CuResult<Out<T>> {
    if pointer.is_null() { Err(CuError::INVALID_VALUE) } else { Ok(Out(pointer)) }
}

/// See [`out`].
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    ///
    /// # Safety
    /// The pointer must be the caller's to write to.
    pub unsafe fn set(self, value: T) {
        // SAFETY: not NULL, and valid as the caller says.
        unsafe { self.0.write(value) };
    }
}

/// A handle of ours as the pointer that the application sees; nobody follows it.
pub fn handle<T>(value: u64) -> *mut T {
    std::ptr::without_provenance_mut(value as usize)
}

/// Text that the application passed.
///
/// # Errors
/// `INVALID_VALUE` for NULL and for what is not UTF-8: no name in device code is.
///
/// # Safety
/// `text` must be NULL or end with a NUL.
pub unsafe fn text<'a>(text: *const std::ffi::c_char) -> CuResult<&'a str> {
    if text.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: as the caller says.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_str().map_err(|_| CuError::INVALID_VALUE)
}
