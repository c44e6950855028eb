//! Jobs on this machine: run, stopped, dumped and restored.

mod descriptors;
mod files;
mod given_files;
mod hanging;
mod restarting;
mod running;
mod support;
mod surroundings;
