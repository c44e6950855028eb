//! The embedded software device, which runs PTX on the CPU.
//!
//! The way of a kernel: `module` loads an image, `lower` and `isa` turn each function into pre-decoded instructions, `stream`
//! orders work, `sched` hands a grid's blocks to threads, `exec` runs them 32 lanes at a time on `memory`; `device` is what a
//! server sees of it.
//!
//! Results: integer operations, comparisons, conversions and everything that IEEE 754 defines are exact. `*.approx` operations
//! are computed in double precision and rounded, within the documented error but not with a GPU's last bits.

mod conditions;
mod device;
mod exec;
mod isa;
mod lower;
mod memory;
mod module;
mod printf;
mod sched;
mod stream;
mod texture;

pub use device::{Options, SoftBackend, machine};
