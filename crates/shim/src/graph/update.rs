//! Changing executable graphs.

use ::graph::{Body, Difference, GraphId, NodeId};
use cuda_abi::{CuError, CuResult, sys};
use wire::{GraphChange, GraphUpdate};

use super::exec::{Exec, State};
use super::plan::{Planner, Slot, graph_data};
use super::{Kernel, Work, told};
use crate::client::Call;

/// What came of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// `CUgraphExecUpdateResult`.
    pub result: sys::CUgraphExecUpdateResult,
    /// The node of the new graph that is to blame.
    pub node: Option<NodeId>,
    /// Of an edge that differs, the node that it comes from.
    pub from: Option<NodeId>,
}

use sys::CUgraphExecUpdateResult as Said;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
const COOPERATIVE: u32 = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE as u32;

impl Outcome {
    const SUCCESS: Self = Self { result: Said::CU_GRAPH_EXEC_UPDATE_SUCCESS, node: None, from: None };

    fn failed(result: Said, node: Option<NodeId>) -> Self {
        Self { result, node, from: None }
    }
}

impl Call<'_> {
    /// Gives one node of an executable graph other work; the node is one it was made from.
    ///
    /// # Errors
    /// `INVALID_VALUE` for another node or another kind of work; what the server says.
    pub fn set_exec_node(&mut self, exec: &Exec, node: NodeId, mut work: Work) -> CuResult {
        let mut state = exec.state();
        let own = *state.own.get(&node).ok_or(CuError::INVALID_VALUE)?;
        {
            let model = self.session.graphs.lock();
            let Body::Work(old) = &model.graphs.node(own).map_err(told)?.body else {
                return Err(CuError::INVALID_VALUE);
            };
            if !old.is_like(&work) || refusal(old, &work).is_some() {
                return Err(CuError::INVALID_VALUE);
            }
            work = work.in_place_of(old);
        }
        self.change_exec(exec, &mut state, vec![(own, work)]).map_err(|error| match error {
            CuError::GRAPH_EXEC_UPDATE_FAILURE => CuError::INVALID_VALUE,
            error => error,
        })
    }

    /// Gives a child node of an executable graph the work of another graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` for another node; `GRAPH_EXEC_UPDATE_FAILURE` for a graph of other form; what the server says.
    pub fn set_exec_child(&mut self, exec: &Exec, node: NodeId, child: GraphId) -> CuResult {
        let mut state = exec.state();
        let own = *state.own.get(&node).ok_or(CuError::INVALID_VALUE)?;
        let old = match self.session.graphs.lock().graphs.node(own).map_err(told)?.body {
            Body::Child(old) => old,
            Body::Work(_) | Body::Choice(..) => return Err(CuError::INVALID_VALUE),
        };
        match self.changes(old, child)? {
            Ok(changes) => self.change_exec(exec, &mut state, changes)?,
            Err(_) => return Err(CuError::GRAPH_EXEC_UPDATE_FAILURE),
        }
        self.take_objects(exec, &state, old, child)
    }

    /// Takes over the user objects of a graph in place of those that a part of an executable graph has; these are kept for the
    /// launches so far.
    fn take_objects(&mut self, exec: &Exec, state: &State, part: GraphId, from: GraphId) -> CuResult {
        let replaced = self.session.graphs.lock().graphs.replace_objects(part, from).map_err(told)?;
        if let Some(holder) = replaced {
            self.bury_graph(state.launched.then_some(exec.id), holder);
        }
        Ok(())
    }

    /// Makes an executable graph do what another graph of the same form does.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` for a graph that was moved into a node, or is inside of a conditional one; what earlier work
    /// has failed with.
    pub fn update_exec(&mut self, exec: &Exec, graph: GraphId) -> CuResult<Outcome> {
        if self.session.graphs.lock().graphs.is_bound(graph).map_err(told)? {
            return Err(CuError::INVALID_VALUE);
        }
        let mut state = exec.state();
        let own = state.graph;
        let changes = match self.changes(own, graph)? {
            Ok(changes) => changes,
            Err(outcome) => return Ok(outcome),
        };
        match self.change_exec(exec, &mut state, changes) {
            Ok(()) => self.take_objects(exec, &state, own, graph).map(|()| Outcome::SUCCESS),
            Err(CuError::GRAPH_EXEC_UPDATE_FAILURE) => {
                Ok(Outcome::failed(Said::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, None))
            }
            Err(error) => Err(error),
        }
    }

    /// What has to change for `old` to do what `new` does.
    fn changes(&self, old: GraphId, new: GraphId) -> CuResult<Result<Vec<(NodeId, Work)>, Outcome>> {
        let model = self.session.graphs.lock();
        let pairs = match model.graphs.pair(old, new, &Work::is_like).map_err(told)? {
            Ok(pairs) => pairs,
            Err(Difference::Topology(node)) => {
                let result = Said::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
                return Ok(Err(Outcome::failed(result, node)));
            }
            Err(Difference::Edge(node, from)) => {
                let result = Said::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
                return Ok(Err(Outcome { from: Some(from), ..Outcome::failed(result, Some(node)) }));
            }
            Err(Difference::Kind(node)) => {
                let result = Said::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
                return Ok(Err(Outcome::failed(result, Some(node))));
            }
        };
        let mut changes = Vec::new();
        for (old, new) in pairs {
            let (a, b) = (model.graphs.node(old).map_err(told)?, model.graphs.node(new).map_err(told)?);
            let (Some(a), Some(b)) = (a.body.work(), b.body.work()) else { continue };
            if a.is_same(b) {
                continue;
            }
            if let Some(result) = refusal(a, b) {
                return Ok(Err(Outcome::failed(result, Some(new))));
            }
            changes.push((old, b.clone()));
        }
        Ok(Ok(changes))
    }

    /// Sends changes to nodes of the graph's own copy, and makes them there.
    pub(super) fn change_exec(
        &mut self,
        exec: &Exec,
        state: &mut State,
        changes: Vec<(NodeId, Work)>,
    ) -> CuResult {
        if changes.is_empty() {
            return self.check();
        }
        let session = self.session;
        let mut planner = Planner::new(self);
        let planned = changes.iter().map(|(node, work)| {
            let slot = *state.slots.get(node).ok_or(CuError::INVALID_VALUE)?;
            planner
                .change(slot, work, !state.disabled.contains(node))
                .map(|(nodes, slot)| (*node, nodes, slot))
        });
        let sent = planned.collect::<CuResult<Vec<_>>>().and_then(|planned| {
            let nodes = planned.iter().flat_map(|(_, nodes, _)| nodes);
            let list: Vec<GraphChange> =
                nodes.map(|(node, work)| GraphChange { node: *node, work: work.clone() }).collect();
            planner.send(|call| {
                let (changes, _file) = graph_data(call, &list)?;
                call.ask(&GraphUpdate { exec: exec.id, changes })
            })?;
            Ok(planned)
        });
        let planned = match sent {
            Ok(planned) => planned,
            Err(error) => {
                planner.undo();
                return Err(error);
            }
        };
        state.staging.append(&mut planner.staging);
        for (node, _, slot) in planned {
            if let Some(old) = state.slots.insert(node, slot).as_ref().and_then(Slot::callback) {
                session.callbacks.retire(old);
            }
        }
        let mut model = session.graphs.lock();
        for (node, work) in changes {
            state.note(node, &work);
            *model.graphs.body_mut(node).map_err(told)? = Body::Work(work);
        }
        state.gather_callbacks();
        Ok(())
    }
}

/// Why the work of an executable graph's node cannot be changed to other work of its kind, if it cannot.
fn refusal(old: &Work, new: &Work) -> Option<Said> {
    let cooperative = |kernel: &Kernel| {
        let found = kernel.attributes.iter().find(|(id, _)| *id == COOPERATIVE);
        found.is_some_and(|(_, value)| value.0.iter().any(|byte| *byte != 0))
    };
    let may_change = match (old, new) {
        (Work::Kernel(old), Work::Kernel(new)) if old.ctx != new.ctx => {
            return Some(Said::CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE);
        }
        (Work::Kernel(old), Work::Kernel(new)) if cooperative(old) != cooperative(new) => {
            return Some(Said::CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED);
        }
        (Work::Copy(old), Work::Copy(new)) => old.may_become(new),
        (Work::Operations(old), Work::Operations(new)) => old.may_become(new),
        (Work::MemAlloc(_) | Work::MemFree(_) | Work::Conditional(_), _) => old.is_same(new),
        _ => true,
    };
    (!may_change).then_some(Said::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
}
