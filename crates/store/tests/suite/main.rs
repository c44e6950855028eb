//! Stores of images: written, read, damaged, cut off and cleaned up.

mod corruption;
mod crash;
mod directory;
mod finding;
mod golden;
mod object_storage;
mod pipeline;
mod removing;
mod support;
