//! Graphs: the model that this process keeps of them, captures of streams into them, and executable graphs, which are the
//! server's. See `docs/graphs.md`.

mod capture;
mod captured;
mod captures;
mod conditions;
mod exec;
mod instantiate;
mod memory;
mod operations;
mod plan;
mod update;
mod work;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::graph::{Edge, EdgeData, Error, GraphId, Graphs, NodeId, ObjectId, Released};
use cuda_abi::{CuError, CuResult, sys};

use wire::{CallbackId, ContextId, GraphExecId, GraphRelease};

use crate::client::{Call, Callback, Registry as Objects, Session, with};

pub use captured::{CapturedAt, Target, thread};
pub use captures::{Captive, Captures, Mode, Status, Told, behind, capturing, exchange_mode};
pub use conditions::{Conditional, Template, Wanted};
pub use exec::Exec;
pub use instantiate::Refusal;
pub use memory::{GraphMemory, Usage};
pub use operations::Operations;
pub use update::Outcome;
pub use work::{Copy, Fill, HostCall, Kernel, Size, Work};

/// A user object's destructor and its argument.
#[derive(Clone, Copy)]
pub struct Destructor(pub unsafe extern "C" fn(*mut c_void), pub *mut c_void);

// SAFETY: CUDA calls destructors on a thread of its own, and the application knows that.
unsafe impl Send for Destructor {}

/// All graphs of the process, and the captures into them.
#[derive(Default)]
pub struct Model {
    /// Graphs and user objects.
    pub graphs: Graphs<Work>,
    /// Captures.
    pub captures: Captures,
    /// What the server has for graphs with conditions.
    pub templates: conditions::Templates,
    /// The same for graphs that are gone, which the server is to be told.
    ended: Vec<Template>,
    /// What is due when a user object has no more references.
    pub destructors: HashMap<ObjectId, Destructor>,
    /// Staging memory of executable graphs that are gone, by their own copy of the graph, as long as a launch may use it.
    staging: HashMap<GraphId, Vec<u64>>,
}

impl Model {
    /// Destroys a graph, and takes out the destructors that are due.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when there is none; `INVALID_VALUE` for a child.
    pub fn destroy(&mut self, graph: GraphId) -> CuResult<Vec<Destructor>> {
        let released = self.graphs.destroy(graph).map_err(told)?;
        self.ended.extend(self.templates.remove(&graph));
        Ok(self.due(released))
    }

    /// Refuses a graph with memory nodes where CUDA does: it cannot lose nodes.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`; `INVALID_HANDLE` when there is no such graph.
    pub fn refuse_memory_nodes(&self, graph: GraphId) -> CuResult {
        for node in self.graphs.nodes(graph).map_err(told)? {
            if let Some(Work::MemAlloc(_) | Work::MemFree(_)) =
                self.graphs.node(node).map_err(told)?.body.work()
            {
                return Err(CuError::NOT_SUPPORTED);
            }
        }
        Ok(())
    }

    /// Refuses to copy a graph with nodes of which there can be only one: of memory, or conditional.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`; `INVALID_HANDLE` when there is no such graph.
    pub fn refuse_copy(&self, graph: GraphId) -> CuResult {
        let unique =
            |work: &&Work| matches!(work, Work::MemAlloc(_) | Work::MemFree(_) | Work::Conditional(_));
        match self.graphs.all_work(graph).iter().any(unique) {
            _ if !self.graphs.contains(graph) => Err(CuError::INVALID_HANDLE),
            true => Err(CuError::NOT_SUPPORTED),
            false => Ok(()),
        }
    }

    /// Adds a node with work, if such a node can be in that graph.
    ///
    /// # Errors
    /// What is wrong with graph and dependencies; `NOT_SUPPORTED` for memory in a graph that was moved into a node, and for what
    /// the body of a conditional node cannot have.
    pub fn add(&mut self, graph: GraphId, after: &[Edge], work: Work) -> CuResult<NodeId> {
        if self.graphs.is_bound(graph).map_err(told)? {
            let memory = matches!(work, Work::MemAlloc(_) | Work::MemFree(_));
            if memory || (self.is_in_body(graph) && !work.fits_body()) {
                return Err(CuError::NOT_SUPPORTED);
            }
        }
        self.graphs.add(graph, after, work).map_err(told)
    }

    /// Adds a node that runs a copy of a graph, or, `moved`, the graph itself.
    ///
    /// # Errors
    /// What is wrong with the graphs and dependencies; `NOT_SUPPORTED` for a graph that cannot be copied, or moved.
    pub fn add_child(
        &mut self,
        graph: GraphId,
        after: &[Edge],
        child: GraphId,
        moved: bool,
    ) -> CuResult<NodeId> {
        if self.graphs.is_bound(child).map_err(told)? {
            return Err(CuError::INVALID_VALUE);
        }
        if !moved {
            self.refuse_copy(child)?;
            return self.graphs.add_child(graph, after, child).map_err(told);
        }
        if self.templates.contains_key(&child) {
            return Err(CuError::NOT_SUPPORTED);
        }
        self.graphs.move_child(graph, after, child).map_err(told)
    }

    /// Takes out the destructors that are due; they are to be called where no lock is held.
    pub fn due(&mut self, released: Released) -> Vec<Destructor> {
        released.0.iter().filter_map(|object| self.destructors.remove(object)).collect()
    }
}

/// What a session keeps of graphs.
#[derive(Default)]
pub struct Registry {
    model: Mutex<Model>,
    /// Staging memory that nobody uses any more, to be given back.
    garbage: Mutex<Vec<u64>>,
    /// Executable graphs.
    pub execs: Objects<Exec>,
}

