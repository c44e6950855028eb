//! What the targets share.

#[path = "../../crates/image/tests/support/seal.rs"]
mod seal;

use image::Machine;
use image::sealed::Kind;

use seal::seal;

/// The files of a kind that a fuzzer's bytes may stand for: a whole one, the body of one, and one whose body should be mangled, as
/// those of the seed folders, which are sealed already.
pub fn files(kind: Kind, bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let seal = |body: &[u8]| seal(kind, Machine::HOST, body);
    let body = bytes.get(image::sealed::HEADER_LEN..).map(seal);
    [bytes.to_vec(), seal(bytes)].into_iter().chain(body)
}
