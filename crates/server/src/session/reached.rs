//! What of managed memory the work of a message can reach.

use super::copies::{Shape, span};
use shadow::Range;
use wire::{CopySide, Request};

/// What a message's work can reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reached {
    /// No managed memory: it is no work, or work that touches no memory.
    Nothing,
    /// What the message names, and nothing else.
    Named(Vec<Range>),
    /// Whatever there are pointers to.
    Anything,
}

impl Reached {
    /// What `request` can reach.
    pub(crate) fn by(request: &Request) -> Self {
        let bytes = |base: u64, bytes: u64| Some(Range { base, bytes });
        let rows = |side: &wire::Pitched, shape: Shape| {
            span(side.pitch, side.rows, shape).map(|bytes| Range { base: side.address, bytes })
        };
        match request {
            // A kernel has pointers wherever it likes.
            Request::Launch(_) | Request::GraphLaunch(_) | Request::GraphUpload(_) => Self::Anything,

            Request::CopyFromInline(m) => Self::named([bytes(m.dst, m.data.0.len() as u64)]),
            Request::CopyFromSlot(m) => Self::named([bytes(m.dst, m.bytes.into())]),
            Request::CopyToInline(m) => Self::named([bytes(m.src, m.bytes.into())]),
            Request::CopyToSlot(m) => Self::named([bytes(m.src, m.bytes.into())]),
            Request::Copy(m) => Self::named([bytes(m.dst, m.bytes), bytes(m.src, m.bytes)]),
            Request::CopyWait(m) => Self::named([bytes(m.dst, m.bytes), bytes(m.src, m.bytes)]),
            Request::CopyPeer(m) => Self::named([bytes(m.dst, m.bytes), bytes(m.src, m.bytes)]),
            Request::Copy3D(m) => {
                Self::named([&m.dst, &m.src].map(|side| rows(side, (m.width, m.height, m.depth))))
            }
            Request::CopyRowsFromSlot(m) => Self::named([rows(&m.dst, (m.width, m.height, m.depth))]),
            Request::CopyRowsToSlot(m) => Self::named([rows(&m.src, (m.width, m.height, m.depth))]),
            Request::CopyBox(m) => Self::named([&m.dst, &m.src].into_iter().filter_map(|side| match side {
                CopySide::Memory(side) => Some(rows(side, (m.width, m.height, m.depth))),
                CopySide::Array(..) | CopySide::Slot(_) => None,
            })),
            Request::Fill(m) => {
                let row = m.width.checked_mul(m.element.into());
                let bytes = row.and_then(|row| span(m.pitch, 1, (row, m.height, 1)));
                Self::named([bytes.map(|bytes| Range { base: m.dst, bytes })])
            }
            Request::MemoryOperations(m) => {
                let words = m.operations.iter().filter_map(wire::MemoryOperation::word);
                Self::named(words.map(|word| bytes(word.address, word.bytes())))
            }

            Request::GetFacts(_)
            | Request::ContextCreate(_)
            | Request::ContextDestroy(_)
            | Request::ContextSynchronize(_)
            | Request::ContextGetLimit(_)
            | Request::ContextSetLimit(_)
            | Request::ContextSetCacheConfig(_)
            | Request::PeerAccess(_)
            | Request::CanAccessPeer(_)
            | Request::TakeOutput(_)
            | Request::Notice(_)
            | Request::MemAlloc(_)
            | Request::MemFree(_)
            | Request::Exclude(_)
            | Request::MemInfo(_)
            | Request::PinnedAlloc(_)
            | Request::PinnedFree(_)
            | Request::SlabFree(_)
            | Request::ManagedAlloc(_)
            | Request::ManagedKeep(_)
            | Request::ManagedLeave(_)
            | Request::ManagedHint(_)
            | Request::SlotWait(_)
            | Request::CopyToSlotWait(_)
            | Request::StreamCreate(_)
            | Request::StreamDestroy(_)
            | Request::StreamSynchronize(_)
            | Request::StreamQuery(_)
            | Request::StreamWaitEvent(_)
            | Request::StreamGetAttribute(_)
            | Request::StreamSetAttribute(_)
            | Request::EventCreate(_)
            | Request::EventDestroy(_)
            | Request::EventRecord(_)
            | Request::EventRecordNow(_)
            | Request::EventQuery(_)
            | Request::EventSynchronize(_)
            | Request::EventElapsed(_)
            | Request::ModuleLoad(_)
            | Request::ModuleUnload(_)
            | Request::ModuleGetFunction(_)
            | Request::ModuleGetGlobal(_)
            | Request::ModuleListFunctions(_)
            | Request::LibraryLoad(_)
            | Request::LibraryUnload(_)
            | Request::LibraryGetKernel(_)
            | Request::LibraryGetGlobal(_)
            | Request::LibraryListKernels(_)
            | Request::LibraryGetModule(_)
            | Request::LibraryManaged(_)
            | Request::LibraryBind(_)
            | Request::KernelGetFunction(_)
            | Request::FunctionGetAttribute(_)
            | Request::FunctionSetAttribute(_)
            | Request::FunctionSetCacheConfig(_)
            | Request::OccupancyBlocks(_)
            | Request::OccupancyShared(_)
            | Request::OccupancyClusters(_)
            // The processor runs it; what is behind it has been announced itself.
            | Request::HostFunction(_)
            | Request::PoolCreate(_)
            | Request::PoolDestroy(_)
            | Request::PoolTrim(_)
            | Request::PoolGetAttribute(_)
            | Request::PoolSetAttribute(_)
            | Request::MemAllocAsync(_)
            | Request::MemFreeAsync(_)
            | Request::GraphInstantiate(_)
            | Request::GraphUpdate(_)
            | Request::GraphNodeEnable(_)
            | Request::GraphExecDestroy(_)
            | Request::GraphRelease(_)
            | Request::GraphCondition(_)
            | Request::GraphTemplateDestroy(_)
            | Request::ArrayCreate(_)
            | Request::ArrayDestroy(_)
            | Request::MipmapCreate(_)
            | Request::MipmapLevel(_)
            | Request::MipmapDestroy(_)
            | Request::TextureCreate(_)
            | Request::TextureDestroy(_)
            | Request::SurfaceCreate(_)
            | Request::SurfaceDestroy(_)
            | Request::LinearTextureWidth(_)
            | Request::TensorMapEncode(_)
            | Request::AddressReserve(_)
            | Request::AddressFree(_)
            | Request::PhysicalCreate(_)
            | Request::PhysicalRelease(_)
            | Request::PhysicalRetain(_)
            | Request::PhysicalProperties(_)
            | Request::PhysicalExport(_)
            | Request::PhysicalImport(_)
            | Request::MemMap(_)
            | Request::MemUnmap(_)
            | Request::MemSetAccess(_)
            | Request::MemGetAccess(_)
            | Request::SmResource(_)
            | Request::SmResourceSplit(_)
            | Request::GreenCreate(_)
            | Request::GreenDestroy(_)
            | Request::GreenStreamCreate(_)
            | Request::ContextRecordEvent(_)
            | Request::ContextWaitEvent(_)
            | Request::Link(_)
            | Request::IpcGetMem(_)
            | Request::IpcOpenMem(_)
            | Request::IpcCloseMem(_)
            | Request::IpcGetEvent(_)
            | Request::IpcOpenEvent(_)
            | Request::HostRegister(_)
            | Request::HostUnregister(_) => Self::Nothing,
        }
    }

