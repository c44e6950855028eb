//! What a store has, and what of that its images need.

use std::collections::{HashMap, HashSet};

use image::{ChunkId, ImageId, Index, PackId, PackIndex};

use crate::chunk_map::is_there;
use crate::{Kept, KeptWhy, MediaError, ReadError, Store, WriteError, layout};

/// The number of no pack.
pub(crate) const NOWHERE: u32 = u32::MAX;
/// The number of whichever pack, for who only asks whether there is one.
const SOMEWHERE: u32 = 0;

/// What images need. Manifests never change: who asks again and again reads each once.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    /// Those images.
    images: HashSet<ImageId>,
    /// Their chunks, with the number of a pack for whoever looks for the best of each.
    chunks: HashMap<ChunkId, u32>,
}

/// What was there at one moment.
#[derive(Debug)]
pub(crate) struct Inventory<'a> {
    /// The chunks of all images, each with [`NOWHERE`].
    pub(crate) needed: &'a mut HashMap<ChunkId, u32>,
    /// What names packs.
    pub(crate) indexes: Vec<Index>,
    /// Whose indexes are damaged.
    pub(crate) lost: Vec<ImageId>,
    /// The packs that are there, and how long they are, as far as they can be opened.
    pub(crate) lengths: HashMap<PackId, u64>,
    /// Those that are named and not there.
    pub(crate) missing: HashSet<PackId>,
}

/// Why it is not known what images need.
#[derive(Debug)]
pub(crate) enum Untold {
    /// Something cannot be read, as this says: all has to stay.
    Kept(Kept),
    /// The medium failed.
    Failed(WriteError),
}

impl<E: Into<WriteError>> From<E> for Untold {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Store {
    /// What there is, with what is known of images already; what only these images need counts as not needed.
    pub(crate) fn inventory<'a>(
        &self,
        needed: &'a mut Needed,
        without: &[ImageId],
    ) -> Result<Inventory<'a>, Untold> {
        self.read_needed(needed, without)?;
        let (mut indexes, mut lost) = (Vec::new(), Vec::new());
        let names = self.on("list", layout::INDEX, |media| media.list(layout::INDEX))?;
        for image in names.iter().filter_map(|name| layout::index_of(name)) {
            match self.read_file(&layout::index(image), |file| Index::read(file)) {
                Ok(index) if index.image == image => indexes.push(index),
                Err(error) if error.is_newer() || error.is_unread() => {
                    let message = format!("{error}: nothing else is freed; {}", self.way_out());
                    return Err(Untold::Kept(KeptWhy::of(&error).says(message)));
                }
                // Its packs say themselves what they hold.
                Ok(_) | Err(_) => lost.push(image),
            }
        }
        let lengths = self.pack_lengths()?;
        let named = indexes.iter().flat_map(|index| &index.packs).map(|pack| pack.id);
        let mut missing: HashSet<PackId> = named.filter(|pack| !lengths.contains_key(pack)).collect();
        if !missing.is_empty() {
            let there = self.on("list", layout::PACKS, |media| media.list(layout::PACKS))?;
            for pack in there.iter().filter_map(|name| layout::pack_of(name)) {
                missing.remove(&pack);
            }
        }
        Ok(Inventory { needed: &mut needed.chunks, indexes, lost, lengths, missing })
    }

    fn read_needed(&self, needed: &mut Needed, without: &[ImageId]) -> Result<(), Untold> {
        let ids: Vec<_> = self.image_ids()?.into_iter().filter(|id| !without.contains(id)).collect();
        // What those need that have gone since is not known by itself.
        if !needed.images.is_subset(&ids.iter().copied().collect()) {
            *needed = Needed::default();
        }
        needed.chunks.values_mut().for_each(|pack| *pack = NOWHERE);
        for id in ids {
            if needed.images.contains(&id) {
                continue;
            }
            match self.manifest(&id) {
                Ok(manifest) => {
                    needed.chunks.extend(manifest.chunks().map(|(id, _)| (id, NOWHERE)));
                    needed.images.insert(id);
                }
                // Removed since it was listed.
                Err(ReadError::NoImage { .. }) => {}
                Err(error) => {
                    let message = format!(
                        "what image {id} needs cannot be told, so nothing else is freed: {error}, or remove it too"
                    );
                    return Err(Untold::Kept(KeptWhy::of(&error).says(message)));
                }
            }
        }
        Ok(())
    }

    /// The packs in the store's folder, and how long they are. Of those that cannot be opened there is no length.
    pub(crate) fn pack_lengths(&self) -> Result<HashMap<PackId, u64>, MediaError> {
        let lengths = self.on("list", layout::PACKS, |media| media.lengths(layout::PACKS))?;
        Ok(lengths.iter().filter_map(|(name, len)| Some((layout::pack_of(name)?, *len))).collect())
    }

    /// The ids of all images, readable or not.
    pub(crate) fn image_ids(&self) -> Result<Vec<ImageId>, ReadError> {
        let names = self.on("list", layout::IMAGES, |media| media.list(layout::IMAGES))?;
        Ok(names.iter().filter_map(|name| layout::image_of(name)).collect())
    }

    /// What helps where a store cannot be mended.
    pub(crate) fn way_out(&self) -> String {
        format!("`dormouse copy {} NEWSTORE` saves the images that can be read", self.dir().display())
    }
}

