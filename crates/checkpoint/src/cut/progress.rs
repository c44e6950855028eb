//! Telling how far the writing of an image has come.

use crate::admin::Event;
use crate::error::{Failure, no_thread};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;
use store::ChunkWriter;

/// Between two reports.
const REPORTS: Duration = Duration::from_millis(100);

/// Writes `total` bytes as `write` does, and tells meanwhile how far the writer is and, beside it, others who add to `beside`.
///
/// # Errors
/// Those of `write`.
pub fn telling<T>(
    total: u64,
    (writer, beside): (&ChunkWriter, &AtomicU64),
    events: &Sender<Event>,
    write: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let before = writer.progress().total;
    // Whoever asked may have gone.
    let tell = |done: u64| drop(events.send(Event::Progress { done: done.min(total), total }));
    tell(0);
    let written = std::thread::scope(|scope| {
        let (writing, ended) = channel::<()>();
        let telling = Builder::new().spawn_scoped(scope, move || {
            while ended.recv_timeout(REPORTS) == Err(RecvTimeoutError::Timeout) {
                let own = writer.progress().total.saturating_sub(before);
                tell(own.saturating_add(beside.load(Ordering::Relaxed)));
            }
        });
        if let Err(error) = telling {
            tracing::info!("nobody is told how far the checkpoint is: {}", no_thread(&error));
        }
        let written = write();
        drop(writing);
        written
    })?;
    tell(total);
    Ok(written)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::folder;
    use image::{ObjectKind, RawPath};
    use std::fs;
    use std::time::Instant;
    use store::{Store, WriteOptions};

    #[test]
    fn progress_is_told_while_files_are_written() {
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
        let beside = AtomicU64::new(300);
        telling(folder::bytes(&images, &entries) + 500, (&writer, &beside), &events, || {
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
