//! Executable graphs: what a server is told of one. A plan's nodes are in an order in which they can run: a node waits only for
//! nodes before it, so no plan has a cycle.

use crate::arrays::CopySide;
use crate::codec::{Bytes, DecodeError, Decoder, Encoder, Wire};
use crate::ids::{CallbackId, Callee, ContextId, EventId, UploadId};
use crate::memory_operation::MemoryOperation;
use crate::messages::LaunchValue;

/// The most bytes of a plan that a message carries itself; a longer one travels in an uploaded file.
pub const GRAPH_INLINE_MAX: usize = 128 << 10;

/// A graph, its nodes in topological order. The nodes of a conditional node's bodies follow it, all of the first body before those
/// of the second; nobody outside of a body waits for a node inside, nor the other way round.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GraphPlan {
    /// The nodes.
    pub nodes: Vec<GraphNode>,
}

/// How deep conditional nodes can stand in each other's bodies.
pub const GRAPH_DEPTH_MAX: usize = 32;

impl GraphPlan {
    /// The first node behind `node` and the bodies that it decides about.
    #[must_use]
    pub fn behind(&self, node: usize) -> usize {
        let bodies = match self.nodes.get(node).map(|node| &node.work) {
            Some(GraphWork::Conditional(conditional)) => conditional.bodies.as_slice(),
            _ => &[],
        };
        bodies.iter().fold(node + 1, |end, body| end.saturating_add(*body as usize))
    }

    /// Whether each node waits only for nodes before it in the body that it is in, and every body ends inside of the one around it.
    fn check(&self) -> Result<(), DecodeError> {
        #[derive(Clone, Copy)]
        struct Body {
            number: usize,
            end: usize,
            depth: usize,
        }
        let mut open = vec![Body { number: 0, end: self.nodes.len(), depth: 0 }];
        let mut of_node = Vec::with_capacity(self.nodes.len());
        let mut count = 0;
        for (index, node) in self.nodes.iter().enumerate() {
            open.truncate(open.iter().rposition(|body| body.end > index).map_or(1, |last| last + 1));
            let Body { number, end, depth } = open[open.len() - 1];
            let is_before = |edge: &&GraphEdge| of_node.get(edge.from as usize) != Some(&number);
            if let Some(edge) = node.after.iter().find(is_before) {
                return Err(DecodeError::Invalid { what: "dependency", value: edge.from.into() });
            }
            of_node.push(number);
            let GraphWork::Conditional(conditional) = &node.work else { continue };
            let bodies = conditional.bodies.len();
            if !conditional.kind.takes(bodies) || self.behind(index) > end || depth == GRAPH_DEPTH_MAX {
                return Err(DecodeError::Invalid { what: "conditional node", value: bodies as u64 });
            }
            let mut end = self.behind(index);
            for body in conditional.bodies.iter().rev() {
                count += 1;
                open.push(Body { number: count, end, depth: depth + 1 });
                end -= *body as usize;
            }
        }
        Ok(())
    }
}

/// A node of a plan.
#[derive(Clone, PartialEq, Debug)]
pub struct GraphNode {
    /// What it does.
    pub work: GraphWork,
    /// What it waits for.
    pub after: Vec<GraphEdge>,
}

/// A dependency of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphEdge {
    /// Index of the node that is waited for.
    pub from: u32,
    /// As in `CUgraphEdgeData`.
    pub from_port: u8,
    /// As in `CUgraphEdgeData`.
    pub to_port: u8,
    /// `CUgraphDependencyType`.
    pub kind: u8,
}

/// What a node of a plan does.
#[derive(Clone, PartialEq, Debug)]
pub enum GraphWork {
    /// Nothing.
    Empty,
    /// Runs a kernel.
    Kernel(GraphKernel),
    /// Copies between device memory, pinned memory and arrays.
    Copy(GraphCopy),
    /// Sets memory.
    Fill(GraphFill),
    /// Runs a callback of the application's.
    Host(CallbackId),
    /// Records an event.
    EventRecord(EventId),
    /// Waits for an event.
    EventWait(EventId),
    /// Reads and writes words of memory.
    Operations(GraphOperations),
    /// Runs the nodes of a body, as a value says.
    Conditional(GraphConditional),
}

/// `CUgraphConditionalNodeType`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConditionKind {
    /// The first body if the value is not 0, else the second, if there is one.
    If,
    /// The body as long as the value is not 0.
    While,
    /// The body whose number the value is, if there is one.
    Switch,
}

impl ConditionKind {
    /// By its number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::If, Self::While, Self::Switch].into_iter().find(|each| *each as u32 == number)
    }

    /// Whether a node of this kind can have so many bodies.
    #[must_use]
    pub fn takes(self, bodies: usize) -> bool {
        match self {
            Self::If => bodies == 1 || bodies == 2,
            Self::While => bodies == 1,
            Self::Switch => bodies >= 1,
        }
    }
}

