//! A draft: an image that is being written, from its folder to its name among the images. The order of steps is §7 of
//! `docs/image-format.md`.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, OnceLock};

use image::{ChunkId, Extent, ImageId, Index, Manifest, Object, PackIndex, StoredBytes};

use super::pack::abandoned;
use super::{ChunkWriter, Receipt, WriteOptions};
use crate::chunk_map::{ChunkMap, Usable};
use crate::error::describe;
use crate::media::MediaLock;
use crate::report::ImageSummary;
use crate::store::random_id;
use crate::{MediaError, Store, WriteError, layout};

/// An image that is being written. Dropped, it is given up and its files are removed.
#[derive(Debug)]
pub struct Draft {
    store: Store,
    id: ImageId,
    /// Held as long as the draft lives: by it others know that it does, and remove nothing that it may have found in the store.
    lock: MediaLock,
    /// What the store had when a writer in this process joined.
    usable: OnceLock<Arc<Usable>>,
}

impl Store {
    /// Begins an image. Drafts whose supervisors have died are removed on this occasion.
    ///
    /// # Errors
    /// [`WriteError::Full`], [`WriteError::NotWritable`], [`WriteError::Media`].
    pub fn begin(&self) -> Result<Draft, WriteError> {
        loop {
            let id = ImageId(self.on("find an id in", layout::TMP, |_| random_id())?);
            // Otherwise a cleaner took the folder for an abandoned one.
            if let Some(draft) = self.try_begin(id)? {
                return Ok(draft);
            }
        }
    }

