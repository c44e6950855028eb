//! Suspending a job where it is, and resuming it: its processes stand still, its device memory moves to the host's memory or its store, and its
//! GPU servers end, so that nothing of it is left on a device. What it takes on the host it keeps, and nothing of it outlives its supervisor.

use crate::admin::{CheckpointOptions, Event, ResumeOptions, ResumeReport, SuspendOptions, SuspendReport};
use crate::cut::gate::{self, Busy, Gated};
use crate::cut::rehearsal::Rehearsal;
use crate::cut::tries::{Hindrance, Tries};
use crate::cut::{Unwatched, devices, ending, manifest, memory, threads, write};
use crate::error::{Chain, Failure, Kind};
use crate::facts;
use crate::folder::{read_failure, write_failure};
use crate::gpus::Gpus;
use crate::runtime::{self, Notes, Sleep};
use crate::sessions::{Held, Session, SessionRecord};
use crate::stores::open_store_for_job;
use crate::supervisor::{Supervisor, ended_before};
use image::{Compress, CutTimes};
use server::control::{Ask, Fills, Origin, Reads, few};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::report::ImageSummary;
use store::{Access, Draft, Key, Location, WriteOptions};

/// How often a job that is asleep is looked at, whether it has ended.
const LOOK: Duration = Duration::from_millis(200);
/// What each server takes while it writes, bytes; and what part of this machine's memory all of them take at most, if that is enough.
const MEMORY: u64 = 256 << 20;
const PART: u64 = 10;

/// Somebody wants it to go on, and hears how that goes.
pub(crate) type Wake = (ResumeOptions, Sender<Event>);

/// A job whose processes stand still and which has nothing on a device. When this is dropped they go on.
struct Asleep<'a> {
    job: &'a Supervisor,
    sleepers: Vec<Sleeper>,
    /// In the bed's store, with the device memory; and how servers come to that.
    image: String,
    store: Access,
    since: Instant,
    bed: Bed,
    standstill: host::Standstill,
    held: Held<'a>,
    turn: MutexGuard<'a, ()>,
}

/// A session without a server.
struct Sleeper {
    record: SessionRecord,
    userfault: Option<OwnedFd>,
    /// Whether others have what it has: they cannot be made again without it.
    shares: bool,
}

/// What a suspension is made in: a store, and a folder in memory for what servers hand over.
struct Bed {
    store: Access,
    states: PathBuf,
    /// What each server takes while it writes, bytes.
    memory: u64,
    /// How many threads each of them has.
    threads: usize,
    /// Where the store is in memory, what there is of it beside that.
    room: Option<u64>,
    /// It all goes with it.
    _tmpfs: host::Scratch,
}

/// What each server takes while it writes where there is so much `room`, bytes.
fn memory_of_each(sessions: usize, room: u64, sending: u64) -> Result<u64, Failure> {
    if sessions == 0 {
        return Ok(0);
    }
    let writers = sessions as u64 + 1;
    let limit = (MEMORY * writers).min(room / PART).max(WriteOptions::LEAST_MEMORY * writers);
    memory::of_each(Some(limit), sessions, sending, memory::Left::now())
}

impl Drop for Bed {
    fn drop(&mut self) {
        if self.room.is_some() {
            return;
        }
        let cleared = match &self.store.at {
            Location::Folder(dir) => std::fs::remove_dir_all(dir).map_err(|error| error.to_string()),
            Location::Bucket { .. } => self.clear().map_err(|failure| failure.message),
        };
        if let Err(error) = cleared {
            tracing::warn!("{} has a suspended job's memory, and can be removed: {error}", self.store.at);
        }
    }
}

impl Bed {
    /// For the servers of so many sessions: in this machine's memory, or in what is `beside` a job's images.
    fn new(sessions: usize, beside: Option<(&Access, &str)>) -> Result<Self, Failure> {
        let room = host::memory::available();
        let sending = beside.map_or(0, |(store, _)| store.at.taken_by_writers());
        let memory = memory_of_each(sessions, room, sending)?;
        let room = room.saturating_sub(memory * sessions as u64);
        let tmpfs = host::Scratch::for_long_files(room).map_err(|error| {
            Failure::new(Kind::Failed, format!("there is no memory to suspend to: {}", Chain(&error)))
        })?;
        let states = tmpfs.path().join("states");
        std::fs::create_dir(&states)
            .map_err(|error| Failure::of(format_args!("cannot make {}", states.display()), &error))?;
        let (store, room) = match beside {
            None => (Location::Folder(tmpfs.path().join("store")).into(), Some(room)),
            Some((store, job)) => {
                // As they are, it is encrypted, and for the same.
                let images = open_store_for_job(store)?;
                let at = store.at.beside(&format!("asleep-{job}-{:x}", facts::now_ns()));
                let key = if images.is_encrypted() { store.key.clone() } else { Key::None };
                (Access { at, key, recipients: images.recipients().to_vec() }, None)
            }
        };
        // The supervisor writes nothing.
        let threads = threads::of_each(None, sessions, true);
        Ok(Self { store, states, memory, threads, room, _tmpfs: tmpfs })
    }

