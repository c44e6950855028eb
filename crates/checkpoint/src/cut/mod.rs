//! The cut: one consistent instant of a job, written to the store. The order of the steps is in `ARCHITECTURE.md`.

mod ahead;
mod begin;
mod capture;
mod durable;
pub(crate) mod gate;
pub(crate) mod memory;
mod progress;
pub(crate) mod rehearsal;
mod room;
mod shared;
pub(crate) mod threads;
pub(crate) mod tries;

use self::ahead::write_ahead;
pub(crate) use self::begin::Unwatched;
use self::begin::begin;
use self::capture::{Captured, capture};
pub(crate) use self::capture::{Device, devices, write};
use self::durable::Syncing;
pub use self::gate::Servers;
use self::gate::{Busy, Gated, Opened};
use self::progress::telling;
use self::rehearsal::Rehearsal;
use self::room::Room;
use self::shared::Shared;
use self::tries::{Hindrance, Tries};
use crate::admin::{CheckpointOptions, Event, Report};
use crate::error::{Chain, Failure, Kind, no_thread};
use crate::facts;
use crate::folder::{self, Entry, write_failure};
use crate::hand_over::HandOver;
use crate::record::JobRecord;
use crate::sessions::{Held, Session, SessionRecord, panicked};
use crate::steer::{self, Moment};
use crate::supervisor::{Supervisor, criu, ended_before};
use crate::work::WorkFolder;
use image::{CutTimes, Manifest, ObjectKind};
use server::control::{Ask, CopyBudget, DeviceSet, Reads, few};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;
use std::thread::Builder;
use std::time::{Duration, Instant};
use store::{Access, ChunkWriter, Draft, Store, WriteOptions};

/// How often it is looked, while a point is waited for, or files, whether somebody still wants the checkpoint.
const LOOK: Duration = Duration::from_secs(1);
const WAITING_FOR_POINT: &str = "waiting for a point that suits the program";
/// How long the files of a job are waited for that has ended meanwhile: its image may be all that is left of it.
const LEFT_BEHIND: Duration = Duration::from_secs(60);
const WAITING_FOR_FILES: &str = "waiting for the job's files to be on disk";

