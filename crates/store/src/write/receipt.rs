//! What a writer has written, for the one who publishes.

use image::{ImageId, Object, PackIndex, StoredBytes};
use serde::{Deserialize, Serialize};

use crate::WriteError;

/// What a [`crate::ChunkWriter`] has written: durable, and not yet part of anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The draft it belongs to.
    pub image: ImageId,
    /// The packs, in the draft's folder.
    pub packs: Vec<PackIndex>,
    /// The objects.
    pub objects: Vec<Object>,
    /// How many bytes.
    pub stored: StoredBytes,
}

impl Receipt {
    /// The receipt as bytes, to be sent from one process of a Dormouse to another of the same version. Not a stable encoding.
    ///
    /// # Errors
    /// [`WriteError::Receipt`]; none is known to happen.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WriteError> {
        postcard::to_stdvec(self).map_err(damaged)
    }

    /// Reads a receipt. Whether it is true is checked when it is published.
    ///
    /// # Errors
    /// [`WriteError::Receipt`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WriteError> {
        postcard::from_bytes(bytes).map_err(damaged)
    }
}

fn damaged(error: postcard::Error) -> WriteError {
    WriteError::Receipt { reason: error.to_string() }
}
