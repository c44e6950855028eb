//! Making graphs executable.

use std::collections::HashMap;
use std::sync::Arc;

use ::graph::{GraphId, NodeId, Step};
use cuda_abi::{CuError, CuResult, sys};
use sys::CUgraphInstantiateResult as Said;
use wire::{ContextId, GraphExecId, GraphInstantiate, GraphTemplateId};

use super::conditions::Condition;
use super::exec::State;
use super::plan::{Planner, Slot, graph_data};
use super::{Exec, GraphMemory, Model, Work, told};
use crate::client::{Call, Owner};

/// Why there is no executable graph.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// The error.
    pub error: CuError,
    /// The node that is to blame, if one is.
    pub node: Option<NodeId>,
    /// `CUgraphInstantiateResult`.
    pub said: Said,
}

impl From<CuError> for Refusal {
    fn from(error: CuError) -> Self {
        let said = match error {
            CuError::NOT_SUPPORTED => Said::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED,
            _ => Said::CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        Self { error, node: None, said }
    }
}

impl Refusal {
    /// Nodes that wait in a circle, this one among them.
    fn circle(node: NodeId) -> Self {
        let said = Said::CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
        Self { error: CuError::INVALID_VALUE, node: Some(node), said }
    }

    /// A condition without a node.
    fn unused(error: CuError) -> Self {
        Self { error, node: None, said: Said::CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED }
    }
}

/// Steps with their work.
type Steps = [(Step, Option<Work>)];

/// What the model says of a graph that is to be made executable.
struct Layout {
    copy: GraphId,
    template: Option<GraphTemplateId>,
    steps: Vec<(Step, Option<Work>)>,
    own: HashMap<NodeId, NodeId>,
}

impl Model {
    /// Copies a graph, and tells what happens in it.
    fn layout(&mut self, graph: GraphId) -> Result<Layout, Refusal> {
        if self.graphs.is_bound(graph).map_err(told)? {
            return Err(CuError::INVALID_VALUE.into());
        }
        self.graphs.steps(graph).map_err(told)?.map_err(Refusal::circle)?;
        let template = self.template_of(graph).map_err(Refusal::unused)?;
        let copy = self.graphs.clone_graph(graph).map_err(told)?;
        let steps = self.graphs.steps(copy).map_err(told)?.map_err(Refusal::circle)?;
        let mut own = HashMap::new();
        let mut with_work = Vec::with_capacity(steps.len());
        for step in steps {
            let node = self.graphs.node(step.node).map_err(told)?;
            if let Some(original) = node.original {
                own.insert(original, step.node);
            }
            with_work.push((step, node.body.work().cloned()));
        }
        Ok(Layout { copy, template, steps: with_work, own })
    }
}

/// Something of which one executable graph at a time can have the node; it lets go of it when it is dropped.
pub(super) enum Unique {
    Memory(Arc<GraphMemory>),
    Condition(Arc<Condition>),
}

impl Unique {
    /// Takes all that the steps have.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` when another executable graph has one of them.
    fn take_all(steps: &Steps) -> CuResult<Vec<Self>> {
        let taken = steps.iter().filter_map(|(_, work)| match work.as_ref()? {
            Work::MemAlloc(memory) => Some(memory.take().then(|| Self::Memory(Arc::clone(memory)))),
            Work::Conditional(conditional) => {
                let condition = &conditional.condition;
                Some(condition.take().then(|| Self::Condition(Arc::clone(condition))))
            }
            _ => None,
        });
        taken.map(|taken| taken.ok_or(CuError::NOT_SUPPORTED)).collect()
    }
}

impl Drop for Unique {
    fn drop(&mut self) {
        match self {
            Self::Memory(memory) => memory.release(),
            Self::Condition(condition) => condition.release(),
        }
    }
}

impl Call<'_> {
    /// Makes a graph executable.
    ///
    /// # Errors
    /// What is wrong with it; what the server says.
    pub fn instantiate(&mut self, graph: GraphId, flags: u64) -> Result<Arc<Exec>, Refusal> {
        let context = Arc::clone(self.context()?);
        self.collect_graph_memory()?;
        let session = self.session;
        let Layout { copy, template, steps, own } = session.graphs.lock().layout(graph)?;
        let made = Unique::take_all(&steps)
            .and_then(|unique| Ok((unique, self.plan_and_send((context.id, template), &steps, flags)?)));
        let (unique, (id, slots, staging)) = made.inspect_err(|_| {
            // The copy was never seen by anybody.
            let due = session.graphs.lock().destroy(copy).unwrap_or_default();
            self.destroy(due);
        })?;
        let slots = steps.iter().zip(slots).map(|((step, _), slot)| (step.node, slot)).collect();
        let mut state = State::new(copy, own, slots);
        (state.staging, state.unique) = (staging, unique);
        for (step, work) in &steps {
            if let Some(work) = work {
                state.note(step.node, work);
            }
        }
        state.gather_callbacks();
        let exec = Arc::new(Exec::new(id, Owner::new(&context), flags, state));
        session.graphs.execs.insert(id.0, Arc::clone(&exec));
        Ok(exec)
    }

    fn plan_and_send(
        &mut self,
        (ctx, template): (ContextId, Option<GraphTemplateId>),
        steps: &Steps,
        flags: u64,
    ) -> CuResult<(GraphExecId, Vec<Slot>, Vec<u64>)> {
        let exec = GraphExecId(self.session.next_id());
        let mut planner = Planner::new(self);
        let sent = planner.plan(steps).and_then(|(plan, slots)| {
            planner.send(|call| {
                let (plan, _file) = graph_data(call, &plan)?;
                call.ask(&GraphInstantiate { ctx, exec, template, flags, plan })
            })?;
            Ok(slots)
        });
        match sent {
            Ok(slots) => Ok((exec, slots, planner.staging)),
            Err(error) => {
                planner.undo();
                Err(error)
            }
        }
    }
}
