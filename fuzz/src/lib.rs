//! What the targets share.

use image::Machine;
use image::sealed::Kind;

/// A store's file with that body, and a header whose checksum fits: it would keep a fuzzer out, and a hostile store's owner can
/// compute it.
pub fn sealed(kind: Kind, body: &[u8]) -> Vec<u8> {
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

/// The files of a kind that a fuzzer's bytes may stand for: a whole one, the body of one, and one whose body should be mangled, as
/// those of the seed folders, which are sealed already.
pub fn files(kind: Kind, bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let body = bytes.get(image::sealed::HEADER_LEN..).map(|body| sealed(kind, body));
    [bytes.to_vec(), sealed(kind, bytes)].into_iter().chain(body)
}
