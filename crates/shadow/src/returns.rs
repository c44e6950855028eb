//! Pages that come back behind work, by a thread of their own: who has waited for the work goes on meanwhile.

use crate::keeper::Shared;
use crate::lock;
use crate::region::Region;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Regions whose pages come back.
#[derive(Default)]
pub(crate) struct Returns {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    regions: VecDeque<Arc<Region>>,
    /// That whose pages are being made.
    at_work: Option<Arc<Region>>,
    /// How many give up what is to come.
    giving_up: usize,
    is_over: bool,
}

impl Returns {
    /// Has a region's pages come back, behind those of others.
    pub(crate) fn push(&self, region: &Arc<Region>) {
        let mut queue = lock(&self.queue);
        let is_refused = queue.is_over || queue.giving_up > 0;
        if !is_refused && !queue.regions.iter().any(|other| Arc::ptr_eq(other, region)) {
            queue.regions.push_back(Arc::clone(region));
            self.changed.notify_all();
        }
    }

    /// Gives up what is still to come, and waits for what is being made. To be called with no region locked.
    pub(crate) fn give_up(&self) -> Vec<Arc<Region>> {
        let mut queue = lock(&self.queue);
        let mut given_up = Vec::from(std::mem::take(&mut queue.regions));
        given_up.extend(queue.at_work.clone());
        queue.giving_up += 1;
        let works = |queue: &mut Queue| queue.at_work.is_some();
        let mut queue = self.changed.wait_while(queue, works).unwrap_or_else(PoisonError::into_inner);
        queue.giving_up -= 1;
        given_up
    }

    /// Nothing more comes back, but for what is being made.
    pub(crate) fn end(&self) {
        let mut queue = lock(&self.queue);
        queue.is_over = true;
        queue.regions.clear();
        self.changed.notify_all();
    }

    /// Waits for a region; none at the end.
    fn next(&self) -> Option<Arc<Region>> {
        let queue = lock(&self.queue);
        let waits = |queue: &mut Queue| queue.regions.is_empty() && !queue.is_over;
        let mut queue = self.changed.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner);
        queue.at_work = if queue.is_over { None } else { queue.regions.pop_front() };
        queue.at_work.clone()
    }
}

/// Some pages of a region are being made, until this is dropped, in whatever way; if there are more, they come behind those of others.
struct AtWork<'a> {
    returns: &'a Returns,
    has_more: bool,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.returns.queue);
        let region = queue.at_work.take();
        if self.has_more && queue.giving_up == 0 && !queue.is_over {
            queue.regions.extend(region);
        }
        // Pages come when they are touched, from then on.
        queue.is_over |= std::thread::panicking();
        self.returns.changed.notify_all();
    }
}

/// Has pages come back until the end. It goes before the program's own threads, as those that serve faults: who touches a page of a region waits for what is being made of it.
pub(crate) fn run(shared: &Shared) {
    let _ = shared.device.begun();
    while let Some(region) = shared.returns.next() {
        let mut work = AtWork { returns: &shared.returns, has_more: false };
        work.has_more = shared.comes_back(&region);
    }
}
