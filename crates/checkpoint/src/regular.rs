//! Checkpoints that nobody asks for: each time so long has passed, or where a plan or the program's memory says.

use crate::admin::CheckpointOptions;
use crate::error::{Failure, Kind};
use crate::open_store;
use crate::steer::{self, Moment};
use crate::stores::warn_of_lacking;
use crate::supervisor::Supervisor;
use image::ImageId;
use plan::units::Nanos;
use server::control::Course;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use store::report::ImageSummary;
use store::{CopyOptions, KeptWhy, Pruned, Removal, Repack};

/// When to take them, and which to keep.
#[derive(Clone, PartialEq, Debug)]
pub struct Regularly {
    /// When.
    pub when: When,
    /// How many of the images that came about so to keep; all, where nothing is said. What somebody asked for stays.
    pub keep_last: Option<u32>,
    /// How.
    pub options: CheckpointOptions,
}

/// When checkpoints are taken that nobody asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum When {
    /// Each time so long has passed, from the beginning of one to that of the next.
    Every(Duration),
    /// Where a plan says.
    Plan {
        /// Its file.
        file: PathBuf,
        /// How long may pass from one to the next.
        longest: Duration,
    },
    /// At boundaries with little memory around the time when one is due.
    Online {
        /// From one to the next.
        every: Duration,
        /// How early or late one may be.
        offset: Duration,
    },
}

impl When {
    /// Where a plan says, whose file is read.
    ///
    /// # Errors
    /// When it cannot be read, or not be acted on.
    pub fn plan(file: &Path) -> Result<Self, Failure> {
        let about = |error: String| {
            Failure::new(Kind::Failed, format!("the plan {} cannot be followed: {error}", file.display()))
        };
        let plan = server::read_plan(file).map_err(about)?;
        let follower = plan::follow::Follower::new(&plan, None).map_err(|error| about(error.to_string()))?;
        let Nanos(longest) = follower.longest();
        // A run that takes nearly twice as long as the profile's is still met at its boundaries.
        let longest = Duration::from_nanos(longest.saturating_mul(2));
        let file = std::path::absolute(file).map_err(|error| about(error.to_string()))?;
        Ok(Self::Plan { file, longest })
    }

    /// What GPU servers are told.
    pub(crate) fn course(&self) -> Option<Course> {
        let nanos = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match self {
            Self::Every(_) => None,
            Self::Plan { file, .. } => Some(Course::Plan { file: file.as_path().into() }),
            Self::Online { every, offset } => {
                Some(Course::Online { every_ns: nanos(every), offset_ns: nanos(offset) })
            }
        }
    }

    /// The longest time from one to the next.
    fn longest(&self) -> Duration {
        match self {
            Self::Every(every) => *every,
            Self::Plan { longest, .. } => *longest,
            Self::Online { every, offset } => every.saturating_add(*offset),
        }
    }
}

/// How often it is tried to free what no image needs, while others use the store, and how long is waited between.
const PRUNINGS: u32 = 20;
const BETWEEN_PRUNINGS: Duration = Duration::from_millis(500);
/// After a checkpoint at a boundary has failed nobody looks for the next one for so long, or the longest time between two, if that is less.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

impl Supervisor {
    /// Takes checkpoints until the job has ended. What fails is warned of; the next is tried all the same.
    pub(crate) fn checkpoint_regularly(&self, regularly: &Regularly) {
        let (mut begun, longest) = (Instant::now(), regularly.when.longest());
        let is_steered = regularly.when.course().is_some();
        let is_planned = matches!(regularly.when, When::Plan { .. });
        let (mut pause, mut warned) = (Duration::ZERO, false);
        loop {
            // Those whose time has passed meanwhile are not made up for.
            let rest = longest.saturating_sub(begun.elapsed());
            if self.ends_within(if is_steered { pause.max(steer::LOOK) } else { rest }) {
                return;
            }
            pause = Duration::ZERO;
            let moment =
                if is_steered { steer::approach(&self.sessions, begun + longest, is_planned) } else { None };
            if is_steered && moment.is_none() && begun.elapsed() < longest {
                continue;
            }
            if moment.as_ref().is_some_and(Moment::is_strange) && !std::mem::replace(&mut warned, true) {
                tracing::warn!(
                    "the program has come to nothing that its plan names: is it a plan of another program? It is checkpointed each {longest:?}"
                );
            }
            let taken;
            (begun, taken) = self.checkpoint_now(moment, regularly);
            if !taken {
                pause = longest.min(AFTER_FAILURE);
            }
        }
    }

    /// Takes a checkpoint; answers when it was begun, or its moment was there, and whether there is one.
    fn checkpoint_now(&self, moment: Option<Moment>, regularly: &Regularly) -> (Instant, bool) {
        let begun = Instant::now();
        // Nobody looks on; but as long as somebody could, the checkpoint is wanted.
        let (events, _nobody) = mpsc::channel();
        let options = CheckpointOptions { regular: true, ..regularly.options.clone() };
        let taken = self.checkpoint_at(&options, (moment.as_ref(), None), &events);
        let is_there = !matches!(&taken, Err(failure) if failure.kind != Kind::Busy);
        match taken {
            Ok(report) => {
                tracing::info!("image {}: stopped for {:.0} ms", report.image, report.stall_ms);
                self.prune(regularly.keep_last, report.written);
            }
            // Somebody else is taking one: that does as well.
            Err(failure) if failure.kind == Kind::Busy => {}
            Err(failure) if self.ends_within(Duration::ZERO) => tracing::debug!("{failure}"),
            Err(failure) => tracing::warn!("no checkpoint was taken: {failure}"),
        }
        (moment.and_then(|moment| moment.reached()).unwrap_or(begun), is_there)
    }

    /// Removes older images, and what they alone needed. Where others use the store, that is tried again for a while: the job goes on meanwhile.
    /// What lies unused in packs that are needed in part is never much more than what is needed: for so many bytes as were `written` last as many more may be.
    fn prune(&self, keep_last: Option<u32>, written: u64) {
        let Some(last) = keep_last else { return };
        let how = CopyOptions { threads: 2, pack_len: 64 << 20 };
        let repack = Repack { max_unused: 1.0, most: written.max(how.pack_len), how };
        for tries in 1.. {
            let pruned = open_store(&self.store).and_then(|store| {
                let ours = |image: &ImageSummary| {
                    image.created_ns < self.facts.started_ns || self.has_published(image.id)
                };
                let mut go_on = |_, _| match self.ends_within(Duration::ZERO) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                };
                let remove = |gone: &[ImageId]| store.remove_and_repack(gone, &repack, &mut go_on);
                let pruned = store.prune_regular(self.facts.lineage, last, ours, remove);
                pruned.inspect(warn_of_lacking).map_err(crate::removal_failure)
            });
            match pruned {
                Ok(Pruned { removal: Removal { kept: Some(kept), .. }, .. }) => {
                    let may_pass = kept.why == KeptWhy::InUse;
                    if may_pass && tries < PRUNINGS && !self.ends_within(BETWEEN_PRUNINGS) {
                        continue;
                    }
                    tracing::warn!("older images are gone from the list, and take room still: {kept}");
                }
                Ok(pruned) => {
                    if let Some(why) = pruned.removal.not_rewritten {
                        tracing::warn!(
                            "older images are gone, and room that they share with others is not freed: {why}"
                        );
                    }
                }
                Err(failure) => tracing::warn!("older images are not removed: {failure}"),
            }
            return;
        }
    }
}