impl Wire for ConditionKind {
    fn encode(&self, to: &mut Encoder<'_>) {
        (*self as u8).encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let number = u8::decode(from)?;
        let kind = Self::from_number(number.into());
        kind.ok_or(DecodeError::Invalid { what: "kind of condition", value: number.into() })
    }
}

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        // Fields are named as the messages' are.
        #[allow(missing_docs)]
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name { $(pub $field: $ty),* }
        impl Wire for $name {
            fn encode(&self, to: &mut Encoder<'_>) {
                $(self.$field.encode(to);)*
            }
            fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self { $($field: Wire::decode(from)?),* })
            }
        }
    )*};
}

records! {
    /// A kernel node; fields as in [`crate::Launch`].
    GraphKernel {
        ctx: ContextId,
        callee: Callee,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        attributes: Vec<(u32, LaunchValue)>,
        params: Bytes,
    }
    /// A copy node; fields as in [`crate::CopyBox`], but that no side is a slot.
    GraphCopy { ctx: ContextId, dst: CopySide, src: CopySide, width: u64, height: u64, depth: u64 }
    /// A node that sets memory; fields as in [`crate::Fill`].
    GraphFill { ctx: ContextId, dst: u64, pitch: u64, element: u8, value: u32, width: u64, height: u64 }
    /// Operations on words of memory; fields as in [`crate::MemoryOperations`].
    GraphOperations { ctx: ContextId, operations: Vec<MemoryOperation> }
    /// A conditional node: the handle of its condition, and how many of the nodes behind it each body has.
    GraphConditional { ctx: ContextId, handle: u64, kind: ConditionKind, bodies: Vec<u32> }
    /// New work for a node of an executable graph.
    GraphChange { node: u32, work: GraphWork }
}

impl Wire for GraphEdge {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.from.encode(to);
        [self.from_port, self.to_port, self.kind].encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let node = u32::decode(from)?;
        let [from_port, to_port, kind] = Wire::decode(from)?;
        Ok(Self { from: node, from_port, to_port, kind })
    }
}

impl Wire for GraphWork {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Empty => 0u8.encode(to),
            Self::Kernel(kernel) => {
                1u8.encode(to);
                kernel.encode(to);
            }
            Self::Copy(copy) => {
                2u8.encode(to);
                copy.encode(to);
            }
            Self::Fill(fill) => {
                3u8.encode(to);
                fill.encode(to);
            }
            Self::Host(callback) => {
                4u8.encode(to);
                callback.encode(to);
            }
            Self::EventRecord(event) => {
                5u8.encode(to);
                event.encode(to);
            }
            Self::EventWait(event) => {
                6u8.encode(to);
                event.encode(to);
            }
            Self::Operations(operations) => {
                7u8.encode(to);
                operations.encode(to);
            }
            Self::Conditional(conditional) => {
                8u8.encode(to);
                conditional.encode(to);
            }
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(match u8::decode(from)? {
            0 => Self::Empty,
            1 => Self::Kernel(Wire::decode(from)?),
            2 => Self::Copy(Wire::decode(from)?),
            3 => Self::Fill(Wire::decode(from)?),
            4 => Self::Host(Wire::decode(from)?),
            5 => Self::EventRecord(Wire::decode(from)?),
            6 => Self::EventWait(Wire::decode(from)?),
            7 => Self::Operations(Wire::decode(from)?),
            8 => Self::Conditional(Wire::decode(from)?),
            other => return Err(DecodeError::Invalid { what: "node of a graph", value: other.into() }),
        })
    }
}

impl Wire for GraphNode {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.work.encode(to);
        self.after.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { work: Wire::decode(from)?, after: Wire::decode(from)? })
    }
}

impl Wire for GraphPlan {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.nodes.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let plan = Self { nodes: Wire::decode(from)? };
        plan.check()?;
        Ok(plan)
    }
}

/// An encoded plan, or encoded changes to one: in the message, or in a file of the session's folder.
#[derive(Clone, PartialEq, Debug)]
pub enum GraphData {
    /// The bytes, at most [`GRAPH_INLINE_MAX`] of them.
    Inline(Bytes),
    /// The file `upload-<id>`, which the server takes and removes.
    Upload(UploadId),
}

impl Wire for GraphData {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Inline(bytes) => {
                false.encode(to);
                bytes.encode(to);
            }
            Self::Upload(id) => {
                true.encode(to);
                id.encode(to);
            }
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::decode(from)? {
            Self::Upload(Wire::decode(from)?)
        } else {
            Self::Inline(Wire::decode(from)?)
        })
    }
}
