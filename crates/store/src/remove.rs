//! Removing images, and then whatever no image needs any more. The order of steps is §7 of `docs/image-format.md`.

use std::collections::HashSet;
use std::io;

use image::{ChunkId, ImageId, Index, PackId};
use serde::Serialize;

use crate::store::random_id;
use crate::{FindError, ReadError, Store, WriteError, layout};

/// Why nothing is freed while others use the store.
const IN_USE: &str =
    "a checkpoint or a restart uses the store; the next `dormouse rm` frees what no image needs";

/// What became of a wish to remove images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// The images that are gone.
    pub images: Vec<ImageId>,
    /// Bytes of packs that no image needed any more, and that are gone too.
    pub freed: u64,
    /// Why nothing else was freed, if so.
    pub kept: Option<String>,
}

/// What no image needs.
#[derive(Debug, Default)]
struct Unused {
    /// Indexes that name unused packs, and what is left of each.
    indexes: Vec<Index>,
    packs: Vec<PackId>,
    bytes: u64,
}

impl Store {
    /// The image that `reference` means for who wants to remove it, readable or not: an id, or at least four of its first digits.
    ///
    /// # Errors
    /// [`FindError::NotFound`], also for the name of a job; [`FindError::TooShort`], [`FindError::Ambiguous`], [`FindError::Read`].
    pub fn find_exactly(&self, reference: &str) -> Result<ImageId, FindError> {
        let mut candidates = self.image_ids()?;
        candidates.retain(|id| !reference.is_empty() && id.to_string().starts_with(reference));
        match candidates[..] {
            [] => Err(FindError::NotFound { reference: reference.to_owned(), dir: self.dir() }),
            _ if reference.len() < crate::list::LEAST_PREFIX => {
                let least = crate::list::LEAST_PREFIX;
                Err(FindError::TooShort { reference: reference.to_owned(), least })
            }
            [one] => Ok(one),
            _ => Err(FindError::Ambiguous { reference: reference.to_owned(), candidates }),
        }
    }

    /// Removes images, and then what no other needs: with none named, only that. While a draft lives or an image is open, nothing is freed,
    /// since they may use what nobody else does; the next removal frees it.
    ///
    /// # Errors
    /// [`WriteError::Read`] with [`ReadError::NoImage`] before anything is removed; else as the medium's. Whatever fails, and whenever, what is
    /// listed is complete.
    pub fn remove(&self, images: &[ImageId]) -> Result<Removal, WriteError> {
        self.require(images)?;
        for image in images {
            let path = layout::image(*image);
            self.on("remove", &path, |media| media.remove(&path))?;
        }
        let removal = |freed, kept| Removal { images: images.to_vec(), freed, kept };
        // Durable before any chunk goes, also what was removed before this and never synced.
        self.on("sync", layout::IMAGES, |media| media.sync_folder(layout::IMAGES))?;
        let Some(_alone) = self.on("lock", layout::CONFIG, |media| media.lock(layout::CONFIG, false))? else {
            return Ok(removal(0, Some(IN_USE.to_owned())));
        };
        // Nothing may be left that a writer who was taken for dead could publish.
        match self.remove_abandoned_drafts() {
            Ok(true) => {}
            Ok(false) => return Ok(removal(0, Some(IN_USE.to_owned()))),
            Err(error) => return Ok(removal(0, Some(format!("{error}: nothing else is freed")))),
        }
        if let Err(error) = self.media().end_uploads() {
            tracing::debug!(%error, "uploads that were cut off could not be ended");
        }
        match self.unused(&[])? {
            Ok(unused) => {
                self.free(&unused)?;
                Ok(removal(unused.bytes, None))
            }
            Err(kept) => Ok(removal(0, Some(kept))),
        }
    }

    /// What [`Store::remove`] would do if nobody used the store. Changes nothing.
    ///
    /// # Errors
    /// As [`Store::remove`].
    pub fn would_remove(&self, images: &[ImageId]) -> Result<Removal, WriteError> {
        self.require(images)?;
        let (freed, kept) = match self.unused(images)? {
            Ok(unused) => (unused.bytes, None),
            Err(kept) => (0, Some(kept)),
        };
        Ok(Removal { images: images.to_vec(), freed, kept })
    }

