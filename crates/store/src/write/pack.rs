//! A pack file being written.

use image::{Entry, ImageId, PackId, PackIndex, pack};

use crate::media::MediaFile;
use crate::store::random_id;
use crate::{MediaError, Store, WriteError, layout};

/// Frames shorter than this are gathered before they are written.
const GATHER: usize = 256 << 10;
/// So many entries fit into a trailer, with room to spare.
const MOST_ENTRIES: usize = 1 << 20;

/// A pack in a draft's folder, open for writing.
#[derive(Debug)]
pub(super) struct OpenPack {
    store: Store,
    image: ImageId,
    path: String,
    file: Box<dyn MediaFile>,
    gathered: Vec<u8>,
    index: PackIndex,
}

impl OpenPack {
    pub(super) fn create(store: &Store, image: ImageId) -> Result<Self, WriteError> {
        let id = PackId(store.on("find an id in", layout::TMP, |_| random_id())?);
        let path = layout::draft_pack(image, id);
        let file = store
            .on("create", &path, |media| media.create(&path))
            .map_err(|error| abandoned(image, error))?;
        let header = pack::header(id);
        let index = PackIndex { id, file_len: header.len() as u64, entries: Vec::new() };
        Ok(Self { store: store.clone(), image, path, file, gathered: header.to_vec(), index })
    }

    /// Whether the next frame should go into another pack: this one has reached `len` bytes, or as many entries as it can have.
    pub(super) fn is_full(&self, len: u64) -> bool {
        self.index.file_len >= len || self.index.entries.len() >= MOST_ENTRIES
    }

    pub(super) fn append(&mut self, entry: Entry, frame: &[u8]) -> Result<(), WriteError> {
        if frame.len() < GATHER {
            self.gathered.extend_from_slice(frame);
        } else {
            self.flush()?;
            self.write(frame)?;
        }
        if self.gathered.len() >= GATHER {
            self.flush()?;
        }
        self.index.file_len += frame.len() as u64;
        self.index.entries.push(entry);
        Ok(())
    }

    /// Adds the trailer and makes the file durable.
    pub(super) fn seal(mut self) -> Result<PackIndex, WriteError> {
        let trailer = pack::trailer(self.index.id, &self.index.entries);
        let trailer =
            trailer.map_err(|error| WriteError::Format { what: "pack", image: self.image, error })?;
        self.gathered.extend_from_slice(&trailer);
        self.index.file_len += trailer.len() as u64;
        self.flush()?;
        let synced = self.file.sync();
        self.done("sync", synced)?;
        Ok(self.index)
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let mut gathered = std::mem::take(&mut self.gathered);
        self.write(&gathered)?;
        gathered.clear();
        self.gathered = gathered;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let written = self.file.write_all(bytes);
        self.done("write", written)
    }

    fn done(&self, operation: &'static str, result: std::io::Result<()>) -> Result<(), WriteError> {
        let path = || self.store.media().full_path(&self.path);
        Ok(result.map_err(|error| MediaError { operation, path: path(), error })?)
    }
}

/// A file of a draft that cannot be found means that the draft is gone.
pub(super) fn abandoned(image: ImageId, error: MediaError) -> WriteError {
    if error.error.kind() == std::io::ErrorKind::NotFound {
        return WriteError::Abandoned { image, path: error.path };
    }
    error.into()
}
