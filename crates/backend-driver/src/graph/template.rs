//! Graphs that conditions belong to.
//!
//! The driver makes a condition for one graph, and one conditional node of it or of its bodies. Such a node therefore stays in its
//! graph for good, whatever executable graphs are made of that one after the other; all other nodes come and go.

use super::Edges;
use crate::api::{Api, check};
use crate::driver::{Driver, lock};
use backend::{Conditions, GraphConditional, GraphPlan, GraphWork, RawContext, RawTemplate, Result};
use cudarc::driver::sys;
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use wire::{ConditionKind, CuError};

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: c_uint = sys::CU_GRAPH_COND_ASSIGN_DEFAULT;

/// A graph that conditions belong to; the driver's handles as numbers.
pub struct Template {
    graph: usize,
    /// Conditional nodes, by their conditions.
    nodes: HashMap<u64, Conditional>,
    /// Whether an executable graph is made of it.
    made: bool,
}

struct Conditional {
    node: usize,
    /// The graph that it is in.
    inside: usize,
    kind: ConditionKind,
    bodies: Vec<usize>,
}

impl Template {
    /// An empty graph.
    pub fn create(api: &Api) -> Result<Self> {
        let mut graph: sys::CUgraph = std::ptr::null_mut();
        // SAFETY: writes the graph.
        check(unsafe { (api.cuGraphCreate)(&raw mut graph, 0) })?;
        Ok(Self { graph: graph as usize, nodes: HashMap::new(), made: false })
    }

    fn graph(&self) -> sys::CUgraph {
        self.graph as sys::CUgraph
    }

    /// A condition: the driver's name for it.
    pub fn condition(&self, api: &Api, ctx: RawContext, initial: Option<u32>) -> Result<u64> {
        let mut handle = 0;
        let flags = initial.map_or(0, |_| ASSIGN_DEFAULT);
        // SAFETY: a live graph and context; it writes the handle.
        check(unsafe {
            (api.cuGraphConditionalHandleCreate)(
                &raw mut handle,
                self.graph(),
                ctx.0 as sys::CUcontext,
                initial.unwrap_or(0),
                flags,
            )
        })?;
        Ok(handle)
    }

    /// An executable graph is to be made of it: gives the graph, with no other conditional nodes than the plan's.
    pub fn begin(&mut self, api: &Api, plan: &GraphPlan) -> Result<usize> {
        if self.made {
            return Err(CuError::INVALID_VALUE);
        }
        let planned = |handle: u64| {
            plan.nodes
                .iter()
                .any(|node| matches!(&node.work, GraphWork::Conditional(_, c) if c.handle == handle))
        };
        let gone: Vec<u64> = self.nodes.keys().copied().filter(|handle| !planned(*handle)).collect();
        for handle in gone {
            let Some(conditional) = self.nodes.remove(&handle) else { continue };
            self.forget_inside(&conditional.bodies);
            // SAFETY: a node of this graph, or of a body that is still there, that nobody else names.
            check(unsafe { (api.cuGraphDestroyNode)(conditional.node as sys::CUgraphNode) })?;
        }
        self.made = true;
        Ok(self.graph)
    }

    /// What is inside of bodies goes with them.
    fn forget_inside(&mut self, bodies: &[usize]) {
        let inside: Vec<Conditional> =
            self.nodes.extract_if(|_, node| bodies.contains(&node.inside)).map(|(_, node)| node).collect();
        inside.iter().for_each(|node| self.forget_inside(&node.bodies));
    }

    /// No executable graph is made of it any more, and only its conditional nodes are in it.
    pub fn end(&mut self) {
        self.made = false;
    }

    /// The graph that a condition's node is in.
    pub fn graph_of(&self, handle: u64) -> Result<sys::CUgraph> {
        self.nodes.get(&handle).map(|node| node.inside as sys::CUgraph).ok_or(CuError::INVALID_VALUE)
    }

