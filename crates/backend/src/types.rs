//! Handles and arguments of the [`Backend`](crate::Backend) trait.

use serde::{Deserialize, Serialize};
use wire::{CuError, LaunchValue};
pub use wire::{MemoryOperation, Until, Word};

/// Every block of device memory is a multiple of this many bytes, and so is its address (`cuMemGetAllocationGranularity`).
pub const BLOCK_GRANULARITY: u64 = 2 << 20;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name(pub u64);
    )*};
}

handles! {
    /// A backend's context.
    RawContext,
    /// A mapped block of device memory.
    RawBlock,
    /// Device memory without an address.
    RawPhysical,
    /// A loaded module.
    RawModule,
    /// A function of a loaded module.
    RawFunction,
    /// A stream.
    RawStream,
    /// An event.
    RawEvent,
    /// An executable graph.
    RawGraph,
    /// A graph that conditions belong to.
    RawTemplate,
    /// An array, or a level of a mipmapped one.
    RawArray,
    /// A mipmapped array.
    RawMipmap
}

/// An address range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Range {
    /// First address.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Range {
    /// The first address behind the range; ranges never wrap.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.base.saturating_add(self.bytes)
    }

    /// Whether `bytes` bytes at `address` lie inside.
    #[must_use]
    pub const fn contains(self, address: u64, bytes: u64) -> bool {
        address >= self.base && bytes <= self.bytes && address - self.base <= self.bytes - bytes
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}+{:#x}", self.base, self.bytes)
    }
}

/// What a device may do with mapped memory: a `CUmemAccess_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Access {
    /// Nothing.
    None = 0,
    /// Read it; the software device lets it be written too.
    Read = 1,
    /// Read and write it.
    ReadWrite = 3,
}

impl Access {
    /// By its number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::None, Self::Read, Self::ReadWrite].into_iter().find(|each| *each as u32 == number)
    }
}

/// The stream argument of a call. There is no `CU_STREAM_PER_THREAD` here: the server makes an ordinary blocking stream for
/// each application thread that uses one, so that any of its threads can ask for its state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamArg {
    /// `CU_STREAM_LEGACY` of the context.
    Legacy,
    /// One made by `stream_create`.
    Created(RawStream),
}

/// A kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// What to run.
    pub function: RawFunction,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// Where.
    pub stream: StreamArg,
    /// `CUlaunchAttributeID` and value.
    pub attributes: &'a [(u32, LaunchValue)],
    /// The parameter buffer.
    pub params: &'a [u8],
}

/// The attribute of a launch whose blocks are all on the device at a time (`CU_LAUNCH_ATTRIBUTE_COOPERATIVE`).
pub const COOPERATIVE: (u32, LaunchValue) = (2, {
    let mut value = [0; 64];
    value[0] = 1;
    LaunchValue(value)
});

/// One side of a pitched copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pitched {
    /// Where the first byte lies.
    pub address: u64,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Rows from a slice to the next.
    pub rows: u64,
}

/// A pitched copy: `depth` slices of `height` rows of `width` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy3D {
    /// To.
    pub dst: Pitched,
    /// From.
    pub src: Pitched,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

/// `height` rows of `width` elements of `element` bytes (1, 2 or 4) set to `value`, rows `pitch` bytes apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Where.
    pub dst: u64,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Bytes of an element: 1, 2 or 4.
    pub element: u8,
    /// The value, in the low bytes.
    pub value: u32,
    /// Elements of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

/// A host function in a stream; it is told the error the stream is in, if any.
pub type HostFunction = Box<dyn FnOnce(std::result::Result<(), CuError>) + Send>;

/// Something to be linked.
#[derive(Clone, Copy, Debug)]
pub struct LinkInput<'a> {
    /// `CUjitInputType`.
    pub kind: u32,
    /// For messages.
    pub name: &'a str,
    /// Its contents.
    pub data: &'a [u8],
}

/// What device code has become, and what the JIT says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled<T> {
    /// The module, or the image.
    pub code: T,
    /// The JIT's info log, which is mostly empty.
    pub info: String,
}

/// Why a module was not loaded: the driver's code, and a sentence that says what is missing and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadError {
    /// What the application is told.
    pub code: CuError,
    /// What the log is told: the JIT's error log, or for instance the architectures an image has and the flag to add.
    pub detail: String,
}

impl From<CuError> for LoadError {
    fn from(code: CuError) -> Self {
        Self { code, detail: String::new() }
    }
}