impl Registry {
    /// The graphs.
    pub fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a graph has this id on the server.
    pub fn has_template(&self, id: u32) -> bool {
        self.lock().templates.values().any(|template| template.id.0 == id)
    }

    /// Forgets what went with a context; gives the destructors that are due.
    #[must_use]
    pub fn sweep(&self, session: &Session, ctx: ContextId) -> Vec<Destructor> {
        let mut due = self.lock().end_of_context(ctx);
        for exec in self.execs.sweep() {
            let graph = exec.retire(session);
            due.extend(self.lock().destroy(graph).unwrap_or_default());
        }
        due
    }

    /// Lets a graph of ours go, behind all launches; by the thread that runs callbacks.
    pub fn bury(&self, graph: GraphId) {
        let mut model = self.lock();
        let staging = model.staging.remove(&graph).unwrap_or_default();
        let due = model.destroy(graph).unwrap_or_default();
        drop(model);
        self.garbage().extend(staging);
        due.into_iter().for_each(Destructor::run);
    }

    fn garbage(&self) -> MutexGuard<'_, Vec<u64>> {
        self.garbage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Destructor {
    fn run(self) {
        let Self(function, data) = self;
        // SAFETY: the application gave the function to be called with this argument, once.
        unsafe { function(data) };
    }
}

impl Call<'_> {
    /// Has destructors of user objects called by the thread that runs callbacks: the application may hold a lock that they take.
    pub fn destroy(&mut self, due: Vec<Destructor>) {
        for destructor in due {
            let Destructor(function, data) = destructor;
            if self.call_back(None, Callback::Function(function, data)).is_err() {
                // There is no other thread to do it.
                destructor.run();
            }
        }
    }

    /// Lets a graph of ours go, with what it holds: when every launch of an executable graph so far is complete, if one is named.
    fn bury_graph(&mut self, behind: Option<GraphExecId>, graph: GraphId) {
        let model = self.session.graphs.lock();
        let at_once = behind.is_none() && !model.graphs.holds_objects(graph);
        drop(model);
        if at_once || self.call_back(behind, Callback::Bury(graph)).is_err() {
            self.session.graphs.bury(graph);
        }
    }

    fn call_back(&mut self, behind: Option<GraphExecId>, callback: Callback) -> CuResult {
        let id = self.session.next_id();
        self.session.callbacks.add(id, callback)?;
        self.submit(&GraphRelease { exec: behind, callback: CallbackId(id) })
            .inspect_err(|_| self.session.callbacks.forget(id))
    }
}

/// The same where no call is under way.
pub fn destroy(due: Vec<Destructor>) {
    if due.is_empty() {
        return;
    }
    let mut due = Some(due);
    let given = with(|call| {
        call.destroy(due.take().unwrap_or_default());
        Ok(())
    });
    if given.is_err() {
        // A callback does it: this is the thread that it is to be done by.
        due.into_iter().flatten().for_each(Destructor::run);
    }
}

/// What the application is told.
pub fn told(error: Error) -> CuError {
    match error {
        Error::NoGraph | Error::NoNode | Error::NoObject => CuError::INVALID_HANDLE,
        Error::Elsewhere
        | Error::Duplicate
        | Error::NoEdge
        | Error::Itself
        | Error::Owned
        | Error::References => CuError::INVALID_VALUE,
    }
}

/// The graph that a handle names.
///
/// # Errors
/// `INVALID_VALUE` for NULL, `INVALID_HANDLE` for what is none.
pub fn graph(handle: sys::CUgraph) -> CuResult<GraphId> {
    named(handle.addr(), GraphId::from_handle)
}

/// The node that a handle names.
///
/// # Errors
/// As [`graph()`].
pub fn node(handle: sys::CUgraphNode) -> CuResult<NodeId> {
    named(handle.addr(), NodeId::from_handle)
}

/// The user object that a handle names.
///
/// # Errors
/// As [`graph()`].
pub fn object(handle: sys::CUuserObject) -> CuResult<ObjectId> {
    named(handle.addr(), ObjectId::from_handle)
}

fn named<T>(handle: usize, from: impl Fn(u64) -> Option<T>) -> CuResult<T> {
    if handle == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    from(handle as u64).ok_or(CuError::INVALID_HANDLE)
}

/// An edge's data in the application's form.
pub fn edge_data(data: EdgeData) -> sys::CUgraphEdgeData {
    sys::CUgraphEdgeData {
        from_port: data.from_port,
        to_port: data.to_port,
        type_: data.kind,
        reserved: [0; 5],
    }
}

/// An edge's data from the application's form.
///
/// # Errors
/// `INVALID_VALUE` for a kind that there is not.
pub fn read_edge_data(data: &sys::CUgraphEdgeData) -> CuResult<EdgeData> {
    let sys::CUgraphEdgeData { from_port, to_port, type_, reserved } = *data;
    if type_ > sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8 || reserved != [0; 5] {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(EdgeData { from_port, to_port, kind: type_ })
}

/// Dependencies that the application gives: `count` nodes, and the data of the edges unless that is NULL.
///
/// # Errors
/// `INVALID_VALUE` for NULL in place of nodes, and for edges that there cannot be.
///
/// # Safety
/// Both must be NULL or have `count` elements.
pub unsafe fn read_edges(
    nodes: *const sys::CUgraphNode,
    data: *const sys::CUgraphEdgeData,
    count: usize,
) -> CuResult<Vec<Edge>> {
    if count > 0 && nodes.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    (0..count)
        .map(|index| {
            // SAFETY: as the caller says.
            let node = node(unsafe { nodes.add(index).read() })?;
            let data = match data.is_null() {
                true => EdgeData::default(),
                // SAFETY: as the caller says.
                false => read_edge_data(unsafe { &*data.add(index) })?,
            };
            Ok(Edge { node, data })
        })
        .collect()
}