/// Takes a checkpoint of the supervisor's job, at a moment if there is one, and publishes it. A job that is handed over stands still until it is known
/// where it goes on.
///
/// # Errors
/// Whatever happens, nothing half-done is listed; the job runs on, or has ended by itself.
pub fn take(
    job: &Supervisor,
    options: &CheckpointOptions,
    (moment, hand_over): (Option<&Moment>, Option<&HandOver>),
    events: &Sender<Event>,
) -> Result<Report, Failure> {
    let began = Instant::now();
    let unwatched = Unwatched::checkpoint(options, hand_over);
    let mut refusals = job.job.refusals();
    refusals.extend(without_faults(job));
    if !refusals.is_empty() {
        return Err(gate::refused(refusals));
    }
    let criu = criu()?;
    let access = job.access(options);
    let sending = access.at.taken_by_writers();
    let of_each = || memory::of_each(options.memory, job.sessions.all().len(), sending, memory::Left::now());
    let memory = of_each()?;
    let threads = threads::of_each(options.threads, job.sessions.all().len() + 1, options.stop);
    let (store, draft, writer) =
        begin(job, &access, write_options(options, hand_over, (memory, threads)), (events, unwatched))?;
    job.has_opened(options, &store);
    if hand_over.is_some() {
        // Whoever moves the job may be gone, which is seen later.
        let _ = events.send(Event::Begun { image: draft.id().to_string() });
    }
    write_ahead(job.job.tmpfs(), &writer)?;
    let mut cut = Cut { job, options, hand_over, memory, events, criu, access, store, draft, writer, began };

    let _last_step = LastStep(job);
    // A moment is where the program's memory or a plan has it.
    let mut point = if moment.is_none() { job.sessions.asks().approach(options, &job.job) } else { None };
    let mut tries = Tries::new(job, options, events);
    // When the program first was where the job is to be stopped.
    let mut reached = None;
    // Not at each look: what is sent for a checkpoint on which nobody looks piles up.
    let looked = Cell::new(Instant::now());
    let is_given_up = || {
        let is_due = looked.get().elapsed() >= LOOK;
        is_due && {
            looked.set(Instant::now());
            unwatched.still_wanted(events, WAITING_FOR_POINT).is_err()
        }
    };
    let mut room = None;
    loop {
        // From here on, a try is made whoever is still there.
        unwatched.still_wanted(events, "preparing")?;
        // Where a moment or a point is still to come it is looked then.
        let is_due = moment.is_none() && point.is_none();
        if let Some(unstoppable) = is_due.then(|| tries.unstoppable()).flatten() {
            tries.again(unstoppable)?;
            continue;
        }
        // What was left before may be gone.
        cut.memory = of_each()?;
        let writing = memory::beside_copies(cut.memory, job.sessions.all().len(), sending);
        let memory = job.job.memory(&host::DumpOptions::default());
        let work = WorkFolder::beside(memory, writing)?;
        let used = job.job.tmpfs().used();
        // New memory for what is copied is had while the program runs.
        if !options.stop {
            room = Room::make(room.take(), &job.job.tmpfs().path(), used, memory.saturating_add(writing));
        }
        // What is there already is not available.
        let others = memory
            .saturating_add(writing)
            .saturating_add(used.saturating_sub(room.as_ref().map_or(0, Room::bytes)));
        // Before anybody is held up who asks for something: a store may take long to answer, and CRIU takes its time.
        let prepared = cut.prepare(&job.sessions.all(), others)?;
        let memory_way = match work.on_disk() {
            // Where memory is short there is none for copies.
            Some(_) => host::MemoryWay::Written,
            None => job.job.way_of_memory(!options.stop),
        };
        let ready = job.job.ready_dump(&cut.criu, &work.images(), &host::DumpOptions::default(), memory_way);
        let (sessions, held) = job.sessions.hold();
        if sessions.iter().any(|session| !prepared.contains(&session.record.number)) {
            // One has begun since; what others had for themselves may be its, too.
            cut.prepare(&sessions, others)?;
        }
        let mut servers = gate::servers(job, &sessions);
        let is_in_the_way = || job.sessions.is_asked() || job.ends_within(Duration::ZERO);
        let come = moment.map_or(Ok(true), |moment| steer::wait(moment, &mut servers, is_in_the_way))?
            && point.as_mut().is_none_or(|point| {
                cut.step(WAITING_FOR_POINT);
                let keeps_asking = || job.sessions.keeps_asking();
                point.is_reached(|| keeps_asking() || job.ends_within(Duration::ZERO) || is_given_up())
            });
        if come {
            reached.get_or_insert_with(Instant::now);
        }
        let asking = Hindrance::Asking { since: reached };
        let unstoppable = if come { tries.unstoppable() } else { None };
        cut.step("closing the gate");
        let closed = Instant::now();
        let successions = job.sessions.broker().successions();
        let hindrance = if let Some(unstoppable) = unstoppable {
            gate::ungate(&mut servers, false);
            unstoppable
        } else if come {
            match gate::close(servers, options)? {
                Err(Busy(holders)) => Hindrance::Held(holders),
                // Its connection leads out of the job, so it gets its session first.
                Ok(_) if job.sessions.keeps_asking() => asking,
                Ok(mut gated) => {
                    let drain = closed.elapsed();
                    cut.step("capturing");
                    match cut.capture(&mut gated, &sessions, ready) {
                        // What is half said would be in the image.
                        Ok(_) if job.sessions.is_asked() => asking,
                        Ok(captured) if cut.has_lost_an_owner(&captured, &sessions, successions) => ending(),
                        Ok(captured) => {
                            let still =
                                Still { captured, gated, held, closed, drain, retries: tries.retries() };
                            return cut.publish(still, &sessions, (&work, room.take()));
                        }
                        Err(_) if job.sessions.is_asked() => asking,
                        Err(failure) if failure.kind == Kind::NotIdle => {
                            Hindrance::Held(vec![failure.message])
                        }
                        Err(failure) => {
                            // The job runs on while the reason is looked for.
                            drop((gated, held));
                            return Err(explained(&cut.criu, failure));
                        }
                    }
                }
            }
        } else {
            // They go on as before.
            gate::ungate(&mut servers, false);
            asking
        };
        drop(held);
        tries.again(hindrance)?;
    }
}

