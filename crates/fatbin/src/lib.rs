//! Fatbinaries and cubins: finding, bounding and decompressing device code.
//!
//! What a program hands to `cuModuleLoadData` or `cuLibraryLoadData` is a bare pointer. [`measure`] tells, by
//! reading as little as it can, what stands there and how long it is; [`Image`] takes it apart, and
//! [`ModuleFacts`] tells what a module holds: kernels and their parameters, variables, what it imports.
//!
//! Formats: the fatbinary as nvcc 12 and 13 write it (no public documentation), ELF with NVIDIA's sections, PTX.

#![forbid(unsafe_code)]

mod arch;
mod bytes;
mod compression;
mod cubin;
mod elf;
mod facts;
mod fatbinary;
mod image;
mod length;
mod managed;
mod nvinfo;
mod text;

pub use arch::{Arch, Architectures, Variant};
pub use compression::{Compression, DecompressError, MAX_DECOMPRESSED};
pub use cubin::{Cubin, CubinError};
pub use elf::ElfError;
pub use facts::{FactsError, KernelFacts, Linkage, ModuleFacts, ParamFacts, VariableFacts, VariableSpace};
pub use fatbinary::{Entry, EntryKind, Fatbinary, FatbinaryError};
pub use image::{Code, CodeError, Image, ImageError};
pub use length::{ImageKind, MeasureError, Measured, Source, WRAPPER_SIZE, Wrapper, measure};
pub use managed::{ManagedError, ManagedVariable, Pointer, bind};
pub use text::{Ptx, PtxError};
