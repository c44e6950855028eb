//! What an executable graph is made of.

use crate::{Copy3D, Fill, RawContext, RawEvent, RawFunction};
use std::sync::Arc;
use wire::{CuError, LaunchValue};

/// A graph, its nodes in topological order: a node waits only for nodes before it.
#[derive(Clone, Debug, Default)]
pub struct GraphPlan {
    /// The nodes.
    pub nodes: Vec<GraphNode>,
}

/// A node.
#[derive(Clone, Debug)]
pub struct GraphNode {
    /// What it does.
    pub work: GraphWork,
    /// What it waits for.
    pub after: Vec<wire::GraphEdge>,
}

/// What a node does.
#[derive(Clone, Debug)]
pub enum GraphWork {
    /// Nothing.
    Empty,
    /// Runs a kernel in a context.
    Kernel(RawContext, GraphKernel),
    /// Copies between device and registered host memory, in a context.
    Copy(RawContext, Copy3D),
    /// Sets memory, in a context.
    Fill(RawContext, Fill),
    /// Runs a function of the host, at each launch; the graph goes on when it returns.
    Host(GraphFunction),
    /// Records an event.
    EventRecord(RawEvent),
    /// Waits for an event.
    EventWait(RawEvent),
}

impl GraphWork {
    /// Whether a node with this work can become one with `other`: the kind of a node never changes, nor its kernel's context.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// A kernel node: a launch without a stream.
#[derive(Clone, PartialEq, Debug)]
pub struct GraphKernel {
    /// What to run.
    pub function: RawFunction,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// `CUlaunchAttributeID` and value.
    pub attributes: Vec<(u32, LaunchValue)>,
    /// The parameter buffer.
    pub params: Vec<u8>,
}

/// A host function that can run many times; it is told the error its stream is in, if any. It must call no backend function.
#[derive(Clone)]
pub struct GraphFunction(pub Arc<dyn Fn(Result<(), CuError>) + Send + Sync>);

impl std::fmt::Debug for GraphFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a host function")
    }
}
