//! Marks in CUDA C++, where a kernel may stop half-way: how they get into PTX. (`docs/kernel-authors.md`)
//!
//! `#pragma CPT` becomes an assembler statement that no optimiser moves anything over. That happens between nvcc's preprocessor and its compiler for devices, so that headers, macros
//! and templates have marks, too: nvcc is told to run some of its phases by way of [`step()`]. `include/dormouse.cuh` has the same statement for other compilers.

#![forbid(unsafe_code)]

mod compiler;
mod kept;
mod pragma;
mod step;

pub use compiler::{NO_PTX, NotThere, Nvcc};
pub use step::{Failed, Phase, step};
