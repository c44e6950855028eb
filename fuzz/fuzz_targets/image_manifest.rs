//! Files of a store are refused or understood. The bytes are taken as they are, and as a body behind a header whose checksum fits: the
//! checksum would keep a fuzzer out, and a hostile store's owner can compute it.
#![no_main]

use image::chunk::Decoder;
use image::sealed::{HEADER_LEN, Kind};
use image::{ChunkId, Codec, Entry, Index, Machine, Manifest, StoreConfig, pack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    parse_all(|_| bytes.to_vec());
    parse_all(|kind| sealed(kind, bytes));
    // Files of the seed folders are sealed already: it is their bodies that should be mangled.
    if let Some(body) = bytes.get(HEADER_LEN..) {
        parse_all(|kind| sealed(kind, body));
    }
    parse_pack(bytes);
    decompress(bytes);
});

fn sealed(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut file = kind.magic().to_vec();
    file.extend_from_slice(&1u16.to_le_bytes());
    file.extend_from_slice(&Machine::HOST.0.to_le_bytes());
    file.extend_from_slice(&0u32.to_le_bytes());
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    file.extend_from_slice(&0u64.to_le_bytes());
    let hash = blake3::Hasher::new().update(&file).update(body).finalize();
    file.extend_from_slice(hash.as_bytes());
    file.extend_from_slice(body);
    file
}

/// What is understood is written, and read back the same.
fn parse_all(file: impl Fn(Kind) -> Vec<u8>) {
    if let Ok(manifest) = Manifest::read(&file(Kind::Manifest)[..]) {
        let again = manifest.to_bytes().expect("what was read can be written");
        assert_eq!(Manifest::read(&again[..]).expect("what was written can be read"), manifest);
    }
    if let Ok(index) = Index::read(&file(Kind::Index)[..]) {
        let again = index.to_bytes().expect("what was read can be written");
        assert_eq!(Index::read(&again[..]).expect("what was written can be read"), index);
    }
    let _ = StoreConfig::read(&file(Kind::Config)[..]);
    if let Ok((id, entries)) = pack::parse_trailer(&file(Kind::Trailer)[..]) {
        let mut again = pack::trailer(id, &entries).expect("what was read can be written");
        again.truncate(again.len() - pack::END_LEN);
        assert_eq!(pack::parse_trailer(&again[..]).expect("what was written can be read"), (id, entries));
    }
}

fn parse_pack(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk() {
        let _ = pack::parse_header(header);
    }
    if let Some(end) = bytes.last_chunk() {
        let len = bytes.len() as u64;
        if let Ok(at) = pack::trailer_offset(end, len) {
            assert!(at >= pack::HEADER_LEN as u64 && at + pack::END_LEN as u64 <= len);
        }
    }
}

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
