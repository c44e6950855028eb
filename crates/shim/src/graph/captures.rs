//! Captures: which streams are in which, how far each has come, and what is refused meanwhile.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicU32, Ordering};

use ::graph::{Edge, EdgeData, GraphId, NodeId};
use cuda_abi::{CuError, CuResult, sys};
use wire::ContextId;

use super::captured::{Captured, Target, thread};
use super::{Destructor, Model, Work};

/// How many captures there are.
static ACTIVE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// `CUstreamCaptureMode` of this thread: global at first.
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Whether any stream is being captured.
#[inline]
pub fn capturing() -> bool {
    ACTIVE.load(Ordering::Relaxed) != 0
}

/// `CUstreamCaptureMode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Unsafe calls of every thread are refused.
    Global,
    /// Those of this thread are.
    ThreadLocal,
    /// None is.
    Relaxed,
}

impl Mode {
    /// From the application's number.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn new(mode: c_uint) -> CuResult<Self> {
        Ok(match mode {
            0 => Self::Global,
            1 => Self::ThreadLocal,
            2 => Self::Relaxed,
            _ => return Err(CuError::INVALID_VALUE),
        })
    }
}

/// Sets the calling thread's mode, and gives the one before.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn exchange_mode(mode: c_uint) -> CuResult<c_uint> {
    Ok(MODE.replace(Mode::new(mode)?) as c_uint)
}

/// What `cuStreamGetCaptureInfo` has told, kept as long as the capture: the application holds pointers to it.
#[derive(Default)]
pub struct Told {
    /// Nodes.
    pub nodes: Vec<sys::CUgraphNode>,
    /// Data of edges from them.
    pub data: Vec<sys::CUgraphEdgeData>,
}

// SAFETY: the handles in it are numbers that nobody follows.
unsafe impl Send for Told {}

/// A stream of a capture.
pub(super) struct Lane {
    /// What its next node waits for.
    pub(super) after: Vec<Edge>,
    /// Whether it is ordered with the legacy stream.
    pub(super) blocking: bool,
    pub(super) told: Told,
}

pub(super) struct Capture {
    pub(super) graph: GraphId,
    /// Whether the graph was there before.
    pub(super) into: bool,
    pub(super) mode: Mode,
    pub(super) thread: u64,
    pub(super) origin: Captured,
    pub(super) lanes: HashMap<Captured, Lane>,
    pub(super) valid: bool,
}

/// All captures.
#[derive(Default)]
pub struct Captures {
    pub(super) by_number: HashMap<u64, Capture>,
    pub(super) by_stream: HashMap<Captured, u64>,
    last: u64,
}

/// What is said of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It is not being captured.
    None,
    /// It is.
    Active(Target),
    /// It was, until something went wrong; the capture has to be ended.
    Invalidated,
}

impl Captures {
    pub(super) fn status(&self, stream: Captured) -> Status {
        let Some((capture, found)) =
            self.by_stream.get(&stream).and_then(|number| Some((*number, self.by_number.get(number)?)))
        else {
            return Status::None;
        };
        match found.valid {
            true => Status::Active(Target { stream, ctx: stream.ctx(), capture }),
            false => Status::Invalidated,
        }
    }

    pub(super) fn invalidate(&mut self, capture: u64) {
        if let Some(capture) = self.by_number.get_mut(&capture) {
            capture.valid = false;
        }
    }

    pub(super) fn lane(&mut self, target: Target) -> CuResult<&mut Lane> {
        let capture = self.by_number.get_mut(&target.capture).ok_or(CuError::STREAM_CAPTURE_INVALIDATED)?;
        capture.lanes.get_mut(&target.stream).ok_or(CuError::STREAM_CAPTURE_INVALIDATED)
    }

    pub(super) fn add(&mut self, target: Target, after: Vec<Edge>, blocking: bool) -> CuResult {
        let capture = self.by_number.get_mut(&target.capture).ok_or(CuError::STREAM_CAPTURE_INVALIDATED)?;
        capture.lanes.insert(target.stream, Lane { after, blocking, told: Told::default() });
        self.by_stream.insert(target.stream, target.capture);
        Ok(())
    }

