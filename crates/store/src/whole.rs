//! Which images can be restarted, as far as that is seen without reading their packs: others go on the strength of these.

use std::collections::HashSet;

use image::{ChunkId, ImageId, Manifest};
use serde::Serialize;

use crate::chunk_map::{Usable, usable};
use crate::condemned::Barred;
use crate::{ReadError, Store};

/// An image of which something is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LackingImage {
    /// Its id.
    pub image: ImageId,
    /// What it lacks.
    pub problem: String,
}

/// What was found of an image.
#[derive(Debug)]
pub(crate) enum Found {
    Whole,
    Lacking(LackingImage),
    /// Somebody has removed it.
    Gone,
}

/// Looks at images. What the store has is read when the first is looked at.
#[derive(Debug)]
pub(crate) struct Looking<'a> {
    store: &'a Store,
    usable: Option<Usable>,
    looked_again: bool,
}

impl<'a> Looking<'a> {
    pub(crate) fn at(store: &'a Store) -> Self {
        Self { store, usable: None, looked_again: false }
    }

    /// Whether each chunk of an image is in a pack that an index names, and that is there with its whole length.
    ///
    /// # Errors
    /// [`ReadError::Media`] where the store cannot be read.
    pub(crate) fn find(&mut self, image: ImageId) -> Result<Found, ReadError> {
        let manifest = match self.store.manifest(&image) {
            Err(ReadError::NoImage { .. }) => return Ok(Found::Gone),
            manifest => manifest?,
        };
        let mut lacking = self.lacking(&manifest)?;
        // Nothing is held, so what is missing may only have been written anew.
        if !lacking.is_empty() && !std::mem::replace(&mut self.looked_again, true) {
            self.usable = None;
            lacking = self.lacking(&manifest)?;
        }
        if lacking.is_empty() {
            return Ok(Found::Whole);
        }
        let problem = format!(
            "{} of its chunks are in no pack that is there whole and that an index names; `dormouse verify --quick {image}` says what is missing",
            lacking.len()
        );
        Ok(Found::Lacking(LackingImage { image, problem }))
    }

    fn lacking(&mut self, manifest: &Manifest) -> Result<HashSet<ChunkId>, ReadError> {
        let usable = match &mut self.usable {
            Some(usable) => usable,
            unread => unread.insert(usable(self.store, &Barred::none())?),
        };
        let lacking = manifest.chunks().filter(|(chunk, len)| usable.get(chunk) != Some(len));
        Ok(lacking.map(|(chunk, _)| chunk).collect())
    }
}
