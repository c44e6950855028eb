//! How fast an image is written: `write_speed FOLDER MIB [COMPRESS [MEMORY_MIB]]` writes so many MiB of random bytes into a new store in an empty folder.

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

use image::{CHUNK_SIZE, Manifest, ObjectKind};
use store::{Store, WriteOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, mib, more @ ..] = &args[..] else {
        return Err("usage: write_speed FOLDER MIB [COMPRESS [MEMORY_MIB]]".into());
    };
    let mut options = WriteOptions::default();
    if let Some(compress) = more.first() {
        options.compress = compress.parse()?;
    }
    if let Some(memory) = more.get(1) {
        options.memory = memory.parse::<u64>()? << 20;
    }
    let chunks = mib.parse::<u64>()? * (1 << 20) / CHUNK_SIZE as u64;
    let mut chunk = vec![0; CHUNK_SIZE];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut chunk)?;
    let store = Store::open_or_create(&PathBuf::from(folder))?;
    let draft = store.begin()?;
    let begun = Instant::now();
    let writer = draft.writer(&options)?;
    let mut object = writer.object(ObjectKind::HostRecord);
    for number in 0..chunks {
        // Each is another one, and none is shorter for that.
        if let Some(first) = chunk.first_chunk_mut() {
            *first = number.to_le_bytes();
        }
        object.copy_from(&chunk[..])?;
    }
    object.finish()?;
    let stored = draft.publish(Manifest::new("speed"), vec![writer.finish()?])?.stored;
    let took = begun.elapsed().as_secs_f64();
    let speed = stored.total as f64 / took / 1e6;
    println!("{} bytes durable in {took:.2} s: {speed:.0} MB/s, {} written", stored.total, stored.written);
    Ok(())
}
