//! A session's state: everything a restart makes again, and how it is written into an image.
//!
//! The bytes: the images of device code, each beginning at a multiple of a chunk so that it is stored once however the
//! rest changes; then the table; then a footer (length of the table, version, magic). The checksum is the store's.

use crate::conditions::ConditionState;
use crate::heaps::HeapRecord;
use crate::memory::arena::ArenaState;
use crate::memory::pool::PoolRecord;
use crate::memory::{Layout, PinnedRecord, ShadowRecord, SlabRecord, VirtualState};
use crate::objects::{
    Bound, ContextRecord, ContextSettings, DividedRecord, EventRecord, FunctionRecord, FunctionSettings,
    GraphRecord, GreenRecord, Image, ImageHash, LibraryRecord, ModuleRecord, Owner, Recorded, StreamKey,
    StreamRecord,
};
use crate::session::HalfWayRecord;
use crate::shares::SharingState;
use crate::textures::TextureState;
use backend::Range;
use image::CHUNK_SIZE;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use wire::{ContextId, KernelId, LibraryId, ModuleId};

/// Version of the table's encoding. Since 7 there are blocks of managed regions, since 8 there is behind all else what is excluded, since 9 behind that what is half-way, since 10
/// heaps of kernels are allocations, since 11 there is behind that which graphs are launched in parts; what earlier ones know is encoded the same.
pub const VERSION: u32 = 11;
/// The first that tells what is excluded.
const EXCLUDES: u32 = 8;
/// The first that tells what is half-way.
const HALF_WAY: u32 = 9;
/// The first that tells which graphs are launched in parts.
const DIVIDED: u32 = 11;
/// The oldest that is read.
const OLDEST: u32 = 6;
/// The last bytes of every state.
pub const MAGIC: [u8; 4] = *b"DMss";
const FOOTER: usize = 16;

/// Everything of a session but the contents of its memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SessionState {
    /// Where memory lies.
    pub layout: Layout,
    /// The turn of the next object.
    pub turn: u64,
    /// The arena of each device; `None` for one never used.
    pub arenas: Vec<Option<ArenaState>>,
    /// Virtual memory that the application manages.
    pub virtual_memory: VirtualState,
    /// Memory pools.
    pub pools: Vec<PoolRecord>,
    /// Contexts.
    pub contexts: Vec<(ContextRecord, ContextSettings)>,
    /// Green contexts.
    pub greens: Vec<GreenRecord>,
    /// Streams, but for the legacy ones, which come with their contexts.
    pub streams: Vec<StreamRecord>,
    /// Events.
    pub events: Vec<(EventRecord, Recorded)>,
    /// Modules, those of libraries included.
    pub modules: Vec<ModuleState>,
    /// Modules that are gone and shape where others lie, and when they went.
    pub tombstones: Vec<(ModuleRecord, u64)>,
    /// Handles of modules.
    pub module_ids: Vec<ModuleHandle>,
    /// Functions.
    pub functions: Vec<FunctionRecord>,
    /// Libraries, and where their variables in managed memory lie.
    pub libraries: Vec<(LibraryRecord, Vec<Bound>)>,
    /// Kernels.
    pub kernels: Vec<KernelRecord>,
    /// Conditions of graphs.
    pub conditions: ConditionState,
    /// Executable graphs.
    pub graphs: Vec<GraphRecord>,
    /// Files that small pinned allocations share.
    pub slabs: Vec<SlabRecord>,
    /// Pinned memory.
    pub pinned: Vec<PinnedRecord>,
    /// Managed memory with shadow pages.
    pub shadows: Vec<ShadowRecord>,
    /// Attributes of streams, the legacy ones included: `CUstreamAttrID` and the bytes of its value.
    pub stream_attributes: Vec<(StreamKey, u32, Vec<u8>)>,
    /// Arrays, textures and surfaces.
    pub textures: TextureState,
    /// Heaps of kernels.
    pub heaps: Vec<HeapRecord>,
    /// What is shared with other sessions.
    pub sharing: SharingState,
    /// How many bytes of what the device printed answers have carried, and what none has yet.
    pub output: (u64, Vec<u8>),
    /// Device memory whose contents are not saved.
    pub excluded: Vec<Range>,
    /// Marked kernels that are not done.
    pub half_way: Vec<HalfWayRecord>,
    /// Graphs that are launched in parts.
    pub divided: Vec<DividedRecord>,
}

