//! Many objects at once from many threads, and a medium that is slower than all of them.
#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::support::sample::noise;
use crate::support::sim::Sim;
use image::{CHUNK_SIZE, ChunkId, Compress, Extent, Manifest, ObjectKind, RawPath, StoredBytes};
use store::media::{Around, Media, MediaFile};
use store::{Store, WriteOptions};

fn file(name: impl std::fmt::Display) -> ObjectKind {
    ObjectKind::CriuFile { name: RawPath(name.to_string().into_bytes()) }
}

#[test]
fn threads_write_objects_side_by_side() {
    let store = Store::open_or_create_media(Arc::new(Sim::default())).unwrap();
    let draft = store.begin().unwrap();
    let options = WriteOptions { threads: 3, pack_len: 100_000, ..WriteOptions::default() };
    let writer = draft.writer(&options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let writer = &writer;
            scope.spawn(move || {
                // More objects open at a time than there are buffers in the queues.
                let objects: Vec<_> = (0..10).map(|n| writer.object(file(thread * 10 + n))).collect();
                for (n, mut object) in (0..).zip(objects) {
                    object.copy_from(&noise(thread * 10 + n, 30_000)[..]).unwrap();
                    object.finish().unwrap();
                }
            });
        }
    });
    // The rest is still on its way.
    let StoredBytes { total, zero, new, reused, .. } = writer.progress();
    assert!(total == zero + new + reused && total <= 40 * 30_000, "{total} {zero} {new} {reused}");
    let image = draft.publish(Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap().id;
    assert!(store.verify(&image, &mut |_| {}).unwrap().ok);
    let image = store.open_image(&image).unwrap();
    assert_eq!(image.manifest().stored.total, 40 * 30_000);
    for n in 0..40 {
        assert!(image.read_to_vec(&file(n), 30_000).unwrap() == noise(n, 30_000));
    }
}

#[test]
fn what_the_store_has_is_taken_without_its_bytes() {
    let store = Store::open_or_create_media(Arc::new(Sim::default())).unwrap();
    let (old, new) = (noise(1, CHUNK_SIZE), noise(2, 5000));
    let begin = |reread| {
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions { reread, ..WriteOptions::default() }).unwrap();
        (draft, writer)
    };
    let known = Extent::Chunk { id: ChunkId::of(&old), len: CHUNK_SIZE as u32 };
    let (draft, writer) = begin(false);
    assert!(!writer.has(&ChunkId::of(&old)), "it is not there yet");
    writer.put(file("first"), &old).unwrap();
    draft.publish(Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap();
    assert!(!begin(true).1.has(&ChunkId::of(&old)), "it is to be read first");
    let (draft, writer) = begin(false);
    assert!(writer.has(&ChunkId::of(&old)) && !writer.has(&ChunkId::of(&new)));
    let mut object = writer.object(file("second"));
    object.known(known).unwrap();
    object.known(Extent::Zero { len: 3 * CHUNK_SIZE as u64 }).unwrap();
    object.copy_from(&new[..]).unwrap();
    assert!(object.known(known).is_err(), "in the middle of a chunk");
    object.finish().unwrap();
    let image = draft.publish(Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap();
    let stored = image.stored;
    assert_eq!((stored.total, stored.zero), (4 * CHUNK_SIZE as u64 + 5000, 3 * CHUNK_SIZE as u64));
    assert_eq!((stored.new, stored.reused), (5000, CHUNK_SIZE as u64));
    assert!(store.verify(&image.id, &mut |_| {}).unwrap().ok);
    let image = store.open_image(&image.id).unwrap();
    let bytes = [old, vec![0; 3 * CHUNK_SIZE], new].concat();
    assert!(image.read_to_vec(&file("second"), bytes.len()).unwrap() == bytes);
}

#[test]
fn what_comes_before_moves_no_chunk_that_is_cut_where_it_was() {
    let store = Store::open_or_create_media(Arc::new(Sim::default())).unwrap();
    let publish = |bytes: &[u8], lengths: &[u64]| {
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions::default()).unwrap();
        let mut object = writer.object(file("pages"));
        assert!(object.copy_in_chunks(bytes, lengths).unwrap() == bytes.len() as u64);
        object.finish().unwrap();
        let image = draft.publish(Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap();
        assert!(store.verify(&image.id, &mut |_| {}).unwrap().ok);
        assert!(
            store.open_image(&image.id).unwrap().read_to_vec(&file("pages"), bytes.len()).unwrap() == bytes
        );
        image.stored.new
    };
    let (before, more) = (noise(1, CHUNK_SIZE + 9000), noise(2, 700));
    let lengths = [5000, CHUNK_SIZE as u64, 4000];
    assert_eq!(publish(&before, &lengths), before.len() as u64);
    let after = [&more[..], &before].concat();
    assert_eq!(publish(&after, &[700, 5000, CHUNK_SIZE as u64, 4000]), 700);
    let draft = store.begin().unwrap();
    let writer = draft.writer(&WriteOptions::default()).unwrap();
    for lengths in [&[100][..], &[700, 1]] {
        let mut object = writer.object(file("pages"));
        assert!(object.copy_in_chunks(&more[..], lengths).is_err(), "{lengths:?} are not all");
    }
}

#[test]
fn what_is_written_ahead_is_found_later_and_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("library");
    let first = [noise(1, CHUNK_SIZE), vec![0; CHUNK_SIZE], noise(2, 700)].concat();
    std::fs::write(&path, &first).unwrap();
    let open = || std::fs::File::open(&path).unwrap();
    let store = Store::open_or_create_media(Arc::new(Sim::default())).unwrap();
    let publish = |late: &[&[u8]]| {
        let draft = store.begin().unwrap();
        let writer =
            draft.writer(&WriteOptions { compress: Compress::None, ..WriteOptions::default() }).unwrap();
        writer.ahead(&open()).unwrap();
        writer.ahead(&open()).unwrap();
        assert_eq!((writer.progress().total, writer.progress().new), (0, 0));
        late.iter().enumerate().for_each(|(n, bytes)| writer.put(file(n), bytes).unwrap());
        let summary = draft.publish(Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap();
        assert!(store.verify(&summary.id, &mut |_| {}).unwrap().ok);
        let image = store.open_image(&summary.id).unwrap();
        assert_eq!(image.manifest().objects.len(), late.len());
        for (n, bytes) in late.iter().enumerate() {
            assert!(image.read_to_vec(&file(n), first.len()).unwrap() == *bytes);
        }
        summary.stored
    };
    let (len, data) = (first.len() as u64, CHUNK_SIZE as u64 + 700);
    let stored = publish(&[&first, &first]);
    assert_eq!((stored.total, stored.zero), (2 * len, 2 * CHUNK_SIZE as u64));
    assert_eq!((stored.new, stored.reused, stored.written), (data, data, data));
    // What the store has is not written ahead either, and what has changed meanwhile is written as it is.
    let changed = [noise(1, CHUNK_SIZE), noise(3, 5)].concat();
    let stored = publish(&[&changed]);
    assert_eq!((stored.new, stored.reused, stored.written), (5, CHUNK_SIZE as u64, 5));
}

/// A medium that does something before so many bytes are written.
#[derive(Clone)]
struct Slow {
    inner: Sim,
    before: Arc<dyn Fn(usize) + Send + Sync>,
}

#[derive(Debug)]
struct SlowFile(Box<dyn MediaFile>, Slow);

impl std::fmt::Debug for Slow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slow")
    }
}