    /// Removes what the store has.
    fn clear(&self) -> Result<(), Failure> {
        let store = open_store_for_job(&self.store)?;
        let listing = store.list().map_err(read_failure)?;
        let images: Vec<_> = listing.images.into_iter().map(|image| image.id).collect();
        store.remove(&images).map(drop).map_err(write_failure)
    }

    /// A draft in its store, and how others come to that: they get its secret, and nobody's key.
    fn begin(&self) -> Result<(Draft, Access), Failure> {
        let store = open_store_for_job(&self.store)?;
        Ok((store.begin().map_err(write_failure)?, store.access()))
    }

    fn preparation(&self, draft: &Draft, store: &Access) -> Ask {
        Ask::Prepare {
            store: store.clone(),
            draft: draft.id().to_string(),
            compress: if self.room.is_some() { Compress::None } else { Compress::default() },
            memory: self.memory,
            threads: self.threads,
            pack_len: WriteOptions::default().pack_len,
            reread: false,
            reads: Reads::Everything,
            copies: None,
        }
    }

    /// Whether so much device memory has room, beside what the machine needs to breathe.
    fn check_room(&self, bytes: u64) -> Result<(), Failure> {
        // Writing is given up before there is less than that.
        let breath = |room: u64| (room / 10).max(host::memory::SHORT_FOR_STORES + host::memory::SHORT);
        let Some(room) = self.room.map(|room| room.saturating_sub(breath(room))).filter(|room| bytes > *room)
        else {
            return Ok(());
        };
        let [bytes, room] = [bytes, room].map(|bytes| bytes >> 20);
        let message = format!(
            "the job has {bytes} MiB of device memory, and this machine {room} MiB of memory for it; the job runs on. \
             `dormouse suspend --to-store` has its device memory written to its store"
        );
        Err(Failure::new(Kind::Refused, message))
    }
}

impl Supervisor {
    /// Suspends the job, and stays with it until it is resumed or has ended.
    pub(crate) fn suspend(&self, options: &SuspendOptions, events: Sender<Event>) {
        let (wake, wakes) = mpsc::channel();
        let notes = Notes::of(&runtime::root(), &self.facts.job);
        let mut asleep = match self.fall_asleep(options, &events) {
            Ok((asleep, report)) => {
                let (bytes, stored) = (report.host_bytes, report.store_bytes);
                let gpus = self.sessions.gpus().now;
                notes.note_sleep(Some(Sleep { since_ns: facts::now_ns(), bytes, stored, gpus }));
                *self.waker() = Some(wake);
                let _ = events.send(Event::Suspended(report));
                asleep
            }
            Err(failure) => {
                let _ = events.send(Event::Failed(failure));
                return;
            }
        };
        // Who asked for it hears no more.
        drop(events);
        while let Some((options, events)) = self.next_wake(&wakes) {
            let last = match asleep.wake(&options, &events) {
                Ok(last) => last,
                Err(failure) => {
                    let _ = events.send(Event::Failed(failure));
                    continue;
                }
            };
            *self.waker() = None;
            notes.note_sleep(None);
            let Asleep { bed, standstill, held, turn, .. } = asleep;
            drop((standstill, held));
            // Giving back much memory takes seconds; what is in a store is removed while the job cannot be over without that.
            let bed = bed.room.is_some().then_some(bed);
            drop(turn);
            let _ = events.send(last);
            drop((events, bed));
            // Who has asked for the same meanwhile.
            wakes.try_iter().for_each(|(_, events)| self.is_not_suspended(&events));
            return;
        }
        *self.waker() = None;
    }