/// Ends the last step of a checkpoint in the job's trace, however it goes.
struct LastStep<'a>(&'a Supervisor);

impl Drop for LastStep<'_> {
    fn drop(&mut self) {
        if let Some(trace) = self.0.sessions.trace() {
            trace.step(None);
        }
    }
}

/// Who has lost an owner of what is shared is tried again when another owns it.
pub(crate) fn ending() -> Hindrance {
    Hindrance::Held(vec!["a process that ends and has shared memory with others".to_owned()])
}

/// A checkpoint on its way.
struct Cut<'a> {
    job: &'a Supervisor,
    options: &'a CheckpointOptions,
    hand_over: Option<&'a HandOver>,
    /// What each server takes to write, bytes.
    memory: u64,
    events: &'a Sender<Event>,
    criu: host::Criu,
    access: Access,
    store: Store,
    draft: Draft,
    writer: ChunkWriter,
    began: Instant,
}

/// A job that stands still, captured.
struct Still<'a> {
    captured: Captured<'a>,
    gated: Gated<'a>,
    held: Held<'a>,
    /// When the gate was closed.
    closed: Instant,
    /// From then until all was idle.
    drain: Duration,
    retries: u32,
}

impl<'a> Cut<'a> {
    fn step(&self, name: &str) {
        if let Some(trace) = self.job.sessions.trace() {
            trace.step(Some(name));
        }
        // Whoever asked may have gone; the checkpoint goes on.
        let _ = self.events.send(Event::Step { step: name.to_owned() });
    }

