//! An image that is read before all of it has come: its manifest lies in the draft of whoever brings it, and what is not there yet is waited for.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use image::{ChunkId, ImageId, Index, Manifest};

use crate::chunk_map::{ChunkMap, Place};
use crate::{MediaError, ReadError, Store, layout};

/// How often it is looked what has come.
const LOOK: Duration = Duration::from_millis(3);

/// What comes of an image.
#[derive(Debug)]
pub(crate) struct Arrival {
    store: Store,
    image: ImageId,
    draft: ImageId,
    come: Mutex<Come>,
}

/// What has come.
#[derive(Debug, Default)]
struct Come {
    map: ChunkMap,
    /// Of the index that it is from.
    len: u64,
}

impl Arrival {
    /// The draft in which an image is brought, and its manifest; none where nobody brings it.
    pub(crate) fn find(store: &Store, image: &ImageId) -> Result<Option<(Self, Manifest)>, ReadError> {
        let names = store.on("list", layout::TMP, |media| media.list(layout::TMP))?;
        for draft in names.iter().filter_map(|name| layout::draft_of(name)) {
            // Most have none.
            let manifest = store.read_file(&layout::draft_manifest(draft), |file| Manifest::read(file));
            if let Some(manifest) = manifest.ok().filter(|manifest| manifest.id == *image) {
                let arrival = Self { store: store.clone(), image: *image, draft, come: Mutex::default() };
                return Ok(Some((arrival, manifest)));
            }
        }
        Ok(None)
    }

    /// Where a chunk lies, when it has come.
    pub(crate) fn place(&self, chunk: &ChunkId) -> Result<Place, String> {
        loop {
            // One looks for all.
            let mut come = self.come();
            if let Some(place) = come.map.places(chunk).next() {
                return Ok(*place);
            }
            // What came before the end is there.
            let is_over = self.is_over();
            self.look(&mut come).map_err(|error| error.to_string())?;
            let found = come.map.places(chunk).next().copied();
            // Others look for theirs.
            drop(come);
            match found {
                Some(place) => return Ok(place),
                None if is_over => return Err(ReadError::NotCome { image: self.image }.to_string()),
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// Waits until the image has its name.
    pub(crate) fn await_name(&self) -> Result<(), ReadError> {
        loop {
            let is_over = self.is_over();
            match self.store.media().open(&layout::image(self.image)) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.store.on("open", &layout::image(self.image), |_| Err::<(), _>(error))?;
                }
            }
            if is_over {
                return Err(ReadError::NotCome { image: self.image });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether nobody brings it any more.
    fn is_over(&self) -> bool {
        // Who holds the lock may be asked for it at any time: he is there as long as it cannot be had.
        !matches!(self.store.media().lock(&layout::draft_lock(self.draft), false), Ok(None))
    }

    fn look(&self, come: &mut Come) -> Result<(), ReadError> {
        let path = layout::index(self.draft);
        let len = match self.store.media().open(&path).and_then(|file| file.len()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            len => self.store.on("open", &path, |_| len)?,
        };
        if len != come.len {
            match self.store.read_file(&path, |file| Index::read(file)) {
                Ok(index) => index.packs.into_iter().for_each(|pack| come.map.add(pack)),
                // It has gone with the image.
                Err(ReadError::Media(MediaError { error, .. }))
                    if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            come.len = len;
        }
        Ok(())
    }

    fn come(&self) -> MutexGuard<'_, Come> {
        self.come.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
