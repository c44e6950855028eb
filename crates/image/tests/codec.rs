//! What is written reads back, one value has one encoding, and what a reader would refuse is not written.
#![allow(clippy::unwrap_used)]

mod support;

use image::chunk::{Decoder, Encoder, is_zero};
use image::sealed::Kind;
use image::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn manifests_read_back(manifest in support::manifest()) {
        let file = manifest.to_bytes().unwrap();
        let read = Manifest::read(&file[..]).unwrap();
        prop_assert_eq!(&read, &manifest);
        prop_assert_eq!(read.to_bytes().unwrap(), file);
    }

    #[test]
    fn indexes_read_back(index in support::index()) {
        let file = index.to_bytes().unwrap();
        let read = Index::read(&file[..]).unwrap();
        prop_assert_eq!(&read, &index);
        prop_assert_eq!(read.to_bytes().unwrap(), file);
    }

    #[test]
    fn condemned_packs_read_back(condemned in support::condemned()) {
        let file = condemned.to_bytes().unwrap();
        let read = Condemned::read(&file[..]).unwrap();
        prop_assert_eq!(&read, &condemned);
        prop_assert_eq!(read.to_bytes().unwrap(), file);
    }

    #[test]
    fn packs_read_back(pack in support::pack_index()) {
        prop_assert_eq!(pack::parse_header(&pack::header(pack.id)).unwrap(), pack.id);
        let tail = pack::trailer(pack.id, &pack.entries).unwrap();
        let (trailer, end) = tail.split_at(tail.len() - pack::END_LEN);
        prop_assert_eq!(pack::trailer_offset(end.try_into().unwrap(), pack.file_len).unwrap(), pack.trailer_at());
        prop_assert_eq!(pack::parse_trailer(trailer).unwrap(), (pack.id, pack.entries.clone()));
        let ends: Vec<_> = pack.frames().map(|(at, entry)| at + u64::from(entry.frame_len)).collect();
        prop_assert_eq!(ends.last().copied().unwrap_or(pack::HEADER_LEN as u64), pack.trailer_at());
    }

    #[test]
    fn receipts_cross_a_socket(manifest in support::manifest(), pack in support::pack_index()) {
        let bytes = postcard::to_stdvec(&(&manifest, &pack)).unwrap();
        let read: (Manifest, PackIndex) = postcard::from_bytes(&bytes).unwrap();
        prop_assert_eq!(read, (manifest, pack));
    }

    #[test]
    fn chunks_come_back_whatever_they_hold(
        seed in proptest::collection::vec(any::<u8>(), 1..400),
        repeat in 1..600usize,
        compress in proptest::sample::select(&Compress::ALL[..]),
    ) {
        let plain = seed.repeat(repeat);
        let id = ChunkId::of(&plain);
        let mut compressed = Vec::new();
        let entry = Encoder::new(compress).encode(id, &plain, &mut compressed).unwrap();
        let frame = if entry.codec == Codec::Plain { &plain } else { &compressed };
        prop_assert_eq!(entry.frame_len as usize, frame.len());
        prop_assert!(frame.len() <= plain.len());
        let mut back = vec![0xee; plain.len()];
        Decoder::new().decode(&entry, frame, &mut back).unwrap();
        prop_assert!(back == plain);
        prop_assert_eq!(is_zero(&plain), plain.iter().all(|byte| *byte == 0));
    }
}

fn encode(compress: Compress, plain: &[u8]) -> (Entry, Vec<u8>) {
    let mut frame = Vec::new();
    let entry = Encoder::new(compress).encode(ChunkId::of(plain), plain, &mut frame).unwrap();
    (entry, if entry.codec == Codec::Plain { plain.to_vec() } else { frame })
}

/// Bytes that nothing can compress.
fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

#[test]
fn a_codec_is_used_only_where_it_gains() {
    let counting: Vec<u8> = (0..CHUNK_SIZE as u32 / 4).flat_map(|n| (n / 64).to_le_bytes()).collect();
    for (compress, codec) in
        [(Compress::None, Codec::Plain), (Compress::Lz4, Codec::Lz4), (Compress::Zstd, Codec::Zstd)]
    {
        assert_eq!(encode(compress, &counting).0.codec, codec);
        assert_eq!(encode(compress, &noise(CHUNK_SIZE)).0.codec, Codec::Plain);
        assert_eq!(encode(compress, &noise(100)).0.codec, Codec::Plain);
    }
    let too_long = vec![1; CHUNK_SIZE + 1];
    let id = ChunkId::of(&too_long);
    let refused = Encoder::new(Compress::None).encode(id, &too_long, &mut Vec::new());
    assert!(matches!(refused, Err(ChunkError::Length { .. })));
    assert!(Encoder::new(Compress::None).encode(ChunkId::of(&[]), &[], &mut Vec::new()).is_err());
}