    fn capture(
        &self,
        gated: &mut Gated<'_>,
        sessions: &[Arc<Session>],
        ready: host::ReadyDump<'a>,
    ) -> Result<Captured<'a>, Failure> {
        if gated.table_changed {
            // Until the new tables have been rehearsed, whatever becomes of this checkpoint.
            self.job.forget_rehearsal();
        }
        let has_shadows = sessions.iter().any(|session| session.has_shadows());
        let captured = capture(self.job, ready, (gated, has_shadows), self.events)?;
        for (number, passed) in &captured.device.passed {
            self.job.sessions.has_passed(*number, passed.clone());
        }
        Ok(captured)
    }

    /// Whether what the captured sessions share has, or had since the gates began to close, an owner that is not captured: its
    /// process has ended, while its server may not have yet, and nobody has written it.
    fn has_lost_an_owner(
        &self,
        captured: &Captured<'_>,
        sessions: &[Arc<Session>],
        successions: u64,
    ) -> bool {
        let broker = self.job.sessions.broker();
        let frozen = frozen_sessions(sessions, captured.frozen.record());
        let numbers = frozen.iter().map(|record| record.number).collect();
        broker.successions() != successions || broker.is_owned_outside(&numbers)
    }

    /// Has the servers of sessions read what is in the store, and make room for copies; answers whose those were. `others` is what copies of the host half and writing take.
    fn prepare(&self, sessions: &[Arc<Session>], others: u64) -> Result<BTreeSet<u32>, Failure> {
        let mut servers = gate::servers(self.job, sessions);
        let own = gate::own_devices(&mut servers)?;
        gate::prepare(&mut servers, |number| self.preparation((own.len(), own[number]), others))?;
        Ok(servers.iter().map(|server| server.session()).collect())
    }

    /// What the server of one of so many sessions, which has these devices for itself, is to do before the gate closes; `others` is what copies of the host half and writing take.
    fn preparation(&self, (sessions, own): (usize, DeviceSet), others: u64) -> Ask {
        let (store, draft) = (self.store.access(), self.draft.id().to_string());
        let CheckpointOptions { compress, stop, paranoid, threads, .. } = *self.options;
        let left = (host::memory::available() / 10 * 9).saturating_sub(others);
        // Copies on a device give way to what their own session allocates, and not to other sessions'.
        let budget = CopyBudget { on_devices: own, on_host: left / 2 / sessions.max(1) as u64 };
        let reread = is_last(self.options, self.hand_over);
        let reads = if paranoid || reread { Reads::Saved } else { Reads::Changed };
        let (memory, copies) = (self.memory, (!stop).then_some(budget));
        let threads = threads::of_each(threads, sessions + 1, stop);
        let pack_len = pack_len(self.hand_over);
        Ask::Prepare { store, draft, compress, memory, threads, pack_len, reread, reads, copies }
    }

    /// Lets the job go on as soon as nothing more is needed of it, and makes the image exist.
    fn publish(
        self,
        still: Still<'_>,
        sessions: &[Arc<Session>],
        (work, room): (&WorkFolder, Option<Room>),
    ) -> Result<Report, Failure> {
        let Self { job, options, .. } = self;
        let is_asked_for = job.sessions.asks().is_cut(options);
        let created_ns = facts::now_ns();
        let Still { captured, gated, held, closed, drain, retries } = still;
        let Captured { mut frozen, host_time, device, device_time } = captured;
        let shared_at = Instant::now();
        let mut shared = Shared::take(&job.job.tmpfs().path(), room, &self.writer)?;
        let shared_time = shared_at.elapsed();
        let host = frozen.record().clone();
        let mut warnings = frozen.warnings().to_vec();
        let on_disk = frozen.take_on_disk();
        let (mut rest, left_out) = if options.stop {
            let left_out = frozen.take_left_out();
            (Rest::Stopped(Box::new(frozen), gated, held), left_out)
        } else {
            let resumed = resume(frozen, gated, held)?;
            job.sessions.asks().goes_on();
            resumed
        };
        let stall = closed.elapsed();
        let went_on = Instant::now();
        if let Some(trace) = job.sessions.trace() {
            trace.span("the job stands still", closed);
        }

        let syncing = Syncing::begin(move || on_disk.sync())?;
        self.step("writing");
        let images = work.images();
        let image_entries = entries(&images)?;
        let device_done = AtomicU64::new(0);
        let device_total = device.kept.on_device + device.kept.on_host;
        let of_left_out = |bytes: fn(&host::LeftOut) -> u64| left_out.as_ref().map_or(0, bytes);
        let copied = of_left_out(host::LeftOut::bytes);
        let shared_copied = of_left_out(host::LeftOut::shared);
        let private_forked = of_left_out(host::LeftOut::forked);
        let private_withheld = of_left_out(host::LeftOut::withheld);
        let private_excluded = of_left_out(host::LeftOut::excluded);
        let total = folder::bytes(&images, &image_entries) + copied + shared.bytes() + device_total;
        let rehearsal = Rehearsal::of(job, rest.servers(), &work.states())?;
        let save = || {
            shared.write(&self.writer)?;
            let content = |path: &Path| match &left_out {
                Some(left_out) => left_out.content(&images, path),
                None => Ok(None),
            };
            let name = |name| ObjectKind::CriuFile { name };
            folder::save_with(&images, &image_entries, &self.writer, name, content)
        };
        let write_all = || {
            std::thread::scope(|scope| {
                let saving = Builder::new().spawn_scoped(scope, save).map_err(|error| no_thread(&error))?;
                let receipts = write(rest.servers(), &work.states(), &device_done);
                saving.join().unwrap_or_else(|_| Err(panicked()))?;
                receipts
            })
        };
        let takes = if self.writer.is_in_memory() { total } else { 0 };
        let write_and_tell = || telling(total, (&self.writer, &device_done), self.events, write_all);
        let (mut receipts, rehearsed) = rehearsal.beside(takes, write_and_tell)?;
        // The copies of the processes, too.
        drop(left_out);
        let stopped = match rest {
            Rest::Stopped(frozen, gated, held) => Some((frozen, gated, held)),
            Rest::Running(_) => None,
        };
        let record = JobRecord {
            version: JobRecord::VERSION,
            sessions: frozen_sessions(sessions, &host),
            host,
            lineage: job.facts.lineage,
            device: job.sessions.target().device.clone(),
            device_memory: job.sessions.target().memory,
            managed: Some(job.sessions.target().managed),
            preempt_after: job.sessions.target().preempt_after,
            gpus: job.sessions.gpus().first,
            shadows: false,
            shared_memory: job.job.tmpfs().size(),
            shared: shared.entries,
            criu: image_entries,
        };
        let record_json =
            serde_json::to_vec(&record).map_err(|error| Failure::of("the job's record", &error))?;
        self.writer.put(ObjectKind::HostRecord, &record_json).map_err(write_failure)?;
        let unrehearsed = rehearsal.finish(rehearsed, || self.step("rehearsing"))?;
        let rehearsed = unrehearsed.is_none();
        warnings.extend(unrehearsed);
        let unwatched = Unwatched::checkpoint(options, self.hand_over);
        let mut ended: Option<Instant> = None;
        let still_wanted = || {
            if job.ends_within(Duration::ZERO)
                && ended.get_or_insert_with(Instant::now).elapsed() > LEFT_BEHIND
            {
                return Err(ended_before());
            }
            unwatched.still_wanted(self.events, WAITING_FOR_FILES)
        };
        syncing.finish(|| self.step(WAITING_FOR_FILES), still_wanted)?;
        self.step("publishing");
        let times = CutTimes {
            drain_wait: drain,
            device_capture: device_time,
            pinned_capture: shared_time,
            host_freeze: host_time,
            stall,
        };
        receipts.push(self.writer.finish().map_err(write_failure)?);
        // An image names the one before it only where both lie.
        let parent = job.newest_image().filter(|image| self.store.manifest(image).is_ok());
        let manifest = Manifest {
            created_ns,
            // What the program has asked for stays.
            regular: options.regular && !is_asked_for,
            excluded: device.kept.excluded.saturating_add(private_excluded),
            half_way: device.half_way,
            parent,
            job_files: record.host.written.iter().map(facts::job_file).collect(),
            mapped_files: record.host.programs.iter().map(facts::mapped_file).collect(),
            ..manifest(job, &device, times, rehearsed)
        };
        let published = self.draft.publish(manifest, receipts).map_err(write_failure)?;
        if rehearsed {
            job.has_rehearsed()
        } else {
            job.forget_rehearsal()
        }
        if !options.passing {
            job.published(published.id, (&self.store, &self.access));
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let report = Report {
            image: published.id.to_string(),
            job: job.facts.job.clone(),
            retries,
            total_ms: ms(self.began.elapsed()),
            drain_ms: ms(drain),
            stall_ms: ms(stall),
            device_ms: ms(device_time),
            shared_ms: ms(shared_time),
            host_ms: ms(host_time),
            write_ms: ms(went_on.elapsed()),
            rehearsed,
            bytes: published.stored.total,
            data_bytes: published.stored.total.saturating_sub(published.stored.zero),
            half_way: device.half_way,
            device_bytes: device.kept.total(),
            unchanged: device.kept.unchanged,
            device_excluded: device.kept.excluded,
            copied_on_device: device.kept.on_device,
            copied_on_host: device.kept.on_host,
            private_forked,
            private_copied: copied - private_forked - shared_copied,
            private_withheld,
            private_excluded,
            shared_copied,
            written: published.stored.written,
            warnings: few(warnings),
        };
        if let Some((frozen, gated, held)) = stopped {
            if let Some(hand_over) = self.hand_over {
                // Whoever is gone does not say where it goes on.
                let since_ms = ms(closed.elapsed());
                let _ = self.events.send(Event::Standing { report: report.clone(), since_ms });
                let Some(moved) = hand_over.settle(job, published.id) else {
                    resume(*frozen, gated, held)?;
                    job.sessions.asks().goes_on();
                    return Ok(report);
                };
                job.going_to(moved);
            }
            job.stopping_after(published.id);
            frozen.kill().map_err(|error| Failure::of("the job does not end", &error))?;
            // Its servers end with its processes.
            drop((gated, held));
        }
        Ok(report)
    }
}

