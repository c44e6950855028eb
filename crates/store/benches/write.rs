//! How fast an image is written, beside what the disk takes raw: `cargo bench -p store -- FOLDER [GIB [TURNS]]`.
#![allow(missing_docs, clippy::unwrap_used)]

use image::{CHUNK_SIZE, Compress, Manifest, ObjectKind, RawPath};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::media::{Covered, Dir, Media};
use store::{Secret, Store, WriteOptions};

/// What the raw disk is given at a time, and how much of that is under way.
const RAW_BLOCK: usize = 16 << 20;
const RAW_UNDER_WAY: u64 = 4;
/// Random bytes, from which chunks differ by where they begin.
const POOL: usize = 64 << 20;

/// A way to write so many bytes from the pool: how long it took.
type Way<'a> = (String, Box<dyn Fn() -> Duration + 'a>);

fn main() {
    // `cargo bench` adds a flag of its own.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| ".".into()));
    let gib: u64 = arguments.next().map_or(2, |gib| gib.parse().unwrap());
    let turns: usize = arguments.next().map_or(3, |turns| turns.parse().unwrap());
    let bytes = gib << 30;
    let mut pool = vec![0; POOL + CHUNK_SIZE];
    let mut state = 1_u64;
    for word in pool.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    let mut ways: Vec<Way<'_>> = vec![("raw".into(), Box::new(|| raw(&folder, &pool, bytes)))];
    for (name, compress, is_encrypted) in [
        ("--compress none", Compress::None, false),
        ("--compress auto", Compress::Auto, false),
        ("the same, encrypted", Compress::Auto, true),
    ] {
        let (folder, pool) = (&folder, &pool);
        let way = move || image(folder, pool, bytes, (compress, is_encrypted));
        ways.push((name.into(), Box::new(way)));
    }
    let mut rates = vec![Vec::new(); ways.len()];
    for _ in 0..turns {
        for ((_, way), rates) in ways.iter().zip(&mut rates) {
            rates.push(bytes as f64 / way().as_nanos() as f64);
        }
    }
    println!("{gib} GiB of random words into {}, GB/s: median (all)", folder.display());
    for ((name, _), rates) in ways.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        let all: Vec<String> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
        println!("{name:20} {:5.2} ({})", rates[rates.len() / 2], all.join(" "));
    }
}

/// Threads that write one file past the page cache.
fn raw(folder: &Path, pool: &[u8], bytes: u64) -> Duration {
    let path = folder.join("raw");
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let open =
        |flags| OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(&path);
    let file: File = open(direct).or_else(|_| open(0)).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for first in 0..RAW_UNDER_WAY {
            let file = &file;
            scope.spawn(move || {
                let mut room = vec![0; RAW_BLOCK + 4096];
                let start = room.as_ptr().align_offset(4096);
                let block = &mut room[start..start + RAW_BLOCK];
                block.copy_from_slice(&pool[..RAW_BLOCK]);
                for at in (first * RAW_BLOCK as u64..bytes).step_by(RAW_BLOCK * RAW_UNDER_WAY as usize) {
                    file.write_all_at(block, at).unwrap();
                }
            });
        }
    });
    file.sync_all().unwrap();
    let took = begun.elapsed();
    std::fs::remove_file(&path).unwrap();
    took
}

/// An image in a store of its own, until it is published.
fn image(folder: &Path, pool: &[u8], bytes: u64, (compress, is_encrypted): (Compress, bool)) -> Duration {
    let dir = folder.join("store");
    std::fs::create_dir(&dir).unwrap();
    let mut media: Arc<dyn Media> = Arc::new(Dir::new(&dir));
    if is_encrypted {
        media = Arc::new(Covered::new(media, Secret::random().unwrap()));
    }
    let store = Store::open_or_create_media(media).unwrap();
    let begun = Instant::now();
    let draft = store.begin().unwrap();
    let writer = draft.writer(&WriteOptions { compress, ..WriteOptions::default() }).unwrap();
    let mut object = writer.object(ObjectKind::CriuFile { name: RawPath(b"bytes".to_vec()) });
    for chunk in 0..bytes / CHUNK_SIZE as u64 {
        // A prime number of words on from the last one, so that no two chunks are the same.
        let at = (chunk as usize * 8_999_993 * 8) % POOL;
        object.copy_from(&pool[at..at + CHUNK_SIZE]).unwrap();
    }
    object.finish().unwrap();
    draft.publish(Manifest::new("bench"), vec![writer.finish().unwrap()]).unwrap();
    let took = begun.elapsed();
    std::fs::remove_dir_all(&dir).unwrap();
    took
}