    /// Begins a capture, and gives it a number.
    pub(super) fn begin(&mut self, capture: Capture) -> u64 {
        self.last += 1;
        self.by_number.insert(self.last, capture);
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        self.last
    }

    pub(super) fn end(&mut self, capture: u64) -> Option<Capture> {
        let ended = self.by_number.remove(&capture)?;
        self.by_stream.retain(|_, of| *of != capture);
        ACTIVE.fetch_sub(1, Ordering::Relaxed);
        Some(ended)
    }

    /// A capture in this context of a stream that is ordered with the legacy one.
    pub(super) fn implicit(&self, ctx: ContextId) -> Option<u64> {
        let is = |capture: &Capture| {
            capture.lanes.iter().any(|(stream, lane)| stream.ctx() == ctx && lane.blocking)
        };
        self.by_number.iter().find(|(_, capture)| is(capture)).map(|(number, _)| *number)
    }

    /// The captures that an unsafe call of this thread would break.
    pub(super) fn endangered(&self) -> Vec<u64> {
        let (mode, me) = (MODE.get(), thread());
        let is = |capture: &Capture| match mode {
            Mode::Relaxed => false,
            _ if capture.mode == Mode::Relaxed => false,
            _ if capture.thread == me => true,
            Mode::Global => capture.mode == Mode::Global,
            Mode::ThreadLocal => false,
        };
        self.by_number.iter().filter(|(_, capture)| is(capture)).map(|(number, _)| *number).collect()
    }
}

/// An edge behind a node.
pub fn behind(node: NodeId) -> Edge {
    Edge { node, data: EdgeData::default() }
}

/// Adds edges to a set.
pub(super) fn merge(into: &mut Vec<Edge>, more: &[Edge]) {
    for edge in more {
        if !into.iter().any(|known| known.node == edge.node) {
            into.push(*edge);
        }
    }
}

/// The port and the kind of an edge behind a kernel whose successor starts early: `cudaGraphKernelNodePortProgrammatic`.
const PROGRAMMATIC: EdgeData = EdgeData { from_port: 1, to_port: 0, kind: 1 };

impl Model {
    /// Ends a capture that has come to nothing, with the graph that it made; gives the destructors that are due.
    pub(super) fn abandon(&mut self, capture: u64) -> Vec<Destructor> {
        match self.captures.end(capture) {
            Some(ended) if !ended.into => self.destroy(ended.graph).unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// A context is gone, and with it the captures that began in it: nobody can end them any more.
    pub(super) fn end_of_context(&mut self, ctx: ContextId) -> Vec<Destructor> {
        let captures = self.captures.by_number.iter();
        let gone = captures.filter(|(_, capture)| capture.origin.ctx() == ctx).map(|(number, _)| *number);
        let gone: Vec<u64> = gone.collect();
        gone.into_iter().flat_map(|capture| self.abandon(capture)).collect()
    }

    /// Adds a node to a capture: behind what the stream has come to, and in its place.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`.
    pub(super) fn capture(&mut self, target: Target, work: Captive) -> CuResult<NodeId> {
        let graph = self.captures.by_number.get(&target.capture).map(|capture| capture.graph);
        let graph = graph.ok_or(CuError::STREAM_CAPTURE_INVALIDATED)?;
        // What cannot be a node leaves the stream where it was.
        let mut after = self.captures.lane(target)?.after.clone();
        // A node of the graph may have been removed since.
        after.retain(|edge| self.graphs.node(edge.node).is_ok());
        if let Captive::Early(_) = work
            && let [edge] = &mut *after
            && let Ok(Some(Work::Kernel(_))) = self.graphs.node(edge.node).map(|node| node.body.work())
        {
            edge.data = PROGRAMMATIC;
        }
        let node = match work {
            Captive::Work(work) | Captive::Early(work) => self.add(graph, &after, work)?,
            Captive::Child(child) => self.add_child(graph, &after, child, false)?,
        };
        self.captures.lane(target)?.after = vec![behind(node)];
        Ok(node)
    }
}

/// What is captured.
pub enum Captive {
    /// Work.
    Work(Work),
    /// A kernel that may start before the one before has ended.
    Early(Work),
    /// A graph.
    Child(GraphId),
}
