//! A store's manifests and configuration are refused or understood, and frames of chunks stay within their buffers.
#![no_main]

use fuzz::files;
use image::chunk::Decoder;
use image::sealed::Kind;
use image::{ChunkId, Codec, Entry, Manifest, StoreConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for file in files(Kind::Manifest, bytes) {
        let Ok(manifest) = Manifest::read(&file[..]) else { continue };
        let again = manifest.to_bytes().expect("what was read can be written");
        assert_eq!(Manifest::read(&again[..]).expect("what was written can be read"), manifest);
    }
    for file in files(Kind::Config, bytes) {
        let _ = StoreConfig::read(&file[..]);
    }
    decompress(bytes);
});

/// Decompressors stay within their buffers, whatever they are given.
fn decompress(bytes: &[u8]) {
    let Some(([low, high], frame)) = bytes.split_first_chunk() else { return };
    let plain_len = u32::from(u16::from_le_bytes([*low, *high])) + 1;
    let check = blake3::hash(frame).as_bytes().first_chunk().map_or(0, |check| u64::from_le_bytes(*check));
    for codec in [Codec::Lz4, Codec::Zstd] {
        let entry = Entry { id: ChunkId([0; 32]), plain_len, frame_len: frame.len() as u32, check, codec };
        assert!(Decoder::new().decode(&entry, frame, &mut vec![0; plain_len as usize]).is_err());
    }
}
