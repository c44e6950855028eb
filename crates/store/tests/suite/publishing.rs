//! What publishing an image reads of a store that has others.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use image::{Manifest, ObjectKind, RawPath};
use store::media::{Around, Dir, Media, MediaRead};
use store::{Keep, Removal, Store, WriteOptions};

use crate::support::sample::{checkpoint, noise};

/// How many bytes were read of each file.
type Read = Arc<Mutex<BTreeMap<String, u64>>>;

/// A folder of which it is noted what is read.
#[derive(Debug)]
struct Noting {
    inner: Dir,
    read: Read,
}

#[derive(Debug)]
struct NotingFile {
    inner: Box<dyn MediaRead>,
    path: String,
    read: Read,
}

impl Around for Noting {
    fn inner(&self) -> &dyn Media {
        &self.inner
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        let inner = self.inner.open(path)?;
        Ok(Box::new(NotingFile { inner, path: path.to_owned(), read: self.read.clone() }))
    }
}

impl MediaRead for NotingFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        *self.read.lock().unwrap().entry(self.path.clone()).or_default() += buffer.len() as u64;
        self.inner.read_exact_at(buffer, offset)
    }
}

#[test]
fn publishing_reads_no_index_again_and_of_manifests_the_beginnings() {
    const CHUNKS: usize = 1000;
    let folder = tempfile::tempdir().unwrap();
    let read = Read::default();
    let inner = Dir::new(&folder.path().join("store"));
    std::fs::create_dir(folder.path().join("store")).unwrap();
    let store = Store::open_or_create_media(Arc::new(Noting { inner, read: read.clone() })).unwrap();
    let bytes = noise(1, 16 * CHUNKS);
    for number in 0..4 {
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions::default()).unwrap();
        let mut object = writer.object(ObjectKind::CriuFile { name: RawPath::from("same") });
        object.copy_in_chunks(&bytes[..], &[16; CHUNKS]).unwrap();
        object.finish().unwrap();
        writer.put(ObjectKind::HostRecord, &noise(2 + number, 100)).unwrap();
        let receipt = writer.finish().unwrap();
        read.lock().unwrap().clear();
        draft.publish(Manifest { created_ns: 100 + number, ..Manifest::new("job") }, vec![receipt]).unwrap();
        for (path, bytes) in read.lock().unwrap().iter() {
            assert!(!path.starts_with("index/"), "image {number}: {bytes} bytes of {path}");
            assert!(
                !path.starts_with("images/") || *bytes < 10_000,
                "image {number}: {bytes} bytes of {path}"
            );
        }
    }
    // A clock that went back.
    let draft = store.begin().unwrap();
    let late = draft.publish(Manifest { created_ns: 1, ..Manifest::new("job") }, Vec::new()).unwrap();
    assert_eq!(late.created_ns, 104);
}

/// Regular checkpoints prune each time: of many images those are looked at that stay, and of no pack more than its length.
#[test]
fn pruning_looks_at_what_it_keeps_only() {
    let folder = tempfile::tempdir().unwrap();
    let read = Read::default();
    let inner = Dir::new(&folder.path().join("store"));
    std::fs::create_dir(folder.path().join("store")).unwrap();
    let store = Store::open_or_create_media(Arc::new(Noting { inner, read: read.clone() })).unwrap();
    let images: Vec<_> = (0..12).map(|number| checkpoint(&store, "job", number).unwrap().id).collect();
    let len = |path: &str| std::fs::metadata(store.dir().join(path)).unwrap().len();
    for (last, looked_at) in [(2, 2), (12, 0)] {
        read.lock().unwrap().clear();
        let keep = Keep { last, ..Keep::default() };
        store
            .prune(None, &keep, |_| {
                let read = read.lock().unwrap();
                assert!(!read.keys().any(|path| path.starts_with("packs/")), "{read:?}");
                let times = |path: &str| read.get(path).map_or(0, |bytes| bytes.div_ceil(len(path)));
                for (number, image) in images.iter().rev().enumerate() {
                    let expected = if number < looked_at { 2 } else { 1 };
                    assert_eq!(times(&format!("images/{image}.img")), expected, "{number}");
                    let expected = if looked_at > 0 { 1 } else { 0 };
                    assert_eq!(times(&format!("index/{image}.idx")), expected, "{number}");
                }
                Ok(Removal::default())
            })
            .unwrap();
    }
}

/// A writer that joined later, as another process does, may have found what the first one did not.
#[test]
fn what_others_have_published_meanwhile_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    let kind = |number: usize| ObjectKind::CriuFile { name: RawPath::from(&*format!("{number}")) };
    let draft = store.begin().unwrap();
    let writer = draft.writer(&WriteOptions::default()).unwrap();
    writer.put(kind(1), &noise(1, 5000)).unwrap();
    let other = store.begin().unwrap();
    let theirs = other.writer(&WriteOptions::default()).unwrap();
    theirs.put(kind(2), &noise(2, 5000)).unwrap();
    other.publish(Manifest::new("other"), vec![theirs.finish().unwrap()]).unwrap();
    let late = store::ChunkWriter::join(&store, draft.id(), &WriteOptions::default()).unwrap();
    late.put(kind(2), &noise(2, 5000)).unwrap();
    let receipts = vec![writer.finish().unwrap(), late.finish().unwrap()];
    assert!(receipts[1].packs.is_empty());
    let image = draft.publish(Manifest::new("job"), receipts).unwrap().id;
    assert!(store.verify(&image, &mut |_| {}).unwrap().ok);
}
