//! Graphs: names become objects, and what their nodes read and write is checked again at every launch.

use super::Session;
use crate::lock;
use crate::messages::{Node, Task};
use backend::{
    BoxSide, CopyBox, Fill, GraphFunction, GraphNode, GraphPlan, GraphWork, MemoryOperation, Result,
};
use std::collections::HashMap;
use std::sync::Arc;
use wire::{CuError, GRAPH_DEPTH_MAX};

/// What a graph's nodes read and write by address, by node.
#[derive(Default)]
pub(super) struct Reach(HashMap<usize, Touched>);

enum Touched {
    Copy(CopyBox),
    Fill(Fill),
    Words(Vec<MemoryOperation>),
}

impl Touched {
    fn of(task: &Task) -> Option<Self> {
        match task {
            Task::Copy(_, copy) => Some(Self::Copy(*copy)),
            Task::Fill(_, fill) => Some(Self::Fill(*fill)),
            Task::Operations(_, operations) => Some(Self::Words(operations.clone())),
            _ => None,
        }
    }
}

impl Session {
    fn work(self: &Arc<Self>, task: &Task) -> Result<GraphWork> {
        let objects = &self.objects;
        Ok(match task {
            Task::Empty => GraphWork::Empty,
            Task::Kernel(ctx, kernel) => {
                let mut kernel = kernel.clone();
                kernel.function = objects.function(kernel.function)?;
                GraphWork::Kernel(objects.ctx(*ctx)?, kernel)
            }
            Task::Copy(ctx, copy) => GraphWork::Copy(objects.ctx(*ctx)?, self.boxes(copy)?),
            Task::Fill(ctx, fill) => {
                self.owns_fill(fill)?;
                GraphWork::Fill(objects.ctx(*ctx)?, *fill)
            }
            Task::Host(function) => GraphWork::Host(GraphFunction(Arc::new(self.host(*function)))),
            Task::EventRecord(event) => GraphWork::EventRecord(objects.events.get(event.0)?),
            Task::EventWait(event) => GraphWork::EventWait(objects.events.get(event.0)?),
            Task::Operations(ctx, operations) => {
                self.owns_words(operations)?;
                GraphWork::Operations(objects.ctx(*ctx)?, operations.clone())
            }
            Task::Conditional(ctx, conditional) => {
                GraphWork::Conditional(objects.ctx(*ctx)?, conditional.clone())
            }
        })
    }

    /// A plan whose nodes wait only for nodes before them, and whose bodies end where they should.
    pub(super) fn plan(
        self: &Arc<Self>,
        template: Option<backend::RawTemplate>,
        nodes: &[Node],
    ) -> Result<(GraphPlan, Reach)> {
        let mut plan = GraphPlan { nodes: Vec::new(), template: None };
        if let Some(template) = template {
            plan.template = Some(self.objects.templates.get(template.0)?);
        }
        let mut reach = Reach::default();
        // The bodies that the node is in, from the whole graph on: their numbers and where they end; and which one each node is in.
        let (mut open, mut inside, mut count) = (vec![(0usize, nodes.len())], Vec::new(), 0);
        for (at, node) in nodes.iter().enumerate() {
            open.truncate(open.iter().rposition(|(_, end)| *end > at).map_or(1, |last| last + 1));
            let body = open.last().map_or(0, |(number, _)| *number);
            if node.after.iter().any(|edge| inside.get(edge.from as usize) != Some(&body)) {
                return Err(CuError::INVALID_VALUE);
            }
            inside.push(body);
            if let Task::Conditional(_, conditional) = &node.task {
                let bodies = conditional.bodies.len();
                let end = open.last().map_or(0, |(_, end)| *end);
                let within = conditional.bodies(at).all(|body| body.end <= end);
                if !within || !conditional.kind.takes(bodies) || open.len() > GRAPH_DEPTH_MAX {
                    return Err(CuError::INVALID_VALUE);
                }
                let mut bodies: Vec<_> = conditional.bodies(at).collect();
                bodies.reverse();
                open.extend(bodies.into_iter().map(|body| {
                    count += 1;
                    (count, body.end)
                }));
            }
            reach.0.extend(Touched::of(&node.task).map(|touched| (at, touched)));
            plan.nodes.push(GraphNode { work: self.work(&node.task)?, after: node.after.clone() });
        }
        Ok((plan, reach))
    }

    pub(super) fn changes(self: &Arc<Self>, changes: &[(u64, Task)]) -> Result<Vec<(usize, GraphWork)>> {
        let index = |at: u64| usize::try_from(at).map_err(|_| CuError::INVALID_VALUE);
        changes.iter().map(|(at, task)| Ok((index(*at)?, self.work(task)?))).collect()
    }

    pub(super) fn graph_made(&self, graph: u64, reach: Reach) {
        lock(&self.graphs).insert(graph, reach);
    }

    pub(super) fn graph_changed(&self, graph: u64, changes: &[(u64, Task)]) {
        if let Some(reach) = lock(&self.graphs).get_mut(&graph) {
            reach.0.extend(changes.iter().filter_map(|(at, task)| Some((*at as usize, Touched::of(task)?))));
        }
    }

    pub(super) fn graph_gone(&self, graph: u64) {
        lock(&self.graphs).remove(&graph);
    }

    /// Whether what it reads and writes is still the client's.
    pub(super) fn graph_owns(&self, graph: u64) -> Result<()> {
        let graphs = lock(&self.graphs);
        let reach = graphs.get(&graph).ok_or(CuError::INVALID_HANDLE)?;
        reach.0.values().try_for_each(|touched| match touched {
            Touched::Copy(copy) => {
                let size = [copy.width, copy.height, copy.depth];
                let sides = [copy.dst, copy.src].into_iter();
                sides
                    .filter(|side| matches!(side, BoxSide::Memory(_)))
                    .try_for_each(|side| self.side(side, size).map(drop))
            }
            Touched::Fill(fill) => self.owns_fill(fill),
            Touched::Words(operations) => self.owns_words(operations),
        })
    }
}
