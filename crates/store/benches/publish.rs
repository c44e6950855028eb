//! What the images of a store cost whoever writes another one: `cargo bench -p store --bench publish -- FOLDER`.
#![allow(missing_docs, clippy::unwrap_used)]

use image::{Manifest, ObjectKind};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::{Store, WriteOptions};

/// Chunks of an image, as many as 1 GiB has, and of how many bytes each is here.
const CHUNKS: u64 = 512;
const CHUNK: u64 = 64;
/// How many of them no other image has.
const NEW: u64 = 8;
/// How often each is measured.
const TURNS: usize = 11;

fn main() {
    // `cargo bench` adds a flag of its own.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| ".".into()));
    println!(
        "in {}, medians of {TURNS}, ms: images there, a writer joins, the image is published",
        folder.display()
    );
    for images in [1, 100, 1000] {
        let folder = tempfile::tempdir_in(&folder).unwrap();
        let store = Store::open_or_create(folder.path()).unwrap();
        for number in 0..images {
            write(&store, number);
        }
        let mut times: Vec<_> = (images..).take(TURNS).map(|number| write(&store, number)).collect();
        let mut median = |of: fn(&Times) -> Duration| {
            times.sort_by_key(of);
            of(&times[TURNS / 2]).as_secs_f64() * 1e3
        };
        println!("{images:5} {:8.2} {:8.2}", median(|times| times.joined), median(|times| times.published));
    }
}

struct Times {
    joined: Duration,
    published: Duration,
}

/// Writes an image that has most of its chunks in common with the others.
fn write(store: &Store, number: u64) -> Times {
    let draft = store.begin().unwrap();
    let begun = Instant::now();
    let writer = draft.writer(&WriteOptions::default()).unwrap();
    let joined = begun.elapsed();
    let chunk = |chunk: u64| [if chunk < NEW { number + 1 } else { 0 }, chunk].map(u64::to_le_bytes).concat();
    let bytes: Vec<u8> = (0..CHUNKS).flat_map(|each| chunk(each).repeat(CHUNK as usize / 16)).collect();
    let mut object = writer.object(ObjectKind::HostRecord);
    object.copy_in_chunks(&bytes[..], &[CHUNK; CHUNKS as usize]).unwrap();
    object.finish().unwrap();
    let receipt = writer.finish().unwrap();
    let begun = Instant::now();
    draft.publish(Manifest { created_ns: number + 1, ..Manifest::new("job") }, vec![receipt]).unwrap();
    Times { joined, published: begun.elapsed() }
}
