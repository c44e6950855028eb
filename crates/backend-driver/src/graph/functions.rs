//! The host functions of a graph.

use crate::api::{Api, check};
use backend::{GraphFunction, GraphWork, Result};
use cudarc::driver::sys;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The host functions of a graph, in the order in which its nodes got them. The driver holds them too, through a user object of the
/// graph: until the last launch is complete, however early the graph is destroyed.
#[derive(Default)]
pub struct Functions(Mutex<Vec<Arc<Place>>>);

/// A node's host function, at an address that the driver is given.
pub struct Place {
    node: usize,
    function: GraphFunction,
    all: Weak<Functions>,
}

impl Functions {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Place>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for what a node calls, if it calls something.
    pub fn place(self: &Arc<Self>, node: usize, work: &GraphWork) -> Option<Arc<Place>> {
        let GraphWork::Host(function) = work else { return None };
        let place = Arc::new(Place { node, function: function.clone(), all: Arc::downgrade(self) });
        self.lock().push(Arc::clone(&place));
        Some(place)
    }

    /// Forgets what nobody can call.
    pub fn forget(&self, gone: &Arc<Place>) {
        self.lock().retain(|place| !Arc::ptr_eq(place, gone));
    }

    /// Forgets what the node called before: launches of a graph are in turn, so those that knew it are complete.
    fn forget_before(&self, place: &Place) {
        let mut newer = false;
        self.lock().retain(|each| {
            newer |= std::ptr::eq(&**each, place);
            newer || each.node != place.node
        });
    }
}

impl Place {
    /// Does what the node is there for.
    fn run(&self) {
        // The driver runs host functions only in streams without an error.
        (self.function.0)(Ok(()));
        if let Some(all) = self.all.upgrade() {
            all.forget_before(self);
        }
    }
}

/// Calls a host function, for the driver.
pub unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: a place that the graph had when it was launched: it is forgotten when a later launch has come to its node, or with
    // the graph, which the driver holds meanwhile.
    unsafe { &*data.cast::<Place>() }.run();
}

unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: the pointer given to `cuUserObjectCreate`, whose last reference is gone.
    drop(unsafe { Arc::from_raw(data.cast::<Functions>()) });
}

/// A graph's reference to its functions: a user object of the driver's.
pub struct Held(usize);

impl Held {
    /// Has the driver hold the functions for as long as it may call them.
    pub fn new(functions: &Arc<Functions>, api: &Api, graph: sys::CUgraph) -> Result<Self> {
        let held = Arc::into_raw(Arc::clone(functions)).cast_mut().cast();
        let mut object: sys::CUuserObject = std::ptr::null_mut();
        let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as c_uint;
        // SAFETY: `release` takes back the reference given here.
        check(unsafe { (api.cuUserObjectCreate)(&raw mut object, held, Some(release), 1, flags) })
            // SAFETY: the driver did not take the reference.
            .inspect_err(|_| unsafe { release(held) })?;
        let flags = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as c_uint;
        // SAFETY: the graph takes over the only reference.
        check(unsafe { (api.cuGraphRetainUserObject)(graph, object, 1, flags) }).inspect_err(|_| {
            // SAFETY: it did not, and nobody else has it.
            let _ = unsafe { (api.cuUserObjectRelease)(object, 1) };
        })?;
        Ok(Self(object as usize))
    }

    /// The graph lets go of them; executable graphs made of it do not.
    pub fn let_go(&self, api: &Api, graph: sys::CUgraph) -> Result<()> {
        // SAFETY: the graph has the reference that it was given.
        check(unsafe { (api.cuGraphReleaseUserObject)(graph, self.0 as sys::CUuserObject, 1) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn functions_go_when_a_later_launch_has_come_to_their_node() {
        let functions = Arc::<Functions>::default();
        let calls = Arc::new(AtomicUsize::new(0));
        let work = || {
            let calls = Arc::clone(&calls);
            GraphWork::Host(GraphFunction(Arc::new(move |_| {
                calls.fetch_add(1, Ordering::Relaxed);
            })))
        };
        assert!(functions.place(0, &GraphWork::Empty).is_none());
        let [first, other, second, unused, third] =
            [1, 2, 1, 1, 1].map(|node| Arc::downgrade(&functions.place(node, &work()).unwrap()));
        let alive = || [&first, &other, &second, &unused, &third].map(|place| place.strong_count() > 0);
        first.upgrade().unwrap().run();
        assert_eq!(alive(), [true; 5]);
        functions.forget(&unused.upgrade().unwrap());
        second.upgrade().unwrap().run();
        assert_eq!(alive(), [false, true, true, false, true]);
        third.upgrade().unwrap().run();
        assert_eq!(alive(), [false, true, false, false, true]);
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        drop(functions);
        assert_eq!(alive(), [false; 5]);
    }
}