impl Inventory<'_> {
    /// The packs that indexes name.
    pub(crate) fn packs(&self) -> impl Iterator<Item = &PackIndex> {
        self.indexes.iter().flat_map(|index| &index.packs)
    }

    /// What images need of a pack.
    pub(crate) fn needed_of<'a>(&self, pack: &'a PackIndex) -> impl Iterator<Item = &'a ChunkId> {
        pack.entries.iter().map(|entry| &entry.id).filter(|chunk| self.needed.contains_key(chunk))
    }

    /// Whether images need anything of a pack.
    pub(crate) fn needs(&self, pack: &PackIndex) -> bool {
        self.needed_of(pack).next().is_some()
    }

    /// Whether a pack is there with all that its index says.
    pub(crate) fn is_there(&self, pack: &PackIndex) -> bool {
        is_there(&self.lengths, pack)
    }

    /// Whether images need chunks that are in no pack that an index names and that is there: an index is missing, or a pack. Behind it each chunk says
    /// whether it was found.
    pub(crate) fn lacks(&mut self) -> bool {
        let Self { indexes, lengths, needed, .. } = self;
        needed.values_mut().for_each(|pack| *pack = NOWHERE);
        let packs = indexes.iter().flat_map(|index| &index.packs);
        for pack in packs.filter(|pack| is_there(lengths, pack)) {
            note_found(needed, pack);
        }
        self.lacks_still()
    }

    /// A pack has chunks that no index names.
    pub(crate) fn found_in(&mut self, pack: &PackIndex) {
        note_found(self.needed, pack);
    }

    /// Whether something has not been found yet.
    pub(crate) fn lacks_still(&self) -> bool {
        self.needed.values().any(|pack| *pack == NOWHERE)
    }

    /// Those of the packs that were `written_anew` of which images need nothing that is not also in another one, which was not and so stays.
    pub(crate) fn replaced(&self, written_anew: impl Fn(&PackId) -> bool) -> HashSet<PackId> {
        let (old, others): (Vec<_>, Vec<_>) = self.packs().partition(|pack| written_anew(&pack.id));
        if old.is_empty() {
            return HashSet::new();
        }
        let mut alone: HashSet<ChunkId> = old.iter().flat_map(|pack| self.needed_of(pack)).copied().collect();
        for entry in others.into_iter().filter(|pack| self.is_there(pack)).flat_map(|pack| &pack.entries) {
            alone.remove(&entry.id);
        }
        let is_elsewhere = |pack: &&PackIndex| pack.entries.iter().all(|entry| !alone.contains(&entry.id));
        old.into_iter().filter(is_elsewhere).map(|pack| pack.id).collect()
    }
}

/// What images need of a pack is found.
fn note_found(needed: &mut HashMap<ChunkId, u32>, pack: &PackIndex) {
    for entry in &pack.entries {
        if let Some(found) = needed.get_mut(&entry.id) {
            *found = SOMEWHERE;
        }
    }
}
