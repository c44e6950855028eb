//! Executable graphs.

use super::conditions::check_conditions;
use super::dispatch::Execute;
use super::launch::Of;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::{
    Array, Built, DividedRecord, Event, EventRecord, Frame, GraphExec, GraphRecord, GraphState, Module, Part,
    Recorded, Template, Use, divide, in_use, insert,
};
use crate::{lock, read, write};
use backend::{CopyBox, Fill, GraphConditional, GraphFunction, GraphKernel, RawGraph};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use wire::{
    ContextId, CuError, Decoder, EventId, GRAPH_INLINE_MAX, GraphChange, GraphData, GraphExecId, GraphPlan,
    GraphWork, MemoryOperation, Wire,
};

/// The longest plan that is read, bytes.
const PLAN_MAX: u64 = 1 << 30;
/// `CU_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`: the only flag that a backend is told of. Memory and uploads are the client's.
const FLAGS: u64 = 8;

/// Whether a graph is made to be launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// It is.
    Launch,
    /// It is only to be seen that it can be made; there is no memory.
    Rehearsal,
}

/// Events by id: those that the table has, or an image kept for graphs.
pub(crate) type Orphans = BTreeMap<EventId, Arc<Event>>;

/// Whether a node names memory, which a rehearsal has none of.
fn uses_memory(work: &GraphWork) -> bool {
    matches!(work, GraphWork::Copy(_) | GraphWork::Fill(_) | GraphWork::Operations(_))
}

pub(super) fn invalid(detail: String) -> Failure {
    Failure::new(CuError::INVALID_VALUE, detail)
}

impl Session {
    /// What a message carries, or has left in a file.
    fn graph_data<T: Wire>(&self, data: GraphData) -> Result<T> {
        let bytes = match data {
            GraphData::Inline(bytes) if bytes.0.len() > GRAPH_INLINE_MAX => {
                return Err(invalid(format!(
                    "{} bytes of a graph are too many for a message",
                    bytes.0.len()
                )));
            }
            GraphData::Inline(bytes) => bytes.0,
            GraphData::Upload(id) => self.take_upload(id, PLAN_MAX)?,
        };
        let mut from = Decoder::new(&bytes);
        let decoded = T::decode(&mut from).and_then(|value| from.finish().map(|()| value));
        decoded.map_err(|error| invalid(format!("a graph is malformed: {error}")))
    }

    fn graph(&self, id: GraphExecId) -> Result<Arc<GraphExec>> {
        let found = read(&self.table).graphs.get(&id).cloned();
        found.ok_or_else(|| Failure::new(CuError::INVALID_HANDLE, format!("there is no {id:?}")))
    }

    /// What a node does, in the backend's terms, and what it uses.
    fn resolve(&self, work: &GraphWork, orphans: &Orphans) -> Result<(backend::GraphWork, Use)> {
        let event = |id: EventId| match orphans.get(&id) {
            Some(event) => Ok(Arc::clone(event)),
            None => read(&self.table).event(id),
        };
        Ok(match work {
            GraphWork::Empty => (backend::GraphWork::Empty, Use::Nothing),
            GraphWork::Kernel(kernel) => self.resolve_kernel(kernel)?,
            GraphWork::Copy(copy) => {
                let ctx = self.context(copy.ctx)?;
                let wire::GraphCopy { width, height, depth, .. } = *copy;
                let extent = [width, height, depth];
                let (dst, src) = (self.lasting_side(copy.dst, extent)?, self.lasting_side(copy.src, extent)?);
                let arrays = [dst.array, src.array].into_iter().flatten().collect();
                let copy = CopyBox { dst: dst.side, src: src.side, width, height, depth };
                (backend::GraphWork::Copy(ctx.raw, copy), Use::Memory(ctx, arrays))
            }
            GraphWork::Fill(fill) => {
                let ctx = self.context(fill.ctx)?;
                let wire::GraphFill { dst, pitch, element, value, width, height, .. } = *fill;
                self.check_fill(dst, pitch, element, width, height)?;
                let fill = Fill { dst, pitch, element, value, width, height };
                (backend::GraphWork::Fill(ctx.raw, fill), Use::Memory(ctx, Vec::new()))
            }
            GraphWork::Operations(wire::GraphOperations { ctx, operations }) => {
                let ctx = self.context(*ctx)?;
                self.check_operations(operations)?;
                let work = backend::GraphWork::Operations(ctx.raw, operations.clone());
                (work, Use::Memory(ctx, Vec::new()))
            }
            GraphWork::Conditional(wire::GraphConditional { ctx, handle, kind, bodies }) => {
                let ctx = self.context(*ctx)?;
                let conditional = GraphConditional { handle: *handle, kind: *kind, bodies: bodies.clone() };
                (backend::GraphWork::Conditional(ctx.raw, conditional), Use::Memory(ctx, Vec::new()))
            }
            GraphWork::Host(id) => {
                let (callbacks, id) = (Arc::clone(&self.callbacks), *id);
                let run = GraphFunction(Arc::new(move |status| callbacks.run(id, status)));
                (backend::GraphWork::Host(run), Use::Nothing)
            }
            GraphWork::EventRecord(id) => {
                let event = event(*id)?;
                (backend::GraphWork::EventRecord(event.raw), Use::Record(event))
            }
            GraphWork::EventWait(id) => {
                let event = event(*id)?;
                (backend::GraphWork::EventWait(event.raw), Use::Event(event))
            }
        })
    }