    /// Who wants it to go on; none once it has ended.
    fn next_wake(&self, wakes: &mpsc::Receiver<Wake>) -> Option<Wake> {
        loop {
            match wakes.recv_timeout(LOOK) {
                Ok(wake) => return Some(wake),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.ends_within(Duration::ZERO) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Has the job go on; whoever suspended it tells how that goes.
    pub(crate) fn resume(&self, options: &ResumeOptions, events: Sender<Event>) {
        let unsent = match &*self.waker() {
            Some(wake) => wake.send((options.clone(), events)).err().map(|unsent| unsent.0.1),
            None => Some(events),
        };
        if let Some(events) = unsent {
            self.is_not_suspended(&events);
        }
    }

    fn is_not_suspended(&self, events: &Sender<Event>) {
        let message = format!("job {:?} is not suspended", self.facts.job);
        let _ = events.send(Event::Failed(Failure::new(Kind::Busy, message)));
    }

    /// The failure of what cannot be done to a job that is asleep, if it is.
    pub(crate) fn is_awake(&self) -> Result<(), Failure> {
        if self.waker().is_none() {
            return Ok(());
        }
        let job = &self.facts.job;
        let message = format!("job {job:?} is suspended: `dormouse resume {job}` first");
        Err(Failure::new(Kind::Busy, message))
    }

    fn waker(&self) -> MutexGuard<'_, Option<Sender<Wake>>> {
        self.wake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fall_asleep(
        &self,
        options: &SuspendOptions,
        events: &Sender<Event>,
    ) -> Result<(Asleep<'_>, SuspendReport), Failure> {
        let began = Instant::now();
        let turn = self.turn(Some(Unwatched::IsGivenUp), events)?;
        self.await_filled(events)?;
        let mut refusals = self.job.refusals();
        if self.sessions.is_recorded() {
            refusals.push(
                "a profile of the program is being recorded (--profile), and would end here".to_owned(),
            );
        }
        if !refusals.is_empty() {
            return Err(gate::refused(refusals));
        }
        let patience = CheckpointOptions {
            gate_deadline_ms: options.gate_deadline_ms,
            retries: options.retries,
            ..CheckpointOptions::default()
        };
        let images = self.access(&patience);
        let beside = options.to_store.then_some((&images, self.facts.job.as_str()));
        let bed = Bed::new(self.sessions.all().len(), beside)?;
        let mut tries = Tries::new(self, &patience, events);
        let slept = loop {
            if let Some(unstoppable) = tries.unstoppable() {
                tries.again(unstoppable)?;
                continue;
            }
            match self.try_to_sleep(&bed, (&patience, began), events)? {
                Ok(slept) => break slept,
                Err(hindrance) => tries.again(hindrance)?,
            }
        };
        let report = SuspendReport {
            job: self.facts.job.clone(),
            retries: tries.retries(),
            total_ms: began.elapsed().as_secs_f64() * 1e3,
            drain_ms: slept.drain.as_secs_f64() * 1e3,
            copy_ms: slept.copy.as_secs_f64() * 1e3,
            device_bytes: slept.bytes,
            host_bytes: bed.room.map_or(0, |_| slept.image.stored.written),
            store_bytes: if bed.room.is_some() { 0 } else { slept.image.stored.written },
            warnings: slept.warnings,
        };
        let asleep = Asleep {
            job: self,
            sleepers: slept.sleepers,
            image: slept.image.id.to_string(),
            store: slept.store,
            bed,
            since: Instant::now(),
            standstill: slept.standstill,
            held: slept.held,
            turn,
        };
        Ok((asleep, report))
    }

    /// One attempt. Whatever keeps it from succeeding, the job goes on as it was.
    fn try_to_sleep(
        &self,
        bed: &Bed,
        (patience, began): (&CheckpointOptions, Instant),
        events: &Sender<Event>,
    ) -> Result<Result<Slept<'_>, Hindrance>, Failure> {
        let step = |step: &str| drop(events.send(Event::Step { step: step.to_owned() }));
        let asking = Ok(Err(Hindrance::Asking { since: Some(began) }));
        let (draft, store) = bed.begin()?;
        let (sessions, held) = self.sessions.hold();
        let mut servers = gate::servers(self, &sessions);
        gate::prepare(&mut servers, |_| bed.preparation(&draft, &store))?;
        step("closing the gate");
        let closed = Instant::now();
        let successions = self.sessions.broker().successions();
        let mut gated = match gate::close(servers, patience)? {
            Ok(gated) => gated,
            Err(Busy(holders)) => return Ok(Err(Hindrance::Held(holders))),
        };
        let drain = closed.elapsed();
        // It gets its session first.
        if self.sessions.keeps_asking() {
            return asking;
        }
        bed.check_room(gated.bytes)?;
        let standstill = match host::Standstill::of(&self.job) {
            Ok(standstill) => standstill,
            Err(error) => {
                let unstoppable = self.job.unstoppable().pop().map(Hindrance::Unstoppable);
                let failed = || Failure::of("the job does not stand still, and runs on", &error);
                return unstoppable.map(Err).ok_or_else(failed);
            }
        };
        if !self.job.lives() {
            return Err(ended_before());
        }
        // It has been stopped with its connection open.
        if self.sessions.is_asked() {
            return asking;
        }
        // From here on only who is killed ends, and his server not before it is put to sleep.
        let lives = |session: &&Arc<Session>| self.job.living(session.record.inner_pid).is_some();
        let there: BTreeSet<u32> =
            sessions.iter().filter(lives).map(|session| session.record.number).collect();
        let broker = self.sessions.broker();
        if broker.successions() != successions || broker.is_owned_outside(&there) {
            return Ok(Err(ending()));
        }
        step("copying device memory");
        let copying = Instant::now();
        let bytes = gated.bytes;
        let (image, warnings) = self.keep_device_memory(&mut gated, draft, &bed.states, events)?;
        let copy = copying.elapsed();
        let shares = |number| there.contains(&number) && broker.shares(number);
        let sleepers = sessions
            .iter()
            .map(|session| Sleeper::of(session, shares(session.record.number)))
            .collect::<Result<_, _>>()?;
        // Whoever is gone by now does not expect it to be asleep.
        Unwatched::IsGivenUp.still_wanted(events, "freeing the device")?;
        for server in &mut gated.servers {
            let session = sessions.iter().find(|session| session.record.number == server.session());
            session.into_iter().for_each(|session| self.sessions.put_to_sleep(session, server));
        }
        gated.servers.clear();
        drop(gated);
        Ok(Ok(Slept { sleepers, store, image, bytes, warnings, drain, copy, standstill, held }))
    }

    /// Copies device memory into the draft, and tries that it can be had again.
    fn keep_device_memory(
        &self,
        gated: &mut Gated<'_>,
        draft: Draft,
        states: &Path,
        events: &Sender<Event>,
    ) -> Result<(ImageSummary, Vec<String>), Failure> {
        if gated.table_changed {
            self.forget_rehearsal();
        }
        let total = gated.bytes;
        let (device, device_capture) = devices(gate::processes(&mut gated.servers), total, events)?;
        for (number, passed) in &device.passed {
            self.sessions.has_passed(*number, passed.clone());
        }
        let rehearsal = Rehearsal::of(self, &mut gated.servers, states)?;
        let (receipts, rehearsed) =
            rehearsal.beside(total, || write(&mut gated.servers, states, &AtomicU64::new(0)))?;
        let warnings: Vec<String> = rehearsal.finish(rehearsed, || ())?.into_iter().collect();
        if warnings.is_empty() {
            self.has_rehearsed();
        }
        let times = CutTimes { device_capture, ..CutTimes::default() };
        let manifest = manifest(self, &device, times, warnings.is_empty());
        let image = draft.publish(manifest, receipts).map_err(write_failure)?;
        Ok((image, warnings))
    }
}

/// What an attempt that has succeeded leaves.
struct Slept<'a> {
    sleepers: Vec<Sleeper>,
    store: Access,
    image: ImageSummary,
    bytes: u64,
    warnings: Vec<String>,
    drain: Duration,
    copy: Duration,
    standstill: host::Standstill,
    held: Held<'a>,
}

impl Sleeper {
    fn of(session: &Session, shares: bool) -> Result<Self, Failure> {
        let record = session.recorded();
        let userfault = session.userfault().map_err(|error| {
            Failure::of(format_args!("the faults of session {} cannot be kept", record.number), &error)
        })?;
        Ok(Self { record, userfault, shares })
    }
}

impl Asleep<'_> {
    fn process(&self, sleeper: &Sleeper) -> Option<host::OuterPid> {
        self.job.job.living(sleeper.record.inner_pid)
    }

