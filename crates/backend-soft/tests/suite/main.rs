//! The software device: conformance, instructions and kernels.

mod common;
mod conformance;
mod divergence;
mod elsewhere;
mod forms;
mod kernels;
mod opcodes;
