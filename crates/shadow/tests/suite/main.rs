//! Shadows of this process's own memory, beside a device that is a model.
#![allow(clippy::unwrap_used)]

mod exclusive;
mod interleavings;
mod keeping;
mod support;
