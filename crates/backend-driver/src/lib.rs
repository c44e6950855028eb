//! The real CUDA driver as a backend.
