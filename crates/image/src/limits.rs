//! Upper bounds of everything with a length; §8 of `docs/image-format.md`.

/// Body of a store's `config`.
pub const CONFIG_BODY: u64 = 4 << 10;
/// Body of a manifest.
pub const MANIFEST_BODY: u64 = 256 << 20;
/// Body of an index.
pub const INDEX_BODY: u64 = 1 << 30;
/// Body of a pack's trailer.
pub const TRAILER_BODY: u64 = 64 << 20;
/// Body of a list of condemned packs.
pub const CONDEMNED_BODY: u64 = 64 << 20;
/// A whole pack file.
pub const PACK_FILE: u64 = 4 << 30;
/// A whole object: what a signed file offset can say.
pub const OBJECT: u64 = i64::MAX as u64;
/// A name, a version, a CPU feature.
pub const TEXT: usize = 4096;
/// A path or the name of a CRIU file.
pub const PATH: usize = 4096;
/// One argument of the command line: Linux's `MAX_ARG_STRLEN`.
pub const ARGUMENT: usize = 131_072;
/// A GNU build id.
pub const BUILD_ID: usize = 64;
