//! Runs guests (CUDA programs that know nothing of Dormouse) on a device, disturbs them, and compares what they print.
pub mod manifest;
