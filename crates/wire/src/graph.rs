//! Executable graphs: what a server is told of one. A plan's nodes are in an order in which they can run: a node waits only for
//! nodes before it, so no plan has a cycle.

use crate::codec::{Bytes, DecodeError, Decoder, Encoder, Wire};
use crate::ids::{CallbackId, Callee, ContextId, EventId, UploadId};
use crate::messages::{LaunchValue, Pitched};

/// The most bytes of a plan that a message carries itself; a longer one travels in an uploaded file.
pub const GRAPH_INLINE_MAX: usize = 128 << 10;

/// A graph, its nodes in topological order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GraphPlan {
    /// The nodes.
    pub nodes: Vec<GraphNode>,
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
    /// Copies between device and pinned memory.
    Copy(GraphCopy),
    /// Sets memory.
    Fill(GraphFill),
    /// Runs a callback of the application's.
    Host(CallbackId),
    /// Records an event.
    EventRecord(EventId),
    /// Waits for an event.
    EventWait(EventId),
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
    /// A copy node; fields as in [`crate::Copy3D`].
    GraphCopy { ctx: ContextId, dst: Pitched, src: Pitched, width: u64, height: u64, depth: u64 }
    /// A node that sets memory; fields as in [`crate::Fill`].
    GraphFill { ctx: ContextId, dst: u64, pitch: u64, element: u8, value: u32, width: u64, height: u64 }
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
        let nodes: Vec<GraphNode> = Wire::decode(from)?;
        for (index, node) in nodes.iter().enumerate() {
            if let Some(edge) = node.after.iter().find(|edge| edge.from as usize >= index) {
                return Err(DecodeError::Invalid { what: "dependency", value: edge.from.into() });
            }
        }
        Ok(Self { nodes })
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
