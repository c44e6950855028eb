//! Stores written long ago: every later Dormouse reads them. Written once by `examples/golden.rs`, never again.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use crate::support::keys;
use crate::support::sample::{assert_sample, manifest};
use image::{Codec, Condemned, CondemnedPacks, ImageId, Index, PackId};
use store::Store;
use store::media::Dir;

/// The folder of each version, and its images: sample 1, then sample 2.
const VERSIONS: [(&str, [&str; 2]); 2] = [
    ("v1", ["420d9b91a0fdc24d1a396eb8b298e57d", "aa6f9ea56f7ea8477d33b687ba66b838"]),
    // With the key in `test-key.txt`.
    ("v1-encrypted", ["e415716b6326aea22e8fd1a493431223", "a91c498cfe81a9525d578a6a2e38e81e"]),
];

fn open(dir: &Path) -> Store {
    keys::open(Arc::new(Dir::new(dir)))
}

#[test]
fn stores_of_every_version_read_as_they_were_written() {
    for (version, images) in VERSIONS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version);
        let store = open(&dir);
        let listing = store.list().unwrap();
        assert_eq!(listing.damaged, [], "{version}");
        let listed: Vec<_> = listing.images.iter().map(|image| image.id.to_string()).collect();
        assert_eq!(listed, images, "{version}");
        for (number, image) in (1..).zip(&listing.images) {
            let report = store.verify(&image.id, &mut |_| {}).unwrap();
            assert!(report.ok && report.chunks > 5, "{version}: {report:#?}");
            let open = store.open_image(&image.id).unwrap();
            assert_sample(&open, number);
            let mut read = open.manifest().clone();
            let expected = manifest("golden", number);
            // What the store filled in.
            (read.id, read.stored, read.objects) = (expected.id, expected.stored, Vec::new());
            assert_eq!(read, expected, "{version}");
        }
        assert_eq!(store.find("golden").unwrap().id.to_string(), images[1]);
    }
}

/// A copy of an old store takes new images.
#[test]
fn stores_of_every_version_can_be_written() {
    for (version, _) in VERSIONS {
        let folder = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version);
        for part in ["packs", "index", "images", ""] {
            std::fs::create_dir_all(folder.path().join(part)).unwrap();
            for entry in std::fs::read_dir(from.join(part)).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_file() {
                    std::fs::copy(entry.path(), folder.path().join(part).join(entry.file_name())).unwrap();
                }
            }
        }
        let store = open(folder.path());
        let image = crate::support::sample::checkpoint(&store, "golden", 2).unwrap();
        assert_sample(&store.open_image(&image.id).unwrap(), 2);
        assert_eq!(store.find("golden").unwrap().id, image.id);
        assert!(image.stored.reused > 2000, "{version}: {:?}", image.stored);
    }
}

/// The golden stores hold what they are to keep readable: every codec, several packs, runs of zeros longer than a chunk.
#[test]
fn golden_stores_have_one_of_everything() {
    // Of an encrypted one they are in the same example, and inside of covers.
    for (version, [first, _]) in VERSIONS.into_iter().filter(|(version, _)| !version.ends_with("encrypted")) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version);
        let index = Index::read(&std::fs::read(dir.join(format!("index/{first}.idx"))).unwrap()[..]).unwrap();
        assert!(index.packs.len() > 2);
        for codec in [Codec::Plain, Codec::Lz4, Codec::Zstd] {
            assert!(
                index.packs.iter().flat_map(|pack| &pack.entries).any(|entry| entry.codec == codec),
                "{codec:?}"
            );
        }
        let store = open(&dir);
        let zeros = store.list().unwrap().images[0].stored.zero;
        assert!(zeros > image::CHUNK_SIZE as u64, "{version}");
    }
}

/// A list of what is condemned is read as it was written, and written so.
#[test]
fn a_list_of_condemned_packs_is_what_it_was() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/condemned.v1");
    let pack = |number| PackId([number; 16]);
    let groups = vec![
        CondemnedPacks {
            drafts: vec![ImageId([1; 16]), ImageId([2; 16])],
            named: vec![pack(3)],
            unnamed: vec![],
        },
        CondemnedPacks { drafts: vec![], named: vec![], unnamed: vec![pack(4), pack(5)] },
    ];
    let list = Condemned { groups };
    let kept = std::fs::read(path).unwrap();
    assert_eq!(Condemned::read(&kept[..]).unwrap(), list);
    assert_eq!(list.to_bytes().unwrap(), kept);
}