    fn resolve_kernel(&self, kernel: &wire::GraphKernel) -> Result<(backend::GraphWork, Use)> {
        let function = self.callee(kernel.ctx, kernel.callee)?;
        super::launch::check_attributes(&kernel.attributes)?;
        if (kernel.params.0.len() as u64) < function.params_bytes()? {
            let bytes = kernel.params.0.len();
            return Err(invalid(format!("{}: {bytes} bytes of parameters are too few", function.name)));
        }
        self.give_heap(&function)?;
        let work = GraphKernel {
            function: function.raw,
            grid: kernel.grid,
            block: kernel.block,
            shared: kernel.shared,
            attributes: kernel.attributes.clone(),
            params: kernel.params.0.clone(),
        };
        Ok((backend::GraphWork::Kernel(function.module.ctx.raw, work), Use::Function(function)))
    }

    /// Whether a graph may be launched in parts. One with conditional nodes has a template, and is not; nor is one with operations on words of memory, since what
    /// waits there may be waiting for another branch, or for what the same thread gives to a stream behind the launch.
    fn may_divide(&self, frame: &Frame, plan: &GraphPlan) -> bool {
        let operates = |node: &wire::GraphNode| matches!(node.work, GraphWork::Operations(_));
        self.has_marked() && frame.template.is_none() && !plan.nodes.iter().any(operates)
    }

    /// Whether a node is a kernel that can stop half-way: a graph with such nodes is launched in parts, if it may be.
    fn can_stop(&self, frame: &Frame, work: &GraphWork) -> bool {
        match work {
            GraphWork::Kernel(kernel) if kernel.ctx == frame.ctx.id() => {
                let function = self.callee(kernel.ctx, kernel.callee);
                function.is_ok_and(|function| {
                    function.twin.as_ref().is_some_and(|twin| twin.stops_with(&kernel.attributes))
                })
            }
            _ => false,
        }
    }

    /// Whether a graph is launched in parts.
    pub(super) fn is_divided(&self, exec: GraphExecId) -> bool {
        self.graph(exec).is_ok_and(|graph| !lock(&graph.state).stops.is_empty())
    }

    /// Notes how far the stream is that a graph was last launched in: what is built anew would not be behind that in another one.
    fn note_end(&self, state: &mut GraphState) {
        if let Some(stream) = state.last.as_ref().and_then(Weak::upgrade)
            && state.end.is_none()
        {
            state.end = self.mark(&stream).ok().flatten().map(|marker| (stream.record.key, marker));
        }
    }

    /// Gives up a launch, or what is left of it: the application counts on each of its functions once for every launch.
    pub(super) fn give_up_launch(&self, exec: GraphExecId, code: CuError) {
        let Ok(graph) = self.graph(exec) else { return };
        let mut state = lock(&graph.state);
        let given = std::mem::take(&mut state.given) as usize;
        let parts = divide(&state.plan, &state.stops);
        let given: BTreeSet<u32> = parts.into_iter().take(given).flatten().collect();
        for (number, node) in (0..).zip(&state.plan.nodes) {
            if let GraphWork::Host(id) = node.work
                && !given.contains(&number)
            {
                self.callbacks.cancel(id, code);
            }
        }
    }

