//! Objects: the named runs of bytes that an image consists of, and the extents that make them up.

use serde::{Deserialize, Serialize};

use crate::chunk::CHUNK_SIZE;
use crate::message::{Field, Writer};
use crate::sealed::split;
use crate::{ChunkId, DeviceOrdinal, FormatError, RawPath, SessionId, limits};

/// How a piece of device memory came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum MemoryKind {
    /// Allocated by the application, in one of our arenas.
    Allocation = 0,
    /// A global of a module, where the driver put it.
    Global = 1,
    /// Other memory that the driver placed.
    Driver = 2,
    /// The contents of an array, packed: level after level, slice after slice, row after row. `base` is the handle that the
    /// application knows it by.
    Array = 3,
    /// Memory that the application maps itself, or has not mapped. `base` is its handle.
    Physical = 4,
}

/// What an object is. No two objects of an image have the same kind, so this is also an object's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ObjectKind {
    /// The content of device memory, from `base` on.
    DeviceMemory {
        /// Whose memory.
        session: SessionId,
        /// On which device.
        device: DeviceOrdinal,
        /// Which sort.
        memory: MemoryKind,
        /// The address of the first byte.
        base: u64,
    },
    /// A server's object table and the calls that were in flight, in the server's own encoding.
    SessionState {
        /// Whose state.
        session: SessionId,
    },
    /// A file of the job's tmpfs: rings, pinned memory.
    SharedFile {
        /// Path within the tmpfs.
        path: RawPath,
    },
    /// A file that CRIU wrote.
    CriuFile {
        /// Its name in CRIU's image folder.
        name: RawPath,
    },
    /// The saved content of a file that the job changed in place; see [`crate::JobFile`].
    JobFileContent {
        /// Its path as the job sees it.
        path: RawPath,
    },
    /// What the supervisor delivered to the job, in the host crate's encoding.
    HostRecord,
}

/// A part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Extent {
    /// Bytes that are all zero.
    Zero {
        /// How many; never 0.
        len: u64,
    },
    /// A stored chunk.
    Chunk {
        /// Which.
        id: ChunkId,
        /// Its length: 1 to [`CHUNK_SIZE`].
        len: u32,
    },
}

impl Extent {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match *self {
            Self::Zero { len } => len,
            Self::Chunk { len, .. } => u64::from(len),
        }
    }

    /// Always false: there are no empty extents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A named run of bytes: what it is, and what it is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// What it is.
    pub kind: ObjectKind,
    /// What it is made of, in order. Runs of zeros do not touch each other.
    pub extents: Vec<Extent>,
}

impl Object {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.extents.iter().map(Extent::len).fold(0, u64::saturating_add)
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// The extents with the offset in the object at which each begins.
    pub fn placed_extents(&self) -> impl Iterator<Item = (u64, &Extent)> {
        self.extents.iter().scan(0u64, |next, extent| {
            let at = *next;
            *next = next.saturating_add(extent.len());
            Some((at, extent))
        })
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.message(1, |kind| self.kind.encode(kind));
        out.field(2, |out| self.extents.iter().for_each(|extent| encode_extent(extent, out)));
    }

    pub(crate) fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("an object");
        let kind = ObjectKind::decode(fields.need(1, "it has no kind")?)?;
        let extents = decode_extents(fields.need(2, "it has no extents")?)?;
        fields.end()?;
        Ok(Self { kind, extents })
    }
}

