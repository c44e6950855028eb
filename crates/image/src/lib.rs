//! The checkpoint image format.
