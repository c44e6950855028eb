//! Conditions: values that kernels set and conditional nodes look at. They belong to a graph, of which one executable graph can be made
//! at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::graph::{Body, GraphId, NodeId};
use cuda_abi::{CuError, CuResult, sys};
use wire::{ConditionKind, ContextId, GraphCondition, GraphTemplateDestroy, GraphTemplateId};

use super::{Model, Work, told};
use crate::client::{Call, Owner};

/// A condition.
pub struct Condition {
    /// What kernels know it by.
    pub value: u64,
    /// Its context.
    pub ctx: ContextId,
    /// Whether there is an executable graph with its node.
    taken: AtomicBool,
}

impl Condition {
    /// An executable graph gets its node; false when another has it.
    pub fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::AcqRel)
    }

    /// It no longer has.
    pub fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// What a conditional node does. The application is told where the list of its graphs is, so it never moves.
pub struct Conditional {
    /// What it looks at.
    pub condition: Arc<Condition>,
    /// What that means.
    pub kind: ConditionKind,
    graphs: Box<[usize]>,
}

impl Conditional {
    /// The graphs of the node, as an array for the application.
    pub fn graphs(&self) -> *mut sys::CUgraph {
        self.graphs.as_ptr().cast_mut().cast()
    }

    /// Whether both do the same.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.condition, &other.condition)
            && (self.kind, self.graphs.len()) == (other.kind, other.graphs.len())
    }
}

/// What a server has for a graph with conditions.
pub struct Template {
    /// Its id.
    pub id: GraphTemplateId,
    owner: Owner,
    conditions: Vec<Arc<Condition>>,
}

/// Templates by their graphs.
pub type Templates = HashMap<GraphId, Template>;

/// What a conditional node is to be.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// What kernels know the condition by.
    pub value: u64,
    /// What that means.
    pub kind: ConditionKind,
    /// How many graphs it has.
    pub graphs: usize,
    /// Its context.
    pub ctx: ContextId,
}

impl Model {
    /// Adds a conditional node.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a condition that is not the graph's, or has a node, or is of another context.
    pub fn add_conditional(
        &mut self,
        graph: GraphId,
        after: &[::graph::Edge],
        wanted: Wanted,
    ) -> CuResult<(NodeId, Arc<Conditional>)> {
        let root = self.graphs.with_parents(graph).last().ok_or(CuError::INVALID_HANDLE)?;
        let conditions = self.templates.get(&root).map_or(&[][..], |template| &template.conditions);
        let found = conditions.iter().find(|condition| condition.value == wanted.value);
        let condition = Arc::clone(found.ok_or(CuError::INVALID_VALUE)?);
        if condition.ctx != wanted.ctx || self.conditions_of(root).any(|used| Arc::ptr_eq(used, &condition)) {
            return Err(CuError::INVALID_VALUE);
        }
        let mut made = None;
        let node = self.graphs.add_choice(graph, after, wanted.graphs, |graphs| {
            let graphs = graphs.iter().map(|graph| graph.handle() as usize).collect();
            let conditional = Arc::new(Conditional { condition, kind: wanted.kind, graphs });
            made = Some(Arc::clone(&conditional));
            Work::Conditional(conditional)
        });
        Ok((node.map_err(told)?, made.ok_or(CuError::UNKNOWN)?))
    }

    /// The conditions that have nodes in a graph.
    fn conditions_of(&self, graph: GraphId) -> impl Iterator<Item = &Arc<Condition>> {
        self.graphs.all_work(graph).into_iter().filter_map(|work| match work {
            Work::Conditional(conditional) => Some(&conditional.condition),
            _ => None,
        })
    }

    /// The template of a graph that is to be made executable, if it has one; each condition must have a node.
    ///
    /// # Errors
    /// `INVALID_VALUE` when one has none.
    pub fn template_of(&self, graph: GraphId) -> CuResult<Option<GraphTemplateId>> {
        let Some(template) = self.templates.get(&graph) else { return Ok(None) };
        match self.conditions_of(graph).count() == template.conditions.len() {
            true => Ok(Some(template.id)),
            false => Err(CuError::INVALID_VALUE),
        }
    }

    /// Whether the server is to be told of graphs that are gone.
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Whether a graph is inside of a conditional node.
    pub fn is_in_body(&self, graph: GraphId) -> bool {
        let mut graphs = self.graphs.with_parents(graph);
        graphs
            .any(|graph| self.graphs.owner(graph).is_some_and(|owner| matches!(owner.body, Body::Choice(..))))
    }
}

impl Call<'_> {
    /// Makes a condition of a graph: what kernels know it by. One that belongs to a node's graph is its parents' too.
    ///
    /// # Errors
    /// What is wrong with the graph; what the server says.
    pub fn create_condition(
        &mut self,
        graph: GraphId,
        ctx: sys::CUcontext,
        initial: Option<u32>,
    ) -> CuResult<u64> {
        let context = match ctx.is_null() {
            true => Arc::clone(self.context()?),
            false => self.session.context(ctx)?,
        };
        if !context.is_active() {
            return Err(CuError::CONTEXT_IS_DESTROYED);
        }
        let id = GraphTemplateId(self.session.next_id());
        let (root, template) = {
            let mut model = self.session.graphs.lock();
            if !model.graphs.contains(graph) {
                return Err(CuError::INVALID_HANDLE);
            }
            let root = model.graphs.with_parents(graph).last().ok_or(CuError::INVALID_HANDLE)?;
            let template = model.templates.entry(root).or_insert_with(|| Template {
                id,
                owner: Owner::new(&context),
                conditions: Vec::new(),
            });
            (root, template.id)
        };
        let value = self.ask(&GraphCondition { ctx: context.id, template, initial })?;
        let condition = Condition { value, ctx: context.id, taken: AtomicBool::new(false) };
        let mut model = self.session.graphs.lock();
        let template = model.templates.get_mut(&root).ok_or(CuError::INVALID_HANDLE)?;
        template.conditions.push(Arc::new(condition));
        Ok(value)
    }

    /// Ends what the server has for graphs that are gone.
    ///
    /// # Errors
    /// What earlier work has failed with.
    pub fn end_templates(&mut self) -> CuResult {
        let ended = std::mem::take(&mut self.session.graphs.lock().ended);
        let made = |template: &&Template| !template.conditions.is_empty() && template.owner.is_alive();
        ended
            .iter()
            .filter(made)
            .try_for_each(|template| self.submit(&GraphTemplateDestroy { template: template.id }))
    }
}
