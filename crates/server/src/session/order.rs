//! The order between rings. A message names how far each other ring had come when it was submitted; it runs when all that
//! has been executed, or when what is left of it there touches nothing in common with it.

use super::wait::Backoff;
use super::{Caller, Session};
use crate::objects::{StreamKey, Table};
use crate::read;
use std::time::{Duration, Instant};
use transport::{Dependency, TransportError};
use wire::{ContextId, EventId, GraphExecId, Request, Stream as StreamName};

/// How long a message waits for another ring before it looks whether it has to.
const PATIENCE: Duration = Duration::from_micros(100);

/// How long a message waits for a stream that does not get on.
const STALL: Duration = Duration::from_secs(1);

/// What work in a stream names beside the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Named {
    /// An event.
    Event(EventId),
    /// An executable graph: its launches are in order with one another, in whichever streams.
    Graph(GraphExecId),
}

/// What a message touches, as far as the order of calls can be seen from outside.
#[derive(Clone, Debug)]
pub(super) enum Footprint {
    /// Nothing that a pipelined call changes.
    Nothing,
    /// Work in a stream, and what makes or ends it; with an event or a graph, if any.
    Stream(StreamKey, ContextId, Option<Named>),
    /// An event.
    Event(EventId),
    /// Two events.
    Events(EventId, EventId),
    /// Everything of a context: its memory, its code, all its streams.
    Context(ContextId),
    /// Everything.
    Session,
}