    /// None where a cleaner has the folder, or another draft of this id.
    pub(super) fn try_begin(&self, id: ImageId) -> Result<Option<Draft>, WriteError> {
        // Who removes has to know of every draft.
        let _share = self.share()?;
        // Copying a store may have left it out: it is mostly empty.
        self.on("create", layout::TMP, |media| media.create_folder(layout::TMP))?;
        if let Err(error) = self.remove_abandoned_drafts() {
            tracing::debug!(%error, "an abandoned draft could not be removed");
        }
        let (folder, lock) = (layout::draft(id), layout::draft_lock(id));
        self.on("create", &folder, |media| media.create_folder(&folder))?;
        match self.on("lock", &lock, |media| media.lock(&lock, true)) {
            Ok(held) => {
                Ok(held.map(|held| Draft { store: self.clone(), id, lock: held, usable: OnceLock::new() }))
            }
            Err(error) if error.error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                // What is left behind the next draft removes.
                let _ = self.remove_if_abandoned(id);
                Err(error.into())
            }
        }
    }

    /// Drafts that have a folder, whoever holds them.
    pub(crate) fn drafts(&self) -> Result<Vec<ImageId>, MediaError> {
        let names = match self.media().list(layout::TMP) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => self.on("list", layout::TMP, |_| names)?,
        };
        Ok(names.iter().filter_map(|name| layout::draft_of(name)).collect())
    }

    /// Removes the folders of drafts that nobody holds, and says which drafts are left. What cannot be removed stays for the next time: it is
    /// never listed.
    ///
    /// # Errors
    /// The first thing that could not be removed.
    pub(crate) fn remove_abandoned_drafts(&self) -> Result<Vec<ImageId>, MediaError> {
        let (mut left, mut failed) = (Vec::new(), Ok(()));
        for id in self.drafts()? {
            match self.remove_if_abandoned(id) {
                // Somebody else was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(true) => {}
                Ok(false) => left.push(id),
                Err(error) => failed = failed.and(self.on("remove", &layout::draft(id), |_| Err(error))),
            }
        }
        failed.map(|()| left)
    }

    /// Whether there is no such draft any more.
    fn remove_if_abandoned(&self, id: ImageId) -> io::Result<bool> {
        let lock = layout::draft_lock(id);
        // A draft takes its lock before it makes other files, so one that has files and no lock is no draft (any more). Names are
        // looked at first: a lock that is missing afterwards was missing all the time.
        let names = self.media().list(&layout::draft(id))?;
        let held = match self.media().lock(&lock, false) {
            Ok(None) => return Ok(false),
            Ok(held) => held,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match self.remove_draft(id, &names, held.as_ref()) {
            // It was empty, and has a lock now: whoever made the folder goes on with it.
            Err(error) if held.is_none() && error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
            removed => {
                removed?;
                drop(held);
                tracing::info!(%id, "removed the remains of a checkpoint that was cut off");
                Ok(true)
            }
        }
    }

    /// Removes a draft's folder: first what could still be published, its lock last. That only goes with who holds it: where it was not there it may be by now,
    /// and of a draft that begins.
    fn remove_draft(&self, id: ImageId, names: &[String], held: Option<&MediaLock>) -> io::Result<()> {
        let folder = layout::draft(id);
        let (packs, others): (Vec<_>, Vec<_>) = names
            .iter()
            .filter(|name| *name != layout::LOCK_NAME)
            .partition(|name| layout::pack_of(name).is_some());
        for name in others.into_iter().chain(packs) {
            self.media().remove(&format!("{folder}/{name}"))?;
        }
        match held.map(|_| self.media().remove(&layout::draft_lock(id))) {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.media().remove_folder(&folder)
    }
}

impl Draft {
    /// The id of the image to be.
    #[must_use]
    pub fn id(&self) -> ImageId {
        self.id
    }

    /// A writer in this process.
    ///
    /// # Errors
    /// As [`ChunkWriter::join`].
    pub fn writer(&self, options: &WriteOptions) -> Result<ChunkWriter, WriteError> {
        let writer = ChunkWriter::join(&self.store, self.id, options)?;
        self.usable.get_or_init(|| writer.usable());
        Ok(writer)
    }

    /// Makes the image exist: complete, durable, and listed from the moment this returns.
    ///
    /// Of `manifest`, the id and the sizes are filled in, the objects of the receipts are added, and the time is moved behind that
    /// of the job's newest image should a clock have gone back.
    ///
    /// # Errors
    /// Any [`WriteError`]; the image is then not listed (or, where only making its name durable failed and could not be undone, is listed and
    /// complete until a crash takes the name away).
    pub fn publish(self, mut manifest: Manifest, receipts: Vec<Receipt>) -> Result<ImageSummary, WriteError> {
        manifest.id = self.id;
        manifest.stored = StoredBytes::default();
        let mut packs = Vec::new();
        for receipt in receipts {
            if receipt.image != self.id {
                let reason = format!("it is of image {}, not of {}", receipt.image, self.id);
                return Err(WriteError::Receipt { reason });
            }
            manifest.stored = manifest.stored.plus(receipt.stored);
            manifest.objects.extend(receipt.objects);
            packs.extend(receipt.packs);
        }
        if let Some(newest) = self.store.newest_since(&manifest.job, manifest.created_ns)? {
            manifest.created_ns = newest.saturating_add(1);
        }
        self.check_packs(&packs)?;
        self.check_chunks(&manifest.objects, &packs)?;

        let image = self.id;
        let format = |what| move |error| WriteError::Format { what, image, error };
        let manifest_file = manifest.to_bytes().map_err(format("manifest"))?;
        if !packs.is_empty() {
            let index = Index { image, packs: packs.clone() }.to_bytes().map_err(format("index"))?;
            self.write_durably(&layout::draft_index(image), &index)?;
        }
        self.write_durably(&layout::draft_manifest(image), &manifest_file)?;

        // From here on nothing needs space.
        if packs.is_empty() {
            // Chunks that were found stored may be in an index that nobody has synced yet.
            self.sync_folder(layout::INDEX)?;
        } else {
            self.publish_index(&packs)?;
        }
        self.publish_manifest()?;
        Ok(ImageSummary::of(&manifest))
    }

    /// Gives packs their names, and then the index that names them and lies in the draft's folder.
    pub(super) fn publish_index(&self, packs: &[PackIndex]) -> Result<(), WriteError> {
        if let Err(error) = self.publish_packs(packs) {
            self.take_back_packs(packs);
            return Err(error);
        }
        // From here on other drafts may count on these packs.
        self.rename(&layout::draft_index(self.id), &layout::index(self.id))?;
        self.sync_folder(layout::INDEX)
    }

    /// Looks whether every chunk of the objects is in these packs or in the store.
    fn check_chunks(&self, objects: &[Object], packs: &[PackIndex]) -> Result<(), WriteError> {
        // What was usable then is there as long as the draft is.
        let usable = self.usable.get();
        let found = check_chunks(objects, packs, |chunk| usable?.get(chunk).copied());
        found.or_else(|_| {
            // Writers that joined later may have found more.
            let stored = ChunkMap::load(&self.store)?;
            check_chunks(objects, packs, |chunk| stored.plain_len(chunk))
        })
    }

    /// Looks whether the receipts' packs are there, whole.
    pub(super) fn check_packs(&self, packs: &[PackIndex]) -> Result<(), WriteError> {
        for pack in packs {
            let damaged = |what: &str| WriteError::Receipt { reason: format!("pack {}: {what}", pack.id) };
            pack.validate().map_err(damaged)?;
            let path = layout::draft_pack(self.id, pack.id);
            let len = self.store.on("open", &path, |media| media.open(&path)?.len());
            let len = len.map_err(|error| abandoned(self.id, error))?;
            if len != pack.file_len {
                return Err(damaged(&format!("its file has {len} bytes, not {}", pack.file_len)));
            }
        }
        Ok(())
    }

    pub(super) fn write_durably(&self, path: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let gone = |error: MediaError| abandoned(self.id, error);
        let mut file = self.store.on("create", path, |media| media.create(path)).map_err(gone)?;
        self.store.on("write", path, |_| file.write_all(bytes))?;
        self.store.on("sync", path, |_| file.sync())?;
        Ok(())
    }

    fn publish_packs(&self, packs: &[PackIndex]) -> Result<(), WriteError> {
        for pack in packs {
            self.rename(&layout::draft_pack(self.id, pack.id), &layout::pack(pack.id))?;
        }
        self.sync_folder(layout::PACKS)
    }

    /// Removes packs that no index names yet.
    fn take_back_packs(&self, packs: &[PackIndex]) {
        for pack in packs {
            // One that was not moved is removed with the draft.
            let _ = self.store.media().remove(&layout::pack(pack.id));
        }
    }

    /// Gives the manifest in the draft's folder its name; takes it back where that fails. Until the draft is over nobody removes others on its strength.
    fn publish_manifest(&self) -> Result<(), WriteError> {
        let published = self.name_manifest(self.id);
        if published.is_err() && self.store.media().remove(&layout::image(self.id)).is_ok() {
            let _ = self.store.media().sync_folder(layout::IMAGES);
        }
        published
    }

    /// Gives the manifest in the draft's folder the name of `image`, whose it is.
    pub(super) fn name_manifest(&self, image: ImageId) -> Result<(), WriteError> {
        self.rename(&layout::draft_manifest(self.id), &layout::image(image))?;
        self.sync_folder(layout::IMAGES)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), WriteError> {
        Ok(self.store.on("name", to, |media| media.rename(from, to))?)
    }

    pub(super) fn sync_folder(&self, folder: &str) -> Result<(), WriteError> {
        Ok(self.store.on("sync", folder, |media| media.sync_folder(folder))?)
    }
}

/// Looks whether every chunk of the objects is in these packs or `stored`, which says how long each is that it knows.
pub(super) fn check_chunks(
    objects: &[Object],
    packs: &[PackIndex],
    stored: impl Fn(&ChunkId) -> Option<u32>,
) -> Result<(), WriteError> {
    let entries = packs.iter().flat_map(|pack| &pack.entries);
    let new: HashMap<ChunkId, u32> = entries.map(|entry| (entry.id, entry.plain_len)).collect();
    for object in objects {
        for extent in &object.extents {
            let Extent::Chunk { id, len } = extent else { continue };
            if new.get(id).copied().or_else(|| stored(id)) != Some(*len) {
                return Err(WriteError::MissingChunk { chunk: *id, what: describe(&object.kind) });
            }
        }
    }
    Ok(())
}

/// Removes what is left in the draft's folder: all of it where the draft is given up, next to nothing after it was published.
impl Drop for Draft {
    fn drop(&mut self) {
        let removed = self.store.media().list(&layout::draft(self.id));
        if let Err(error) =
            removed.and_then(|names| self.store.remove_draft(self.id, &names, Some(&self.lock)))
        {
            tracing::debug!(id = %self.id, %error, "a draft's folder could not be removed; the next draft will");
        }
    }
}
