//! Checkpoints that nobody asks for, each time so long has passed.

use crate::admin::CheckpointOptions;
use crate::error::Kind;
use crate::open_store;
use crate::supervisor::Supervisor;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// When to take them, and which to keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Regularly {
    /// From the beginning of one to that of the next.
    pub every: Duration,
    /// How many of the images that came about so to keep; all, where nothing is said. What somebody asked for stays.
    pub keep_last: Option<u32>,
}

impl Supervisor {
    /// Takes checkpoints until the job has ended. What fails is warned of; the next is tried all the same.
    pub(crate) fn checkpoint_regularly(&self, regularly: &Regularly) {
        let mut pause = regularly.every;
        while !self.ends_within(pause) {
            let begun = Instant::now();
            // Nobody looks on; but as long as somebody could, the checkpoint is wanted.
            let (events, _nobody) = mpsc::channel();
            let options = CheckpointOptions { regular: true, ..CheckpointOptions::default() };
            match self.checkpoint(&options, &events) {
                Ok(report) => {
                    tracing::info!("image {}: stopped for {:.0} ms", report.image, report.stall_ms);
                    self.prune(regularly.keep_last);
                }
                // Somebody else is taking one: that does as well.
                Err(failure) if failure.kind == Kind::Busy => {}
                Err(failure) if self.ends_within(Duration::ZERO) => tracing::debug!("{failure}"),
                Err(failure) => tracing::warn!("no checkpoint was taken: {failure}"),
            }
            // Those whose time has passed meanwhile are not made up for.
            pause = regularly.every.saturating_sub(begun.elapsed());
        }
    }

    fn prune(&self, keep_last: Option<u32>) {
        let Some(last) = keep_last else { return };
        let pruned = open_store(&self.store).and_then(|store| {
            store.prune_regular(&self.facts.job, last).map_err(crate::stores::removal_failure)
        });
        if let Err(failure) = pruned {
            tracing::warn!("older images are not removed: {failure}");
        }
    }
}
