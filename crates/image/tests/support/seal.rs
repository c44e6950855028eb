//! Sealing any body by hand; the fuzz targets use this file too.

use image::Machine;
use image::sealed::Kind;

/// A file of kind `kind` around `body`, with everything in its header right: a checksum would keep a fuzzer out, and a hostile
/// store's owner can compute it.
pub fn seal(kind: Kind, machine: Machine, body: &[u8]) -> Vec<u8> {
    let mut file = kind.magic().to_vec();
    file.extend_from_slice(&1u16.to_le_bytes());
    file.extend_from_slice(&machine.0.to_le_bytes());
    file.extend_from_slice(&0u32.to_le_bytes());
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    file.extend_from_slice(&0u64.to_le_bytes());
    let hash = blake3::Hasher::new().update(&file).update(body).finalize();
    file.extend_from_slice(hash.as_bytes());
    file.extend_from_slice(body);
    file
}