    /// Makes the sessions again, and has them go on; the answer to who asked. What fails before any of them does leaves the job asleep, with the
    /// GPUs that it had.
    fn wake(&mut self, options: &ResumeOptions, events: &Sender<Event>) -> Result<Event, Failure> {
        let began = Instant::now();
        let _ = events.send(Event::Step { step: "making the GPU sessions again".to_owned() });
        let sessions = &self.job.sessions;
        let had = sessions.gpus();
        if let Some(list) = &options.gpus {
            sessions.move_to(Gpus { now: Some(list.to_string()), ..had.clone() });
        }
        let awake = self.make_sessions().inspect_err(|_| {
            sessions.move_to(had);
            // Who tries again shares nothing with those that are gone.
            self.sleepers.iter().for_each(|sleeper| sessions.broker().forget(sleeper.record.number));
        })?;
        // From here on there is no way back to sleep: calls are executed.
        let lost: Vec<String> = awake.iter().filter_map(|session| self.ungate(session)).collect();
        let job = self.job.facts.job.clone();
        if !lost.is_empty() {
            let message = format!("job {job:?} goes on, but not all of it: {}", few(lost).join("; "));
            return Ok(Event::Failed(Failure::new(Kind::Failed, message)));
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(Event::Resumed(ResumeReport {
            job,
            asleep_ms: ms(began.duration_since(self.since)),
            total_ms: ms(began.elapsed()),
            sessions: awake.len(),
            gpus: sessions.gpus().now,
        }))
    }

    /// Makes the sessions again, each with its gate closed. What fails leaves none of them.
    fn make_sessions(&self) -> Result<Vec<Arc<Session>>, Failure> {
        let sessions = &self.job.sessions;
        // Who has been killed meanwhile needs none, unless others get from it what they share.
        let needed: Vec<_> = self
            .sleepers
            .iter()
            .filter(|sleeper| sleeper.shares || self.process(sleeper).is_some())
            .collect();
        let records: Vec<_> = needed.iter().map(|sleeper| sleeper.record.clone()).collect();
        let origin = if self.bed.room.is_some() { Origin::Own } else { Origin::Store };
        let restored = sessions.restore(&records, &self.store, &self.image, (Fills::Before, origin))?;
        let (mut introduced, mut orphaned) = (Vec::new(), Vec::new());
        for (session, sleeper) in restored.into_iter().zip(needed) {
            match self.introduce(sleeper, &session) {
                Ok(Some(process)) => introduced.push((process, session)),
                Ok(None) => orphaned.push(session),
                // It has just been killed.
                Err(_) if self.process(sleeper).is_none() => orphaned.push(session),
                Err(failure) => return Err(failure),
            }
        }
        let mut awake = Vec::new();
        for (process, session) in introduced {
            match sessions.watch(process, session) {
                Ok(session) => awake.push(session),
                Err(failure) => {
                    awake.iter().for_each(|session| sessions.put_to_sleep(session, &mut session.server()));
                    return Err(failure);
                }
            }
        }
        orphaned.iter().for_each(|session| sessions.discard(session));
        let is_gone = |number| awake.iter().all(|session| session.record.number != number);
        let numbers = self.sleepers.iter().map(|sleeper| sleeper.record.number);
        numbers.filter(|number| is_gone(*number)).for_each(|number| sessions.remove_files(number));
        Ok(awake)
    }

    /// Gives a session's server its process, if there is one, and the faults of that.
    fn introduce(&self, sleeper: &Sleeper, session: &Session) -> Result<Option<OwnedFd>, Failure> {
        let Some(outer) = self.process(sleeper) else { return Ok(None) };
        let sessions = &self.job.sessions;
        let process = sessions.introduce(outer.0, session)?;
        if let Some(userfault) = &sleeper.userfault {
            let userfault = userfault.try_clone().map_err(|error| {
                Failure::of(format_args!("the faults of process {outer} cannot be kept"), &error)
            })?;
            sessions.give_userfault(session, userfault)?;
            session.server().tell(&Ask::Keep)?;
        }
        Ok(Some(process))
    }

    /// Has a session execute calls again; a sentence, where it does not.
    fn ungate(&self, session: &Session) -> Option<String> {
        let failure = session.ungate().err()?;
        let inner = session.record.inner_pid;
        let what = if session.has_shadows() {
            "is ended, as its managed memory is lost"
        } else {
            // One that has been killed meanwhile has lost nothing.
            self.job.job.living(inner)?;
            "goes on without its GPU"
        };
        Some(format!("process {inner} of it {what}: {failure}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use store::Identities;

    #[test]
    fn servers_get_the_secret_of_a_store_and_nobodys_key() {
        let folder = tempfile::tempdir().unwrap();
        let key_file = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/tests/golden/test-key.txt");
        let key = Key::Identities(Identities::read(&[key_file.into()]).unwrap());
        let recipient = "age12pkx975ck0a0lp59dsl4spy76m922raqy0uw54w9fg7v2hwax4uszmatph".parse().unwrap();
        let at = Location::Folder(folder.path().join("store"));
        let images = Access { at, key: key.clone(), recipients: vec![recipient] };
        let bed = Bed::new(1, Some((&images, "job"))).unwrap();
        let (_, told) = bed.begin().unwrap();
        assert_eq!((&bed.store.key, &told.at), (&key, &bed.store.at));
        assert!(matches!(told.key, Key::Secret(_)));
        let before = told.open().unwrap().list().unwrap();
        assert!(before.images.is_empty());
    }
}
