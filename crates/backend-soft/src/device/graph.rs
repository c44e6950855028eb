//! Executable graphs: at each launch, the nodes one after the other as pieces of the stream's work.
//!
//! The order of a plan is one in which its nodes can run, so what they wait for inside of the graph is behind them.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use backend::{
    CopyBox, GraphKernel, GraphPlan, GraphWork, Launch, RawContext, RawEvent, RawGraph, Result, StreamArg,
};
use wire::CuError;

use super::backend::{Of, SoftBackend};
use super::template::Made;
use crate::conditions::Condition;
use crate::stream::{Choice, Record, Ticket, Work, validate_operations};

/// An executable graph.
pub struct Graph(Mutex<State>);

struct State {
    nodes: Vec<Node>,
    /// The conditions of its nodes, as long as it is there.
    made: Option<Made>,
    /// The end of the last launch.
    last: Option<Ticket>,
}

#[derive(Clone)]
struct Node {
    work: GraphWork,
    enabled: bool,
}

/// What a node does, when, and the event that it records.
struct Piece {
    after: Vec<Ticket>,
    work: Work,
    records: Option<RawEvent>,
}

impl State {
    fn condition(&self, handle: u64) -> Result<Arc<Condition>> {
        self.made.as_ref().ok_or(CuError::INVALID_VALUE)?.template().condition(handle)
    }

    /// The conditions of all nodes.
    fn conditions(&self) -> Result<Vec<Arc<Condition>>> {
        let handles = self.nodes.iter().filter_map(|node| match &node.work {
            GraphWork::Conditional(_, conditional) => Some(conditional.handle),
            _ => None,
        });
        handles.map(|handle| self.condition(handle)).collect()
    }
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
        let template = plan.template.map(|template| self.templates.get(template.0)).transpose()?;
        let made = template.map(Made::of).transpose()?;
        let nodes = plan.nodes.iter().map(|node| Node { work: node.work.clone(), enabled: true }).collect();
        let state = State { nodes, made, last: None };
        self.pieces(&state, 0..state.nodes.len())?;
        let object = Graph(Mutex::new(state));
        Ok(RawGraph(self.graphs.insert(Arc::new(Of { context: ctx.0, object }))))
    }

    pub(super) fn change_graph(&self, graph: RawGraph, changes: &[(usize, GraphWork)]) -> Result<()> {
        let graph = self.graphs.get(graph.0)?;
        let mut state = graph.object.lock();
        for (node, work) in changes {
            let node = state.nodes.get(*node).ok_or(CuError::INVALID_VALUE)?;
            if !node.work.is_like(work) || matches!(work, GraphWork::Conditional(..)) {
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
        // Also a graph without nodes waits for its stream and the launch before.
        let mut pieces = vec![(state.last.clone().into_iter().collect(), Work::Begin(state.conditions()?))];
        let mut recorded = Vec::new();
        for Piece { after, work, records } in self.pieces(&state, 0..state.nodes.len())? {
            if let (Some(event), Work::Mark(time)) = (records, &work) {
                recorded.push((pieces.len(), event, Arc::clone(time)));
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

    /// What these nodes do when they are launched now.
    fn pieces(&self, state: &State, mut nodes: Range<usize>) -> Result<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(nodes.len());
        while let Some(at) = nodes.next() {
            let node = state.nodes.get(at).ok_or(CuError::INVALID_VALUE)?;
            let (after, work) = match &node.work {
                GraphWork::Conditional(_, conditional) => {
                    let mut bodies = Vec::with_capacity(conditional.bodies.len());
                    for body in conditional.bodies(at) {
                        nodes.start = body.end;
                        bodies.push(self.body(state, body)?);
                    }
                    let condition = state.condition(conditional.handle)?;
                    (Vec::new(), Work::Choice(Choice { condition, kind: conditional.kind, bodies }))
                }
                _ if !node.enabled => continue,
                work => self.piece(work)?,
            };
            let records = match &node.work {
                GraphWork::EventRecord(event) => Some(*event),
                _ => None,
            };
            pieces.push(Piece { after, work, records });
        }
        Ok(pieces)
    }

    /// What the nodes of a body do, each time.
    fn body(&self, state: &State, nodes: Range<usize>) -> Result<Vec<Work>> {
        let work = self.pieces(state, nodes)?.into_iter().map(|piece| match piece.work {
            Work::Nothing | Work::Launch(..) | Work::Copy(_) | Work::Fill { .. } | Work::Choice(_)
                if piece.after.is_empty() =>
            {
                Ok(piece.work)
            }
            _ => Err(CuError::NOT_SUPPORTED),
        });
        work.collect()
    }

    /// What a node that is not conditional does when it is launched now.
    fn piece(&self, work: &GraphWork) -> Result<(Vec<Ticket>, Work)> {
        let work = match work {
            GraphWork::Empty => Work::Nothing,
            GraphWork::Kernel(_, kernel) => self.grid(&launch(kernel))?,
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
                if let Some(shared) = &self.events.get(event.0)?.object.shared {
                    return Ok((Vec::new(), Work::Signal(shared.begin())));
                }
                Work::Mark(Arc::new(OnceLock::<Instant>::new()))
            }
            GraphWork::EventWait(event) => {
                if let Some(shared) = &self.events.get(event.0)?.object.shared {
                    return Ok((Vec::new(), Work::Await(Arc::clone(shared), shared.latest())));
                }
                return Ok((self.last_record(*event)?, Work::Nothing));
            }
            GraphWork::Conditional(..) => return Err(CuError::INVALID_VALUE),
            GraphWork::Operations(_, operations) => {
                validate_operations(&self.memory, operations)?;
                Work::Operations(operations.clone())
            }
        };
        Ok((Vec::new(), work))
    }

    fn last_record(&self, event: RawEvent) -> Result<Vec<Ticket>> {
        Ok(self.events.get(event.0)?.object.get().map(|record| record.ticket).into_iter().collect())
    }

    /// Memory that neither device nor registration stands for may be gone when the copy runs.
    fn graph_copy(&self, copy: &CopyBox) -> Result<Work> {
        let copy = self.copy_of(copy)?;
        if copy.plain_sides(&self.memory) != (false, false) {
            return Err(CuError::INVALID_VALUE);
        }
        copy.validate(&self.memory)?;
        Ok(Work::Copy(copy))
    }
}
