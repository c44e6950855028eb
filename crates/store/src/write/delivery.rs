//! An image that is brought into another store while it is written: what is whole of it goes ahead, and there it can be read before all of it has come.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::AtomicBool;

use image::{ChunkId, Entry, Extent, ImageId, Index, Manifest, ObjectKind, PackId};

use super::copy::{Copier, CopyOptions, Wanted};
use super::{Draft, WriteOptions};
use crate::chunk_map::{ChunkMap, Place};
use crate::read::whole_pack;
use crate::{CopyError, ReadError, Store, layout};

/// How many packs are followed at a time: so many stay open for that.
const AT_A_TIME: usize = 64;

/// An image on its way into another store. Dropped before it has its name, it is given up: who reads it there hears that it will not come.
pub struct Delivery {
    copier: Copier,
    draft: Draft,
    index: Index,
    /// The packs that were copied before they had a name here.
    followed: HashSet<PackId>,
    announced: Option<Manifest>,
    sent: u64,
}

impl Store {
    /// Begins to bring an image into another store that need not be here yet.
    ///
    /// # Errors
    /// As [`Store::copy_to`].
    pub fn deliver_to(&self, to: &Store) -> Result<Delivery, CopyError> {
        let options = CopyOptions { pack_len: WriteOptions::FOLLOWED, ..CopyOptions::default() };
        let (copier, draft) = (Copier::new(self, to, &options)?, to.begin()?);
        let index = Index { image: draft.id(), packs: Vec::new() };
        Ok(Delivery { copier, draft, index, followed: HashSet::new(), announced: None, sent: 0 })
    }
}

impl Delivery {
    /// Bytes that were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Copies what the packs hold that the image has by now and that are whole, until it is to `stop`. What cannot be read is left for later, as all
    /// is then.
    ///
    /// # Errors
    /// [`CopyError::Target`], and [`CopyError::Source`] where the folder cannot be read.
    pub fn follow(&mut self, image: ImageId, stop: &AtomicBool) -> Result<(), CopyError> {
        let wanted = self.written(image).map_err(CopyError::Source)?;
        let Self { copier, draft, index, sent, .. } = self;
        let told = &mut |entry: &Entry| *sent += u64::from(entry.frame_len);
        let later = |chunk: &ChunkId, problem| {
            tracing::debug!("chunk {chunk} is not sent ahead: {problem}");
            Ok(())
        };
        copier.copy_chunks((draft, index), wanted, (&later, stop), told)
    }

    /// Says there what the image is, which is complete here: from now on it [can be read](Store::open_arriving), by whoever waits for what has not come.
    ///
    /// # Errors
    /// As [`Store::copy_to`].
    pub fn announce(&mut self, image: &ImageId) -> Result<(), CopyError> {
        let Self { copier, draft, announced, .. } = self;
        let (manifest, file) = copier.from.manifest_file(image).map_err(CopyError::Source)?;
        // Behind the manifest: it names what was written last.
        copier.fetcher.knows(ChunkMap::load(&copier.from).map_err(CopyError::Source)?);
        draft.write_manifest(&file)?;
        *announced = Some(manifest);
        Ok(())
    }

    /// Copies what is lacking there of what was announced: what a restart needs first before the device's memory.
    ///
    /// # Errors
    /// As [`Store::copy_to`].
    pub fn complete(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), CopyError> {
        let Self { copier, draft, index, announced: Some(manifest), sent, .. } = self else { return Ok(()) };
        let first = manifest.objects.iter().filter(|object| !is_device_memory(&object.kind));
        let first = first.flat_map(|object| &object.extents).filter_map(|extent| match extent {
            Extent::Chunk { id, .. } => Some(*id),
            Extent::Zero { .. } => None,
        });
        let first: HashSet<ChunkId> = first.collect();
        let (first, others): (Wanted, Wanted) =
            copier.wanted(manifest)?.into_iter().partition(|(chunk, ..)| first.contains(chunk));
        let told = &mut |entry: &Entry| {
            *sent += u64::from(entry.frame_len);
            progress(entry.frame_len.into());
        };
        copier.copy_all((draft, index), manifest, first, told)?;
        copier.copy_all((draft, index), manifest, others, told)?;
        Ok(draft.complete_copy(manifest, &copier.target.map)?)
    }

    /// Gives the image its name there, after [`Self::complete`].
    ///
    /// # Errors
    /// As [`Store::copy_to`]. It may have it all the same.
    pub fn publish(self) -> Result<(), CopyError> {
        let Self { draft, announced: Some(manifest), .. } = self else { return Ok(()) };
        Ok(draft.name_manifest(manifest.id)?)
    }

    /// What the other store lacks of what is in whole packs of a draft.
    fn written(&mut self, image: ImageId) -> Result<Wanted, ReadError> {
        let Self { copier: Copier { from, fetcher, target, .. }, followed, .. } = self;
        let folder = layout::draft(image);
        let names = match from.media().list(&folder) {
            // It is published, or given up.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => from.on("list", &folder, |_| names)?,
        };
        let (mut wanted, mut seen) = (Wanted::new(), HashSet::new());
        let packs = names.iter().filter_map(|name| layout::pack_of(name));
        let packs: Vec<_> = packs.filter(|id| !followed.contains(id)).collect();
        // One that is being written has no end.
        let whole = |id: &PackId| whole_pack(from, &layout::draft_pack(image, *id), *id).ok();
        for (file, pack) in packs.iter().filter_map(whole).take(AT_A_TIME) {
            let id = pack.id;
            followed.insert(id);
            for (offset, entry) in pack.frames().filter(|(_, entry)| !target.there.contains_key(&entry.id)) {
                if seen.insert(entry.id) {
                    wanted.push((entry.id, entry.plain_len, Place { pack: id, offset, entry: *entry }));
                }
            }
            fetcher.opened(file, pack);
        }
        Ok(wanted)
    }
}

fn is_device_memory(kind: &ObjectKind) -> bool {
    matches!(kind, ObjectKind::DeviceMemory { .. })
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery").field("draft", &self.draft).finish_non_exhaustive()
    }
}