/// Also where the flipped byte would decompress to the same chunk, as an LZ4 match in a run does.
#[test]
fn every_flipped_byte_of_a_frame_is_noticed() {
    let plain = [vec![7; 3000], noise(200), vec![9; 3000]].concat();
    for compress in Compress::ALL {
        let (entry, frame) = encode(compress, &plain);
        let mut out = vec![0; plain.len()];
        Decoder::new().decode(&entry, &frame, &mut out).unwrap();
        for at in 0..frame.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bad = frame.clone();
                bad[at] ^= flip;
                let error = Decoder::new().decode(&entry, &bad, &mut out).unwrap_err();
                assert!(matches!(error, ChunkError::Check { .. }), "{compress} {at}: {error}");
            }
        }
    }
}

/// A writer's fault, or an attacker's who knows the checksums: the decompressor meets bytes that it cannot trust.
#[test]
fn frames_that_lie_are_refused() {
    let plain = vec![7; 5000];
    for compress in [Compress::Lz4, Compress::Zstd] {
        let (entry, frame) = encode(compress, &plain);
        let lie = |entry: Entry, frame: &[u8], room: usize| {
            let check = u64::from_le_bytes(blake3::hash(frame).as_bytes()[..8].try_into().unwrap());
            let entry = Entry { check, frame_len: frame.len() as u32, ..entry };
            Decoder::new().decode(&entry, frame, &mut vec![0; room]).unwrap_err()
        };
        for len in [4999, 5001, 1] {
            let other = Entry { plain_len: len, ..entry };
            assert!(
                matches!(lie(other, &frame, len as usize), ChunkError::Decompress { .. }),
                "{compress} {len}"
            );
        }
        assert!(matches!(lie(entry, &frame[..frame.len() - 1], 5000), ChunkError::Decompress { .. }));
        assert!(matches!(lie(entry, &noise(50), 5000), ChunkError::Decompress { .. }));
        let (_, of_eights) = encode(compress, &[8; 5000]);
        assert!(matches!(lie(entry, &of_eights, 5000), ChunkError::Identity { .. }));
        assert!(matches!(lie(entry, &frame, 4000), ChunkError::Length { .. }));
    }
}

#[test]
fn the_names_of_compressions_are_those_of_the_command_line() {
    for compress in Compress::ALL {
        assert_eq!(compress.to_string().parse(), Ok(compress));
    }
    let error = "gzip".parse::<Compress>().unwrap_err().to_string();
    assert_eq!(error, "\"gzip\" is no way to compress: say auto, none, lz4 or zstd");
}

#[test]
fn what_no_reader_would_accept_is_not_written() {
    let written = |manifest: Manifest| manifest.to_bytes().unwrap_err().to_string();
    let object = |kind, extents| Object { kind, extents };
    let with = |objects| Manifest { objects, ..Manifest::new("job") };
    let long = Manifest::new(&"x".repeat(limits::TEXT + 1));
    assert!(written(long).contains("limit is 4096"));
    let twins = vec![object(ObjectKind::HostRecord, vec![]), object(ObjectKind::HostRecord, vec![])];
    assert!(written(with(twins)).contains("the same thing"));
    let zeros = Extent::Zero { len: 1 };
    assert!(written(with(vec![object(ObjectKind::HostRecord, vec![zeros, zeros])])).contains("touch"));
    let empty = Extent::Zero { len: 0 };
    assert!(written(with(vec![object(ObjectKind::HostRecord, vec![empty])])).contains("empty"));
    let id = ChunkId([1; 32]);
    let huge = [Extent::Zero { len: u64::MAX / 2 }, Extent::Chunk { id, len: 1 }];
    assert!(
        written(with(vec![object(ObjectKind::HostRecord, huge.to_vec())])).contains("longer than an object")
    );
    let chunk = Extent::Chunk { id, len: CHUNK_SIZE as u32 + 1 };
    assert!(written(with(vec![object(ObjectKind::HostRecord, vec![chunk])])).contains("longer than a chunk"));
    let name = RawPath(b"a\0b".to_vec());
    assert!(written(with(vec![object(ObjectKind::CriuFile { name }, vec![])])).contains("zero byte"));
}

/// A later version's facts: those that may be skipped are, those that may not are named.
#[test]
fn facts_of_later_versions_are_skipped_or_refused_by_number() {
    let manifest = Manifest::new("job");
    let file = manifest.to_bytes().unwrap();
    let with = |id: u16, payload: &[u8]| {
        support::reseal(Kind::Manifest, &file, |body| {
            body.extend_from_slice(&id.to_le_bytes());
            body.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            body.extend_from_slice(payload);
        })
    };
    assert_eq!(Manifest::read(&with(0xfff1, b"a hint")[..]).unwrap(), manifest);
    let error = Manifest::read(&with(15, b"something new")[..]).unwrap_err();
    assert!(error.is_newer());
    assert!(error.to_string().contains("field 15 of an image's manifest"), "{error}");
    assert!(error.to_string().contains("use a newer dormouse"), "{error}");
}
