//! Executable graphs.

use super::{Array, Context, Event, EventRecord, Function, Marker, Stream, StreamKey, Template};
use crate::lock;
use backend::{Backend, RawGraph};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use wire::{ContextId, Encoder, EventId, GraphExecId, GraphPlan, GraphTemplateId, Wire};

/// What it takes to make an executable graph again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GraphRecord {
    /// Its handle.
    pub id: GraphExecId,
    /// The context it was made in.
    pub ctx: ContextId,
    /// What its conditions belong to.
    pub template: Option<GraphTemplateId>,
    /// As it was made.
    pub flags: u64,
    /// The plan with all later changes, as on the wire.
    pub plan: Vec<u8>,
    /// Nodes that are disabled.
    pub disabled: BTreeSet<u32>,
    /// Events that it still uses and the application has destroyed.
    pub orphans: Vec<EventRecord>,
    /// Whether it could have been launched: all that it names is there.
    pub whole: bool,
}

/// What it takes to launch the rest of a graph that is launched in parts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DividedRecord {
    /// Its handle.
    pub id: GraphExecId,
    /// The nodes that are parts of their own.
    pub stops: BTreeSet<u32>,
    /// How many parts of the launch in hand have been given to the device.
    pub given: u32,
}

/// An executable graph; its end is that of the last user.
pub struct GraphExec {
    /// Its handle.
    pub id: GraphExecId,
    /// What stays.
    pub frame: Frame,
    /// What changes.
    pub state: Mutex<GraphState>,
}

/// What an executable graph is made in.
pub struct Frame {
    /// The context it was made in.
    pub ctx: Arc<Context>,
    /// What its conditions belong to.
    pub template: Option<Arc<Template>>,
    /// As it was made.
    pub flags: u64,
}

/// What changes in an executable graph.
pub struct GraphState {
    /// The plan with all changes.
    pub plan: GraphPlan,
    /// Nodes that are disabled.
    pub disabled: BTreeSet<u32>,
    /// The backend's graph; `None` while something that the plan names is not there.
    pub built: Option<Built>,
    /// Events that it had when it was last built, while it is not.
    pub kept: BTreeMap<EventId, Arc<Event>>,
    /// The stream that it was last launched in.
    pub last: Option<Weak<Stream>>,
    /// How far that was behind the last launch, where the backend does not put the next one behind it.
    pub end: Option<(StreamKey, Marker)>,
    /// The nodes whose kernels can stop half-way: they are parts of their own.
    pub stops: BTreeSet<u32>,
    /// How many parts of the launch in hand have been given to the device.
    pub given: u32,
}

impl GraphState {
    /// That of a plan which has just been built.
    #[must_use]
    pub fn new(plan: GraphPlan, built: Option<Built>, stops: BTreeSet<u32>) -> Self {
        let (disabled, kept) = (BTreeSet::new(), BTreeMap::new());
        Self { plan, disabled, built, kept, last: None, end: None, stops, given: 0 }
    }

    /// Lets go of what the backend has, but not of the events, which the application may have destroyed.
    pub fn unbuild(&mut self) {
        if let Some(built) = self.built.take() {
            let events = built.uses.iter().filter_map(Use::event);
            self.kept.extend(events.map(|event| (event.record.id, Arc::clone(event))));
        }
    }
}

/// A part of a graph; a launch of it gives one after the other to its stream.
pub enum Part {
    /// These nodes, which the backend launches together.
    Nodes(RawGraph, Vec<u32>),
    /// The kernel of this node, which can stop half-way.
    Stops(u32),
}

impl Part {
    /// Its nodes, by their numbers in the plan.
    #[must_use]
    pub fn nodes(&self) -> &[u32] {
        match self {
            Self::Nodes(_, nodes) => nodes,
            Self::Stops(node) => std::slice::from_ref(node),
        }
    }
}

/// Divides a plan without bodies: the nodes of each part, in order. Each of `stops` is a part of its own, and who waits for it, himself or by others, is in a later
/// one; of those that wait for none of them all are in the first part.
#[must_use]
pub fn divide(plan: &GraphPlan, stops: &BTreeSet<u32>) -> Vec<Vec<u32>> {
    let mut parts = vec![Vec::new(); 2 * stops.len() + 1];
    // The part of each, before those are left out that nobody is in.
    let mut places: Vec<usize> = Vec::with_capacity(plan.nodes.len());
    let mut passed = 0;
    for (number, node) in (0..).zip(&plan.nodes) {
        let place = if stops.contains(&number) {
            passed += 1;
            2 * passed - 1
        } else {
            let behind = |from: u32| places.get(from as usize).map_or(0, |place| place.next_multiple_of(2));
            node.after.iter().map(|edge| behind(edge.from)).max().unwrap_or(0)
        };
        places.push(place);
        parts[place].push(number);
    }
    parts.retain(|nodes| !nodes.is_empty());
    parts
}

/// What the backend has of an executable graph, and what each node uses.
pub struct Built {
    /// Its parts, in the order in which they are launched.
    pub parts: Vec<Part>,
    /// What each node uses.
    pub uses: Vec<Use>,
    /// Disabled nodes without what they name: they are empty ones here.
    pub hollow: BTreeSet<u32>,
    ctx: Arc<Context>,
    backend: Arc<dyn Backend>,
}

/// What a node uses.
#[derive(Clone)]
pub enum Use {
    /// Nothing that could go.
    Nothing,
    /// Memory of a context, and arrays.
    Memory(Arc<Context>, Vec<Arc<Array>>),
    /// A function, and with it its module and context.
    Function(Arc<Function>),
    /// An event that it waits for.
    Event(Arc<Event>),
    /// An event that it records.
    Record(Arc<Event>),
}