/// A module, and what in it a restart must find and fill.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ModuleState {
    /// Its constructor.
    pub record: ModuleRecord,
    /// Changes to its functions.
    pub settings: BTreeMap<String, FunctionSettings>,
    /// Its variables.
    pub variables: Vec<VariableState>,
}

/// A variable of a module.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VariableState {
    /// Its symbol.
    pub name: String,
    /// Where it lies; a restart puts it nowhere else.
    pub range: Range,
    /// Whether the application has been told.
    pub told: bool,
    /// Its contents, where they are not an object of their own.
    pub contents: Option<Vec<u8>>,
}

/// What a module handle names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ModuleHandle {
    /// The handle.
    pub id: ModuleId,
    /// The module.
    pub owner: Owner,
    /// In which context.
    pub ctx: ContextId,
}

/// A kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelRecord {
    /// The handle.
    pub id: KernelId,
    /// Its library.
    pub library: LibraryId,
    /// Its name as linked.
    pub name: String,
}

/// Why bytes are no session state.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum StateError {
    /// No footer, or another's.
    #[error("this is no session state (it ends in {0:?})")]
    Magic(Vec<u8>),
    /// Written by another version.
    #[error(
        "the session state has version {found}, this Dormouse reads versions {OLDEST} to {VERSION}; use the one that wrote it"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// A length or offset beyond the end.
    #[error("the session state's {what} lies outside of it")]
    Bounds {
        /// What.
        what: &'static str,
    },
    /// The table cannot be decoded.
    #[error("the session state's table is damaged: {0}")]
    Table(String),
    /// An image of device code is not what its name says.
    #[error("the session state's code image {0} is damaged")]
    Image(usize),
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    /// Name, offset, length.
    images: Vec<(ImageHash, u64, u64)>,
    state: SessionState,
}

/// The images of device code by name.
pub type Images = BTreeMap<ImageHash, Arc<Image>>;

