//! Where images live: a folder, or a part of a bucket, of packs, indexes and manifests, as `docs/image-format.md` lays it out.
//!
//! The data's way in: a supervisor begins a [`Draft`]; every process that has something to save joins it with a [`ChunkWriter`] and
//! gets a [`Receipt`]; the supervisor publishes the receipts with a manifest. Until then nothing is listed, and what is left behind by a
//! crash is removed by the next draft.
//!
//! ```
//! # use image::{Manifest, ObjectKind, SessionId};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let dir = folder.path().join("store");
//! # let manifest = Manifest::new("train");
//! use std::io::Write;
//! use store::{ChunkWriter, Receipt, Store, WriteOptions};
//!
//! // The supervisor:
//! let store = Store::open_or_create(&dir)?;
//! let draft = store.begin()?;
//!
//! // A GPU server, told the store's folder and the draft's id:
//! let writer = ChunkWriter::join(&Store::open(&dir)?, draft.id(), &WriteOptions::default())?;
//! let mut object = writer.object(ObjectKind::SessionState { session: SessionId(1) });
//! object.write_all(b"object table")?;
//! object.finish()?;
//! let receipt = writer.finish()?.to_bytes()?;
//!
//! // The supervisor again:
//! let image = draft.publish(manifest, vec![Receipt::from_bytes(&receipt)?])?;
//!
//! // At a restart:
//! let image = store.open_image(&store.find("train@latest")?.id)?;
//! let state = image.read_to_vec(&ObjectKind::SessionState { session: SessionId(1) }, 1 << 20)?;
//! assert_eq!(state, b"object table");
//! # Ok(())
//! # }
//! ```
//!
//! All changes to a store go through one small trait, [`media::Media`], so that tests can fail, cut and reorder them.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod chunk_map;
mod condemned;
mod diff;
mod error;
mod inventory;
mod keep;
mod kept;
mod key;
mod layout;
mod list;
mod location;
pub mod media;
mod names;
mod read;
mod remove;
pub mod report;
mod store;
mod verify;
mod whole;
mod write;

pub use access::Access;
pub use diff::{Change, Chunks, Diff, KindDiff, ObjectDiff, Pieces};
pub use error::{CopyError, FindError, MediaError, ObjectError, OpenError, ReadError, WriteError};
pub use keep::{Keep, Pruned};
pub use kept::{Kept, KeptWhy};
pub use key::{Identities, Key, KeyError, Recipient, Secret};
pub use list::{DamagedImage, Found, Listing};
pub use location::{Location, LocationError};
pub use names::{find_object, object_name};
pub use read::{ChunkReader, Image, Piece, Proof};
pub use remove::Removal;
pub use store::Store;
pub use verify::{Cure, Damage, DamagedObject, Verifier, VerifyProgress, VerifyReport};
pub use whole::LackingImage;
pub use write::{
    ChunkWriter, CopiedImage, CopyOptions, CopyReport, Delivery, Draft, ObjectWriter, Receipt, Repack,
    Rewriting, UncopiedImage, WriteOptions,
};
