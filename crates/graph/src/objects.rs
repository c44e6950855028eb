//! User objects: counted references, held by the program and by graphs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::ids::{GraphId, ObjectId};
use crate::model::{Error, Graphs};

type Result<T> = std::result::Result<T, Error>;

/// User objects that nobody refers to any more: their destructors are due.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Released(pub Vec<ObjectId>);

impl<W: Clone> Graphs<W> {
    /// A user object with so many references.
    pub fn create_object(&mut self, references: u64) -> ObjectId {
        let id = ObjectId(self.number());
        self.objects.insert(id, references);
        id
    }

    /// Adds references of the program's.
    ///
    /// # Errors
    /// [`Error::NoObject`].
    pub fn retain_object(&mut self, object: ObjectId, count: u64) -> Result<()> {
        *self.objects.get_mut(&object).ok_or(Error::NoObject)? += count;
        Ok(())
    }

    /// Takes references of the program's away.
    ///
    /// # Errors
    /// [`Error::NoObject`], [`Error::References`].
    pub fn release_object(&mut self, object: ObjectId, count: u64) -> Result<Released> {
        let references = self.objects.get(&object).ok_or(Error::NoObject)?;
        let held: u64 = self.graphs.values().filter_map(|graph| graph.objects.get(&object)).sum();
        if references.saturating_sub(held) < count {
            return Err(Error::References);
        }
        let mut released = Released::default();
        self.drop_references(object, count, &mut released);
        Ok(released)
    }

    /// Gives a graph references: new ones, or (`moved`) the program's.
    ///
    /// # Errors
    /// [`Error::NoGraph`], [`Error::NoObject`].
    pub fn retain_in_graph(
        &mut self,
        graph: GraphId,
        object: ObjectId,
        count: u64,
        moved: bool,
    ) -> Result<()> {
        self.graph(graph)?;
        let references = self.objects.get_mut(&object).ok_or(Error::NoObject)?;
        if !moved {
            *references += count;
        }
        if let Some(graph) = self.graphs.get_mut(&graph) {
            *graph.objects.entry(object).or_default() += count;
        }
        Ok(())
    }

    /// Takes references of a graph's away.
    ///
    /// # Errors
    /// [`Error::NoGraph`], [`Error::NoObject`], [`Error::References`].
    pub fn release_in_graph(&mut self, graph: GraphId, object: ObjectId, count: u64) -> Result<Released> {
        let held = self.graphs.get_mut(&graph).ok_or(Error::NoGraph)?;
        let Entry::Occupied(mut held) = held.objects.entry(object) else { return Err(Error::NoObject) };
        match held.get().checked_sub(count) {
            None => return Err(Error::References),
            Some(0) => drop(held.remove()),
            Some(left) => drop(held.insert(left)),
        }
        let mut released = Released::default();
        self.drop_references(object, count, &mut released);
        Ok(released)
    }

    /// Whether a graph, or one of its children, holds user objects.
    #[must_use]
    pub fn holds_objects(&self, graph: GraphId) -> bool {
        self.family(graph).iter().any(|graph| !self.objects_of(*graph).is_empty())
    }

    /// Gives `to` references like those of `from` and its children, in place of those that it and its children have; these go to
    /// a new graph, which holds them until it is destroyed. `None` when nothing changes, or nothing was held.
    ///
    /// # Errors
    /// [`Error::NoGraph`].
    pub fn replace_objects(&mut self, to: GraphId, from: GraphId) -> Result<Option<GraphId>> {
        self.graph(to)?;
        self.graph(from)?;
        let (old, new) = (self.held(to), self.held(from));
        if old == new {
            return Ok(None);
        }
        for (object, count) in &new {
            if let Some(references) = self.objects.get_mut(object) {
                *references += count;
            }
        }
        for graph in self.family(to) {
            if let Some(graph) = self.graphs.get_mut(&graph) {
                graph.objects.clear();
            }
        }
        if let Some(graph) = self.graphs.get_mut(&to) {
            graph.objects = new;
        }
        if old.is_empty() {
            return Ok(None);
        }
        let holder = self.create();
        if let Some(graph) = self.graphs.get_mut(&holder) {
            graph.objects = old;
        }
        Ok(Some(holder))
    }

    /// The references of a graph and its children, taken together.
    fn held(&self, graph: GraphId) -> BTreeMap<ObjectId, u64> {
        let mut held = BTreeMap::new();
        for graph in self.family(graph) {
            for (object, count) in self.objects_of(graph) {
                *held.entry(*object).or_default() += count;
            }
        }
        held
    }

    fn objects_of(&self, graph: GraphId) -> &BTreeMap<ObjectId, u64> {
        const NONE: &BTreeMap<ObjectId, u64> = &BTreeMap::new();
        self.graphs.get(&graph).map_or(NONE, |graph| &graph.objects)
    }

    /// A graph, those of its nodes, and theirs.
    fn family(&self, graph: GraphId) -> Vec<GraphId> {
        let mut family = vec![graph];
        let mut at = 0;
        while let Some(graph) = family.get(at) {
            let nodes = self.graphs.get(graph).into_iter().flat_map(|graph| &graph.nodes);
            let nodes = nodes.filter_map(|node| self.nodes.get(node));
            let own: Vec<GraphId> = nodes.flat_map(|node| node.body.graphs()).copied().collect();
            family.extend(own);
            at += 1;
        }
        family
    }

    pub(crate) fn drop_references(&mut self, object: ObjectId, count: u64, released: &mut Released) {
        if let Some(references) = self.objects.get_mut(&object) {
            *references = references.saturating_sub(count);
            if *references == 0 {
                self.objects.remove(&object);
                released.0.push(object);
            }
        }
    }
}
