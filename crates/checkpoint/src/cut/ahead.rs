//! What can be written before the job is stopped, because it never changes: Dormouse's own programs on the job's tmpfs, tens of
//! megabytes that the first image of a store has to hold.

use crate::error::Failure;
use crate::folder::write_failure;
use crate::libraries;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::path::Path;
use store::ChunkWriter;

/// Writes the chunks of these files of `tmpfs`. They are saved with all others when the job stands still, whatever is in them then.
///
/// # Errors
/// When the store cannot take them.
pub fn write_ahead(tmpfs: &host::Tmpfs, writer: &ChunkWriter) -> Result<(), Failure> {
    let files = [libraries::shim(&tmpfs.path()), tmpfs.init_program()];
    files.iter().filter_map(|path| open(path)).try_for_each(|file| writer.ahead(&file)).map_err(write_failure)
}

/// Opens a regular file; the job may have put anything in its place.
fn open(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    file.metadata().is_ok_and(|meta| meta.is_file()).then_some(file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::folder;
    use image::{ObjectKind, RawPath};
    use std::fs;
    use store::{Store, WriteOptions};

    #[test]
    fn the_library_is_written_before_it_is_saved() {
        let tmpfs = host::Tmpfs::create(8 << 20).unwrap();
        let library = libraries::shim(&tmpfs.path());
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(&library, &bytes).unwrap();
        // Whatever the job has put in the other's place is not waited for.
        let init = tmpfs.init_program();
        fs::create_dir_all(init.parent().unwrap()).unwrap();
        let (pipe, mode) = (rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &init, pipe, mode, 0).unwrap();

        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_or_create(folder.path()).unwrap();
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions::default()).unwrap();
        write_ahead(&tmpfs, &writer).unwrap();
        assert_eq!(writer.progress().total, 0);
        let entries = folder::entries(&tmpfs.path()).unwrap();
        let name = |path: RawPath| ObjectKind::SharedFile { path };
        assert_eq!(folder::save(&tmpfs.path(), &entries, &writer, name).unwrap(), bytes.len() as u64);
        let image = draft.publish(image::Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap();
        assert_eq!((image.stored.new, image.stored.reused), (bytes.len() as u64, 0));
        assert!(store.verify(&image.id, &mut |_| {}).unwrap().ok);
    }
}
