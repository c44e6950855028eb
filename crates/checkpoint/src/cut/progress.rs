//! Telling how far the writing of a folder has come.

use crate::admin::Event;
use crate::error::Failure;
use crate::folder::Entry;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use store::ChunkWriter;

/// Between two reports.
const REPORTS: Duration = Duration::from_millis(100);

/// What others write at the same time, bytes.
pub struct Beside<'a> {
    pub done: &'a AtomicU64,
    pub total: u64,
}

/// Writes the files of `dir`, which has these entries, as `write` does, and tells meanwhile how far the writer is, and who writes beside it.
///
/// # Errors
/// Those of `write`, and when a file cannot be read.
pub fn telling<T>(
    dir: &Path,
    entries: &[Entry],
    (writer, beside): (&ChunkWriter, &Beside<'_>),
    events: &Sender<Event>,
    write: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let total = bytes_in(dir, entries)?.saturating_add(beside.total);
    let before = writer.progress().total;
    // Whoever asked may have gone.
    let tell = |done: u64| drop(events.send(Event::Progress { done: done.min(total), total }));
    tell(0);
    let written = std::thread::scope(|scope| {
        let (writing, ended) = channel::<()>();
        scope.spawn(move || {
            while ended.recv_timeout(REPORTS) == Err(RecvTimeoutError::Timeout) {
                let own = writer.progress().total.saturating_sub(before);
                tell(own.saturating_add(beside.done.load(Ordering::Relaxed)));
            }
        });
        let written = write();
        drop(writing);
        written
    })?;
    tell(total);
    Ok(written)
}

fn bytes_in(dir: &Path, entries: &[Entry]) -> Result<u64, Failure> {
    let unreadable = |error| Failure::of(format_args!("cannot read {}", dir.display()), &error);
    let mut bytes = 0;
    for entry in entries {
        let meta = fs::symlink_metadata(dir.join(&entry.path)).map_err(unreadable)?;
        if meta.is_file() {
            bytes += meta.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::folder;
    use image::{ObjectKind, RawPath};
    use std::time::Instant;
    use store::{Store, WriteOptions};

    #[test]
    fn progress_is_told_while_a_folder_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let images = dir.path().join("images");
        fs::create_dir(&images).unwrap();
        fs::write(images.join("pages-1.img"), [7; 3000]).unwrap();
        fs::write(images.join("core-1.img"), [8; 1000]).unwrap();
        let store = Store::open_or_create(&dir.path().join("store")).unwrap();
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions::default()).unwrap();
        writer.put(ObjectKind::HostRecord, &[1; 500]).unwrap();
        let (events, told) = channel();
        let mut seen = Vec::new();
        let entries = folder::entries(&images).unwrap();
        let done = AtomicU64::new(300);
        let beside = Beside { done: &done, total: 500 };
        telling(&images, &entries, (&writer, &beside), &events, || {
            let name = |name: RawPath| ObjectKind::CriuFile { name };
            let bytes = folder::save(&images, &entries, &writer, name)?;
            assert_eq!(bytes, 4000);
            let began = Instant::now();
            // Writing may be quick; a report comes all the same when it takes long.
            while seen.len() < 2 && began.elapsed() < Duration::from_secs(30) {
                seen.extend(told.recv_timeout(REPORTS * 2));
            }
            Ok(())
        })
        .unwrap();
        seen.extend(told.try_iter());
        assert_eq!(seen.first(), Some(&Event::Progress { done: 0, total: 4500 }));
        assert!(seen.len() >= 3, "{seen:?}");
        assert_eq!(seen.last(), Some(&Event::Progress { done: 4500, total: 4500 }));
    }
}
