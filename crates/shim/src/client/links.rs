//! Links of device code: what has been added so far, and what came out.

use std::sync::{Mutex, OnceLock};

use super::jit::JitOptions;
use super::registry::Object;

/// An input: its `CUjitInputType`, its name, its bytes.
pub struct LinkInput {
    /// `CUjitInputType`.
    pub kind: u32,
    /// For messages.
    pub name: String,
    /// Its contents.
    pub data: Vec<u8>,
}

/// The options of a link, with the application's log buffers.
pub struct LinkOptions(pub JitOptions);

// SAFETY: the pointers in it are the application's, which says that they stay until the link is destroyed; they are followed
// only in calls that name the link, one at a time.
unsafe impl Send for LinkOptions {}
// SAFETY: as above.
unsafe impl Sync for LinkOptions {}

/// A link.
pub struct Link {
    /// As it was created.
    pub options: LinkOptions,
    /// What has been added.
    pub inputs: Mutex<Vec<LinkInput>>,
    /// The result, which the application reads until the link is destroyed.
    pub linked: OnceLock<Vec<u8>>,
}

impl Object for Link {
    fn is_alive(&self) -> bool {
        true
    }
}
