//! Handles: numbers that are never used twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use wire::CuError;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Objects of one kind, by handle.
pub struct Table<T>(RwLock<HashMap<u64, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Table<T> {
    /// A handle for an object.
    pub fn insert(&self, object: Arc<T>) -> u64 {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
        handle
    }

    /// The object.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self, handle: u64) -> Result<Arc<T>, CuError> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&handle).cloned().ok_or(CuError::INVALID_HANDLE)
    }

    /// Forgets the handle.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove(&self, handle: u64) -> Result<Arc<T>, CuError> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(&handle).ok_or(CuError::INVALID_HANDLE)
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Forgets all objects of which `belongs` holds, and gives them.
    pub fn drain(&self, belongs: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let handles: Vec<u64> =
            table.iter().filter(|(_, object)| belongs(object)).map(|(handle, _)| *handle).collect();
        handles.iter().filter_map(|handle| table.remove(handle)).collect()
    }
}
