//! Arbitrary and mangled bytes: no parser panics, and none allocates much more than it was given.
#![allow(clippy::unwrap_used)]

mod support;

use std::alloc::System;
use std::sync::{Mutex, PoisonError};

use cap::Cap;
use image::sealed::Kind;
use image::*;
use proptest::collection::vec;
use proptest::prelude::*;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// The allocator counts for the whole process, so measurements go one at a time.
static MEASURING: Mutex<()> = Mutex::new(());

/// Runs a parser and checks what it allocated, in sum, against what it was given. Bytes that are accepted must be written the same again.
fn parse<T>(
    bytes: &[u8],
    read: impl Fn(&[u8]) -> Result<T, FormatError>,
    write: impl Fn(&T) -> Result<Vec<u8>, FormatError>,
    canonical: bool,
) {
    let measuring = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = ALLOCATOR.total_allocated();
    let result = read(bytes);
    let allocated = ALLOCATOR.total_allocated() - before;
    drop(measuring);
    assert!(allocated <= 64 * bytes.len() + 4096, "{allocated} bytes allocated for {}", bytes.len());
    match result {
        Ok(value) if canonical => assert_eq!(write(&value).unwrap(), bytes),
        Ok(value) => drop(write(&value)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn parse_all(kind: Kind, bytes: &[u8], canonical: bool) {
    match kind {
        Kind::Manifest => parse(bytes, |b| Manifest::read(b), Manifest::to_bytes, canonical),
        Kind::Index => parse(bytes, |b| Index::read(b), Index::to_bytes, canonical),
        Kind::Condemned => parse(bytes, |b| Condemned::read(b), Condemned::to_bytes, canonical),
        Kind::Config => parse(bytes, |b| StoreConfig::read(b), StoreConfig::to_bytes, canonical),
        Kind::Trailer => {
            let write = |(id, entries): &(PackId, Vec<Entry>)| {
                let mut tail = pack::trailer(*id, entries)?;
                tail.truncate(tail.len() - pack::END_LEN);
                Ok(tail)
            };
            parse(bytes, |b| pack::parse_trailer(b), write, canonical);
        }
    }
}

const KINDS: [Kind; 5] = [Kind::Config, Kind::Manifest, Kind::Index, Kind::Trailer, Kind::Condemned];

/// Whether a body has a field that a reader of version 1 skips, and so does not write again.
fn may_skip(body: &[u8]) -> bool {
    // Any byte at an id's upper place may make one; exact enough to leave most cases canonical.
    body.iter().any(|byte| byte & 0x80 != 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_files(kind in proptest::sample::select(&KINDS[..]), bytes in vec(any::<u8>(), 0..300)) {
        parse_all(kind, &bytes, true);
        parse_all(kind, &[&kind.magic()[..], &bytes].concat(), true);
    }

    #[test]
    fn arbitrary_bodies(kind in proptest::sample::select(&KINDS[..]), body in vec(any::<u8>(), 0..300)) {
        parse_all(kind, &support::seal(kind, Machine::ANY, &body), !may_skip(&body));
    }

    /// Bodies that look right: small ids, lengths that mostly fit.
    #[test]
    fn arbitrary_fields(
        kind in proptest::sample::select(&KINDS[..]),
        fields in vec((0..16u16, vec(0..20u8, 0..60), -1..2i64), 0..20),
    ) {
        let mut body = Vec::new();
        for (id, payload, off) in fields {
            body.extend_from_slice(&id.to_le_bytes());
            body.extend_from_slice(&(payload.len() as u32).saturating_add_signed(off as i32).to_le_bytes());
            body.extend_from_slice(&payload);
        }
        parse_all(kind, &support::seal(kind, Machine::ANY, &body), true);
    }

    /// Real manifests with a few bytes changed, cut or repeated, and a checksum that fits.
    #[test]
    fn mangled_manifests(manifest in support::manifest(), cuts in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..4)) {
        let file = manifest.to_bytes().unwrap();
        let mangled = support::reseal(Kind::Manifest, &file, |body| mangle(body, &cuts));
        parse_all(Kind::Manifest, &mangled, false);
    }

    #[test]
    fn mangled_indexes(index in support::index(), cuts in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..4)) {
        let file = index.to_bytes().unwrap();
        let mangled = support::reseal(Kind::Index, &file, |body| mangle(body, &cuts));
        parse_all(Kind::Index, &mangled, false);
    }

    #[test]
    fn mangled_condemned(condemned in support::condemned(), cuts in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..4)) {
        let file = condemned.to_bytes().unwrap();
        let mangled = support::reseal(Kind::Condemned, &file, |body| mangle(body, &cuts));
        parse_all(Kind::Condemned, &mangled, false);
    }

    #[test]
    fn arbitrary_packs(header in any::<[u8; 32]>(), rest in any::<[u8; 32]>(), end in any::<[u8; 16]>(), len in any::<u64>()) {
        let header: [u8; 64] = [header, rest].concat().try_into().unwrap();
        assert!(pack::parse_header(&header).is_err());
        let mut end = end;
        assert!(pack::trailer_offset(&end, len).is_err());
        end[8..].copy_from_slice(b"\x89DMSEND\n");
        if let Ok(at) = pack::trailer_offset(&end, len) {
            assert!(at >= 64 && at <= len - 16);
        }
        // Lengths that fit, and files that are hardly one.
        let (trailer, len) = (len % 100, len % 200);
        end[..8].copy_from_slice(&trailer.to_le_bytes());
        match pack::trailer_offset(&end, len) {
            Ok(at) => assert_eq!((at >= 64, at + trailer + 16), (true, len)),
            Err(_) => assert!(trailer + 80 > len),
        }
    }

    /// Decompressors meet arbitrary bytes only behind a forged checksum; even then they stay within their buffers.
    #[test]
    fn arbitrary_frames(frame in vec(any::<u8>(), 1..200), plain_len in 1..5000u32, zstd in any::<bool>(), magic in any::<bool>()) {
        let mut frame = frame;
        if zstd && magic {
            frame.splice(0..0, [0x28, 0xb5, 0x2f, 0xfd]);
        }
        let check = u64::from_le_bytes(blake3::hash(&frame).as_bytes()[..8].try_into().unwrap());
        let codec = if zstd { Codec::Zstd } else { Codec::Lz4 };
        let entry = Entry { id: ChunkId([0; 32]), plain_len, frame_len: frame.len() as u32, check, codec };
        let mut plain = vec![0; plain_len as usize];
        prop_assert!(image::chunk::Decoder::new().decode(&entry, &frame, &mut plain).is_err());
    }
}

fn mangle(body: &mut Vec<u8>, cuts: &[(prop::sample::Index, u8, u8)]) {
    for (at, value, how) in cuts {
        let at = at.index(body.len().max(1)).min(body.len());
        match how {
            0 if at < body.len() => body[at] = *value,
            1 => body.truncate(at),
            2 => body.insert(at, *value),
            _ => body.extend_from_within(at..),
        }
    }
}

/// A header may claim what it likes: memory follows the bytes that come.
#[test]
fn a_claimed_length_allocates_nothing() {
    for kind in KINDS {
        let mut file = support::seal(kind, Machine::ANY, &[]);
        file[16..24].copy_from_slice(&kind.limit().to_le_bytes());
        parse_all(kind, &file, true);
    }
}