impl Footprint {
    /// What `request` of ring `ring` touches.
    pub(super) fn of(request: &Request, ring: u16) -> Self {
        let work =
            |ctx: ContextId, stream: StreamName| Self::Stream(StreamKey::new(ctx, stream, ring), ctx, None);
        let with = |ctx: ContextId, stream: StreamName, named: Named| {
            Self::Stream(StreamKey::new(ctx, stream, ring), ctx, Some(named))
        };
        match request {
            Request::GetFacts(_)
            | Request::CanAccessPeer(_)
            | Request::TakeOutput(_)
            | Request::Notice(_)
            | Request::SlotWait(_)
            | Request::CopyToSlotWait(_)
            | Request::LibraryListKernels(_)
            | Request::ModuleListFunctions(_)
            | Request::PoolCreate(_)
            | Request::AddressReserve(_)
            | Request::Link(_)
            | Request::PhysicalCreate(_)
            | Request::PhysicalRelease(_)
            | Request::PhysicalRetain(_)
            | Request::PhysicalProperties(_)
            | Request::PhysicalExport(_)
            | Request::PhysicalImport(_)
            | Request::MemMap(_)
            | Request::MemGetAccess(_)
            | Request::PoolTrim(_)
            | Request::PoolGetAttribute(_)
            | Request::PoolSetAttribute(_)
            | Request::LibraryLoad(_)
            | Request::LibraryManaged(_)
            | Request::ManagedHint(_)
            | Request::LibraryBind(_)
            | Request::LinearTextureWidth(_)
            | Request::SmResource(_)
            | Request::SmResourceSplit(_)
            | Request::TensorMapEncode(_) => Self::Nothing,

            Request::ContextCreate(m) => Self::Context(m.ctx),
            Request::ContextDestroy(m) => Self::Context(m.ctx),
            Request::ContextSynchronize(m) => Self::Context(m.ctx),
            Request::ContextGetLimit(m) => Self::Context(m.ctx),
            Request::ContextSetLimit(m) => Self::Context(m.ctx),
            Request::ContextSetCacheConfig(m) => Self::Context(m.ctx),
            Request::GreenCreate(m) => Self::Context(m.ctx),
            Request::MemAlloc(m) => Self::Context(m.ctx),
            Request::IpcOpenMem(m) => Self::Context(m.ctx),
            Request::MemInfo(m) => Self::Context(m.ctx),
            Request::PinnedAlloc(m) => Self::Context(m.ctx),
            Request::ManagedAlloc(m) => Self::Context(m.ctx),
            Request::HostRegister(m) => Self::Context(m.ctx),
            Request::ModuleLoad(m) => Self::Context(m.ctx),
            Request::LibraryGetKernel(m) => Self::Context(m.ctx),
            Request::LibraryGetGlobal(m) => Self::Context(m.ctx),
            Request::LibraryGetModule(m) => Self::Context(m.ctx),
            Request::KernelGetFunction(m) => Self::Context(m.ctx),
            Request::FunctionGetAttribute(m) => Self::Context(m.ctx),
            Request::FunctionSetAttribute(m) => Self::Context(m.ctx),
            Request::FunctionSetCacheConfig(m) => Self::Context(m.ctx),
            Request::OccupancyBlocks(m) => Self::Context(m.ctx),
            Request::OccupancyShared(m) => Self::Context(m.ctx),
            Request::OccupancyClusters(m) => Self::Context(m.config.ctx),
            // The data has left the application when the call returns, and who is told may use it in any stream.
            Request::CopyFromInline(m) => Self::Context(m.ctx),
            Request::CopyFromSlot(m) => Self::Context(m.ctx),
            Request::CopyRowsFromSlot(m) => Self::Context(m.ctx),
            Request::CopyBox(m) if matches!(m.src, wire::CopySide::Slot(_)) => Self::Context(m.ctx),
            Request::ArrayCreate(m) => Self::Context(m.ctx),
            Request::MipmapCreate(m) => Self::Context(m.ctx),
            Request::TextureCreate(m) => Self::Context(m.ctx),
            Request::TextureDestroy(m) => Self::Context(m.ctx),
            Request::SurfaceCreate(m) => Self::Context(m.ctx),
            Request::SurfaceDestroy(m) => Self::Context(m.ctx),

            // They name no context, or two.
            Request::PeerAccess(_)
            | Request::MemFree(_)
            | Request::Exclude(_)
            | Request::PinnedFree(_)
            | Request::SlabFree(_)
            | Request::ManagedKeep(_)
            | Request::ManagedLeave(_)
            | Request::PoolDestroy(_)
            | Request::AddressFree(_)
            | Request::IpcGetMem(_)
            | Request::IpcCloseMem(_)
            | Request::HostUnregister(_)
            | Request::MemUnmap(_)
            | Request::MemSetAccess(_)
            | Request::CopyPeer(_)
            | Request::ModuleUnload(_)
            | Request::ModuleGetFunction(_)
            | Request::ModuleGetGlobal(_)
            | Request::LibraryUnload(_)
            | Request::GreenDestroy(_)
            | Request::GreenStreamCreate(_)
            | Request::ContextRecordEvent(_)
            | Request::ContextWaitEvent(_)
            | Request::ArrayDestroy(_)
            | Request::MipmapLevel(_)
            | Request::MipmapDestroy(_) => Self::Session,

            // They change what a launch of another thread is.
            Request::GraphInstantiate(_)
            | Request::GraphUpdate(_)
            | Request::GraphNodeEnable(_)
            | Request::GraphRelease(_)
            | Request::GraphExecDestroy(_)
            | Request::GraphTemplateDestroy(_) => Self::Session,
            Request::GraphCondition(m) => Self::Context(m.ctx),
            Request::GraphLaunch(m) if m.wide => Self::Session,
            Request::GraphLaunch(m) => with(m.ctx, m.stream, Named::Graph(m.exec)),
            Request::GraphUpload(m) => with(m.ctx, m.stream, Named::Graph(m.exec)),

            Request::CopyToInline(m) => work(m.ctx, m.stream),
            Request::CopyToSlot(m) => work(m.ctx, m.stream),
            Request::CopyRowsToSlot(m) => work(m.ctx, m.stream),
            Request::Copy(m) => work(m.ctx, m.stream),
            Request::CopyWait(m) => work(m.ctx, m.stream),
            Request::Copy3D(m) => work(m.ctx, m.stream),
            Request::CopyBox(m) => work(m.ctx, m.stream),
            Request::Fill(m) => work(m.ctx, m.stream),
            Request::StreamCreate(m) => work(m.ctx, StreamName::Created(m.stream)),
            Request::StreamDestroy(_) => Self::Session,
            Request::StreamSynchronize(m) => work(m.ctx, m.stream),
            Request::StreamQuery(m) => work(m.ctx, m.stream),
            Request::StreamGetAttribute(m) => work(m.ctx, m.stream),
            Request::StreamSetAttribute(m) => work(m.ctx, m.stream),
            Request::Launch(m) => work(m.ctx, m.stream),
            Request::HostFunction(m) => work(m.ctx, m.stream),
            Request::MemAllocAsync(m) => work(m.ctx, m.stream),
            Request::MemFreeAsync(m) => work(m.ctx, m.stream),
            Request::MemoryOperations(m) => work(m.ctx, m.stream),

            Request::StreamWaitEvent(m) => with(m.ctx, m.stream, Named::Event(m.event)),
            Request::EventRecord(m) => with(m.ctx, m.stream, Named::Event(m.event)),
            Request::EventRecordNow(m) => with(m.ctx, m.stream, Named::Event(m.event)),
            Request::IpcGetEvent(m) => Self::Event(m.event),
            Request::IpcOpenEvent(m) => Self::Event(m.event),
            Request::EventCreate(m) => Self::Event(m.event),
            Request::EventDestroy(m) => Self::Event(m.event),
            Request::EventQuery(m) => Self::Event(m.event),
            Request::EventSynchronize(m) => Self::Event(m.event),
            Request::EventElapsed(m) => Self::Events(m.start, m.end),
        }
    }

