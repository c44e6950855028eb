//! Small images that have one of everything, and whose every byte is known.
#![allow(dead_code, clippy::unwrap_used, reason = "each user uses its part, and a test may panic")]

use std::io::Write;
use std::time::Duration;

use image::*;
use store::report::ImageSummary;
use store::{ChunkWriter, Draft, Image, Receipt, Store, WriteError, WriteOptions};

/// Bytes that nothing compresses, different for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Bytes that compress well, different for each seed.
pub fn prose(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..).flat_map(|n: u64| format!("{} ", (n * n + seed) % 97).into_bytes());
    words.take(len).collect()
}

fn device_memory(base: u64) -> ObjectKind {
    ObjectKind::DeviceMemory {
        session: SessionId(1),
        device: DeviceOrdinal(0),
        memory: MemoryKind::Allocation,
        base,
    }
}

/// The objects of sample `number`. All samples have some bytes in common.
pub fn objects(number: u64) -> Vec<(ObjectKind, Vec<u8>)> {
    let holes = [noise(number, 500), vec![0; 7000], prose(number, 1500), vec![0; 777]].concat();
    vec![
        (device_memory(0x2000_0000_0000), noise(1000, 900)),
        (device_memory(0x2000_0020_0000), prose(number, 2000)),
        (device_memory(0x2000_0040_0000), vec![0; CHUNK_SIZE + 5]),
        (ObjectKind::SessionState { session: SessionId(1) }, noise(number + 1, 300)),
        (ObjectKind::SharedFile { path: RawPath::from("s1/session") }, holes),
        (ObjectKind::CriuFile { name: RawPath::from("core-2.img") }, prose(2000, 1200)),
        (ObjectKind::CriuFile { name: RawPath::from("empty.img") }, Vec::new()),
        (ObjectKind::JobFileContent { path: RawPath(b"/tmp/caf\xe9".to_vec()) }, noise(1000, 900)),
        (ObjectKind::HostRecord, prose(number + 2, 400)),
    ]
}

pub fn manifest(job: &str, number: u64) -> Manifest {
    let job_file = |path: &str, action| JobFile { path: RawPath::from(path), len: number, action };
    Manifest {
        created_ns: 1_700_000_000_000_000_000 + number,
        dormouse: "0.1.0".to_owned(),
        rehearsed: number.is_multiple_of(2),
        host: HostFacts {
            kernel: "6.18.0".to_owned(),
            hostname: "nest".to_owned(),
            cpu_model: "A CPU".to_owned(),
            cpu_features: vec!["fpu".to_owned(), "avx2".to_owned()],
        },
        devices: vec![DeviceFacts {
            ordinal: DeviceOrdinal(0),
            backend: "soft".to_owned(),
            name: "Dormouse software device".to_owned(),
            uuid: [7; 16],
            compute_capability: 90,
            total_memory: 4 << 30,
            driver_version: 13_000,
        }],
        command: Command {
            args: vec![RawPath::from("./guest"), RawPath::from("-n")],
            cwd: RawPath::from("/srv"),
        },
        cut: CutTimes { stall: Duration::from_millis(7), ..CutTimes::default() },
        job_files: vec![job_file("out.txt", FileAction::Truncate), job_file("/tmp/x", FileAction::PutBack)],
        mapped_files: vec![MappedFile {
            path: RawPath::from("/srv/guest"),
            size: 123_456,
            build_id: Some(vec![0xab; 20]),
            hash: Some([0xcd; 32]),
        }],
        ..Manifest::new(job)
    }
}

/// One thread, so that what happens happens in the same order each time; short packs, so that there are several.
pub fn options(compress: Compress) -> WriteOptions {
    WriteOptions { compress, threads: 1, pack_len: 1500, ..WriteOptions::default() }
}

/// Writes sample `number` with three writers, each of which compresses in another way.
pub fn write(draft: &Draft, number: u64) -> Result<Vec<Receipt>, WriteError> {
    let objects = objects(number);
    let parts = objects.chunks(objects.len().div_ceil(Compress::ALL.len()));
    let parts = parts.zip(Compress::ALL).map(|(part, compress)| {
        let writer = draft.writer(&options(compress))?;
        write_objects(&writer, part)?;
        writer.finish()
    });
    parts.collect()
}

pub fn write_objects(writer: &ChunkWriter, objects: &[(ObjectKind, Vec<u8>)]) -> Result<(), WriteError> {
    for (number, (kind, bytes)) in objects.iter().enumerate() {
        if number % 2 == 0 {
            writer.put(kind.clone(), bytes)?;
        } else {
            let mut object = writer.object(kind.clone());
            for piece in bytes.chunks(CHUNK_SIZE / 3) {
                object.write_all(piece).map_err(|error| error.downcast::<WriteError>().unwrap())?;
            }
            object.finish()?;
        }
    }
    Ok(())
}

/// Takes sample `number` from begin to publish.
pub fn checkpoint(store: &Store, job: &str, number: u64) -> Result<ImageSummary, WriteError> {
    let draft = store.begin()?;
    let receipts = write(&draft, number)?;
    draft.publish(manifest(job, number), receipts)
}

/// Checks every byte of an image that is sample `number`.
pub fn assert_sample(image: &Image, number: u64) {
    let expected = objects(number);
    assert_eq!(image.manifest().objects.len(), expected.len());
    for (kind, bytes) in expected {
        let read = image.read_to_vec(&kind, bytes.len()).unwrap();
        assert!(read == bytes, "{kind:?} of sample {number}");
    }
}