    /// Makes the backend's graph of a plan, or one of each part that `stops` leave of it.
    fn build(
        &self,
        frame: &Frame,
        (plan, stops): (&GraphPlan, &BTreeSet<u32>),
        disabled: &BTreeSet<u32>,
        orphans: &Orphans,
    ) -> Result<Built> {
        let Frame { ctx, template, flags } = frame;
        check_conditions(plan, template.as_deref())?;
        let mut nodes = Vec::with_capacity(plan.nodes.len());
        let mut uses = Vec::with_capacity(plan.nodes.len());
        let mut hollow = BTreeSet::new();
        for (at, node) in (0..).zip(&plan.nodes) {
            let (work, used) = match self.resolve(&node.work, orphans) {
                // What it would use is gone, and it does nothing.
                Err(_) if disabled.contains(&at) => {
                    hollow.insert(at);
                    (backend::GraphWork::Empty, Use::Nothing)
                }
                resolved => resolved?,
            };
            nodes.push(backend::GraphNode { work, after: node.after.clone() });
            uses.push(used);
        }
        let template = template.as_ref().map(|template| template.raw);
        let parts = match stops.is_empty() {
            true => vec![(0..).zip(&nodes).map(|(number, _)| number).collect()],
            false => divide(plan, stops),
        };
        let mut built = Built::new(&self.placer.backend, ctx, uses, hollow);
        for numbers in parts {
            if let [node] = numbers[..]
                && stops.contains(&node)
            {
                built.parts.push(Part::Stops(node));
                continue;
            }
            let nodes = match stops.is_empty() {
                true => std::mem::take(&mut nodes),
                false => part_of(&nodes, &numbers),
            };
            let plan = backend::GraphPlan { nodes, template };
            let raw = self.backend().graph_instantiate(ctx.raw, &plan, flags & FLAGS)?;
            built.parts.push(Part::Nodes(raw, numbers));
        }
        for node in disabled.difference(&built.hollow) {
            if let Some((raw, number)) = built.place(*node) {
                self.backend().graph_enable(ctx.raw, raw, number, false)?;
            }
        }
        Ok(built)
    }

    /// Gives nodes other work, which is of the same kind and as able to stop.
    fn update(
        &self,
        frame: &Frame,
        built: &mut Built,
        changes: Vec<(u32, (backend::GraphWork, Use))>,
    ) -> Result<()> {
        let mut of_parts: BTreeMap<u64, Vec<(usize, backend::GraphWork)>> = BTreeMap::new();
        let mut uses = Vec::with_capacity(changes.len());
        for (node, (work, used)) in changes {
            if let Some((raw, number)) = built.place(node) {
                of_parts.entry(raw.0).or_default().push((number, work));
            }
            uses.push((node, used));
        }
        for (raw, works) in of_parts {
            self.backend().graph_update(frame.ctx.raw, RawGraph(raw), &works)?;
        }
        for (node, used) in uses {
            built.uses[node as usize] = used;
        }
        Ok(())
    }

    /// Makes the backend's graph anew. What is missing for it is told at the next launch.
    fn rebuild(&self, graph: &GraphExec, state: &mut GraphState) {
        self.note_end(state);
        // Of a template there is one at a time.
        state.unbuild();
        state.built =
            self.build(&graph.frame, (&state.plan, &state.stops), &state.disabled, &state.kept).ok();
        if state.built.is_some() {
            state.kept.clear();
        }
    }

    /// Lets go of what the backend has of graphs that use what `gone` says; they stay, and are built again when they can be.
    pub(crate) fn unbuild_graphs(&self, gone: impl Fn(&Use) -> bool) {
        let graphs: Vec<_> = read(&self.table).graphs.values().cloned().collect();
        for graph in graphs {
            let mut state = lock(&graph.state);
            if state.built.as_ref().is_some_and(|built| built.uses.iter().any(&gone)) {
                state.unbuild();
            }
        }
    }

    /// The same for modules that are being unloaded.
    pub(crate) fn unbuild_graphs_of(&self, modules: &[Arc<Module>]) {
        self.unbuild_graphs(|used| match used {
            Use::Function(function) => modules.iter().any(|module| Arc::ptr_eq(module, &function.module)),
            _ => false,
        });
    }

    /// The same for arrays that are destroyed.
    pub(crate) fn unbuild_graphs_with(&self, gone: &[Arc<Array>]) {
        self.unbuild_graphs(|used| match used {
            Use::Memory(_, arrays) => {
                arrays.iter().any(|used| gone.iter().any(|gone| Arc::ptr_eq(gone, used)))
            }
            _ => false,
        });
    }

