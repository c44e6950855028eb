//! Handles of one kind and what they stand for, and each thread's cache of them: a launch looks handles up without a lock.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// What a handle stands for.
pub trait Object {
    /// Whether it has not been destroyed, by itself or with its context. Never true again after false.
    fn is_alive(&self) -> bool;
}

/// Every object of a kind, by id.
pub struct Registry<T>(RwLock<HashMap<u32, Arc<T>>>);

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T: Object> Registry<T> {
    /// Adds an object under an id that no other has.
    pub fn insert(&self, id: u32, object: Arc<T>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(id, object);
    }

    /// The object of that id, if it is alive.
    pub fn get(&self, id: u32) -> Option<Arc<T>> {
        let found = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        found.filter(|object| object.is_alive())
    }

    /// Whether an object has that id, alive or not.
    pub fn contains(&self, id: u32) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
    }

    /// Removes the object of that id, if it is alive: only one caller gets it.
    pub fn remove(&self, id: u32) -> Option<Arc<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&id).filter(|object| object.is_alive())
    }

    /// Forgets what is no longer alive, and gives it.
    pub fn sweep(&self) -> Vec<Arc<T>> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.extract_if(|_, object| !object.is_alive()).map(|(_, object)| object).collect()
    }
}

/// A thread's view of a registry. An id is used again only when its object is gone, so an entry is right as long as its object is
/// alive.
pub struct Cache<T>(Box<[Entry<T>]>);

/// Id and object.
type Entry<T> = Option<(u32, Arc<T>)>;

impl<T: Object> Cache<T> {
    const ENTRIES: usize = 64;

    pub fn new() -> Self {
        Self((0..Self::ENTRIES).map(|_| None).collect())
    }

    /// The object of that id, if it is alive.
    #[inline]
    pub fn get(&mut self, registry: &Registry<T>, id: u32) -> Option<&Arc<T>> {
        let entry = &mut self.0[id as usize % Self::ENTRIES];
        if !matches!(entry, Some((cached, object)) if *cached == id && object.is_alive()) {
            *entry = registry.get(id).map(|object| (id, object));
        }
        entry.as_ref().map(|(_, object)| object)
    }
}
