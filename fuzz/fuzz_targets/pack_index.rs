//! A store's indexes, lists of condemned packs, packs and covers are refused or understood: what is understood is written, and read back the same.
#![no_main]

use fuzz::files;
use image::sealed::Kind;
use image::{Condemned, Index, cover, pack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for file in files(Kind::Index, bytes) {
        let Ok(index) = Index::read(&file[..]) else { continue };
        let again = index.to_bytes().expect("what was read can be written");
        assert_eq!(Index::read(&again[..]).expect("what was written can be read"), index);
    }
    for file in files(Kind::Condemned, bytes) {
        let Ok(condemned) = Condemned::read(&file[..]) else { continue };
        let again = condemned.to_bytes().expect("what was read can be written");
        assert_eq!(Condemned::read(&again[..]).expect("what was written can be read"), condemned);
    }
    for file in files(Kind::Trailer, bytes) {
        let Ok((id, entries)) = pack::parse_trailer(&file[..]) else { continue };
        let mut again = pack::trailer(id, &entries).expect("what was read can be written");
        again.truncate(again.len() - pack::END_LEN);
        assert_eq!(pack::parse_trailer(&again[..]).expect("what was written can be read"), (id, entries));
    }
    if let Some(header) = bytes.first_chunk() {
        let _ = pack::parse_header(header);
    }
    if let Some(header) = bytes.first_chunk() {
        let _ = cover::check_header(header);
    }
    if let Some(len) = bytes.first_chunk().map(|len| u64::from_le_bytes(*len))
        && let Ok(plain) = cover::plain_len(len)
    {
        assert_eq!(cover::sealed_len(plain), len);
    }
    if let Some(end) = bytes.last_chunk() {
        let len = bytes.len() as u64;
        if let Ok(at) = pack::trailer_offset(end, len) {
            assert!(at >= pack::HEADER_LEN as u64 && at + pack::END_LEN as u64 <= len);
        }
    }
});