impl Slow {
    /// With a store on it.
    fn store(before: impl Fn(usize) + Send + Sync + 'static) -> Store {
        let inner = Sim::default();
        Store::open_or_create_media(Arc::new(inner.clone())).unwrap();
        Store::open_media(Arc::new(Self { inner, before: Arc::new(before) })).unwrap()
    }
}

impl MediaFile for SlowFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        (self.1.before)(bytes.len());
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
}

impl Around for Slow {
    fn inner(&self) -> &dyn Media {
        &self.inner
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        Ok(Box::new(SlowFile(self.inner.create(path)?, self.clone())))
    }
}

/// Who writes faster than the medium waits, with a bounded number of chunks in memory; who gives up then does not wait for ever.
#[test]
fn a_slow_medium_holds_writers_back() {
    const THREADS: usize = 2;
    const CHUNKS: usize = 40;
    let door: Arc<(Mutex<bool>, Condvar)> = Arc::default();
    let closed = Arc::clone(&door);
    let store = Slow::store(move |_| {
        let open = closed.0.lock().unwrap();
        drop(closed.1.wait_while(open, |open| !*open).unwrap());
    });
    let draft = store.begin().unwrap();
    let options = WriteOptions { compress: Compress::None, threads: THREADS, ..WriteOptions::default() };
    let writer = draft.writer(&options).unwrap();
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut object = writer.object(file("big"));
            let mut chunk = noise(0, CHUNK_SIZE);
            for n in 0..CHUNKS {
                chunk[0] = n as u8;
                object.copy_from(&chunk[..]).unwrap();
                taken.fetch_add(1, Ordering::SeqCst);
            }
            object.finish().unwrap();
        });
        let mut before = usize::MAX;
        while taken.load(Ordering::SeqCst) == 0 || before != taken.load(Ordering::SeqCst) {
            before = taken.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(500));
        }
        assert!(before <= 3 * THREADS + 2, "{before} chunks were taken while none could be written");
        *door.0.lock().unwrap() = true;
        door.1.notify_all();
    });
    let image = draft.publish(Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap().id;
    assert!(store.verify(&image, &mut |_| {}).unwrap().ok);
}

/// A store that takes far longer than any compression has what could be half as long written so, as soon as that is known of it.
#[test]
fn a_slow_store_earns_smaller_frames() {
    let store = Slow::store(|bytes| std::thread::sleep(Duration::from_nanos(100 * bytes as u64)));
    let draft = store.begin().unwrap();
    let options = WriteOptions { compress: Compress::Auto, threads: 2, ..WriteOptions::default() };
    let writer = draft.writer(&options).unwrap();
    let mut object = writer.object(file("big"));
    for n in 0..40 {
        let half = noise(n, CHUNK_SIZE / 2);
        let chunk: Vec<u8> = half.chunks(512).flat_map(|part| [part, &[n as u8; 512]].concat()).collect();
        object.copy_from(&chunk[..]).unwrap();
    }
    object.finish().unwrap();
    let stored = draft.publish(Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap().stored;
    assert!(stored.written * 10 < stored.new * 8, "{} of {}", stored.written, stored.new);
}
