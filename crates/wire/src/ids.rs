//! Virtual handles: what the application holds in place of the driver's pointers. Ids are given out by the client from one
//! counter of the session, so a creation whose success is known in advance need not wait; the server refuses an id in use.

use crate::codec::{DecodeError, Decoder, Encoder, Wire};
use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $tag:literal),* $(,)?) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// The value the application sees as a pointer: the kind in bits 36 to 43, so that a handle of the wrong kind is told, and
            /// nothing in the lowest four, which programs take for free (PyTorch tells by them whose a stream is).
            #[must_use]
            pub const fn handle(self) -> u64 {
                ($tag << 36) | (self.0 as u64) << 4
            }

            /// The id behind a handle of this kind; `None` for any other value.
            #[must_use]
            pub const fn from_handle(handle: u64) -> Option<Self> {
                let id = (handle >> 4) as u32;
                if id != 0 && Self(id).handle() == handle { Some(Self(id)) } else { None }
            }
        }

        impl Wire for $name {
            fn encode(&self, to: &mut Encoder<'_>) {
                self.0.encode(to);
            }
            fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self(u32::decode(from)?))
            }
        })*
    };
}

ids! {
    /// A context (`CUcontext`).
    ContextId = 0xd1,
    /// A stream (`CUstream`) that the application created.
    StreamId = 0xd2,
    /// An event (`CUevent`).
    EventId = 0xd3,
    /// A module (`CUmodule`).
    ModuleId = 0xd4,
    /// A function of a module (`CUfunction`).
    FunctionId = 0xd5,
    /// A library (`CUlibrary`): a module not yet tied to a context.
    LibraryId = 0xd6,
    /// A kernel of a library (`CUkernel`).
    KernelId = 0xd7,
    /// A host callback that is waiting for its turn in a stream.
    CallbackId = 0xd8,
    /// A file the client filled for the server in the session's folder (a module image).
    UploadId = 0xd9,
    /// One `cuMemHostAlloc` allocation, and the file behind it.
    PinnedId = 0xda,
    /// A memory pool (`CUmemoryPool`).
    PoolId = 0xe1,
    /// Device memory without an address (`CUmemGenericAllocationHandle`).
    PhysicalId = 0xe2,
    /// A link of device code (`CUlinkState`), which is the client's own.
    LinkId = 0xe3,
    /// An executable graph (`CUgraphExec`).
    GraphExecId = 0xdb,
    /// A graph that conditions belong to, and that can be made executable once at a time.
    GraphTemplateId = 0xdc,
    /// An array (`CUarray`), or a level of a mipmapped one.
    ArrayId = 0xe4,
    /// A mipmapped array (`CUmipmappedArray`).
    MipmapId = 0xe5,
    /// A green context (`CUgreenCtx`). The context that it converts to and its default stream have the same number.
    GreenId = 0xe8,
    /// A description of multiprocessors for a green context (`CUdevResourceDesc`), which is the client's own.
    ResourceId = 0xe9,
}

impl ContextId {
    /// Of no context.
    pub const NONE: Self = Self(0);
}

impl StreamId {
    /// Whether it means something else on the wire.
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        self.0 == 0 || self.0 == u32::MAX
    }
}

/// Index of a GPU as the application counts them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Device(pub u32);

impl Wire for Device {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.0.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self(u32::decode(from)?))
    }
}

/// The stream argument of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    /// `NULL` or `CU_STREAM_LEGACY`: ordered with every blocking stream of its context.
    Legacy,
    /// `CU_STREAM_PER_THREAD`: the calling thread's own.
    PerThread,
    /// One the application created.
    Created(StreamId),
}

impl Wire for Stream {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Legacy => 0u32.encode(to),
            Self::PerThread => u32::MAX.encode(to),
            Self::Created(id) => id.encode(to),
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(match u32::decode(from)? {
            0 => Self::Legacy,
            u32::MAX => Self::PerThread,
            id => Self::Created(StreamId(id)),
        })
    }
}

/// The memory pool that a message means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pool {
    /// The default pool of a device, which is always there.
    Default(Device),
    /// One the application created.
    Created(PoolId),
}

impl Wire for Pool {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Default(device) => u64::from(device.0).encode(to),
            Self::Created(id) => id.handle().encode(to),
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let value = u64::decode(from)?;
        match (PoolId::from_handle(value), u32::try_from(value)) {
            (Some(id), _) => Ok(Self::Created(id)),
            (None, Ok(device)) => Ok(Self::Default(Device(device))),
            (None, Err(_)) => Err(DecodeError::Invalid { what: "pool", value }),
        }
    }
}

/// What a launch or an attribute call names: CUDA takes a `CUkernel` wherever it takes a `CUfunction`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Callee {
    /// A function of a module.
    Function(FunctionId),
    /// A kernel of a library, in the call's context.
    Kernel(KernelId),
}

impl Wire for Callee {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Function(id) => id.handle().encode(to),
            Self::Kernel(id) => id.handle().encode(to),
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let handle = u64::decode(from)?;
        FunctionId::from_handle(handle)
            .map(Self::Function)
            .or_else(|| KernelId::from_handle(handle).map(Self::Kernel))
            .ok_or(DecodeError::Invalid { what: "callee", value: handle })
    }
}