    /// The work that `request` gives, or waits for: less than what it touches.
    pub(super) fn of_work(request: &Request, ring: u16) -> Self {
        let work =
            |ctx: ContextId, stream: StreamName| Self::Stream(StreamKey::new(ctx, stream, ring), ctx, None);
        match request {
            Request::CopyFromInline(m) => work(m.ctx, m.stream),
            Request::CopyFromSlot(m) => work(m.ctx, m.stream),
            Request::CopyRowsFromSlot(m) => work(m.ctx, m.stream),
            Request::CopyBox(m) => work(m.ctx, m.stream),
            // Its context does not matter: no other stream does.
            Request::StreamDestroy(m) => {
                Self::Stream(StreamKey::Created(m.stream), ContextId(u32::MAX), None)
            }
            // It tells whether there is work; others wait for none.
            Request::StreamQuery(_)
            | Request::StreamGetAttribute(_)
            | Request::StreamSetAttribute(_)
            | Request::HostRegister(_)
            | Request::FunctionSetAttribute(_)
            | Request::FunctionSetCacheConfig(_)
            | Request::GreenStreamCreate(_)
            | Request::IpcGetMem(_)
            | Request::Exclude(_)
            | Request::GraphExecDestroy(_)
            | Request::GraphTemplateDestroy(_)
            | Request::ContextCreate(_)
            | Request::ContextGetLimit(_)
            | Request::MemAlloc(_)
            | Request::MemInfo(_)
            | Request::PinnedAlloc(_)
            | Request::ManagedAlloc(_)
            | Request::ModuleLoad(_)
            | Request::ModuleGetFunction(_)
            | Request::ModuleGetGlobal(_)
            | Request::LibraryGetKernel(_)
            | Request::LibraryGetGlobal(_)
            | Request::LibraryGetModule(_)
            | Request::KernelGetFunction(_)
            | Request::FunctionGetAttribute(_)
            | Request::OccupancyBlocks(_)
            | Request::OccupancyShared(_)
            | Request::OccupancyClusters(_)
            | Request::ArrayCreate(_)
            | Request::MipmapCreate(_)
            | Request::MipmapLevel(_)
            | Request::TextureCreate(_)
            | Request::SurfaceCreate(_)
            | Request::StreamCreate(_)
            | Request::GraphInstantiate(_)
            | Request::GraphUpdate(_)
            | Request::GraphNodeEnable(_)
            | Request::GraphCondition(_)
            | Request::EventCreate(_)
            | Request::EventQuery(_) => Self::Nothing,
            other => Self::of(other, ring),
        }
    }

    fn named(&self) -> [Option<Named>; 2] {
        match self {
            Self::Stream(_, _, named) => [*named, None],
            Self::Event(event) => [Some(Named::Event(*event)), None],
            Self::Events(start, end) => [start, end].map(|event| Some(Named::Event(*event))),
            Self::Nothing | Self::Context(_) | Self::Session => [None, None],
        }
    }

    /// Whether the order of two messages can be seen. An event's context is not known from its id alone, so work on a
    /// whole context is in order with every event.
    pub(super) fn conflicts(&self, other: &Self, table: &Table) -> bool {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Nothing) => false,
            (Self::Session, _) | (_, Self::Session) => true,
            (Self::Context(a), Self::Context(b) | Self::Stream(_, b, _))
            | (Self::Stream(_, a, _), Self::Context(b)) => a == b,
            (Self::Context(_), Self::Event(_) | Self::Events(..))
            | (Self::Event(_) | Self::Events(..), Self::Context(_)) => true,
            (Self::Stream(a, ctx_a, _), Self::Stream(b, ctx_b, _)) => {
                a == b || (ctx_a == ctx_b && serialised(a, b, table)) || shares(&self.named(), &other.named())
            }
            (Self::Event(_) | Self::Events(..) | Self::Stream(..), _) => {
                shares(&self.named(), &other.named())
            }
        }
    }
}

/// Whether the legacy stream puts two streams of a context in order.
fn serialised(a: &StreamKey, b: &StreamKey, table: &Table) -> bool {
    let legacy = |key: &StreamKey| matches!(key, StreamKey::Legacy(_));
    // A stream that is not made yet may become a blocking one.
    let blocking = |key: &StreamKey| table.streams.get(key).is_none_or(|stream| !stream.is_non_blocking());
    (legacy(a) && blocking(b)) || (legacy(b) && blocking(a))
}

fn shares(a: &[Option<Named>; 2], b: &[Option<Named>; 2]) -> bool {
    a.iter().flatten().any(|named| b.contains(&Some(*named)))
}

