//! What nodes do, as the application has said it.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::sys;
use wire::{ContextId, EventId, LaunchValue};

use super::{Conditional, GraphMemory, Operations};
use crate::client::{Callable, End, Event, Extent};

/// What a node does. Cloning is cheap.
#[derive(Clone)]
pub enum Work {
    /// Nothing.
    Empty,
    /// Runs a kernel.
    Kernel(Arc<Kernel>),
    /// Copies.
    Copy(Copy),
    /// Sets memory.
    Fill(Fill),
    /// Runs a function of the application's.
    Host(HostCall),
    /// Records an event.
    EventRecord(EventId, Arc<Event>),
    /// Waits for an event.
    EventWait(EventId, Arc<Event>),
    /// Allocates memory.
    MemAlloc(Arc<GraphMemory>),
    /// Frees the memory at this address, which a graph has allocated.
    MemFree(u64),
    /// Reads and writes words of memory.
    Operations(Arc<Operations>),
    /// Decides which of the node's graphs runs.
    Conditional(Arc<Conditional>),
}

impl Work {
    /// `CUgraphNodeType`.
    pub fn kind(&self) -> sys::CUgraphNodeType {
        use sys::CUgraphNodeType as Kind;
        match self {
            Self::Empty => Kind::CU_GRAPH_NODE_TYPE_EMPTY,
            Self::Kernel(_) => Kind::CU_GRAPH_NODE_TYPE_KERNEL,
            Self::Copy(_) => Kind::CU_GRAPH_NODE_TYPE_MEMCPY,
            Self::Fill(_) => Kind::CU_GRAPH_NODE_TYPE_MEMSET,
            Self::Host(_) => Kind::CU_GRAPH_NODE_TYPE_HOST,
            Self::EventRecord(..) => Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Self::EventWait(..) => Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Self::MemAlloc(_) => Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Self::MemFree(_) => Kind::CU_GRAPH_NODE_TYPE_MEM_FREE,
            Self::Operations(_) => Kind::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            Self::Conditional(_) => Kind::CU_GRAPH_NODE_TYPE_CONDITIONAL,
        }
    }

    /// Whether both are of one kind.
    pub fn is_like(&self, other: &Self) -> bool {
        self.kind() == other.kind()
    }

    /// Whether both do the same.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Empty, Self::Empty) => true,
            (Self::Kernel(a), Self::Kernel(b)) => Arc::ptr_eq(a, b) || a.is_same(b),
            (Self::Copy(a), Self::Copy(b)) => a == b,
            (Self::Fill(a), Self::Fill(b)) => a == b,
            (Self::Host(a), Self::Host(b)) => a.0 as usize == b.0 as usize && a.1 == b.1,
            (Self::EventRecord(a, _), Self::EventRecord(b, _))
            | (Self::EventWait(a, _), Self::EventWait(b, _)) => a == b,
            (Self::MemAlloc(a), Self::MemAlloc(b)) => a.address == b.address,
            (Self::MemFree(a), Self::MemFree(b)) => a == b,
            (Self::Conditional(a), Self::Conditional(b)) => a.is_same(b),
            (Self::Operations(a), Self::Operations(b)) => (a.ctx, &a.list) == (b.ctx, &b.list),
            _ => false,
        }
    }

    /// Whether a device can do it in the body of a conditional node.
    pub fn fits_body(&self) -> bool {
        match self {
            Self::Empty | Self::Kernel(_) | Self::Copy(_) | Self::Fill(_) | Self::Conditional(_) => true,
            Self::Host(_)
            | Self::EventRecord(..)
            | Self::EventWait(..)
            | Self::MemAlloc(_)
            | Self::MemFree(_)
            | Self::Operations(_) => false,
        }
    }

    /// This work in the place of other of its kind: a kernel's attributes stay.
    pub fn in_place_of(self, old: &Self) -> Self {
        match (self, old) {
            (Self::Kernel(new), Self::Kernel(old)) => {
                Self::Kernel(Arc::new(new.with_attributes(old.attributes.clone())))
            }
            (new, _) => new,
        }
    }
}

/// The size of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
}

/// A kernel with its arguments.
pub struct Kernel {
    /// What runs.
    pub callable: Arc<Callable>,
    /// The context it runs in.
    pub ctx: ContextId,
    /// How large.
    pub size: Size,
    /// `CUlaunchAttributeID` and value, in the order of ids.
    pub attributes: Vec<(u32, LaunchValue)>,
    /// The parameters as the function takes them. Addresses in it are told to the application: it never moves, and stays when
    /// attributes change.
    params: Arc<[u8]>,
    /// Where each parameter is.
    pointers: Arc<[usize]>,
}

impl Kernel {
    /// A kernel with its arguments, laid out as the function takes them.
    pub fn new(
        callable: Arc<Callable>,
        ctx: ContextId,
        size: Size,
        mut attributes: Vec<(u32, LaunchValue)>,
        params: &[u8],
    ) -> Self {
        attributes.sort_by_key(|(id, _)| *id);
        let params: Arc<[u8]> = params.into();
        let base = params.as_ptr().expose_provenance();
        let pointers = callable.params.iter().map(|param| base + param.offset as usize).collect();
        Self { callable, ctx, size, attributes, params, pointers }
    }

    /// The same with other attributes.
    pub fn with_attributes(&self, mut attributes: Vec<(u32, LaunchValue)>) -> Self {
        attributes.sort_by_key(|(id, _)| *id);
        let (params, pointers) = (Arc::clone(&self.params), Arc::clone(&self.pointers));
        Self {
            callable: Arc::clone(&self.callable),
            ctx: self.ctx,
            size: self.size,
            attributes,
            params,
            pointers,
        }
    }

    /// The parameters as the function takes them.
    pub fn params(&self) -> &[u8] {
        &self.params
    }

    /// The addresses of the parameters, as `kernelParams`; they stay as long as the node.
    pub fn pointers(&self) -> *mut *mut c_void {
        self.pointers.as_ptr().cast_mut().cast()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.callable.callee == other.callable.callee
            && (self.ctx, self.size) == (other.ctx, other.size)
            && (&self.attributes, &self.params) == (&other.attributes, &other.params)
    }
}

/// A copy of a box; a run of bytes is a single row.
#[derive(Clone, PartialEq)]
pub struct Copy {
    /// The context it happens in.
    pub ctx: ContextId,
    /// To.
    pub dst: End,
    /// From.
    pub src: End,
    /// How much.
    pub extent: Extent,
}

impl Copy {
    /// Whether an executable graph's copy can become `other`: arrays stay arrays, and memory stays memory.
    pub fn may_become(&self, other: &Self) -> bool {
        let kinds = |copy: &Self| (copy.dst.rows().is_some(), copy.src.rows().is_some());
        kinds(self) == kinds(other)
    }
}

/// Rows of elements to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The context it happens in.
    pub ctx: ContextId,
    /// The first row.
    pub dst: u64,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Bytes of an element.
    pub element: u8,
    /// The value, in the low bytes.
    pub value: u32,
    /// Elements of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

/// A function of the application's and its argument.
#[derive(Clone, Copy)]
pub struct HostCall(pub unsafe extern "C" fn(*mut c_void), pub *mut c_void);

// SAFETY: CUDA runs host functions on a thread of its own, and the application knows that.
unsafe impl Send for HostCall {}
// SAFETY: as above; nothing is read through a shared reference but the two addresses.
unsafe impl Sync for HostCall {}
