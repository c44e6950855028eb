//! The libcuda.so.1 that applications load.