    fn image_ids(&self) -> Result<Vec<ImageId>, ReadError> {
        let names = self.on("list", layout::IMAGES, |media| media.list(layout::IMAGES))?;
        Ok(names.iter().filter_map(|name| layout::image_of(name)).collect())
    }

    fn require(&self, images: &[ImageId]) -> Result<(), ReadError> {
        let there = self.image_ids()?;
        match images.iter().find(|image| !there.contains(image)) {
            Some(image) => Err(ReadError::NoImage { image: *image, dir: self.dir() }),
            None => Ok(()),
        }
    }

    /// What no image but these needs; why that cannot be told, where something cannot be read.
    fn unused(&self, without: &[ImageId]) -> Result<Result<Unused, String>, WriteError> {
        let mut used: HashSet<ChunkId> = HashSet::new();
        for id in self.image_ids()?.into_iter().filter(|id| !without.contains(id)) {
            match self.manifest(&id) {
                Ok(manifest) => used.extend(manifest.chunks().map(|(id, _)| id)),
                Err(error) => {
                    return Ok(Err(format!(
                        "what image {id} needs cannot be told, so nothing else is freed: {error}, or remove it too"
                    )));
                }
            }
        }
        let (mut unused, mut kept) = (Unused::default(), HashSet::new());
        let names = self.on("list", layout::INDEX, |media| media.list(layout::INDEX))?;
        for image in names.iter().filter_map(|name| layout::index_of(name)) {
            let mut index = match self.read_file(&layout::index(image), |file| Index::read(file)) {
                Ok(index) if index.image == image => index,
                Ok(_) => {
                    return Ok(Err(format!(
                        "index {image} is not what its name says, so nothing else is freed"
                    )));
                }
                Err(error) => return Ok(Err(format!("{error}: nothing else is freed"))),
            };
            let before = index.packs.len();
            index.packs.retain(|pack| pack.entries.iter().any(|entry| used.contains(&entry.id)));
            kept.extend(index.packs.iter().map(|pack| pack.id));
            if index.packs.len() < before {
                unused.indexes.push(index);
            }
        }
        // Packs that no index names are of a writer that was killed between two steps.
        let lengths = self.on("list", layout::PACKS, |media| media.lengths(layout::PACKS))?;
        let packs = lengths.iter().filter_map(|(name, len)| Some((layout::pack_of(name)?, len)));
        for (pack, len) in packs.filter(|(id, _)| !kept.contains(id)) {
            unused.packs.push(pack);
            unused.bytes += len;
        }
        Ok(Ok(unused))
    }

    /// Indexes first: what they name is there.
    fn free(&self, unused: &Unused) -> Result<(), WriteError> {
        for index in &unused.indexes {
            let path = layout::index(index.image);
            if index.packs.is_empty() {
                self.on("remove", &path, |media| media.remove(&path))?;
            } else {
                self.replace_index(index)?;
            }
        }
        if !unused.indexes.is_empty() {
            self.on("sync", layout::INDEX, |media| media.sync_folder(layout::INDEX))?;
        }
        for pack in &unused.packs {
            let path = layout::pack(*pack);
            self.on("remove", &path, |media| media.remove(&path))?;
        }
        Ok(())
    }

    /// Puts an index in the place of one that names more, in one step. What is left behind by a crash looks like an abandoned draft.
    fn replace_index(&self, index: &Index) -> Result<(), WriteError> {
        let format = |error| WriteError::Format { what: "index", image: index.image, error };
        let bytes = index.to_bytes().map_err(format)?;
        let id = ImageId(self.on("find an id in", layout::TMP, |_| random_id())?);
        let (folder, fresh, path) = (layout::draft(id), layout::draft_index(id), layout::index(index.image));
        self.on("create", layout::TMP, |media| media.create_folder(layout::TMP))?;
        self.on("create", &folder, |media| media.create_folder(&folder))?;
        let written = (|| {
            let mut file = self.on("create", &fresh, |media| media.create(&fresh))?;
            self.on("write", &fresh, |_| file.write_all(&bytes))?;
            self.on("sync", &fresh, |_| file.sync())?;
            self.on("name", &path, |media| media.rename(&fresh, &path))
        })();
        if written.is_err() {
            ignore_missing(self.media().remove(&fresh));
        }
        ignore_missing(self.media().remove_folder(&folder));
        Ok(written?)
    }
}

/// What stays, the next draft removes.
fn ignore_missing(removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::debug!(%error, "a folder for a new index could not be removed");
    }
}
