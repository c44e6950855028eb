//! Executable graphs. The driver's graph that one is made from stays beside it: it names the nodes, and is what larger changes
//! are compared with.

mod functions;
mod params;
mod template;

pub use template::Template;

use crate::api::{Api, check};
use crate::driver::{lock, stream};
use crate::work;
use backend::{GraphPlan, GraphWork, Result, StreamArg};
use cudarc::driver::sys;
use functions::{Functions, Held, Place};
use params::with_params;
use std::sync::{Arc, Mutex};
use wire::{CuError, GraphEdge, LaunchValue};

/// An executable graph; the driver's handles as numbers.
pub struct Graph {
    base: Base,
    exec: usize,
    nodes: Vec<Node>,
    functions: Arc<Functions>,
    held: Option<Held>,
    /// How often it has been launched.
    launches: u64,
}

/// The driver's graph that it is made from.
enum Base {
    /// One of its own.
    Own(usize),
    /// One that conditions belong to.
    Template(Arc<Mutex<Template>>, usize),
}

impl Base {
    fn graph(&self) -> sys::CUgraph {
        match self {
            Self::Own(graph) | Self::Template(_, graph) => *graph as sys::CUgraph,
        }
    }
}

#[derive(Clone)]
struct Node {
    raw: usize,
    work: GraphWork,
    after: Vec<GraphEdge>,
    /// Its host function, if that is what it does.
    place: Option<Arc<Place>>,
    /// How often the graph had been launched when it got its work.
    since: u64,
}

/// A list of edges as the driver takes it: the nodes, and the data of each.
type Edges = (Vec<sys::CUgraphNode>, Vec<sys::CUgraphEdgeData>);

impl Graph {
    /// Builds a graph and makes it executable, in the context that is current.
    pub fn make(
        api: &Api,
        plan: &GraphPlan,
        template: Option<Arc<Mutex<Template>>>,
        flags: u64,
    ) -> Result<Self> {
        let base = match template {
            None => {
                let mut graph: sys::CUgraph = std::ptr::null_mut();
                // SAFETY: writes the graph.
                check(unsafe { (api.cuGraphCreate)(&raw mut graph, 0) })?;
                Base::Own(graph as usize)
            }
            Some(template) => {
                let graph = lock(&template).begin(api, plan)?;
                Base::Template(template, graph)
            }
        };
        let mut graph =
            Self { base, exec: 0, nodes: Vec::new(), functions: Arc::default(), held: None, launches: 0 };
        match graph.build(api, plan).and_then(|()| graph.instantiate(api, flags)) {
            Ok(()) => Ok(graph),
            Err(error) => {
                let _ = graph.take_apart(api);
                Err(error)
            }
        }
    }

    fn instantiate(&mut self, api: &Api, flags: u64) -> Result<()> {
        let mut exec: sys::CUgraphExec = std::ptr::null_mut();
        // SAFETY: writes the executable graph.
        check(unsafe { (api.cuGraphInstantiateWithFlags)(&raw mut exec, self.base.graph(), flags) })?;
        self.exec = exec as usize;
        Ok(())
    }

    fn exec(&self) -> sys::CUgraphExec {
        self.exec as sys::CUgraphExec
    }

    fn node(&self, node: usize) -> Result<sys::CUgraphNode> {
        self.nodes.get(node).map(|node| node.raw as sys::CUgraphNode).ok_or(CuError::INVALID_VALUE)
    }

