//! Executable graphs: what the far end is told of one, and what is remembered of it here.

use super::progress::{Key, key};
use super::{Callback, Link};
use crate::lock;
use crate::messages::{GraphInstantiate, GraphLaunch, GraphUpdate, Node, Task};
use backend::{GraphPlan, GraphWork, MemoryOperation, RawContext, RawEvent, RawGraph, Result, StreamArg};
use std::collections::HashMap;
use std::sync::Arc;
use wire::CuError;

/// What is known of a graph here.
#[derive(Default)]
pub(super) struct Known {
    /// The events that its launches record, by node.
    records: HashMap<usize, RawEvent>,
    /// Its host functions, by node.
    functions: HashMap<usize, u64>,
    /// Whether it has had nodes that wait for words.
    waits: bool,
    /// Functions that its nodes had before, which launches that are under way may still call.
    former: Vec<u64>,
    /// Where it was launched last, and at which piece of work: its launches are in turn.
    last: Option<(Key, u64)>,
}

/// Functions of a graph that is gone, and where it was launched last.
pub(super) type Retired = (Option<(Key, u64)>, Vec<u64>);

impl Link {
    fn task(self: &Arc<Self>, work: &GraphWork) -> Result<Task> {
        Ok(match work {
            GraphWork::Empty => Task::Empty,
            GraphWork::Kernel(ctx, kernel) => {
                self.reach_all(&kernel.params, 1)?;
                Task::Kernel(*ctx, kernel.clone())
            }
            GraphWork::Copy(ctx, copy) => {
                for side in [&copy.dst, &copy.src] {
                    self.side_reachable(side, [copy.width, copy.height, copy.depth])?;
                }
                Task::Copy(*ctx, *copy)
            }
            GraphWork::Fill(ctx, fill) => {
                self.fill_reachable(fill)?;
                Task::Fill(*ctx, *fill)
            }
            GraphWork::Host(function) => {
                let name = self.name();
                lock(&self.callbacks).insert(name, Callback::Graph(function.clone()));
                Task::Host(name)
            }
            GraphWork::EventRecord(event) => Task::EventRecord(*event),
            GraphWork::EventWait(event) => Task::EventWait(*event),
            GraphWork::Operations(ctx, operations) => {
                self.words_reachable(operations)?;
                Task::Operations(*ctx, operations.clone())
            }
            GraphWork::Conditional(ctx, conditional) => Task::Conditional(*ctx, conditional.clone()),
        })
    }

    pub(super) fn words_reachable(self: &Arc<Self>, operations: &[MemoryOperation]) -> Result<()> {
        for word in operations.iter().filter_map(MemoryOperation::word) {
            if !word.address.is_multiple_of(word.bytes()) {
                return Err(CuError::INVALID_VALUE);
            }
            self.reachable(word.address, word.bytes())?;
        }
        Ok(())
    }

    pub(super) fn instantiate(
        self: &Arc<Self>,
        ctx: RawContext,
        plan: &GraphPlan,
        flags: u64,
    ) -> Result<RawGraph> {
        let node =
            |node: &backend::GraphNode| Ok(Node { task: self.task(&node.work)?, after: node.after.clone() });
        let nodes = plan.nodes.iter().map(node).collect::<Result<Vec<_>>>()?;
        let mut known = Known::default();
        nodes.iter().enumerate().for_each(|(at, node)| known.note(at, &node.task));
        let graph = RawGraph(self.name());
        let made = self.ask(&GraphInstantiate { ctx, graph, template: plan.template, nodes, flags });
        match made {
            Ok(()) => drop(lock(&self.graphs).insert(graph.0, known)),
            Err(_) => self.forget_functions(known.functions.into_values()),
        }
        made.map(|()| graph)
    }

    pub(super) fn update(
        self: &Arc<Self>,
        ctx: RawContext,
        graph: RawGraph,
        changes: &[(usize, GraphWork)],
    ) -> Result<()> {
        let change = |(at, work): &(usize, GraphWork)| Ok((*at as u64, self.task(work)?));
        let changes = changes.iter().map(change).collect::<Result<Vec<_>>>()?;
        let mut known = Known::default();
        changes.iter().for_each(|(at, task)| known.note(*at as usize, task));
        let updated = self.ask(&GraphUpdate { ctx, graph, changes });
        match (updated, lock(&self.graphs).get_mut(&graph.0)) {
            (Ok(()), Some(old)) => {
                old.records.extend(known.records);
                old.waits |= known.waits;
                for (at, function) in known.functions {
                    old.former.extend(old.functions.insert(at, function));
                }
            }
            _ => self.forget_functions(known.functions.into_values()),
        }
        updated
    }

    pub(super) fn launch_graph(
        self: &Arc<Self>,
        ctx: RawContext,
        stream: StreamArg,
        graph: RawGraph,
    ) -> Result<()> {
        self.progress.check(ctx)?;
        self.push_for_kernels()?;
        let mut graphs = lock(&self.graphs);
        let known = graphs.get_mut(&graph.0).ok_or(CuError::INVALID_HANDLE)?;
        let place = (key(ctx, stream), self.give(key(ctx, stream), &GraphLaunch { ctx, stream, graph }));
        known.last = Some(place);
        if !known.functions.is_empty() || known.waits {
            self.note_hold(place);
        }
        known.records.values().for_each(|event| self.progress.recorded(*event, None));
        Ok(())
    }

    /// Forgets a graph, and the functions of those whose launches are over.
    pub(super) fn graph_gone(&self, graph: RawGraph) {
        let mut graphs = lock(&self.graphs);
        let Some(known) = graphs.remove(&graph.0) else { return };
        let functions = known.functions.into_values().chain(known.former).collect::<Vec<_>>();
        let mut retired = lock(&self.retired);
        if !functions.is_empty() {
            retired.push((known.last, functions));
        }
        let over = retired.extract_if(.., |(last, _)| last.is_none_or(|last| self.progress.has_passed(last)));
        self.forget_functions(over.flat_map(|(_, functions)| functions));
    }

    fn forget_functions(&self, functions: impl Iterator<Item = u64>) {
        let mut callbacks = lock(&self.callbacks);
        functions.for_each(|function| drop(callbacks.remove(&function)));
    }
}

impl Known {
    fn note(&mut self, at: usize, task: &Task) {
        match task {
            Task::EventRecord(event) => drop(self.records.insert(at, *event)),
            Task::Host(function) => drop(self.functions.insert(at, *function)),
            Task::Operations(_, operations) => {
                self.waits |= operations.iter().any(|each| matches!(each, MemoryOperation::Wait { .. }));
            }
            _ => {}
        }
    }
}