impl Session {
    /// Waits until a message of ring `ring` may run; false when the session ends first.
    pub(super) fn await_turn(
        &self,
        request: &Request,
        ring: u16,
        dependencies: &[Dependency],
    ) -> Result<bool, TransportError> {
        for dependency in dependencies {
            let begun = Instant::now();
            let mut backoff = Backoff::new();
            let mut footprint = None;
            while !self.link.is_done(*dependency)? {
                if self.is_ending() {
                    return Ok(false);
                }
                if begun.elapsed() > PATIENCE {
                    let ours = footprint.get_or_insert_with(|| Footprint::of(request, ring));
                    if !self.conflicts_with_pending(ours, *dependency)? {
                        break;
                    }
                }
                backoff.pause();
            }
        }
        Ok(true)
    }

    /// Waits until the stream that `request` gives work to is not too far ahead of its device; outside of the gate, which
    /// closes meanwhile. False when the session ends first.
    pub(super) fn await_room(&self, request: &Request, caller: &mut Caller) -> bool {
        if !request.is_pipelined() {
            return true;
        }
        let key = match (Footprint::of(request, caller.number()), request) {
            (Footprint::Stream(key, ..), _) => key,
            (_, Request::GraphLaunch(m)) => StreamKey::new(m.ctx, m.stream, caller.number()),
            _ => return true,
        };
        self.await_room_in(key, caller)
    }

    /// The same, for work in a stream.
    pub(super) fn await_room_in(&self, key: StreamKey, caller: &mut Caller) -> bool {
        let Some(stream) = self.known_stream(caller, key) else { return true };
        if !stream.is_full() {
            caller.recent.found = Some((key, stream));
            return true;
        }
        let begun = Instant::now();
        let mut backoff = Backoff::new();
        while stream.is_full() {
            if self.is_ending() {
                return false;
            }
            // The device may be waiting for what comes after this message.
            if begun.elapsed() > STALL {
                stream.let_through();
            }
            backoff.pause();
        }
        true
    }

    fn conflicts_with_pending(
        &self,
        ours: &Footprint,
        dependency: Dependency,
    ) -> Result<bool, TransportError> {
        let table = read(&self.table);
        self.link.any_pending(dependency, |opcode, body| match Request::decode(opcode, body) {
            Ok(theirs) => ours.conflicts(&Footprint::of(&theirs, dependency.ring), &table),
            // Its own ring's thread deals with it.
            Err(_) => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::StreamId;

    fn stream(ctx: u32, name: StreamName) -> Footprint {
        let ctx = ContextId(ctx);
        Footprint::Stream(StreamKey::new(ctx, name, 0), ctx, None)
    }

    /// Launches of one graph by two threads, each in a stream of its own that is ordered with nothing.
    #[test]
    fn launches_of_one_graph_are_in_order() {
        let table = Table::default();
        let launch = |stream, exec| {
            let (stream, exec) = (StreamName::Created(StreamId(stream)), GraphExecId(exec));
            wire::GraphLaunch { ctx: ContextId(1), stream, exec, wide: false }
        };
        let upload = wire::GraphUpload {
            ctx: ContextId(2),
            stream: StreamName::Created(StreamId(7)),
            exec: GraphExecId(3),
        };
        let one = Footprint::of(&Request::GraphLaunch(launch(5, 3)), 0);
        for (other, expected) in [
            (Request::GraphLaunch(launch(6, 3)), true),
            (Request::GraphUpload(upload), true),
            (Request::GraphLaunch(launch(6, 4)), false),
        ] {
            assert_eq!(one.conflicts(&Footprint::of(&other, 1), &table), expected, "{other:?}");
        }
    }

    #[test]
    fn only_what_can_be_seen_is_in_order() {
        let table = Table::default();
        let one = stream(1, StreamName::Created(StreamId(5)));
        let two = stream(1, StreamName::Created(StreamId(6)));
        let legacy = stream(1, StreamName::Legacy);
        let elsewhere = stream(2, StreamName::Legacy);
        let event = Footprint::Event(EventId(9));
        let recorded =
            Footprint::Stream(StreamKey::Created(StreamId(5)), ContextId(1), Some(Named::Event(EventId(9))));
        let cases = [
            (&one, &one, true),
            (&one, &two, false),
            (&one, &legacy, true),
            (&one, &elsewhere, false),
            (&recorded, &event, true),
            (&one, &event, false),
            (&Footprint::Context(ContextId(1)), &one, true),
            (&Footprint::Context(ContextId(1)), &elsewhere, false),
            (&Footprint::Context(ContextId(1)), &event, true),
            (&Footprint::Session, &event, true),
            (&Footprint::Nothing, &Footprint::Session, false),
        ];
        for (a, b, expected) in cases {
            assert_eq!(a.conflicts(b, &table), expected, "{a:?} {b:?}");
            assert_eq!(b.conflicts(a, &table), expected, "{b:?} {a:?}");
        }
    }
}
