//! Where every chunk of a store lies: the union of its indexes.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use image::{ChunkId, Entry, ImageId, Index, PackId, PackIndex};

use crate::condemned::Barred;
use crate::list::DamagedFile;
use crate::{MediaError, ReadError, Store, layout};

/// One copy of a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) pack: PackId,
    pub(crate) offset: u64,
    pub(crate) entry: Entry,
}

/// Chunks that a writer may use again, with their lengths.
pub(crate) type Usable = HashMap<ChunkId, u32>;

/// The same as [`ChunkMap::usable`] of all that a store has, for who wants to know nothing else: that takes a fraction of the memory.
pub(crate) fn usable(store: &Store, barred: &Barred) -> Result<Usable, ReadError> {
    let there = packs_there(store, barred)?;
    let mut usable = Usable::new();
    for_each_pack(store, |pack| usable.extend(usable_of(&pack, &there)))?;
    Ok(usable)
}

/// The chunks of a pack, if that is there and has the right length.
fn usable_of(pack: &PackIndex, there: &HashMap<PackId, u64>) -> impl Iterator<Item = (ChunkId, u32)> {
    let entries = if is_there(there, pack) { &pack.entries[..] } else { &[] };
    entries.iter().map(|entry| (entry.id, entry.plain_len))
}

/// Whether a pack is there, by the lengths of packs, with all that its index says.
pub(crate) fn is_there(lengths: &HashMap<PackId, u64>, pack: &PackIndex) -> bool {
    lengths.get(&pack.id) == Some(&pack.file_len)
}

/// The packs in a store's folder that are not barred, and how long they are.
fn packs_there(store: &Store, barred: &Barred) -> Result<HashMap<PackId, u64>, MediaError> {
    let mut there = store.pack_lengths()?;
    there.retain(|id, _| !barred.has(id));
    Ok(there)
}

/// Hands over what every index names; answers the indexes that could not be read.
fn for_each_pack(
    store: &Store,
    mut each: impl FnMut(PackIndex),
) -> Result<Vec<(ImageId, DamagedFile)>, ReadError> {
    let mut damaged = Vec::new();
    let mut names = store.on("list", layout::INDEX, |media| media.list(layout::INDEX))?;
    names.sort_unstable();
    for image in names.iter().filter_map(|name| layout::index_of(name)) {
        let path = layout::index(image);
        match store.read_file(&path, |file| Index::read(file)) {
            Ok(index) if index.image != image => {
                let problem = format!("it is not what its name says: it is of image {}", index.image);
                damaged.push((image, DamagedFile { path: store.media().full_path(&path), problem }));
            }
            Ok(index) => index.packs.into_iter().for_each(&mut each),
            // Pruned since it was listed.
            Err(ReadError::Media(MediaError { error, .. })) if error.kind() == io::ErrorKind::NotFound => {}
            Err(ReadError::File { path, error }) => {
                damaged.push((image, DamagedFile { path, problem: error.to_string() }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(damaged)
}

/// The chunks of a store as its indexes had them at one moment.
#[derive(Debug, Default)]
pub(crate) struct ChunkMap {
    packs: HashMap<PackId, Arc<PackIndex>>,
    places: HashMap<ChunkId, Place>,
    /// Further copies of chunks that two writers stored at the same time.
    copies: HashMap<ChunkId, Vec<Place>>,
    /// Index files that could not be read, with the image that each was written for.
    damaged: Vec<(ImageId, DamagedFile)>,
}

impl ChunkMap {
    /// Reads every index.
    pub(crate) fn load(store: &Store) -> Result<Self, ReadError> {
        Self::load_without(store, &Barred::none())
    }

    /// Reads every index, and passes over what is barred.
    pub(crate) fn load_without(store: &Store, barred: &Barred) -> Result<Self, ReadError> {
        let mut map = Self::default();
        let damaged = for_each_pack(store, |pack| {
            if !barred.has(&pack.id) {
                map.add(pack);
            }
        })?;
        Ok(Self { damaged, ..map })
    }

    /// The chunks of packs that are there and have the right length, for a writer that wants to use them again.
    pub(crate) fn usable(&self, store: &Store, barred: &Barred) -> Result<Usable, MediaError> {
        let there = packs_there(store, barred)?;
        Ok(self.packs.values().flat_map(|pack| usable_of(pack, &there)).collect())
    }

    pub(crate) fn add(&mut self, pack: PackIndex) {
        // A pack that a second index names is the same pack: packs never change.
        if self.packs.contains_key(&pack.id) {
            return;
        }
        for (offset, entry) in pack.frames() {
            let place = Place { pack: pack.id, offset, entry: *entry };
            if *self.places.entry(entry.id).or_insert(place) != place {
                self.copies.entry(entry.id).or_default().push(place);
            }
        }
        self.packs.insert(pack.id, Arc::new(pack));
    }

    /// Every copy of a chunk; none where no index knows it.
    pub(crate) fn places(&self, chunk: &ChunkId) -> impl Iterator<Item = &Place> {
        self.places.get(chunk).into_iter().chain(self.copies.get(chunk).into_iter().flatten())
    }

    /// How long a chunk is; none where no index knows it.
    pub(crate) fn plain_len(&self, chunk: &ChunkId) -> Option<u32> {
        self.places(chunk).next().map(|place| place.entry.plain_len)
    }

    pub(crate) fn pack(&self, id: &PackId) -> Option<&Arc<PackIndex>> {
        self.packs.get(id)
    }

    pub(crate) fn damaged(&self) -> &[(ImageId, DamagedFile)] {
        &self.damaged
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        (self.pack, self.offset) == (other.pack, other.offset)
    }
}
