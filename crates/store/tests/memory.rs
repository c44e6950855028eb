//! How much memory a writer takes. A program of its own: all that is allocated counts.
#![allow(clippy::unwrap_used)]

use std::alloc::System;

use cap::Cap;
use image::{CHUNK_SIZE, Compress, Manifest, ObjectKind};
use store::{Store, WriteOptions};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Bytes of which every second one says nothing; those of each number are others.
fn fill(chunk: &mut [u8], number: u64) {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for pair in chunk.chunks_mut(2) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pair.fill(0);
        pair[0] = state as u8;
    }
}

/// Each byte that is ever allocated counts, also what the heap had at the most.
#[test]
fn a_writer_stays_within_its_memory() {
    for (memory, compress) in [
        (WriteOptions::LEAST_MEMORY, Compress::Zstd),
        (64 << 20, Compress::None),
        (64 << 20, Compress::Zstd),
        (96 << 20, Compress::Auto),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_or_create(folder.path()).unwrap();
        let draft = store.begin().unwrap();
        let mut chunk = vec![0; CHUNK_SIZE];
        let before = ALLOCATOR.allocated() as u64;
        let most = usize::try_from(before + memory).unwrap() + CHUNK_SIZE;
        // Who takes more is given none, which ends the process.
        ALLOCATOR.set_limit(most).unwrap();
        let options = WriteOptions { memory, threads: 8, compress, ..WriteOptions::default() };
        let writer = draft.writer(&options).unwrap();
        let mut object = writer.object(ObjectKind::HostRecord);
        // Enough for all threads that there ever are to write packs.
        let chunks = if compress == Compress::None { 200 } else { 40 };
        for number in 0..chunks {
            fill(&mut chunk, number);
            object.copy_from(&chunk[..]).unwrap();
        }
        object.finish().unwrap();
        let receipt = writer.finish().unwrap();
        ALLOCATOR.set_limit(usize::MAX).unwrap();
        let image = draft.publish(Manifest::new("job"), vec![receipt]).unwrap().id;
        assert!(store.verify(&image, &mut |_| {}).unwrap().ok);
    }
}
