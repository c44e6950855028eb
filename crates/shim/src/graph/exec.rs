//! Executable graphs: what this process keeps of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::graph::{Body, GraphId, NodeId};
use cuda_abi::{CuError, CuResult, sys};
use wire::{
    ContextId, GraphExecDestroy, GraphExecId, GraphLaunch, GraphNodeEnable, GraphUpload, StreamQuery,
};

use super::instantiate::Unique;
use super::plan::Slot;
use super::{GraphMemory, Work, told};
use crate::client::{Call, Event, Object, Owner, Session};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`: what a launch has allocated and nobody has freed is freed by the next.
const AUTO_FREE: u64 = 1;

/// An executable graph.
pub struct Exec {
    /// Its id.
    pub id: GraphExecId,
    /// The context it was made in.
    pub owner: Owner,
    /// `CUgraphInstantiate_flags`.
    pub flags: u64,
    gone: AtomicBool,
    state: Mutex<State>,
}

impl Object for Exec {
    fn is_alive(&self) -> bool {
        self.owner.is_alive() && !self.gone.load(Ordering::Acquire)
    }
}

/// What changes.
pub(super) struct State {
    /// Its own copy of the graph it was made from: what it does now.
    pub graph: GraphId,
    /// The node of the copy for each node it was made from.
    pub own: HashMap<NodeId, NodeId>,
    /// Where each node of the copy is in the plan.
    pub slots: HashMap<NodeId, Slot>,
    /// Events that it records.
    pub records: HashMap<NodeId, Arc<Event>>,
    /// Nodes of the copy that are disabled.
    pub disabled: BTreeSet<NodeId>,
    /// Its callbacks, to be told of each launch.
    callbacks: Vec<u32>,
    /// Staging memory.
    pub staging: Vec<u64>,
    /// What no other executable graph can have.
    pub unique: Vec<Unique>,
    /// Memory that it allocates.
    memory: Vec<Arc<GraphMemory>>,
    /// Addresses of memory that it frees.
    frees: Vec<u64>,
    /// Contexts of its nodes.
    contexts: BTreeSet<ContextId>,
    /// Whether it records events, or waits for some.
    events: bool,
    /// Whether it has ever been launched.
    pub launched: bool,
}

impl State {
    /// That of an executable graph that was never launched: its own copy of a graph, the nodes of that for those it was made from,
    /// and where each is in the plan.
    pub fn new(graph: GraphId, own: HashMap<NodeId, NodeId>, slots: HashMap<NodeId, Slot>) -> Self {
        Self {
            graph,
            own,
            slots,
            records: HashMap::new(),
            disabled: BTreeSet::new(),
            callbacks: Vec::new(),
            staging: Vec::new(),
            unique: Vec::new(),
            memory: Vec::new(),
            frees: Vec::new(),
            contexts: BTreeSet::new(),
            events: false,
            launched: false,
        }
    }

    /// Notes what a node does, in what the launch needs to know.
    pub fn note(&mut self, node: NodeId, work: &Work) {
        self.records.remove(&node);
        match work {
            Work::Kernel(kernel) => drop(self.contexts.insert(kernel.ctx)),
            Work::Copy(copy) => drop(self.contexts.insert(copy.ctx)),
            Work::Fill(fill) => drop(self.contexts.insert(fill.ctx)),
            Work::Operations(operations) => drop(self.contexts.insert(operations.ctx)),
            Work::Conditional(conditional) => drop(self.contexts.insert(conditional.condition.ctx)),
            Work::EventRecord(_, event) => {
                self.records.insert(node, Arc::clone(event));
                self.events = true;
            }
            Work::EventWait(..) => self.events = true,
            Work::MemAlloc(memory) => self.memory.push(Arc::clone(memory)),
            Work::MemFree(address) => self.frees.push(*address),
            Work::Empty | Work::Host(_) => {}
        }
    }

    /// Gathers the callbacks of all slots.
    pub fn gather_callbacks(&mut self) {
        self.callbacks = self.slots.values().filter_map(Slot::callback).collect();
    }
}

impl Exec {
    /// One that the server has made.
    pub(super) fn new(id: GraphExecId, owner: Owner, flags: u64, state: State) -> Self {
        Self { id, owner, flags, gone: AtomicBool::new(false), state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle that the application holds.
    pub fn handle(&self) -> sys::CUgraphExec {
        crate::client::handle(self.id.handle())
    }

    /// Its own copy of the graph.
    pub fn graph(&self) -> GraphId {
        self.state().graph
    }

    /// Lets go of what this process keeps for it, but for its copy of the graph, which is the caller's then.
    #[must_use]
    pub fn retire(&self, session: &Session) -> GraphId {
        let mut state = self.state();
        state.unique.clear();
        state.memory.clear();
        for callback in std::mem::take(&mut state.callbacks) {
            session.callbacks.retire(callback);
        }
        state.graph
    }
}

impl Call<'_> {
    /// An executable graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL, `INVALID_HANDLE` for one that is not there.
    pub fn exec(&self, handle: sys::CUgraphExec) -> CuResult<Arc<Exec>> {
        if handle.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        GraphExecId::from_handle(handle.addr() as u64)
            .and_then(|id| self.session.graphs.execs.get(id.0))
            .ok_or(CuError::INVALID_HANDLE)
    }

    /// Launches an executable graph, or captures it.
    ///
    /// # Errors
    /// As `cuGraphLaunch`.
    pub fn launch_graph(&mut self, exec: &Exec, stream: sys::CUstream) -> CuResult {
        if let Some(target) = self.capture_of(stream)? {
            let graph = exec.graph();
            self.session.graphs.lock().refuse_copy(graph)?;
            return self.capture(target, super::Captive::Child(graph));
        }
        let (stream, ctx) = self.stream(stream)?;
        let mut state = exec.state();
        let allocates = |memory: &&Arc<GraphMemory>| !state.frees.contains(&memory.address);
        let kept: Vec<_> = state.memory.iter().filter(allocates).cloned().collect();
        if exec.flags & AUTO_FREE == 0 && state.memory.iter().any(|memory| memory.is_live()) {
            return Err(CuError::INVALID_VALUE);
        }
        let wide = state.events || state.contexts.iter().any(|of| *of != ctx);
        if !state.callbacks.is_empty() {
            self.session.callbacks.launch(&state.callbacks);
        }
        if let Err(error) = self.submit(&GraphLaunch { ctx, stream, exec: exec.id, wide }) {
            self.session.callbacks.not_launched(&state.callbacks);
            return Err(error);
        }
        state.launched = true;
        for memory in state.frees.iter().filter_map(|address| self.graph_memory_at(*address)) {
            memory.set_live(false);
        }
        for memory in kept {
            memory.set_live(true);
        }
        let mut told = false;
        for event in state.records.values() {
            event.captured.clear();
            event.records.fetch_add(1, Ordering::AcqRel);
            told |= event.is_interprocess();
        }
        drop(state);
        if told {
            // Whoever is told of the record by this process may wait for it at once: it is made when what is behind it in the ring is answered.
            self.ask(&StreamQuery { ctx, stream })?;
        }
        Ok(())
    }

    /// As `cuGraphUpload`.
    ///
    /// # Errors
    /// As that.
    pub fn upload_graph(&mut self, exec: &Exec, stream: sys::CUstream) -> CuResult {
        let (stream, ctx) = self.stream(stream)?;
        self.submit(&GraphUpload { ctx, stream, exec: exec.id })
    }

    /// Destroys an executable graph; a launch that is under way completes.
    ///
    /// # Errors
    /// As `cuGraphExecDestroy`.
    pub fn destroy_exec(&mut self, handle: sys::CUgraphExec) -> CuResult {
        let exec = self.exec(handle)?;
        self.check()?;
        let exec = self.session.graphs.execs.remove(exec.id.0).ok_or(CuError::INVALID_HANDLE)?;
        exec.gone.store(true, Ordering::Release);
        let graph = exec.retire(self.session);
        let (staging, launched) = {
            let mut state = exec.state();
            (std::mem::take(&mut state.staging), state.launched)
        };
        let mut model = self.session.graphs.lock();
        let used = launched && (!staging.is_empty() || model.graphs.holds_objects(graph));
        model.staging.insert(graph, staging);
        drop(model);
        self.bury_graph(used.then_some(exec.id), graph);
        let destroyed = self.submit(&GraphExecDestroy { exec: exec.id });
        drop(exec);
        destroyed.and(self.collect_graph_memory())
    }

    /// Whether a node of an executable graph does its work; the node is one it was made from.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a node that is not, or of a kind that is always enabled.
    pub fn node_enabled(&self, exec: &Exec, node: NodeId) -> CuResult<bool> {
        let state = exec.state();
        let (own, ..) = self.switchable(&state, node)?;
        Ok(!state.disabled.contains(&own))
    }

    /// Lets a node of an executable graph do its work, or nothing.
    ///
    /// # Errors
    /// As [`Call::node_enabled`]; what the server says.
    pub fn enable_node(&mut self, exec: &Exec, node: NodeId, enabled: bool) -> CuResult {
        let mut state = exec.state();
        let (own, slot, work) = self.switchable(&state, node)?;
        if let Slot::One(node) | Slot::Staged { copy: node, .. } = slot {
            self.ask(&GraphNodeEnable { exec: exec.id, node, enabled })?;
        }
        match enabled {
            true => state.disabled.remove(&own),
            false => state.disabled.insert(own),
        };
        // What this process does for a copy is a callback, which then does nothing.
        if slot.callback().is_some() { self.change_exec(exec, &mut state, vec![(own, work)]) } else { Ok(()) }
    }

    /// A node that can be disabled: which, where, and what it does.
    fn switchable(&self, state: &State, node: NodeId) -> CuResult<(NodeId, Slot, Work)> {
        let own = *state.own.get(&node).ok_or(CuError::INVALID_VALUE)?;
        let slot = *state.slots.get(&own).ok_or(CuError::INVALID_VALUE)?;
        let model = self.session.graphs.lock();
        match &model.graphs.node(own).map_err(told)?.body {
            Body::Work(work @ (Work::Kernel(_) | Work::Copy(_) | Work::Fill(_))) => {
                Ok((own, slot, work.clone()))
            }
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}
