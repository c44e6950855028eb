//! User objects: counted references, held by the program and by graphs.

use std::collections::btree_map::Entry;

use crate::ids::{GraphId, ObjectId};
use crate::model::{Error, Graphs};

type Result<T> = std::result::Result<T, Error>;

/// User objects that nobody refers to any more: their destructors are due.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Released(pub Vec<ObjectId>);

impl<W> Graphs<W> {
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
        self.graphs.get(&graph).is_some_and(|graph| {
            let children = graph.nodes.iter().filter_map(|node| match self.nodes.get(node)?.body {
                crate::Body::Child(child) => Some(child),
                crate::Body::Work(_) => None,
            });
            !graph.objects.is_empty() || children.into_iter().any(|child| self.holds_objects(child))
        })
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
