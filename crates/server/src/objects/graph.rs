//! Executable graphs.

use super::{Array, Context, Event, EventRecord, Function, Stream, Template};
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
}

impl GraphState {
    /// Lets go of what the backend has, but not of the events, which the application may have destroyed.
    pub fn unbuild(&mut self) {
        if let Some(built) = self.built.take() {
            let events = built.uses.iter().filter_map(Use::event);
            self.kept.extend(events.map(|event| (event.record.id, Arc::clone(event))));
        }
    }
}

/// A backend's executable graph, and what it uses, for each node.
pub struct Built {
    /// The backend's handle.
    pub raw: RawGraph,
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
    /// What `raw` of `ctx` uses.
    #[must_use]
    pub fn new(
        backend: &Arc<dyn Backend>,
        ctx: &Arc<Context>,
        raw: RawGraph,
        uses: Vec<Use>,
        hollow: BTreeSet<u32>,
    ) -> Self {
        Self { raw, uses, hollow, ctx: Arc::clone(ctx), backend: Arc::clone(backend) }
    }

    /// Notes that the events it records are being recorded.
    pub fn note_records(&self) {
        for each in &self.uses {
            if let Use::Record(event) = each {
                event.note_record();
            }
        }
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        if let Err(error) = self.backend.graph_destroy(self.ctx.raw, self.raw) {
            tracing::warn!(%error, "graph not destroyed");
        }
    }
}

impl GraphExec {
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
