//! How much memory a writer takes to know chunks by, which is beside its limit. A program of its own: all that is allocated counts.
#![allow(clippy::unwrap_used)]

use std::alloc::System;
use std::time::{Duration, Instant};

use cap::Cap;
use image::{Compress, Manifest, ObjectKind, RawPath};
use store::{ChunkWriter, Store, WriteOptions};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// So many that tables have just grown.
const CHUNKS: usize = 15_000;
/// A table of ids and lengths that has just grown beside the smaller one before it, and one of eight indexes.
const TO_JOIN: usize = 200;
/// What a writer has of chunks that the store has.
const STORED: usize = 90;
/// What it has of those that it writes.
const WRITTEN: usize = 280;
/// What else a writer begins with.
const BEGINS: usize = 1 << 20;

/// Writes chunks that nobody else has.
fn put(writer: &ChunkWriter, first: usize, chunks: usize) {
    const LEN: usize = 16;
    let bytes: Vec<u8> = (first..first + chunks)
        .flat_map(|number| [number as u64, 1].map(u64::to_le_bytes))
        .flatten()
        .collect();
    let mut object = writer.object(ObjectKind::CriuFile { name: RawPath(first.to_string().into_bytes()) });
    object.copy_in_chunks(&bytes[..], &vec![LEN as u64; chunks]).unwrap();
    object.finish().unwrap();
}

#[test]
fn ids_take_what_the_documentation_says() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(&folder.path().join("store")).unwrap();
    let options = WriteOptions {
        memory: WriteOptions::LEAST_MEMORY,
        compress: Compress::None,
        ..WriteOptions::default()
    };
    for number in 0..8 {
        let draft = store.begin().unwrap();
        let writer = draft.writer(&options).unwrap();
        put(&writer, number * CHUNKS / 8, CHUNKS / 8);
        let receipt = writer.finish().unwrap();
        draft.publish(Manifest::new("job"), vec![receipt]).unwrap();
    }
    let draft = store.begin().unwrap();
    let before = ALLOCATOR.allocated();
    // Who takes more is given none, which ends the process.
    ALLOCATOR.set_limit(before + BEGINS + TO_JOIN * CHUNKS).unwrap();
    let writer = draft.writer(&options).unwrap();
    ALLOCATOR.set_limit(usize::MAX).unwrap();
    let stored = ALLOCATOR.allocated() - before;
    assert!(stored < BEGINS + STORED * CHUNKS, "{stored}");
    // Buffers are there from here on.
    put(&writer, CHUNKS, CHUNKS);
    let before = ALLOCATOR.allocated();
    put(&writer, 2 * CHUNKS, CHUNKS);
    let written = || ALLOCATOR.allocated().saturating_sub(before) / CHUNKS;
    // What is on its way to the disk is within the limit, and gone in a while.
    let begun = Instant::now();
    while written() > WRITTEN && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(written() <= WRITTEN, "{}", written());
    writer.finish().unwrap();
}