impl Use {
    /// The event, if it is one.
    #[must_use]
    pub fn event(&self) -> Option<&Arc<Event>> {
        match self {
            Self::Event(event) | Self::Record(event) => Some(event),
            Self::Nothing | Self::Memory(..) | Self::Function(_) => None,
        }
    }

    /// The context, if it has one.
    #[must_use]
    pub fn context(&self) -> Option<&Arc<Context>> {
        match self {
            Self::Nothing => None,
            Self::Memory(ctx, _) => Some(ctx),
            Self::Function(function) => Some(&function.module.ctx),
            Self::Event(event) | Self::Record(event) => Some(&event.ctx),
        }
    }
}

impl Built {
    /// One of `ctx` whose nodes use this, without parts.
    #[must_use]
    pub fn new(
        backend: &Arc<dyn Backend>,
        ctx: &Arc<Context>,
        uses: Vec<Use>,
        hollow: BTreeSet<u32>,
    ) -> Self {
        Self { parts: Vec::new(), uses, hollow, ctx: Arc::clone(ctx), backend: Arc::clone(backend) }
    }

    /// The backend's graph that a node is in, and its number there; none of a kernel that is a part of its own.
    #[must_use]
    pub fn place(&self, node: u32) -> Option<(RawGraph, usize)> {
        self.parts.iter().find_map(|part| match part {
            Part::Nodes(raw, nodes) => Some((*raw, nodes.binary_search(&node).ok()?)),
            Part::Stops(_) => None,
        })
    }

    /// Notes that the events which these nodes record are being recorded.
    pub fn note_records(&self, nodes: &[u32]) {
        for each in nodes {
            if let Some(Use::Record(event)) = self.uses.get(*each as usize) {
                event.note_record();
            }
        }
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        for part in &self.parts {
            let Part::Nodes(raw, _) = part else { continue };
            if let Err(error) = self.backend.graph_destroy(self.ctx.raw, *raw) {
                tracing::warn!(%error, "graph not destroyed");
            }
        }
    }
}

impl GraphExec {
    /// What it takes to launch the rest of it; none where it is launched as a whole.
    #[must_use]
    pub fn divided(&self) -> Option<DividedRecord> {
        let state = lock(&self.state);
        let record = || DividedRecord { id: self.id, stops: state.stops.clone(), given: state.given };
        (!state.stops.is_empty()).then(record)
    }

    /// What it takes to make it again; `is_live` tells events that are in the table.
    #[must_use]
    pub fn record(
        &self,
        is_live: impl Fn(EventId) -> bool,
        whole: impl Fn(&GraphPlan, &BTreeSet<u32>) -> bool,
    ) -> GraphRecord {
        let state = lock(&self.state);
        let mut plan = Vec::new();
        state.plan.encode(&mut Encoder::new(&mut plan));
        let uses = state.built.iter().flat_map(|built| &built.uses);
        let events = uses.filter_map(Use::event).chain(state.kept.values());
        let gone = events.filter(|event| !is_live(event.record.id));
        let mut orphans: Vec<EventRecord> = gone.map(|event| event.record.clone()).collect();
        orphans.sort_by_key(|record| record.id);
        orphans.dedup_by_key(|record| record.id);
        GraphRecord {
            id: self.id,
            ctx: self.frame.ctx.id(),
            template: self.frame.template.as_ref().map(|template| template.id),
            flags: self.frame.flags,
            plan,
            disabled: state.disabled.clone(),
            orphans,
            whole: state.built.is_some() && whole(&state.plan, &state.disabled),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::{GraphEdge, GraphNode, GraphWork};

    fn plan(after: &[Vec<u32>]) -> GraphPlan {
        let edge = |from: &u32| GraphEdge { from: *from, from_port: 0, to_port: 0, kind: 0 };
        let node =
            |after: &Vec<u32>| GraphNode { work: GraphWork::Empty, after: after.iter().map(edge).collect() };
        GraphPlan { nodes: after.iter().map(node).collect() }
    }

    #[test]
    fn who_waits_for_no_kernel_that_stops_is_launched_first() {
        // 1 and 2 stop, side by side; 3 waits for both, 4 for the beginning only.
        let plan = plan(&[vec![], vec![0], vec![0], vec![1, 2], vec![0]]);
        let parts = divide(&plan, &[1, 2].into());
        assert_eq!(parts, [vec![0, 4], vec![1], vec![2], vec![3]]);
        assert_eq!(divide(&plan, &BTreeSet::new()), [vec![0, 1, 2, 3, 4]]);
    }

    proptest! {
        #[test]
        fn parts_come_behind_what_they_wait_for(
            nodes in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<prop::sample::Index>(), 0..3)), 1..20),
        ) {
            let after: Vec<Vec<u32>> = nodes.iter().enumerate().map(|(number, (_, after))| match number {
                0 => vec![],
                _ => after.iter().map(|from| from.index(number) as u32).collect(),
            }).collect();
            let stops: BTreeSet<u32> = (0..).zip(&nodes).filter(|(_, (stops, _))| *stops).map(|(number, _)| number).collect();
            let parts = divide(&plan(&after), &stops);
            let place = |node: u32| parts.iter().position(|part| part.contains(&node)).unwrap();
            let mut all: Vec<u32> = parts.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..nodes.len() as u32).collect::<Vec<_>>());
            for (number, after) in (0..).zip(&after) {
                let part = &parts[place(number)];
                prop_assert!(part.is_sorted() && (part.len() == 1 || !part.iter().any(|node| stops.contains(node))));
                for from in after {
                    prop_assert!(place(*from) < place(number) || part.contains(from) && !stops.contains(from));
                }
            }
        }
    }
}