    /// What it takes to make every graph again, and to go on with those that are launched in parts.
    pub(crate) fn graph_records(&self) -> (Vec<GraphRecord>, Vec<DividedRecord>) {
        let (graphs, events): (Vec<_>, BTreeSet<EventId>) = {
            let table = read(&self.table);
            (table.graphs.values().cloned().collect(), table.events.keys().copied().collect())
        };
        let record = |graph: &Arc<GraphExec>| {
            graph.record(|event| events.contains(&event), |plan, disabled| self.has_memory_of(plan, disabled))
        };
        (graphs.iter().map(record).collect(), graphs.iter().filter_map(|graph| graph.divided()).collect())
    }

    /// Whether the memory is there that the nodes of a plan name which are not disabled.
    fn has_memory_of(&self, plan: &GraphPlan, disabled: &BTreeSet<u32>) -> bool {
        let orphans = Orphans::new();
        let mut enabled = (0..).zip(&plan.nodes).filter(|(at, _)| !disabled.contains(at));
        enabled.all(|(_, node)| !uses_memory(&node.work) || self.resolve(&node.work, &orphans).is_ok())
    }

    /// Makes the events again that only graphs have, each once however many have it.
    pub(crate) fn restore_orphans(&self, records: &[GraphRecord]) -> Result<Orphans> {
        let mut orphans = Orphans::new();
        for event in records.iter().flat_map(|record| &record.orphans) {
            if let Entry::Vacant(new) = orphans.entry(event.id) {
                let ctx = self.context(event.ctx)?;
                new.insert(Event::make(&self.placer.backend, &ctx, event.clone(), Recorded::Never)?);
            }
        }
        Ok(orphans)
    }

    /// Makes the graph of a record again.
    pub(crate) fn restore_graph(
        &self,
        (record, divided): (&GraphRecord, Option<&DividedRecord>),
        template: Option<Arc<Template>>,
        orphans: &Orphans,
        purpose: Purpose,
    ) -> Result<()> {
        let frame = Frame { ctx: self.context(record.ctx)?, template, flags: record.flags };
        let mut from = Decoder::new(&record.plan);
        let plan = GraphPlan::decode(&mut from).map_err(|error| invalid(error.to_string()))?;
        let stops = divided.map(|divided| divided.stops.clone()).unwrap_or_default();
        let built = match (record.whole, purpose) {
            (false, _) => None,
            (true, Purpose::Launch) => {
                Some(self.build(&frame, (&plan, &stops), &record.disabled, orphans)?)
            }
            (true, Purpose::Rehearsal) => {
                let mut plan = plan.clone();
                let mut disabled = record.disabled.clone();
                for (at, node) in (0..).zip(&mut plan.nodes) {
                    if uses_memory(&node.work) {
                        node.work = GraphWork::Empty;
                        disabled.remove(&at);
                    }
                }
                Some(self.build(&frame, (&plan, &stops), &disabled, orphans)?)
            }
        };
        let own = |event: &EventRecord| orphans.get(&event.id).map(|kept| (event.id, Arc::clone(kept)));
        let kept = match &built {
            Some(_) => Orphans::new(),
            None => record.orphans.iter().filter_map(own).collect(),
        };
        let given = divided.map_or(0, |divided| divided.given);
        let state = GraphState {
            disabled: record.disabled.clone(),
            kept,
            given,
            ..GraphState::new(plan, built, stops)
        };
        let graph = GraphExec { id: record.id, frame, state: Mutex::new(state) };
        insert(&mut write(&self.table).graphs, record.id, Arc::new(graph))
    }

    /// Takes the graphs of a context that is ending out of the table, and out of the backend what uses it.
    pub(crate) fn remove_graphs(&self, ctx: ContextId) {
        let gone =
            crate::objects::take_out(&mut write(&self.table).graphs, |graph| graph.frame.ctx.id() == ctx);
        let templates =
            crate::objects::take_out(&mut write(&self.table).templates, |template| template.ctx.id() == ctx);
        drop((gone, templates));
        self.unbuild_graphs(|used| used.context().is_some_and(|used| used.id() == ctx));
        let graphs: Vec<_> = read(&self.table).graphs.values().cloned().collect();
        for graph in graphs {
            lock(&graph.state).kept.retain(|_, event| event.record.ctx != ctx);
        }
    }
}

