//! Executable graphs: at each launch, the nodes one after the other as pieces of the stream's work.
//!
//! The order of a plan is one in which its nodes can run, so what they wait for inside of the graph is behind them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use backend::{
    Copy3D, GraphKernel, GraphPlan, GraphWork, Launch, RawContext, RawEvent, RawGraph, Result, StreamArg,
};
use wire::CuError;

use super::backend::{Of, SoftBackend, side};
use crate::stream::{Copy3, Record, Ticket, Work};

/// An executable graph.
pub struct Graph(Mutex<State>);

struct State {
    nodes: Vec<Node>,
    /// The end of the last launch.
    last: Option<Ticket>,
}

#[derive(Clone)]
struct Node {
    work: GraphWork,
    enabled: bool,
}

impl Graph {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a node do its work, or nothing.
    ///
    /// # Errors
    /// When there is no such node, or its kind is always enabled.
    pub fn enable(&self, node: usize, enabled: bool) -> Result<()> {
        let mut state = self.lock();
        let node = state.nodes.get_mut(node).ok_or(CuError::INVALID_VALUE)?;
        match node.work {
            GraphWork::Kernel(..) | GraphWork::Copy(..) | GraphWork::Fill(..) => {
                node.enabled = enabled;
                Ok(())
            }
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

/// A kernel node as a launch.
fn launch(kernel: &GraphKernel) -> Launch<'_> {
    let GraphKernel { function, grid, block, shared, ref attributes, ref params } = *kernel;
    Launch { function, grid, block, shared, stream: StreamArg::Legacy, attributes, params }
}

impl SoftBackend {
    pub(super) fn make_graph(&self, ctx: RawContext, plan: &GraphPlan) -> Result<RawGraph> {
        self.context(ctx)?.context.check()?;
        plan.nodes.iter().try_for_each(|node| self.piece(&node.work).map(drop))?;
        let nodes = plan.nodes.iter().map(|node| Node { work: node.work.clone(), enabled: true }).collect();
        let object = Graph(Mutex::new(State { nodes, last: None }));
        Ok(RawGraph(self.graphs.insert(Arc::new(Of { context: ctx.0, object }))))
    }

    pub(super) fn change_graph(&self, graph: RawGraph, changes: &[(usize, GraphWork)]) -> Result<()> {
        let graph = self.graphs.get(graph.0)?;
        let mut state = graph.object.lock();
        for (node, work) in changes {
            let node = state.nodes.get(*node).ok_or(CuError::INVALID_VALUE)?;
            if !node.work.is_like(work) {
                return Err(CuError::GRAPH_EXEC_UPDATE_FAILURE);
            }
            self.piece(work)?;
        }
        for (node, work) in changes {
            state.nodes[*node].work = work.clone();
        }
        Ok(())
    }

    pub(super) fn launch_graph(&self, ctx: RawContext, stream: StreamArg, graph: RawGraph) -> Result<()> {
        let context = self.context(ctx)?;
        let stream = self.stream(&context, stream)?;
        let graph = self.graphs.get(graph.0)?;
        let mut state = graph.object.lock();
        let mut recorded = Vec::new();
        // Also a graph without nodes waits for its stream and the launch before.
        let mut pieces = vec![(state.last.clone().into_iter().collect(), Work::Nothing)];
        for node in state.nodes.iter().filter(|node| node.enabled) {
            let (after, work) = self.piece(&node.work)?;
            if let (GraphWork::EventRecord(event), Work::Mark(time)) = (&node.work, &work) {
                recorded.push((pieces.len(), *event, Arc::clone(time)));
            }
            pieces.push((after, work));
        }
        let tickets = context.context.submit_all(&stream, pieces.into_iter())?;
        for (piece, event, time) in recorded {
            if let Some(ticket) = tickets.get(piece).cloned() {
                self.events.get(event.0)?.object.set(Record { ticket, time });
            }
        }
        state.last = tickets.last().cloned();
        Ok(())
    }

    /// What a node does when it is launched now.
    fn piece(&self, work: &GraphWork) -> Result<(Vec<Ticket>, Work)> {
        let work = match work {
            GraphWork::Empty => Work::Nothing,
            GraphWork::Kernel(ctx, kernel) => self.grid(&*self.context(*ctx)?, &launch(kernel))?,
            GraphWork::Copy(_, copy) => self.graph_copy(copy)?,
            GraphWork::Fill(_, fill) => Work::Fill {
                dst: fill.dst,
                pitch: fill.pitch,
                value: fill
                    .value
                    .to_le_bytes()
                    .get(..usize::from(fill.element))
                    .filter(|value| matches!(value.len(), 1 | 2 | 4))
                    .ok_or(CuError::INVALID_VALUE)?
                    .to_vec(),
                width: fill.width,
                height: fill.height,
            },
            GraphWork::Host(function) => {
                let function = function.clone();
                Work::Host(Box::new(move |status| (function.0)(status)))
            }
            GraphWork::EventRecord(event) => {
                self.events.get(event.0)?;
                Work::Mark(Arc::new(OnceLock::<Instant>::new()))
            }
            GraphWork::EventWait(event) => return Ok((self.last_record(*event)?, Work::Nothing)),
        };
        Ok((Vec::new(), work))
    }

    fn last_record(&self, event: RawEvent) -> Result<Vec<Ticket>> {
        Ok(self.events.get(event.0)?.object.get().map(|record| record.ticket).into_iter().collect())
    }

    /// Memory that neither device nor registration stands for may be gone when the copy runs.
    fn graph_copy(&self, copy: &Copy3D) -> Result<Work> {
        let (dst, src) = (side(&copy.dst)?, side(&copy.src)?);
        let copy = Copy3 { dst, src, width: copy.width, height: copy.height, depth: copy.depth };
        if copy.plain_sides(&self.memory) != (false, false) {
            return Err(CuError::INVALID_VALUE);
        }
        copy.validate(&self.memory)?;
        Ok(Work::Copy(copy))
    }
}
