//! What a job's machine has of the one that it moves to: a folder there, as the medium of a store, and somebody who is asked to try an image and to
//! start it. Both over one session ([`wires::Wires`]), of whose connections, keys and rights this knows nothing.
//!
//! Whoever writes a file waits for nothing until it is to be durable; everything else is a question and its answer. What the other side says is
//! bounded before it is believed; of the folder's side that is all, since whoever is let in may start programs there anyway.
#![forbid(unsafe_code)]

mod client;
mod folder;
mod messages;
mod serve;

pub use client::{Arrival, SayError};
pub use folder::Folder;
#[cfg(feature = "fuzzing")]
pub use messages::{MAGIC, come_back};
pub use serve::serve;
