//! A job's life under its supervisor: watched, checkpointed, ended.

mod answering;

use crate::admin::{CheckpointOptions, Event};
use crate::cut::{self, Unwatched};
use crate::error::{Chain, Failure, Kind, no_thread};
use crate::filling::Filling;
use crate::hand_over::{HandOver, Moved};
use crate::regular::Regularly;
use crate::runtime::{JobFacts, JobFolder};
use crate::sessions::{Sessions, stop_listening};
use crate::steer::Moment;
use crate::suspend::Wake;
use crate::way_back::{Newest, WayBack};
use answering::Answering;
use image::{Command, ImageId};
use std::collections::BTreeSet;
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use store::{Access, Recipient, Store};

/// Between two looks whether a checkpoint that is under way is done.
const TURN: Duration = Duration::from_millis(200);

/// How a job ended.
#[derive(Debug)]
pub struct Ended {
    /// Its name.
    pub job: String,
    /// As the program did.
    pub ending: host::Ending,
    /// The image after which it was stopped, when that is why it ended.
    pub stopped_after: Option<ImageId>,
    /// Where it goes on, when it was stopped for that.
    pub moved_to: Option<Moved>,
    /// Whether a GPU server of it has died.
    pub lost: bool,
    /// Its newest image, if it has one.
    pub newest: Option<Newest>,
}

/// A running job.
pub struct Supervisor {
    pub(crate) facts: JobFacts,
    pub(crate) command: Command,
    pub(crate) job: Arc<host::Job>,
    pub(crate) sessions: Arc<Sessions>,
    cutting: Mutex<()>,
    /// The images that have come about, in whatever stores.
    published: Mutex<BTreeSet<ImageId>>,
    /// By which a job that is suspended is resumed.
    pub(crate) wake: Mutex<Option<mpsc::Sender<Wake>>>,
    way_back: Arc<WayBack>,
    /// Its store, and what opens that.
    pub(crate) store: Access,
    /// For whom that was encrypted when a checkpoint first opened it.
    recipients: OnceLock<Vec<Recipient>>,
    store_is_default: bool,
    stopped_after: OnceLock<ImageId>,
    moved_to: OnceLock<Moved>,
    pub(crate) filling: Filling,
    rehearsed: AtomicBool,
    ended: Mutex<bool>,
    /// Told when `ended` is.
    ending: Condvar,
}

impl Supervisor {
    pub(crate) fn new(
        facts: JobFacts,
        command: Command,
        job: host::Job,
        sessions: Arc<Sessions>,
        (way_back, store, store_is_default): (Arc<WayBack>, Access, bool),
    ) -> Arc<Self> {
        Arc::new(Self {
            facts,
            command,
            job: Arc::new(job),
            sessions,
            cutting: Mutex::default(),
            published: Mutex::default(),
            wake: Mutex::default(),
            way_back,
            store,
            recipients: OnceLock::new(),
            store_is_default,
            stopped_after: OnceLock::new(),
            moved_to: OnceLock::new(),
            filling: Filling::default(),
            rehearsed: AtomicBool::new(false),
            ended: Mutex::default(),
            ending: Condvar::new(),
        })
    }

    /// Whoever began the job continues it from its newest image when a GPU server of it is lost.
    pub(crate) fn ends_when_lost(&self) {
        let job = Arc::clone(&self.job);
        self.way_back.is_taken(move || {
            let job = Arc::clone(&job);
            let kill = move || {
                if let Err(error) = job.kill() {
                    tracing::error!("the job does not end: {error}");
                }
            };
            if let Err(error) = Builder::new().spawn(kill) {
                tracing::error!("the job is not ended: {}", no_thread(&error));
            }
        });
    }

