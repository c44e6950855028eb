//! What an executable graph is made of.

use crate::{CopyBox, Fill, MemoryOperation, RawContext, RawEvent, RawFunction, RawTemplate, Result};
use std::ops::Range;
use std::sync::Arc;
use wire::{ConditionKind, LaunchValue};

/// A graph, its nodes in topological order, as [`wire::GraphPlan`] says.
#[derive(Clone, Debug, Default)]
pub struct GraphPlan {
    /// The nodes.
    pub nodes: Vec<GraphNode>,
    /// What the conditions of its conditional nodes belong to.
    pub template: Option<RawTemplate>,
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
    /// Copies between device memory, registered host memory and arrays, in a context.
    Copy(RawContext, CopyBox),
    /// Sets memory, in a context.
    Fill(RawContext, Fill),
    /// Runs a function of the host, at each launch; the graph goes on when it returns.
    Host(GraphFunction),
    /// Records an event.
    EventRecord(RawEvent),
    /// Waits for an event.
    EventWait(RawEvent),
    /// Reads and writes words of memory, in a context. Only addresses, values and what is waited for can be changed.
    Operations(RawContext, Vec<MemoryOperation>),
    /// Runs the nodes of a body, in a context. It cannot be changed.
    Conditional(RawContext, GraphConditional),
}

impl GraphWork {
    /// Whether a node with this work can become one with `other`: the kind of a node never changes, nor its kernel's context.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// A conditional node; the nodes of its bodies follow it.
#[derive(Clone, PartialEq, Debug)]
pub struct GraphConditional {
    /// What kernels know the condition by.
    pub handle: u64,
    /// What its value means.
    pub kind: ConditionKind,
    /// How many of the nodes behind it each body has.
    pub bodies: Vec<u32>,
}

impl GraphConditional {
    /// The nodes of each body, where the conditional node is number `at`.
    pub fn bodies(&self, at: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        self.bodies.iter().scan(at + 1, |next, count| {
            let begin = *next;
            *next = begin.saturating_add(*count as usize);
            Some(begin..*next)
        })
    }
}

/// Conditions, and the empty graphs that they belong to until one is made executable.
pub trait Conditions {
    /// An empty graph.
    fn template_create(&self, ctx: RawContext) -> Result<RawTemplate>;
    /// As `cuGraphConditionalHandleCreate`: what kernels of this context know the condition by. The device library chooses the value.
    /// Without `initial` nobody sets it at a launch.
    fn template_condition(&self, ctx: RawContext, template: RawTemplate, initial: Option<u32>)
    -> Result<u64>;
    /// Ends it, and its conditions with it when the executable graph made of it is gone too.
    fn template_destroy(&self, ctx: RawContext, template: RawTemplate) -> Result<()>;
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
pub struct GraphFunction(pub Arc<dyn Fn(Result<()>) + Send + Sync>);

impl std::fmt::Debug for GraphFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a host function")
    }
}