impl SessionState {
    /// The state as bytes.
    ///
    /// # Errors
    /// [`StateError::Table`]; none is known to happen.
    pub fn to_bytes(&self, images: &Images) -> Result<Vec<u8>, StateError> {
        let mut bytes = Vec::new();
        let mut placed = Vec::with_capacity(images.len());
        for image in images.values() {
            placed.push((image.hash, bytes.len() as u64, image.bytes.len() as u64));
            bytes.extend_from_slice(&image.bytes);
            bytes.resize(bytes.len().next_multiple_of(CHUNK_SIZE), 0);
        }
        let table = Encoded { images: placed, state: self.clone() };
        let table = postcard::to_stdvec(&table).map_err(|error| StateError::Table(error.to_string()))?;
        bytes.extend_from_slice(&table);
        bytes.extend_from_slice(&(table.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&MAGIC);
        Ok(bytes)
    }

    /// The state that the bytes hold, with its images.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, Images), StateError> {
        let Some((rest, footer)) = bytes.split_last_chunk::<FOOTER>() else {
            return Err(StateError::Magic(bytes.to_vec()));
        };
        let [l0, l1, l2, l3, l4, l5, l6, l7, v0, v1, v2, v3, magic @ ..] = *footer;
        if magic != MAGIC {
            return Err(StateError::Magic(magic.to_vec()));
        }
        let found = u32::from_le_bytes([v0, v1, v2, v3]);
        if !(OLDEST..=VERSION).contains(&found) {
            return Err(StateError::Version { found });
        }
        let len = u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
        let start = usize::try_from(len).ok().and_then(|len| rest.len().checked_sub(len));
        let start = start.ok_or(StateError::Bounds { what: "table" })?;
        let (blobs, table) = rest.split_at(start);
        let mut table = std::borrow::Cow::Borrowed(table);
        // Empty lists.
        let missing = [EXCLUDES, HALF_WAY, DIVIDED].into_iter().filter(|first| found < *first).count();
        if missing > 0 {
            table.to_mut().extend(std::iter::repeat_n(0, missing));
        }
        let Encoded { images, state } =
            postcard::from_bytes(&table).map_err(|error| StateError::Table(error.to_string()))?;
        let mut named = Images::new();
        for (number, (hash, offset, len)) in images.into_iter().enumerate() {
            let bounds = || StateError::Bounds { what: "code image" };
            let start = usize::try_from(offset).map_err(|_| bounds())?;
            let end = usize::try_from(len).ok().and_then(|len| start.checked_add(len)).ok_or_else(bounds)?;
            let image = Image::new(blobs.get(start..end).ok_or_else(bounds)?.to_vec());
            if image.hash != hash {
                return Err(StateError::Image(number));
            }
            named.insert(hash, Arc::new(image));
        }
        Ok((state, named))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> SessionState {
        SessionState {
            layout: Layout::of_session(3),
            turn: 7,
            arenas: vec![None],
            virtual_memory: VirtualState::default(),
            pools: vec![],
            contexts: vec![],
            greens: vec![],
            streams: vec![],
            events: vec![],
            modules: vec![],
            tombstones: vec![],
            module_ids: vec![],
            functions: vec![],
            libraries: vec![],
            kernels: vec![],
            conditions: ConditionState::default(),
            graphs: vec![],
            slabs: vec![],
            pinned: vec![],
            shadows: vec![],
            stream_attributes: vec![],
            textures: TextureState::default(),
            heaps: vec![],
            sharing: SharingState::default(),
            output: (7, b"42\n".to_vec()),
            excluded: vec![Range { base: 512, bytes: 7 }],
            half_way: vec![],
            divided: vec![],
        }
    }

    fn images() -> Images {
        [b"one".to_vec(), vec![7; CHUNK_SIZE + 1]]
            .into_iter()
            .map(Image::new)
            .map(|image| (image.hash, Arc::new(image)))
            .collect()
    }

    #[test]
    fn comes_back_as_it_was() {
        let bytes = state().to_bytes(&images()).unwrap();
        let (back, back_images) = SessionState::from_bytes(&bytes).unwrap();
        assert_eq!(back, state());
        let contents = |images: &Images| images.values().map(|image| image.bytes.clone()).collect::<Vec<_>>();
        assert_eq!(contents(&back_images), contents(&images()));
    }

    #[test]
    fn damage_is_told() {
        let good = state().to_bytes(&images()).unwrap();
        let damaged = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            SessionState::from_bytes(&bytes).unwrap_err()
        };
        let mut older = good.clone();
        older[good.len() - 8] = 6;
        assert!(SessionState::from_bytes(&older).is_ok());
        assert!(matches!(damaged(good.len() - 1), StateError::Magic(_)));
        assert!(matches!(damaged(good.len() - 7), StateError::Version { .. }));
        assert!(matches!(damaged(good.len() - 9), StateError::Bounds { .. }));
        assert!(matches!(damaged(0), StateError::Image(_)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..200), len in 0..100u64) {
            let _ = SessionState::from_bytes(&bytes);
            bytes.extend(len.to_le_bytes());
            bytes.extend(VERSION.to_le_bytes());
            bytes.extend(MAGIC);
            let _ = SessionState::from_bytes(&bytes);
        }

        /// What is understood of a damaged table is written, and read back the same.
        #[test]
        fn damaged_tables_are_survived(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
            let mut bytes = state().to_bytes(&Images::new()).unwrap();
            let table = bytes.len() - FOOTER;
            for (at, byte) in damage {
                bytes[at.index(table)] = byte;
            }
            if let Ok((state, images)) = SessionState::from_bytes(&bytes) {
                let again = state.to_bytes(&images).unwrap();
                let (same, images) = SessionState::from_bytes(&again).unwrap();
                prop_assert_eq!(same.to_bytes(&images).unwrap(), again);
            }
        }
    }
}