    /// Answers questions until the job has ended.
    pub(crate) fn supervise(
        self: Arc<Self>,
        folder: &JobFolder,
        callers: UnixListener,
        signals: host::signals::Forwarder,
        regularly: Option<Regularly>,
    ) -> Result<Ended, Failure> {
        if let Some(init) = self.job.outer(host::InnerPid::INIT) {
            folder.note_init(&self.facts.job, init.0)?;
        }
        let listener = Arc::new(callers);
        signals.forward_to(&self.job).map_err(|error| Failure::of("cannot pass on signals", &error))?;
        let listening = {
            let (this, listener) = (Arc::clone(&self), Arc::clone(&listener));
            std::thread::spawn(move || this.listen(&listener))
        };
        let regular = regularly.map(|regularly| {
            let this = Arc::clone(&self);
            std::thread::spawn(move || this.checkpoint_regularly(&regularly))
        });
        let asked = {
            let this = Arc::clone(&self);
            std::thread::spawn(move || this.checkpoint_as_asked())
        };
        let ending = self.job.wait().map_err(|error| Failure::of("cannot wait for the job", &error));
        self.sessions.decide();
        *self.ended() = true;
        self.ending.notify_all();
        self.sessions.asks().end();
        stop_listening(&*listener);
        let answering = listening.join().unwrap_or_default();
        // A checkpoint that has its cut is still published when the job ends meanwhile, and whoever asked is told. Who has not
        // asked yet is not waited for.
        drop(self.cutting.lock());
        // One that panicked has said so.
        drop((regular.map(JoinHandle::join), asked.join()));
        for Answering { thread, stream } in answering {
            let _ = stream.shutdown(Shutdown::Read);
            // One that panicked has said so.
            let _ = thread.join();
        }
        if let Some(failure) = self.filling.failure() {
            return Err(failure);
        }
        Ok(Ended {
            job: self.facts.job.clone(),
            ending: ending?,
            stopped_after: self.stopped_after.get().copied(),
            moved_to: self.moved_to.get().cloned(),
            lost: self.way_back.is_lost(),
            newest: self.way_back.newest(),
        })
    }

    pub(crate) fn checkpoint(
        &self,
        options: &CheckpointOptions,
        events: &mpsc::Sender<Event>,
    ) -> Result<crate::admin::Report, Failure> {
        self.checkpoint_at(options, (None, None), events)
    }

    /// The same, at a moment that the program comes to, or of a job that is to go on elsewhere.
    pub(crate) fn checkpoint_at(
        &self,
        options: &CheckpointOptions,
        how: (Option<&Moment>, Option<&HandOver>),
        events: &mpsc::Sender<Event>,
    ) -> Result<crate::admin::Report, Failure> {
        let waits = options.stop.then(|| Unwatched::checkpoint(options, how.1));
        let turn = self.sessions.asks().turn(self.turn(waits, events)?);
        self.way_back.writes(true);
        let take = || cut::take(self, options, how, events).map_err(Failure::with_the_job_running);
        let taken = self.await_filled(events).and_then(|()| take());
        self.way_back.writes(false);
        turn.ends(taken.as_ref().map(|report| &*report.image));
        taken
    }

