//! The annotated list of CUDA driver functions and what is generated from it.