    /// Where the end of a range is not known it is refused; before that nothing is said of it.
    fn named(ranges: impl IntoIterator<Item = Option<Range>>) -> Self {
        let ranges: Option<Vec<Range>> = ranges.into_iter().collect();
        ranges.map_or(Self::Anything, Self::Named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{ArrayId, ContextId, MemoryOperation, Pitched, Stream, Word};

    const CTX: ContextId = ContextId(1);
    const STREAM: Stream = Stream::Legacy;

    fn named(request: Request) -> Vec<(u64, u64)> {
        match Reached::by(&request) {
            Reached::Named(ranges) => ranges.iter().map(|range| (range.base, range.bytes)).collect(),
            other => panic!("{request:?} reaches {other:?}"),
        }
    }

    #[test]
    fn a_copy_reaches_both_its_sides_from_the_first_byte_to_the_last() {
        let copy = wire::Copy { ctx: CTX, stream: STREAM, dst: 0x1000, src: 0x9000, bytes: 48 };
        assert_eq!(named(Request::Copy(copy)), [(0x1000, 48), (0x9000, 48)]);
        let side = |address| Pitched { address, pitch: 100, rows: 10 };
        let (dst, src, width, height, depth) = (side(0x1000), side(0x9000), 7, 3, 2);
        let copy = wire::Copy3D { ctx: CTX, stream: STREAM, dst, src, width, height, depth };
        assert_eq!(named(Request::Copy3D(copy)), [(0x1000, 1207), (0x9000, 1207)]);
        let (dst, src) = (CopySide::Array(ArrayId(3), [0; 3]), CopySide::Memory(src));
        let copy = wire::CopyBox { ctx: CTX, stream: STREAM, dst, src, width, height, depth };
        assert_eq!(named(Request::CopyBox(copy)), [(0x9000, 1207)]);
        let (pitch, element, value, width, height) = (64, 4, 7, 5, 3);
        let fill = wire::Fill { ctx: CTX, stream: STREAM, dst: 0x1000, pitch, element, value, width, height };
        assert_eq!(named(Request::Fill(fill)), [(0x1000, 148)]);
    }

    #[test]
    fn operations_reach_their_words() {
        let word = |address, wide| MemoryOperation::Write { word: Word { address, value: 1, wide } };
        let operations =
            vec![word(0x1000, false), MemoryOperation::Barrier { gpu: true }, word(0x2000, true)];
        let operations = wire::MemoryOperations { ctx: CTX, stream: STREAM, operations };
        assert_eq!(named(Request::MemoryOperations(operations)), [(0x1000, 4), (0x2000, 8)]);
    }

    #[test]
    fn what_ends_nowhere_reaches_anything() {
        let (pitch, element, value, width, height) = (u64::MAX, 4, 7, 5, 3);
        let fill = wire::Fill { ctx: CTX, stream: STREAM, dst: 0x1000, pitch, element, value, width, height };
        assert_eq!(Reached::by(&Request::Fill(fill)), Reached::Anything);
        let nothing = wire::StreamSynchronize { ctx: CTX, stream: STREAM };
        assert_eq!(Reached::by(&Request::StreamSynchronize(nothing)), Reached::Nothing);
    }
}