impl Execute for wire::GraphInstantiate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let template = self.template.map(|template| read(&session.table).template(template));
        let frame =
            Frame { ctx: session.context(self.ctx)?, template: template.transpose()?, flags: self.flags };
        let plan: GraphPlan = session.graph_data(self.plan)?;
        if read(&session.table).graphs.contains_key(&self.exec) {
            return Err(in_use(self.exec));
        }
        let may_divide = session.may_divide(&frame, &plan);
        let can_stop =
            |(_, node): &(u32, &wire::GraphNode)| may_divide && session.can_stop(&frame, &node.work);
        let stops = (0..).zip(&plan.nodes).filter(can_stop).map(|(number, _)| number).collect();
        let built = session.build(&frame, (&plan, &stops), &BTreeSet::new(), &Orphans::new())?;
        let state = Mutex::new(GraphState::new(plan, Some(built), stops));
        let graph = Arc::new(GraphExec { id: self.exec, frame, state });
        let mut table = write(&session.table);
        table.changes += 1;
        insert(&mut table.graphs, self.exec, graph)
    }
}

impl Execute for wire::GraphUpdate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let graph = session.graph(self.exec)?;
        let changes: Vec<GraphChange> = session.graph_data(self.changes)?;
        let mut state = lock(&graph.state);
        let state = &mut *state;
        for change in &changes {
            let node = state.plan.nodes.get(change.node as usize);
            let node = node.ok_or_else(|| invalid(format!("{:?} has no node {}", self.exec, change.node)))?;
            let is_like = std::mem::discriminant(&node.work) == std::mem::discriminant(&change.work);
            // The bodies of a conditional node are the plan's form.
            if !is_like || matches!(change.work, GraphWork::Conditional(_)) {
                return Err(CuError::GRAPH_EXEC_UPDATE_FAILURE.into());
            }
        }
        let mut stops = state.stops.clone();
        let may_divide = session.may_divide(&graph.frame, &state.plan);
        for change in &changes {
            match may_divide && session.can_stop(&graph.frame, &change.work) {
                true => stops.insert(change.node),
                false => stops.remove(&change.node),
            };
        }
        // A node without what it names gets something that is there; or other kernels can stop.
        let hollow = |built: &Built| changes.iter().any(|change| built.hollow.contains(&change.node));
        let anew = state.built.as_ref().is_some_and(|built| hollow(built) || stops != state.stops);
        if let Some(built) = &mut state.built {
            let mut resolved = Vec::with_capacity(changes.len());
            for change in &changes {
                resolved.push((change.node, session.resolve(&change.work, &Orphans::new())?));
            }
            let updated = if anew { Ok(()) } else { session.update(&graph.frame, built, resolved) };
            if updated.is_err() && built.parts.len() > 1 {
                // Other parts may have theirs.
                state.unbuild();
            }
            updated?;
        }
        for change in changes {
            state.plan.nodes[change.node as usize].work = change.work;
        }
        state.stops = stops;
        if anew {
            session.rebuild(&graph, state);
        }
        write(&session.table).changes += 1;
        Ok(())
    }
}

/// The nodes of a part, as numbers in it; what waits for another part is launched behind that.
fn part_of(nodes: &[backend::GraphNode], part: &[u32]) -> Vec<backend::GraphNode> {
    let number = |node: u32| part.binary_search(&node).ok().and_then(|at| u32::try_from(at).ok());
    let of_part = part.iter().filter_map(|node| nodes.get(*node as usize));
    let inside = |edge: &wire::GraphEdge| Some(wire::GraphEdge { from: number(edge.from)?, ..*edge });
    of_part
        .map(|node| backend::GraphNode {
            work: node.work.clone(),
            after: node.after.iter().filter_map(inside).collect(),
        })
        .collect()
}

impl Execute for wire::GraphNodeEnable {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let graph = session.graph(self.exec)?;
        let mut state = lock(&graph.state);
        match state.plan.nodes.get(self.node as usize).map(|node| &node.work) {
            Some(GraphWork::Kernel(_) | GraphWork::Copy(_) | GraphWork::Fill(_)) => {}
            _ => return Err(invalid(format!("node {} of {:?} cannot be disabled", self.node, self.exec))),
        }
        let hollow = state.built.as_ref().is_some_and(|built| built.hollow.contains(&self.node));
        let place = state.built.as_ref().filter(|_| !hollow).and_then(|built| built.place(self.node));
        if let Some((raw, number)) = place {
            session.backend().graph_enable(graph.frame.ctx.raw, raw, number, self.enabled)?;
        }
        match self.enabled {
            true => state.disabled.remove(&self.node),
            false => state.disabled.insert(self.node),
        };
        if hollow && self.enabled {
            session.rebuild(&graph, &mut state);
        }
        Ok(())
    }
}

