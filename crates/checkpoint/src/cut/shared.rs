//! The files that application and servers share, pinned memory most of all. Where memory has room for it they are copied while the job
//! stands still, by several threads, and written when it goes on; else they are written at once.

use super::room::Room;
use crate::error::Failure;
use crate::folder::{self, Entry};
use image::ObjectKind;
use std::path::Path;
use store::ChunkWriter;

/// Shared files as they were at the cut.
pub struct Shared {
    /// What there is.
    pub entries: Vec<Entry>,
    /// The copies that are not written yet.
    copies: Option<Room>,
}

impl Shared {
    /// Takes all files of `dir`: copies them to `room` or, where there is none, writes them.
    ///
    /// # Errors
    /// When they cannot be read, or the store cannot take them.
    pub fn take(dir: &Path, room: Option<Room>, writer: &ChunkWriter) -> Result<Self, Failure> {
        let unreadable = |error| Failure::of(format_args!("cannot read {}", dir.display()), &error);
        let entries = folder::entries(dir).map_err(unreadable)?;
        let copied = room.and_then(|mut room| match room.copy(dir, &entries) {
            Ok(()) => Some(room),
            Err(error) => {
                tracing::info!("the job's shared files are not copied: {error}");
                None
            }
        });
        let shared = Self { entries, copies: copied };
        if shared.copies.is_none() {
            shared.save(dir, writer)?;
        }
        Ok(shared)
    }

    /// Writes what is not written yet.
    ///
    /// # Errors
    /// When the store cannot take it.
    pub fn write(&mut self, writer: &ChunkWriter) -> Result<(), Failure> {
        self.copies.take().map_or(Ok(()), |copies| self.save(&copies.path(), writer))
    }

    /// Bytes that are not written yet, holes included.
    pub fn bytes(&self) -> u64 {
        self.copies.as_ref().map_or(0, |copies| folder::bytes(&copies.path(), &self.entries))
    }

    fn save(&self, dir: &Path, writer: &ChunkWriter) -> Result<(), Failure> {
        folder::save(dir, &self.entries, writer, |path| ObjectKind::SharedFile { path }).map(drop)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::{FileExt, MetadataExt};
    use store::{Store, WriteOptions};

    /// Files with holes, an empty one, and one in a folder.
    fn files(dir: &Path) {
        fs::create_dir(dir.join("s1")).unwrap();
        let mixed = File::create(dir.join("s1/pinned-1")).unwrap();
        mixed.set_len(40 << 20).unwrap();
        let bytes: Vec<u8> = (0..9u32 << 18).flat_map(u32::to_le_bytes).collect();
        mixed.write_all_at(&bytes, 6 << 20).unwrap();
        mixed.write_all_at(&[7; 5000], (39 << 20) + 17).unwrap();
        File::create(dir.join("empty")).unwrap();
        std::os::unix::fs::symlink("empty", dir.join("link")).unwrap();
    }

    #[test]
    fn copies_are_what_the_files_were() {
        let tmpfs = host::Scratch::create(64 << 20).unwrap();
        let dir = tmpfs.path();
        files(&dir);
        let before = fs::read(dir.join("s1/pinned-1")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_or_create(folder.path()).unwrap();
        let save = |room: Option<Room>| {
            let draft = store.begin().unwrap();
            let writer = draft.writer(&WriteOptions::default()).unwrap();
            let copied = room.is_some();
            let mut shared = Shared::take(&dir, room, &writer).unwrap();
            assert_eq!(shared.bytes(), if copied { 40 << 20 } else { 0 });
            if copied {
                let copy = shared.copies.as_ref().unwrap().path().join("s1/pinned-1");
                let sparse = fs::metadata(&copy).unwrap().blocks() * 512;
                assert!(sparse < 12 << 20, "holes take {sparse} bytes");
                let original = File::options().write(true).open(dir.join("s1/pinned-1")).unwrap();
                original.write_all_at(&[9; 100], 6 << 20).unwrap();
            }
            shared.write(&writer).unwrap();
            let id = draft.publish(image::Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap().id;
            let object = ObjectKind::SharedFile { path: Path::new("s1/pinned-1").into() };
            store.open_image(&id).unwrap().read_to_vec(&object, 64 << 20).unwrap()
        };
        assert!(save(None) == before);
        let room = Room::make(None, &dir, 40 << 20, 0);
        // What it was made for is longer now, and what is in it is not all where it was.
        let original = File::options().write(true).open(dir.join("s1/pinned-1")).unwrap();
        original.write_all_at(&[3; 4096], 30 << 20).unwrap();
        let before = fs::read(dir.join("s1/pinned-1")).unwrap();
        // A program that runs may put anything at any path.
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("s1/pipe"), pipe, rustix::fs::Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink("/etc", dir.join("s2")).unwrap();
        let made = room.as_ref().unwrap().bytes();
        let room = Room::make(room, &dir, 40 << 20, 0);
        assert_eq!((made, room.as_ref().unwrap().bytes()), ((9 << 20) + 8192, made), "it is there already");
        assert!(save(room) == before, "it was written after the copy");
        // One that is too small is as good as none.
        let now = fs::read(dir.join("s1/pinned-1")).unwrap();
        assert!(now != before && save_small(&dir, &store) == now);
    }

    /// What was made ready for a file is in the way of a folder that has its name now, and the other way round.
    #[test]
    fn names_may_mean_something_else_by_the_time() {
        let tmpfs = host::Scratch::create(64 << 20).unwrap();
        let dir = tmpfs.path();
        let long = vec![5; 5 << 20];
        fs::create_dir_all(dir.join("dev/shm/folder")).unwrap();
        fs::write(dir.join("dev/shm/file"), &long).unwrap();
        fs::write(dir.join("dev/shm/folder/in"), &long).unwrap();
        let mut room = Room::make(None, &dir, 32 << 20, 0).unwrap();
        assert_eq!(room.bytes(), 10 << 20, "at any depth");
        fs::remove_dir_all(dir.join("dev/shm/folder")).unwrap();
        fs::rename(dir.join("dev/shm/file"), dir.join("dev/shm/folder")).unwrap();
        fs::create_dir(dir.join("dev/shm/file")).unwrap();
        fs::write(dir.join("dev/shm/file/in"), b"short").unwrap();
        room.copy(&dir, &folder::entries(&dir).unwrap()).unwrap();
        assert!(fs::read(room.path().join("dev/shm/folder")).unwrap() == long);
        assert_eq!(fs::read(room.path().join("dev/shm/file/in")).unwrap(), b"short");
    }

    fn small(dir: &Path) -> Room {
        let mut room = Room::of(1 << 20).unwrap();
        room.make_ready(dir);
        room
    }

    fn save_small(dir: &Path, store: &Store) -> Vec<u8> {
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions::default()).unwrap();
        let mut shared = Shared::take(dir, Some(small(dir)), &writer).unwrap();
        assert_eq!(shared.bytes(), 0);
        shared.write(&writer).unwrap();
        let id = draft.publish(image::Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap().id;
        let object = ObjectKind::SharedFile { path: Path::new("s1/pinned-1").into() };
        store.open_image(&id).unwrap().read_to_vec(&object, 64 << 20).unwrap()
    }

    #[test]
    fn where_memory_is_short_there_is_no_room() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Room::make(None, dir.path(), 1 << 20, 0).is_some());
        assert!(Room::make(None, dir.path(), 1 << 20, u64::MAX).is_none());
        assert!(Room::make(None, dir.path(), u64::MAX / 2, 0).is_none());
    }
}
