//! Stores of images: written, read, damaged, cut off and cleaned up.

mod condemned;
mod condemned_damaged;
mod copying;
mod corruption;
mod crash;
mod delivering;
mod directory;
mod encryption;
mod finding;
mod golden;
mod last_copy;
mod looking;
mod object_storage;
mod pipeline;
mod publishing;
mod removing;
mod repacking;
mod sharing;
mod support;
