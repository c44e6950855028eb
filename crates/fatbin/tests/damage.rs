//! Damaged, cut-off, hostile and arbitrary bytes: an error that says what is wrong, never a panic, never much
//! memory.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fmt::Debug;

use fatbin::{
    Cubin, DecompressError, Fatbinary, Image, ImageKind, MAX_DECOMPRESSED, MeasureError, ModuleFacts,
    WRAPPER_SIZE, Wrapper, measure,
};
use proptest::prelude::*;

const NONE: &[u8] = include_bytes!("data/none.fatbin");
const SPEED: &[u8] = include_bytes!("data/speed.fatbin");
const SIZE: &[u8] = include_bytes!("data/size.fatbin");
const RDC: &[u8] = include_bytes!("data/rdc.fatbin");

/// Offset of the entry that holds PTX.
const SPEED_PTX: usize = 21352 - 80 - 1800;

fn with(bytes: &[u8], offset: usize, patch: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[offset..offset + patch.len()].copy_from_slice(patch);
    bytes
}

fn message<T: Debug, E: std::error::Error>(result: Result<T, E>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn fatbinaries() {
    let parse = |bytes: &[u8]| message(Fatbinary::parse(bytes));
    assert_eq!(parse(b""), "fatbinary of 0 bytes is cut off: its header at byte 0 needs 16");
    assert_eq!(parse(b"ELF \0\0"), "not a fatbinary: it starts with 0x20464c45 instead of 0xba55ed50");
    assert_eq!(parse(&with(NONE, 4, &[2, 0])), "fatbinary of version 2; only version 1 is known");
    assert_eq!(parse(&NONE[..100]), "fatbinary of 100 bytes is cut off: its body at byte 16 needs 23160");
    assert_eq!(
        parse(&with(NONE, 8, &[0xFF; 8])),
        format!("fatbinary of {} bytes is cut off: its body at byte 16 needs {}", NONE.len(), u64::MAX)
    );
    assert_eq!(
        parse(&with(NONE, 16 + 4, &[8, 0])),
        "fatbinary entry at byte 16 is damaged: its header is too small"
    );
    assert!(parse(&with(NONE, 16 + 8, &[0xFF; 8])).contains("its entry's payload at byte 16 needs"));
    assert!(parse(&with(SPEED, SPEED_PTX + 41, &[0xA0])).ends_with("it is compressed in two ways"));
    assert!(parse(&with(SPEED, SPEED_PTX + 16, &[0xFF; 4])).ends_with("its compressed size is too large"));
    assert!(parse(&with(SPEED, SPEED_PTX + 20, &[0xFF; 4])).ends_with("its options are not in its header"));
    assert!(parse(&with(SPEED, SPEED_PTX + 32, &[0xFF; 8])).ends_with("its identifier is not in its header"));
}

#[test]
fn payloads() {
    let code = |bytes: &[u8], index: usize| {
        let error = Fatbinary::parse(bytes).unwrap().entries()[index].code().unwrap_err();
        assert!(ModuleFacts::of_entry(&Fatbinary::parse(bytes).unwrap().entries()[index]).is_err());
        error
    };
    let claim = |size: u64| with(SPEED, SPEED_PTX + 56, &size.to_le_bytes());
    assert!(matches!(code(&claim(MAX_DECOMPRESSED + 1), 2), DecompressError::TooLong { .. }));
    assert!(matches!(code(&claim(MAX_DECOMPRESSED), 2), DecompressError::Length { .. }));
    assert!(matches!(code(&claim(100), 2), DecompressError::Lz4(_)));
    assert!(matches!(code(&claim(100_000), 2), DecompressError::Length { .. }));
    assert!(matches!(code(&with(SIZE, 16 + 64 + 40, &[0xFF; 40]), 0), DecompressError::Zstd(_)));
    assert!(matches!(
        code(&with(SIZE, 16 + 56, &MAX_DECOMPRESSED.to_le_bytes()), 0),
        DecompressError::Length { .. }
    ));
    assert!(matches!(code(&with(SIZE, 16 + 56, &[1, 0, 0, 0]), 0), DecompressError::Length { claimed: 1 }));
}

#[test]
fn cubins() {
    let fatbinary = Fatbinary::parse(NONE).unwrap();
    let cubin = fatbinary.entries()[0].code().unwrap();
    let parse = |bytes: &[u8]| message(Cubin::parse(bytes));
    assert_eq!(parse(b"\x7FELF"), "not a 64-bit little-endian ELF file");
    assert_eq!(parse(&with(&cubin, 18, &[62, 0])), "ELF file for machine 62, not for CUDA (190)");
    let section_table = "cubin is damaged: its section table is cut off or has entries of an unknown size";
    assert_eq!(parse(&with(&cubin, 40, &[0xFF; 8])), section_table);
    assert_eq!(parse(&with(&cubin, 60, &[0xFF; 2])), section_table);
    assert_eq!(parse(&cubin[..cubin.len() / 2]), section_table);
    assert_eq!(message(Image::parse(b"")), "device code is empty");
    assert_eq!(message(Image::parse(b"\0rest")), "device code is empty");
}

#[test]
fn lengths() {
    let measure = |bytes: &[u8]| measure(&mut &*bytes, 1 << 20);
    assert_eq!(measure(b""), Err(MeasureError::Unreadable { offset: 0 }));
    assert_eq!(
        measure(b"P\0").map(|m| (m.kind, m.length)),
        Ok((ImageKind::Ptx, 2)),
        "starts like a fatbinary"
    );
    assert_eq!(measure(b".version"), Err(MeasureError::Unreadable { offset: 8 }), "no NUL");
    assert_eq!(measure(&[b'x'; 2 << 20]), Err(MeasureError::TooLong { limit: 1 << 20 }));
    assert_eq!(measure(&NONE[..12]), Err(MeasureError::Unreadable { offset: 8 }));
    assert_eq!(measure(&with(NONE, 8, &[0xFF; 8])), Err(MeasureError::TooLong { limit: 1 << 20 }));
    let fatbinary = Fatbinary::parse(NONE).unwrap();
    let cubin = fatbinary.entries()[0].code().unwrap();
    assert_eq!(measure(&with(&cubin, 40, &[0xFF; 8])), Err(MeasureError::TooLong { limit: 1 << 20 }));
    assert!(matches!(measure(&with(&cubin, 18, &[62])), Err(MeasureError::Elf(_))));
}

#[test]
fn wrappers() {
    let mut bytes = [0; WRAPPER_SIZE];
    assert_eq!(Wrapper::parse(&bytes), None);
    bytes[..8].copy_from_slice(&[0xB1, 0x43, 0x62, 0x46, 2, 0, 0, 0]);
    bytes[8..16].copy_from_slice(&0x1122_3344_5566_7788u64.to_le_bytes());
    bytes[16] = 9;
    let wrapper = Wrapper { version: 2, fatbinary: 0x1122_3344_5566_7788, extra: 9 };
    assert_eq!(Wrapper::parse(&bytes), Some(wrapper));
    let measured = measure(&mut bytes.as_slice(), 1 << 20).unwrap();
    assert_eq!((measured.kind, measured.length), (ImageKind::Wrapper, WRAPPER_SIZE as u64));
}

/// Does everything that can be done with bytes.
fn exercise(bytes: &[u8]) {
    let _ = measure(&mut &*bytes, 1 << 24);
    let _ = ModuleFacts::of_cubin(bytes);
    let Ok(image) = Image::parse(bytes) else { return };
    let _ = image.architectures().to_string();
    match image {
        Image::Fatbinary(fatbinary) => {
            let _ = (fatbinary.cubin_for(90), fatbinary.ptx_for(90), fatbinary.ptx_alone());
            if let Ok(Some(ptx)) = fatbinary.ptx(90) {
                let _ = ptx.text();
            }
            fatbinary.entries().iter().for_each(|entry| drop(ModuleFacts::of_entry(entry)));
        }
        Image::Cubin(cubin, _) => drop(cubin.facts()),
        Image::Ptx(text) => drop(ModuleFacts::of_ptx_text(text)),
    }
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12);
    (0..6usize, edits, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(file, edits, end, cut)| {
        let mut bytes = match file {
            0 => NONE.to_vec(),
            1 => SPEED.to_vec(),
            2 => SIZE.to_vec(),
            3 => RDC.to_vec(),
            4 => [RDC, SPEED, SIZE].concat(),
            _ => Fatbinary::parse(NONE).unwrap().entries()[0].code().unwrap().into_owned(),
        };
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        bytes
    })
}