/// The sessions whose processes are in the image: others ended on the way.
fn frozen_sessions(sessions: &[Arc<Session>], record: &host::HostRecord) -> Vec<SessionRecord> {
    let is_there = |session: &SessionRecord| record.tasks.iter().any(|task| task.pid == session.inner_pid);
    sessions.iter().map(|session| session.recorded()).filter(is_there).collect()
}

/// Notes by what processes may have their userfaultfd again, and names, a sentence each, those that may have none.
fn without_faults(job: &Supervisor) -> Vec<String> {
    let shadowed: Vec<_> = job.sessions.all().into_iter().filter(|session| session.has_shadows()).collect();
    if shadowed.is_empty() {
        return Vec::new();
    }
    let processes: Vec<_> = shadowed.iter().map(|session| session.record.inner_pid).collect();
    let (by_machine, without) = job.job.rights_to_faults(&processes);
    for session in shadowed {
        session.set_unprivileged(by_machine.contains(&session.record.inner_pid));
    }
    without
}

fn entries(dir: &Path) -> Result<Vec<Entry>, Failure> {
    folder::entries(dir).map_err(|error| Failure::of(format_args!("cannot read {}", dir.display()), &error))
}

/// Whether a failure comes of a CRIU that does not work on this machine.
pub fn explained(criu: &host::Criu, failure: Failure) -> Failure {
    if failure.kind != Kind::Failed {
        return failure;
    }
    match criu.probe(None).require_all() {
        Ok(()) => failure,
        Err(error) => Failure::new(Kind::Unavailable, Chain(&error).to_string()),
    }
}