    /// What whoever takes a checkpoint holds. Who wants to stop the job waits for one that is under way: it had better not be killed
    /// without its image because another one was being written. The others are told, as somebody who is no longer there.
    pub(crate) fn turn(
        &self,
        waits: Option<Unwatched>,
        events: &mpsc::Sender<Event>,
    ) -> Result<MutexGuard<'_, ()>, Failure> {
        loop {
            self.is_awake()?;
            match self.cutting.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            let step = "waiting for the checkpoint that is under way";
            if waits.is_some_and(|unwatched| unwatched.still_wanted(events, step).is_ok()) {
                if self.ends_within(TURN) {
                    return Err(ended_before());
                }
                continue;
            }
            // The supervisor itself takes the lock when the job has ended.
            if *self.ended() {
                return Err(ended_before());
            }
            let message = format!(
                "a checkpoint of job {:?} is under way already: try again when it is written (with --stop that is waited for)",
                self.facts.job
            );
            return Err(Failure::new(Kind::Busy, message));
        }
    }

    fn ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `pause`; whether the job has ended by then, in which case not that long.
    pub(crate) fn ends_within(&self, pause: Duration) -> bool {
        let waited = self.ending.wait_timeout_while(self.ended(), pause, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether the object tables, as they were then, have been rehearsed.
    pub(crate) fn is_rehearsed(&self) -> bool {
        self.rehearsed.load(Ordering::Relaxed)
    }

    /// The object tables, as they are captured now, have been rehearsed.
    pub(crate) fn has_rehearsed(&self) {
        self.rehearsed.store(true, Ordering::Relaxed);
    }

    /// The object tables are not those that were rehearsed.
    pub(crate) fn forget_rehearsal(&self) {
        self.rehearsed.store(false, Ordering::Relaxed);
    }

    /// Whether it is an image of this life of the job.
    pub(crate) fn has_published(&self, image: ImageId) -> bool {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).contains(&image)
    }

    /// The newest image of this job.
    pub(crate) fn newest_image(&self) -> Option<ImageId> {
        self.way_back.newest().map(|newest| newest.image)
    }

    /// The job is about to be ended, since its image is safe.
    pub(crate) fn stopping_after(&self, image: ImageId) {
        // Only one checkpoint gets here: nothing is left for a second.
        let _ = self.stopped_after.set(image);
    }

    /// The job is about to be ended, since it goes on there.
    pub(crate) fn going_to(&self, moved: Moved) {
        // As with its image.
        let _ = self.moved_to.set(moved);
    }

    /// The store that a checkpoint goes to, and what opens it.
    pub(crate) fn access(&self, options: &CheckpointOptions) -> Access {
        let mut access = options.store.clone().unwrap_or_else(|| self.store.clone());
        inherit(&mut access, &self.store, self.recipients.get());
        access
    }

    /// A checkpoint has opened `store`. If that is the job's own and is encrypted, it stays so: nothing else that is found in its place later is
    /// written.
    pub(crate) fn has_opened(&self, options: &CheckpointOptions, store: &Store) {
        if options.store.is_none() && store.is_encrypted() {
            // The first counts.
            let _ = self.recipients.set(store.recipients().to_vec());
        }
    }

    /// There is a newer image of this job, in `store`, which `access` has opened.
    pub(crate) fn published(&self, image: ImageId, (store, access): (&Store, &Access)) {
        let at = store.location();
        let elsewhere = at != self.facts.store;
        // Where it lies elsewhere, the name may mean an older image in the job's own store.
        let is_meant = || store.find(&self.facts.job).is_ok_and(|found| found.is(image));
        let reference = if !elsewhere && is_meant() { self.facts.job.clone() } else { image.short() };
        let told = (elsewhere || !self.store_is_default).then_some(at);
        self.published.lock().unwrap_or_else(PoisonError::into_inner).insert(image);
        self.way_back.published(Newest { image, reference, store: told, keys: keys(store, access) });
    }
}

/// What was not given for the store of one checkpoint is as for the job's `own`, which was found to be encrypted for `found`: memory that is encrypted
/// there is nowhere written plain.
fn inherit(access: &mut Access, own: &Access, found: Option<&Vec<Recipient>>) {
    if access.key.is_none() {
        access.key = own.key.clone();
    }
    if access.recipients.is_empty() {
        access.recipients.clone_from(&own.recipients);
    }
    if let (true, Some(found)) = (access.recipients.is_empty(), found) {
        access.recipients.clone_from(found);
    }
}

/// The key files that a store needs to be opened.
pub(crate) fn keys(store: &Store, access: &Access) -> Vec<PathBuf> {
    if store.is_encrypted() { access.key.files().to_vec() } else { Vec::new() }
}

/// The failure of a checkpoint that its job did not wait for.
pub(crate) fn ended_before() -> Failure {
    Failure::new(Kind::Ended, "the job ended before its checkpoint; nothing was published")
}

pub(crate) fn criu() -> Result<host::Criu, Failure> {
    host::Criu::find().map_err(|error| Failure::new(Kind::Unavailable, Chain(&error).to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_encrypted_in_one_store_is_so_in_every_other() {
        let own: Recipient =
            "age12pkx975ck0a0lp59dsl4spy76m922raqy0uw54w9fg7v2hwax4uszmatph".parse().unwrap();
        let key = store::Key::Secret(store::Secret::random().unwrap());
        let plain: Access = store::Location::Folder("/store".into()).into();
        let made = Access { key: key.clone(), recipients: vec![own.clone()], ..plain.clone() };
        let found = Access { recipients: Vec::new(), ..made.clone() };
        for (job, seen, recipients) in [
            (&made, None, vec![own.clone()]),
            (&found, Some(vec![own.clone()]), vec![own.clone()]),
            (&found, None, Vec::new()),
        ] {
            let mut access = plain.clone();
            inherit(&mut access, job, seen.as_ref());
            assert_eq!((&access.key, &access.recipients), (&key, &recipients));
        }
        let mut access = plain.clone();
        inherit(&mut access, &plain, None);
        assert_eq!(access, plain);
    }
}