/// Like [`mutated`], but in the places where structure is.
fn mutated_headers() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((0..200usize, any::<[u8; 4]>()), 1..4);
    (0..6usize, edits).prop_map(|(file, edits)| {
        let (mut bytes, at) = match file {
            0 => (NONE.to_vec(), 0),
            1 => (SPEED.to_vec(), SPEED_PTX),
            2 => (SIZE.to_vec(), 0),
            3 => (RDC.to_vec(), 0),
            4 => ([RDC, SPEED].concat(), RDC.len()),
            _ => {
                let cubin = Fatbinary::parse(NONE).unwrap().entries()[0].code().unwrap().into_owned();
                let table = u64::from_le_bytes(cubin[40..48].try_into().unwrap()) as usize;
                (cubin, table)
            }
        };
        for (offset, value) in edits {
            let end = (at + offset + 4).min(bytes.len());
            let value = value.map(|byte| if byte < 200 { byte % 4 } else { byte });
            bytes[end - 4..end].copy_from_slice(&value);
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400), magic in 0..4usize) {
        exercise(&bytes);
        let magic: &[u8] = [&NONE[..16], b"\x7FELF\x02\x01\x01\x41", b".version 8.0 .target sm_80 ", b""][magic];
        exercise(&[magic, &bytes].concat());
    }

    #[test]
    fn mutated_fixtures(bytes in mutated()) {
        exercise(&bytes);
    }

    #[test]
    fn mutated_structure(bytes in mutated_headers()) {
        exercise(&bytes);
    }
}
