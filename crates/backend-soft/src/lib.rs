//! The embedded software device, which runs PTX on the CPU.