    /// What a node waits for.
    fn edges<'a>(&self, after: impl Iterator<Item = &'a GraphEdge> + Clone) -> Result<Edges> {
        let nodes = after.clone().map(|edge| self.node(edge.from as usize)).collect::<Result<Vec<_>>>()?;
        let data = after.map(|edge| sys::CUgraphEdgeData {
            from_port: edge.from_port,
            to_port: edge.to_port,
            type_: edge.kind,
            reserved: [0; 5],
        });
        Ok((nodes, data.collect()))
    }

    fn build(&mut self, api: &Api, plan: &GraphPlan) -> Result<()> {
        self.held = Some(Held::new(&self.functions, api, self.base.graph())?);
        // Where each graph ends that the nodes at hand are in, the innermost last.
        let mut inside = vec![(plan.nodes.len(), self.base.graph())];
        for (at, node) in plan.nodes.iter().enumerate() {
            inside.truncate(inside.iter().rposition(|(end, _)| *end > at).map_or(1, |last| last + 1));
            let (_, graph) = inside[inside.len() - 1];
            let edges = self.edges(node.after.iter())?;
            let place = self.functions.place(at, &node.work);
            let raw = match (&node.work, &self.base) {
                (GraphWork::Conditional(ctx, conditional), Base::Template(template, _)) => {
                    let (raw, bodies) = lock(template).place(api, graph, (*ctx, conditional), edges)?;
                    let ends = conditional.bodies(at).map(|body| body.end);
                    let bodies: Vec<_> = ends.zip(bodies).collect();
                    inside.extend(bodies.into_iter().rev());
                    raw
                }
                (GraphWork::Conditional(..), Base::Own(_)) => return Err(CuError::INVALID_VALUE),
                (work, _) => self.add(api, graph, (work, place.as_deref()), &edges)?,
            };
            let (raw, work, after) = (raw as usize, node.work.clone(), node.after.clone());
            self.nodes.push(Node { raw, work, after, place, since: 0 });
        }
        Ok(())
    }

    fn add(
        &self,
        api: &Api,
        graph: sys::CUgraph,
        (work, place): (&GraphWork, Option<&Place>),
        (after, edges): &Edges,
    ) -> Result<sys::CUgraphNode> {
        let mut raw: sys::CUgraphNode = std::ptr::null_mut();
        with_params(work, place, |params| {
            // SAFETY: whole parameters, and as many nodes of this graph as are said; it writes the node.
            check(unsafe {
                (api.cuGraphAddNode_v2)(
                    &raw mut raw,
                    graph,
                    after.as_ptr(),
                    edges.as_ptr(),
                    after.len(),
                    params,
                )
            })
        })?;
        attributes(work).iter().try_for_each(|attribute| set_attribute(api, raw, attribute)).map(|()| raw)
    }

    /// Gives nodes other work.
    pub fn update(&mut self, api: &Api, changes: &[(usize, GraphWork)]) -> Result<()> {
        for (node, work) in changes {
            let node = self.nodes.get(*node).ok_or(CuError::INVALID_VALUE)?;
            if !node.work.is_like(work) {
                return Err(CuError::GRAPH_EXEC_UPDATE_FAILURE);
            }
        }
        let before: Vec<_> = changes.iter().map(|(node, _)| (*node, self.nodes[*node].clone())).collect();
        let updated = changes
            .iter()
            .try_for_each(|(node, work)| {
                let place = self.functions.place(*node, work);
                self.set_in_template(api, *node, work, place)
            })
            .and_then(|()| self.apply(api, changes, &before));
        for (node, old) in before {
            if updated.is_err() {
                // What the driver took before, it takes again.
                if self.set_in_template(api, node, &old.work, old.place).is_ok() {
                    self.nodes[node].since = old.since;
                }
            } else if let Some(place) = old.place.filter(|_| old.since == self.launches) {
                // No launch knows it.
                self.functions.forget(&place);
            }
        }
        updated
    }

    /// Brings the executable graph in line with the template.
    fn apply(&self, api: &Api, changes: &[(usize, GraphWork)], before: &[(usize, Node)]) -> Result<()> {
        if let ([(node, work)], [(_, old)]) = (changes, before)
            && attributes(work) == attributes(&old.work)
        {
            let raw = self.node(*node)?;
            let set = with_params(work, self.nodes[*node].place.as_deref(), |params| {
                // SAFETY: a node of the graph that this one was made from, and whole parameters of its kind.
                check(unsafe { (api.cuGraphExecNodeSetParams)(self.exec(), raw, params) })
            });
            // The node may be in a body, where only an update of the whole is sure to find it.
            if set.is_ok() || matches!(self.base, Base::Own(_)) {
                return set;
            }
        }
        let mut info = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: std::ptr::null_mut(),
            errorFromNode: std::ptr::null_mut(),
        };
        let graph = self.base.graph();
        // SAFETY: both live; it writes the result, which is not read: a newer driver may tell what today's enum does not have.
        check(unsafe { (api.cuGraphExecUpdate_v2)(self.exec(), graph, &raw mut info) })
    }

    fn set_in_template(
        &mut self,
        api: &Api,
        node: usize,
        work: &GraphWork,
        place: Option<Arc<Place>>,
    ) -> Result<()> {
        let raw = self.node(node)?;
        with_params(work, place.as_deref(), |params| {
            // SAFETY: a node of the template, and whole parameters of its kind.
            check(unsafe { (api.cuGraphNodeSetParams)(raw, params) })
        })?;
        if let (GraphWork::Kernel(_, new), GraphWork::Kernel(_, old)) = (work, &self.nodes[node].work) {
            let gone =
                old.attributes.iter().filter(|(id, _)| !new.attributes.iter().any(|(new, _)| new == id));
            let reset: Vec<_> = gone.map(|(id, _)| (*id, LaunchValue([0; 64]))).collect();
            reset
                .iter()
                .chain(&new.attributes)
                .try_for_each(|attribute| set_attribute(api, raw, attribute))?;
        }
        let node = &mut self.nodes[node];
        (node.work, node.place, node.since) = (work.clone(), place, self.launches);
        Ok(())
    }

    /// Lets a node do its work, or nothing.
    pub fn enable(&self, api: &Api, node: usize, enabled: bool) -> Result<()> {
        // SAFETY: a node of the graph that this one was made from.
        check(unsafe { (api.cuGraphNodeSetEnabled)(self.exec(), self.node(node)?, enabled.into()) })
    }

    /// As `cuGraphUpload`.
    pub fn upload(&self, api: &Api, arg: StreamArg) -> Result<()> {
        // SAFETY: both live.
        check(unsafe { (api.cuGraphUpload)(self.exec(), stream(arg)) })
    }

    /// As `cuGraphLaunch`.
    pub fn launch(&mut self, api: &Api, arg: StreamArg) -> Result<()> {
        self.launches += 1;
        // SAFETY: both live.
        check(unsafe { (api.cuGraphLaunch)(self.exec(), stream(arg)) })
    }

    /// Destroys both; a launch that is under way completes.
    pub fn destroy(self, api: &Api) -> Result<()> {
        self.take_apart(api)
    }

    fn take_apart(self, api: &Api) -> Result<()> {
        let exec = match self.exec {
            0 => Ok(()),
            // SAFETY: nobody else has the handle.
            exec => check(unsafe { (api.cuGraphExecDestroy)(exec as sys::CUgraphExec) }),
        };
        let base = match &self.base {
            // SAFETY: as above.
            Base::Own(graph) => check(unsafe { (api.cuGraphDestroy)(*graph as sys::CUgraph) }),
            Base::Template(..) => self.empty(api),
        };
        if let Base::Template(template, _) = self.base {
            if base.is_ok() {
                lock(&template).end();
            }
            Template::release(template, api)?;
        }
        exec.and(base)
    }

    /// Takes everything out of the template but its conditional nodes.
    fn empty(&self, api: &Api) -> Result<()> {
        let is_conditional = |node: &Node| matches!(node.work, GraphWork::Conditional(..));
        for node in self.nodes.iter().rev().filter(|node| !is_conditional(node)) {
            // SAFETY: a node of the template that nobody else names.
            check(unsafe { (api.cuGraphDestroyNode)(node.raw as sys::CUgraphNode) })?;
        }
        for node in self.nodes.iter().filter(|node| is_conditional(node)) {
            let stays = |edge: &&GraphEdge| self.nodes.get(edge.from as usize).is_some_and(is_conditional);
            let (after, edges) = self.edges(node.after.iter().filter(stays))?;
            let to = vec![node.raw as sys::CUgraphNode; after.len()];
            let GraphWork::Conditional(_, conditional) = &node.work else { continue };
            let Base::Template(template, _) = &self.base else { continue };
            let inside = lock(template).graph_of(conditional.handle)?;
            // SAFETY: edges of that graph, as many as are said.
            check(unsafe {
                (api.cuGraphRemoveDependencies_v2)(
                    inside,
                    after.as_ptr(),
                    to.as_ptr(),
                    edges.as_ptr(),
                    after.len(),
                )
            })?;
        }
        match &self.held {
            Some(held) => held.let_go(api, self.base.graph()),
            None => Ok(()),
        }
    }
}

fn attributes(work: &GraphWork) -> &[(u32, LaunchValue)] {
    match work {
        GraphWork::Kernel(_, kernel) => &kernel.attributes,
        _ => &[],
    }
}

fn set_attribute(api: &Api, node: sys::CUgraphNode, (id, value): &(u32, LaunchValue)) -> Result<()> {
    let value: [u64; 8] = work::words(value);
    // SAFETY: a kernel node, and a value of the size that every attribute has; the driver refuses ids it does not know.
    check(unsafe { (api.cuGraphKernelNodeSetAttribute)(node, *id, value.as_ptr().cast()) })
}