/// A captured job whose image is being written.
enum Rest<'a> {
    /// It stays as it is until its image is safe, and goes on if it is not.
    Stopped(Box<host::Frozen<'a>>, Gated<'a>, Held<'a>),
    /// It goes on; its servers have something to write.
    Running(Opened<'a>),
}

impl<'a> Rest<'a> {
    fn servers(&mut self) -> &mut Servers<'a> {
        match self {
            Self::Stopped(_, gated, _) => &mut gated.servers,
            Self::Running(opened) => &mut opened.servers,
        }
    }
}

fn resume<'a>(
    frozen: host::Frozen<'_>,
    gated: Gated<'a>,
    held: Held<'_>,
) -> Result<(Rest<'a>, Option<host::LeftOut>), Failure> {
    let (_, left_out) = frozen.resume().map_err(|error| Failure::of("there is no image", &error))?;
    let opened = gated.open();
    drop(held);
    Ok((Rest::Running(opened), left_out))
}

/// For a writer that takes so much memory and so many threads.
fn write_options(
    options: &CheckpointOptions,
    hand_over: Option<&HandOver>,
    (memory, threads): (u64, usize),
) -> WriteOptions {
    let (reread, pack_len) = (is_last(options, hand_over), pack_len(hand_over));
    WriteOptions { compress: options.compress, threads, memory, pack_len, reread }
}

/// What is followed while it is written goes on its way in short packs.
fn pack_len(hand_over: Option<&HandOver>) -> u64 {
    hand_over.map_or(WriteOptions::default().pack_len, |_| WriteOptions::FOLLOWED)
}

/// Whether the job ends before anybody has read its image: there is nothing to take another one of then, so nothing is left to hashes and to caches.
fn is_last(options: &CheckpointOptions, hand_over: Option<&HandOver>) -> bool {
    options.stop && hand_over.is_none()
}

/// What an image of this job says of itself, but for its host half.
pub(crate) fn manifest(job: &Supervisor, device: &Device, cut: CutTimes, rehearsed: bool) -> Manifest {
    Manifest {
        lineage: Some(job.facts.lineage),
        created_ns: facts::now_ns(),
        dormouse: env!("CARGO_PKG_VERSION").to_owned(),
        rehearsed,
        host: facts::host(),
        devices: device.devices.clone(),
        command: image::Command { args: job.command.args.clone(), cwd: job.command.cwd.clone() },
        cut,
        ..Manifest::new(&job.facts.job)
    }
}
