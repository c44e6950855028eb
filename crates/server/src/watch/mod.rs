//! Watching the program: at each kernel boundary whether a checkpoint is to be taken there (`steer`), and what there is to tell of it (`record`).
//! A session that is not watched pays for a look at two words at each launch.

mod kernels;
mod record;
mod steer;

pub(crate) use record::graph_name;
pub use record::{Outcome, Recorder};
pub use steer::{Approach, Course, Steering};

use backend::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What watches a session.
#[derive(Default)]
pub struct Watch {
    recorder: OnceLock<Recorder>,
    steering: OnceLock<Steering>,
    /// Bytes of device memory that the program has allocated.
    allocated: AtomicU64,
}

impl Watch {
    /// From now on what the program does is recorded.
    pub fn record(&self, recorder: Recorder) {
        // Who asks twice has the first.
        let _ = self.recorder.set(recorder);
    }

    /// From now on the program is stopped where a checkpoint is to be taken.
    pub fn steer(&self, steering: Steering) {
        let _ = self.steering.set(steering);
    }

    /// Who records, if anyone.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get()
    }

    /// Who steers, if anyone.
    pub fn steering(&self) -> Option<&Steering> {
        self.steering.get()
    }

    /// Bytes of device memory that are allocated.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Memory that was there before anyone watched.
    pub(crate) fn found(&self, range: Range) {
        self.allocated.fetch_add(range.bytes, Ordering::Relaxed);
        if let Some(recorder) = self.recorder() {
            recorder.found(range);
        }
    }

    /// Memory is allocated.
    pub(crate) fn allocate(&self, range: Range) {
        self.allocated.fetch_add(range.bytes, Ordering::Relaxed);
        if let Some(recorder) = self.recorder() {
            recorder.allocate(range);
        }
    }

    /// Memory is freed.
    pub(crate) fn free(&self, range: Range) {
        self.allocated.fetch_sub(range.bytes, Ordering::Relaxed);
        if let Some(recorder) = self.recorder() {
            recorder.free(range);
        }
    }
}
