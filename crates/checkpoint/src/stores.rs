//! The store's errors as failures with a kind.

use crate::error::{Chain, Failure, Kind};
use crate::folder::read_kind;
use image::ImageId;
use std::path::Path;
use store::{FindError, Store};

/// Opens a store that must be there.
///
/// # Errors
/// [`Kind::Store`] saying what is wrong with the folder.
pub fn open_store(dir: &Path) -> Result<Store, Failure> {
    Store::open(dir).map_err(|error| Failure::new(Kind::Store, Chain(&error).to_string()))
}

/// The image that `reference` means.
///
/// # Errors
/// [`Kind::NotFound`], [`Kind::Damaged`], [`Kind::Mismatch`] when a newer Dormouse wrote it.
pub fn find_image(store: &Store, reference: &str) -> Result<ImageId, Failure> {
    store.find(reference).map_err(|error| {
        let kind = match &error {
            FindError::NotFound { .. } | FindError::Ambiguous { .. } => Kind::NotFound,
            FindError::Read(error) => read_kind(error),
            _ => Kind::Damaged,
        };
        Failure::new(kind, Chain(&error).to_string())
    })
}

/// Opens a store, or creates it where there is none.
///
/// # Errors
/// [`Kind::Store`] saying what is wrong with the folder.
pub fn open_or_create_store(dir: &Path) -> Result<Store, Failure> {
    Store::open_or_create(dir).map_err(|error| Failure::new(Kind::Store, Chain(&error).to_string()))
}