    /// Puts a conditional node into a graph, behind others: the node and the graphs of its bodies.
    pub fn place(
        &mut self,
        api: &Api,
        inside: sys::CUgraph,
        (ctx, conditional): (RawContext, &GraphConditional),
        (after, edges): Edges,
    ) -> Result<(sys::CUgraphNode, Vec<sys::CUgraph>)> {
        if let Some(known) = self.nodes.get(&conditional.handle) {
            let same = known.kind == conditional.kind && known.bodies.len() == conditional.bodies.len();
            if !same || known.inside != inside as usize {
                return Err(CuError::INVALID_VALUE);
            }
            let node = known.node as sys::CUgraphNode;
            let to = vec![node; after.len()];
            // SAFETY: nodes of one graph, as many as are said.
            check(unsafe {
                (api.cuGraphAddDependencies_v2)(
                    inside,
                    after.as_ptr(),
                    to.as_ptr(),
                    edges.as_ptr(),
                    after.len(),
                )
            })?;
            return Ok((node, known.bodies.iter().map(|body| *body as sys::CUgraph).collect()));
        }
        // SAFETY: a record of numbers, pointers and enumerations whose first value is 0.
        let mut params: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
        params.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        params.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
            handle: conditional.handle,
            type_: kind(conditional.kind),
            size: conditional.bodies.len() as c_uint,
            phGraph_out: std::ptr::null_mut(),
            ctx: ctx.0 as sys::CUcontext,
        };
        let mut node: sys::CUgraphNode = std::ptr::null_mut();
        // SAFETY: whole parameters, and as many nodes of this graph as are said; it writes the node and where the bodies are.
        check(unsafe {
            (api.cuGraphAddNode_v2)(
                &raw mut node,
                inside,
                after.as_ptr(),
                edges.as_ptr(),
                after.len(),
                &raw mut params,
            )
        })?;
        // SAFETY: the driver has written an array of as many graphs as the node has bodies.
        let bodies: Vec<sys::CUgraph> = unsafe {
            let first = params.__bindgen_anon_1.conditional.phGraph_out;
            (0..conditional.bodies.len()).map(|body| first.add(body).read()).collect()
        };
        let known = Conditional {
            node: node as usize,
            inside: inside as usize,
            kind: conditional.kind,
            bodies: bodies.iter().map(|body| *body as usize).collect(),
        };
        self.nodes.insert(conditional.handle, known);
        Ok((node, bodies))
    }

    /// One of its users lets go of it: it ends with the last.
    pub fn release(template: Arc<Mutex<Self>>, api: &Api) -> Result<()> {
        let Some(template) = Arc::into_inner(template) else { return Ok(()) };
        let template = template.into_inner().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nobody else has the handle.
        check(unsafe { (api.cuGraphDestroy)(template.graph()) })
    }
}

fn kind(kind: ConditionKind) -> sys::CUgraphConditionalNodeType {
    match kind {
        ConditionKind::If => sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF,
        ConditionKind::While => sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
        ConditionKind::Switch => sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_SWITCH,
    }
}

impl Conditions for Driver {
    fn template_create(&self, ctx: RawContext) -> Result<RawTemplate> {
        self.enter(ctx)?;
        let template = Template::create(&self.api)?;
        let raw = RawTemplate(self.next_graph.fetch_add(1, Ordering::Relaxed));
        lock(&self.templates).insert(raw, Arc::new(Mutex::new(template)));
        Ok(raw)
    }

    fn template_condition(
        &self,
        ctx: RawContext,
        template: RawTemplate,
        initial: Option<u32>,
    ) -> Result<u64> {
        self.enter(ctx)?;
        lock(&*self.template(template)?).condition(&self.api, ctx, initial)
    }

    fn template_destroy(&self, ctx: RawContext, template: RawTemplate) -> Result<()> {
        self.enter(ctx)?;
        let template = lock(&self.templates).remove(&template).ok_or(CuError::INVALID_HANDLE)?;
        Template::release(template, &self.api)
    }
}