/// The backend's graph, built if what was missing is there again.
fn ready<'a>(session: &Session, graph: &GraphExec, state: &'a mut GraphState) -> Result<&'a Built> {
    if state.built.is_none() {
        let plan = (&state.plan, &state.stops);
        state.built = Some(session.build(&graph.frame, plan, &state.disabled, &state.kept)?);
        state.kept.clear();
    }
    state.built.as_ref().ok_or_else(|| CuError::UNKNOWN.into())
}

impl Execute for wire::GraphUpload {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let graph = session.graph(self.exec)?;
        let mut state = lock(&graph.state);
        let built = ready(session, &graph, &mut state)?;
        let _work = stream.begin_work()?;
        for part in &built.parts {
            if let Part::Nodes(raw, _) = part {
                session.backend().graph_upload(stream.ctx.raw, stream.arg(), *raw)?;
            }
        }
        Ok(())
    }
}

impl Execute for wire::GraphLaunch {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let graph = session.graph(self.exec)?;
        let mut state = lock(&graph.state);
        launch(session, caller, &self, &graph, &mut state)
    }
}

/// All operations on words of memory that a plan has; one with such has one part.
fn operations(plan: &GraphPlan) -> Vec<MemoryOperation> {
    let operations = |node: &wire::GraphNode| match &node.work {
        GraphWork::Operations(node) => node.operations.clone(),
        _ => Vec::new(),
    };
    plan.nodes.iter().flat_map(operations).collect()
}

/// Gives a stream the next part of a launch; it is told to the caller whether that was the last one.
fn launch(
    session: &Session,
    caller: &mut Caller,
    message: &wire::GraphLaunch,
    graph: &GraphExec,
    state: &mut GraphState,
) -> Result<()> {
    let stream = session.stream(caller, message.ctx, message.stream)?;
    if stream.ctx.id() != graph.frame.ctx.id() && state.given == 0 && !state.stops.is_empty() {
        // Only a graph can have kernels of another context than its stream.
        state.stops.clear();
        session.note_end(state);
        state.unbuild();
    }
    ready(session, graph, state)?;
    if state.given == 0
        && let Some((key, marker)) = state.end.take()
        && key != stream.record.key
    {
        // Launches of a graph are behind one another, in whichever streams.
        session.backend().stream_wait_event(stream.ctx.raw, stream.arg(), marker.event(), 0)?;
    }
    let GraphState { plan, disabled, built: Some(built), given, last, end, .. } = state else {
        return Err(CuError::UNKNOWN.into());
    };
    let part = built.parts.get(*given as usize);
    let part = part.ok_or_else(|| invalid(format!("{:?} has no part {given}", message.exec)))?;
    let operations = operations(plan);
    session.shadows.note_waits(&operations);
    match part {
        Part::Nodes(raw, _) => {
            let _work = stream.begin_launch(message.exec.handle())?;
            let launched = session.backend().graph_launch(stream.ctx.raw, stream.arg(), *raw);
            launched.map_err(|code| Failure::new(code, format!("launch of {:?}", message.exec)))?;
        }
        Part::Stops(node) if disabled.contains(node) => {}
        Part::Stops(node) => match plan.nodes.get(*node as usize).map(|node| &node.work) {
            Some(GraphWork::Kernel(kernel)) => {
                let kernel = kernel.clone();
                let launch = wire::Launch {
                    ctx: kernel.ctx,
                    stream: message.stream,
                    callee: kernel.callee,
                    grid: kernel.grid,
                    block: kernel.block,
                    shared: kernel.shared,
                    attributes: kernel.attributes,
                    params: kernel.params,
                };
                session.launch(caller, &stream, &launch, Of::Graph)?;
            }
            _ => return Err(invalid(format!("node {node} of {:?} is no kernel", message.exec))),
        },
    }
    built.note_records(part.nodes());
    stream.note_waits(&operations)?;
    *last = Some(Arc::downgrade(&stream));
    *given += 1;
    caller.is_in_part = (*given as usize) < built.parts.len();
    if !caller.is_in_part {
        *given = 0;
        if built.parts.len() > 1 {
            *end = session.mark(&stream)?.map(|marker| (stream.record.key, marker));
        }
    }
    Ok(())
}

impl Execute for wire::GraphExecDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let mut table = write(&session.table);
        let gone = table.graphs.remove(&self.exec);
        table.changes += 1;
        drop(table);
        match gone {
            Some(_) => Ok(()),
            None => Err(Failure::new(CuError::INVALID_HANDLE, format!("there is no {:?}", self.exec))),
        }
    }
}