impl ObjectKind {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::DeviceMemory { session, device, memory, base } => out.message(1, |out| {
                out.u64(1, session.0);
                out.u32(2, device.0);
                out.u8(3, *memory as u8);
                out.u64(4, *base);
            }),
            Self::SessionState { session } => out.message(2, |out| out.u64(1, session.0)),
            Self::SharedFile { path } => out.message(3, |out| out.bytes(1, &path.0)),
            Self::CriuFile { name } => out.message(4, |out| out.bytes(1, &name.0)),
            Self::JobFileContent { path } => out.message(5, |out| out.bytes(1, &path.0)),
            Self::HostRecord => out.message(6, |_| {}),
        }
    }

    fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut kinds = field.message("an object's kind");
        let kind = if let Some(field) = kinds.maybe(1)? {
            let mut fields = field.message("device memory");
            let session = SessionId(fields.need(1, "it has no session")?.u64()?);
            let device = DeviceOrdinal(fields.need(2, "it has no device")?.u32()?);
            let memory = fields.need(3, "it has no memory kind")?;
            let memory = match memory.u8()? {
                0 => MemoryKind::Allocation,
                1 => MemoryKind::Global,
                2 => MemoryKind::Driver,
                3 => MemoryKind::Array,
                4 => MemoryKind::Physical,
                _ => return Err(memory.invalid("its memory kind is not known")),
            };
            let base = fields.need(4, "it has no base address")?.u64()?;
            fields.end()?;
            Self::DeviceMemory { session, device, memory, base }
        } else if let Some(field) = kinds.maybe(2)? {
            let mut fields = field.message("session state");
            let session = SessionId(fields.need(1, "it has no session")?.u64()?);
            fields.end()?;
            Self::SessionState { session }
        } else if let Some(field) = kinds.maybe(3)? {
            Self::SharedFile { path: decode_path(field, "a shared file")? }
        } else if let Some(field) = kinds.maybe(4)? {
            Self::CriuFile { name: decode_path(field, "a CRIU file")? }
        } else if let Some(field) = kinds.maybe(5)? {
            Self::JobFileContent { path: decode_path(field, "a job file's content")? }
        } else {
            kinds.need(6, "it is empty")?.message("a host record").end()?;
            Self::HostRecord
        };
        kinds.end()?;
        Ok(kind)
    }
}

fn decode_path(field: Field<'_>, name: &'static str) -> Result<RawPath, FormatError> {
    let mut fields = field.message(name);
    let path = fields.need(1, "it has no name")?;
    if path.payload.is_empty() || path.payload.contains(&0) {
        return Err(path.invalid("a name is empty or has a zero byte"));
    }
    let path = RawPath(path.bytes(limits::PATH)?);
    fields.end()?;
    Ok(path)
}

fn encode_extent(extent: &Extent, out: &mut Vec<u8>) {
    match extent {
        Extent::Zero { len } => {
            out.push(0);
            out.extend_from_slice(&len.to_le_bytes());
        }
        Extent::Chunk { id, len } => {
            out.push(1);
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(&id.0);
        }
    }
}

fn decode_extents(field: Field<'_>) -> Result<Vec<Extent>, FormatError> {
    let mut extents: Vec<Extent> = Vec::new();
    let (mut rest, mut total) = (field.payload, 0u64);
    while let Some((tag, after)) = rest.split_first() {
        let at = field.at + (field.payload.len() - rest.len()) as u64;
        let invalid = |what| FormatError::Invalid { message: "an extent", at, what };
        let extent = match (tag, after.len()) {
            (0, 8..) => {
                let (len, after) = split::<8>(after);
                rest = after;
                Extent::Zero { len: u64::from_le_bytes(len) }
            }
            (1, 36..) => {
                let (len, after) = split::<4>(after);
                let (id, after) = split::<32>(after);
                rest = after;
                Extent::Chunk { id: ChunkId(id), len: u32::from_le_bytes(len) }
            }
            (0 | 1, _) => return Err(invalid("it is cut short")),
            _ => return Err(invalid("it is neither zeros nor a chunk")),
        };
        if extent.is_empty() {
            return Err(invalid("it is empty"));
        }
        match (&extent, extents.last()) {
            (Extent::Chunk { len, .. }, _) if *len as usize > CHUNK_SIZE => {
                return Err(invalid("it is longer than a chunk can be"));
            }
            (Extent::Zero { .. }, Some(Extent::Zero { .. })) => {
                return Err(invalid("two runs of zeros touch"));
            }
            _ => {}
        }
        total = total
            .checked_add(extent.len())
            .filter(|total| *total <= limits::OBJECT)
            .ok_or_else(|| invalid("the object is longer than an object can be"))?;
        extents.push(extent);
    }
    Ok(extents)
}
