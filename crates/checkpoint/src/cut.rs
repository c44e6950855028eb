//! The cut: one consistent instant of a job, written to the store. The order of the steps is in `ARCHITECTURE.md`.

use crate::admin::{CheckpointOptions, Event, Report};
use crate::error::{Chain, Failure, Kind};
use crate::facts;
use crate::folder::{self, Entry, in_memory, write_failure};
use crate::server_process::ServerProcess;
use crate::sessions::{Session, SessionRecord, panicked};
use crate::stores::open_or_create_store;
use crate::supervisor::Supervisor;
use image::{CutTimes, DeviceFacts, Manifest, ObjectKind};
use serde::{Deserialize, Serialize};
use server::control::{Answer, Ask, Start};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use store::{Draft, Receipt, WriteOptions};

/// What the supervisor records in an image, as [`ObjectKind::HostRecord`], in JSON.
#[derive(Serialize, Deserialize)]
pub struct JobRecord {
    /// The host half.
    pub host: host::HostRecord,
    /// The GPU sessions.
    pub sessions: Vec<SessionRecord>,
    /// Where calls went: the value of `--device`.
    pub device: String,
    /// The job's tmpfs, beside the bytes of its files.
    pub shared: Vec<Entry>,
    /// CRIU's folder, likewise.
    pub criu: Vec<Entry>,
}

/// First pause before the gate is tried again; it doubles each time.
const BACK_OFF: Duration = Duration::from_millis(100);

/// A job whose gate is closed; opened again when this is dropped.
struct Gated<'a> {
    servers: Vec<MutexGuard<'a, ServerProcess>>,
    /// What an image needs to know, asked for at the gate.
    table_changed: bool,
    bytes: u64,
}

impl Drop for Gated<'_> {
    fn drop(&mut self) {
        for server in &mut self.servers {
            if let Err(failure) = server.tell(&Ask::Ungate) {
                tracing::error!("the gate of a session does not open: {failure}");
            }
        }
    }
}

/// What the servers captured.
struct Device {
    receipts: Vec<Receipt>,
    devices: Vec<DeviceFacts>,
    states: Vec<PathBuf>,
    bytes: u64,
}

impl Drop for Device {
    fn drop(&mut self) {
        for state in &self.states {
            if let Err(error) = fs::remove_file(state) {
                tracing::debug!("{}: {error}", state.display());
            }
        }
    }
}

/// Takes a checkpoint of the supervisor's job and publishes it.
///
/// # Errors
/// Whatever happens, nothing half-done is listed; the job runs on, or has ended by itself.
pub fn take(
    job: &Supervisor,
    options: &CheckpointOptions,
    events: &Sender<Event>,
) -> Result<Report, Failure> {
    let began = Instant::now();
    let step = |name: &str| {
        // Whoever asked may have gone; the checkpoint goes on.
        let _ = events.send(Event::Step { step: name.to_owned() });
    };
    step("closing the gate");
    let criu = job.criu()?;
    let store = open_or_create_store(&job.facts.store)?;
    let draft = store.begin().map_err(write_failure)?;
    // Made before the gate closes: it reads the store's indexes.
    let writer = draft.writer(&write_options(options)).map_err(write_failure)?;
    let (sessions, held) = job.sessions.hold();
    let (mut gated, retries, closed) = gate(job, &sessions, options)?;
    let drain = closed.elapsed();

    step("capturing");
    let images = in_memory()?;
    let frozen_at = Instant::now();
    let table_changed = gated.table_changed;
    if table_changed {
        // Until the new tables have been rehearsed, whatever becomes of this checkpoint.
        job.forget_rehearsal();
    }
    let ask = Ask::Capture { store: store.dir(), draft: draft.id().to_string(), compress: options.compress };
    let captured = capture(job, &criu, &mut gated, &ask, images.path(), events);
    let Captured { frozen, host_time, device, device_time } = match captured {
        Ok(captured) => captured,
        Err(failure) => {
            // The job runs on while the reason is looked for.
            drop(gated);
            return Err(explained(&criu, failure));
        }
    };
    let shared_at = Instant::now();
    let shared = job.job.tmpfs().path();
    let shared_bytes = folder::save(&shared, &writer, |path| ObjectKind::SharedFile { path })?;
    let shared_time = shared_at.elapsed();
    let record = JobRecord {
        host: frozen.record().clone(),
        sessions: frozen_sessions(&sessions, frozen.record()),
        device: job.sessions.device().to_owned(),
        shared: entries(&shared)?,
        criu: entries(images.path())?,
    };
    // With --stop the job stays as it is until its image is safe, and goes on if it is not.
    let warnings = frozen.warnings().to_vec();
    let stopped = if options.stop {
        Some((frozen, gated, held))
    } else {
        resume(frozen, gated)?;
        drop(held);
        None
    };
    let stall = closed.elapsed();
    tracing::debug!("stopped for {stall:?}, of it {:?} for the host half", frozen_at.elapsed());

    step("writing");
    let host_bytes = folder::save(images.path(), &writer, |name| ObjectKind::CriuFile { name })?;
    let record_json = serde_json::to_vec(&record).map_err(|error| Failure::of("the job's record", &error))?;
    writer.put(ObjectKind::HostRecord, &record_json).map_err(write_failure)?;
    let mut receipts = device.receipts.clone();
    receipts.push(writer.finish().map_err(write_failure)?);
    let rehearsed = if job.is_rehearsed() && !table_changed {
        true
    } else {
        step("rehearsing");
        rehearse(job, &device.states)?
    };
    step("publishing");
    let cut = CutTimes {
        drain_wait: drain,
        device_capture: device_time,
        pinned_capture: shared_time,
        host_freeze: host_time,
        stall,
    };
    let manifest = manifest(job, &draft, &record, &device, cut, rehearsed);
    let published = draft.publish(manifest, receipts).map_err(write_failure)?;
    job.published(published.id, rehearsed);
    if let Some((frozen, gated, held)) = stopped {
        frozen.kill().map_err(|error| Failure::of("the job does not end", &error))?;
        // Its servers end with its processes.
        drop((gated, held));
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Report {
        image: published.id.to_string(),
        job: job.facts.job.clone(),
        retries,
        total_ms: ms(began.elapsed()),
        drain_ms: ms(drain),
        stall_ms: ms(stall),
        device_ms: ms(device_time),
        shared_ms: ms(shared_time),
        host_ms: ms(host_time),
        rehearsed,
        bytes: device.bytes + shared_bytes + host_bytes,
        device_bytes: device.bytes,
        written: published.stored.written,
        warnings,
    })
}

/// Closes the gate of every session and waits until all are idle; tries again with growing pauses.
fn gate<'a>(
    job: &Supervisor,
    sessions: &'a [Arc<Session>],
    options: &CheckpointOptions,
) -> Result<(Gated<'a>, u32, Instant), Failure> {
    let mut pause = BACK_OFF;
    for attempt in 0.. {
        let closed = Instant::now();
        match try_gate(job, sessions, options)? {
            Ok(gated) => return Ok((gated, attempt, closed)),
            Err(holders) if attempt >= options.retries => {
                let message = format!(
                    "the job was not idle within {} ms of closing the gate ({} tries) and runs on: held by {}. \
                     Give it longer with --gate-deadline",
                    options.gate_deadline_ms,
                    attempt + 1,
                    holders.join("; ")
                );
                return Err(Failure::new(Kind::NotIdle, message));
            }
            Err(holders) => tracing::info!("not idle, held by {}; trying again", holders.join("; ")),
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    unreachable!("the loop ends at the last retry")
}

/// `Err` with what held it when some session did not get idle.
fn try_gate<'a>(
    job: &Supervisor,
    sessions: &'a [Arc<Session>],
    options: &CheckpointOptions,
) -> Result<Result<Gated<'a>, Vec<String>>, Failure> {
    let ask = Ask::Gate { deadline_ms: options.gate_deadline_ms };
    let mut gated = Gated { servers: Vec::new(), table_changed: false, bytes: 0 };
    let (mut holders, mut refusals, mut failed) = (Vec::new(), Vec::new(), None);
    // Everyone is asked before anyone is waited for: a session may need another to get idle. Whoever was asked is heard
    // out and let go, also when another fails.
    let mut asked = Vec::new();
    for session in sessions.iter().filter(|session| job.sessions.has(session.record.number)) {
        let mut server = session.server();
        match server.say(&ask) {
            Ok(()) => asked.push(server),
            Err(failure) => failed = Some(failure),
        }
    }
    for mut server in asked {
        match server.answer(&mut |_, _| {}) {
            Ok(Answer::Idle { refusals: each, table_changed, bytes }) => {
                refusals.extend(each);
                gated.table_changed |= table_changed;
                gated.bytes += bytes;
                gated.servers.push(server);
            }
            Ok(Answer::Busy { holders: each }) => holders.extend(each),
            Ok(other) => failed = Some(server.unexpected(&other)),
            Err(failure) => failed = Some(failure),
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None if !refusals.is_empty() => Err(Failure::new(
            Kind::Refused,
            format!(
                "the job holds what cannot be restored; nothing was written, it runs on: {}",
                refusals.join("; ")
            ),
        )),
        None if !holders.is_empty() => Ok(Err(holders)),
        None => Ok(Ok(gated)),
    }
}

/// A stopped job and its captured device memory, and how long each took.
struct Captured<'a> {
    frozen: host::Frozen<'a>,
    host_time: Duration,
    device: Device,
    device_time: Duration,
}

/// Device memory by the servers and the host half by CRIU, side by side: the gate keeps the device as it is.
fn capture<'a>(
    job: &'a Supervisor,
    criu: &host::Criu,
    gated: &mut Gated<'_>,
    ask: &Ask,
    images: &Path,
    events: &Sender<Event>,
) -> Result<Captured<'a>, Failure> {
    let (done, total) = (AtomicU64::new(0), gated.bytes);
    let began = Instant::now();
    let (dumped, host_time, answers) = std::thread::scope(|scope| {
        let capturing: Vec<_> = gated
            .servers
            .iter_mut()
            .map(|server| {
                let server: &mut ServerProcess = server;
                let (done, events) = (&done, events.clone());
                scope.spawn(move || {
                    let mut before = 0;
                    server.ask(ask, &mut |now, _| {
                        let step = now.saturating_sub(before);
                        before = now;
                        let done = done.fetch_add(step, Ordering::Relaxed) + step;
                        let _ = events.send(Event::Progress { done, total });
                    })
                })
            })
            .collect();
        let dumped = job.job.dump(criu, images, &host::DumpOptions::default());
        let host_time = began.elapsed();
        let answers: Vec<_> =
            capturing.into_iter().map(|each| each.join().unwrap_or_else(|_| Err(panicked()))).collect();
        (dumped, host_time, answers)
    });
    let device_time = began.elapsed();
    let mut device = Device { receipts: Vec::new(), devices: Vec::new(), states: Vec::new(), bytes: 0 };
    // Every answer is taken, also after a failure: each names a file that is to be removed.
    let mut taken = Ok(());
    for answer in answers {
        let one = answer.and_then(|answer| device.take(answer));
        taken = taken.and(one);
    }
    let frozen = dumped.map_err(|error| dump_failure(job, &error))?;
    taken?;
    Ok(Captured { frozen, host_time, device, device_time })
}

impl Device {
    /// Adds what one server captured.
    fn take(&mut self, answer: Answer) -> Result<(), Failure> {
        let Answer::Captured { receipt, bytes, devices, state } = answer else {
            return Err(Failure::new(Kind::Failed, format!("a GPU server answered {answer:?}")));
        };
        self.states.push(state);
        self.receipts.push(receipt_of(&receipt)?);
        self.bytes += bytes;
        for each in devices {
            if !self.devices.contains(&each) {
                self.devices.push(each);
            }
        }
        Ok(())
    }
}

/// The sessions whose processes are in the image: others ended on the way.
fn frozen_sessions(sessions: &[Arc<Session>], record: &host::HostRecord) -> Vec<SessionRecord> {
    let is_there = |session: &SessionRecord| {
        record.tasks.iter().any(|task| i64::from(task.pid.0) == i64::from(session.inner_pid))
    };
    sessions.iter().map(|session| session.record.clone()).filter(is_there).collect()
}

fn entries(dir: &Path) -> Result<Vec<Entry>, Failure> {
    folder::entries(dir).map_err(|error| Failure::of(format_args!("cannot read {}", dir.display()), &error))
}

fn receipt_of(hex: &str) -> Result<Receipt, Failure> {
    let bytes = facts::from_hex(hex)
        .ok_or_else(|| Failure::new(Kind::Failed, "a GPU server's receipt is not hexadecimal"))?;
    Receipt::from_bytes(&bytes).map_err(write_failure)
}

fn dump_failure(job: &Supervisor, error: &host::DumpError) -> Failure {
    if job.job.application_ending().is_some() {
        return Failure::new(Kind::Ended, "the job ended during the checkpoint; nothing was published");
    }
    Failure::new(Kind::Failed, Chain(error).to_string())
}

/// Whether a failure comes of a CRIU that does not work on this machine.
fn explained(criu: &host::Criu, failure: Failure) -> Failure {
    if failure.kind != Kind::Failed {
        return failure;
    }
    match criu.probe(None).require_all() {
        Ok(()) => failure,
        Err(error) => Failure::new(Kind::Unavailable, Chain(&error).to_string()),
    }
}

fn resume(frozen: host::Frozen<'_>, gated: Gated<'_>) -> Result<(), Failure> {
    frozen.resume().map_err(|error| Failure::of("the job does not go on", &error))?;
    drop(gated);
    Ok(())
}

/// Replays every object table in a fresh server and compares the addresses.
fn rehearse(job: &Supervisor, states: &[PathBuf]) -> Result<bool, Failure> {
    for state in states {
        let dir = in_memory()?;
        let mut server = ServerProcess::start(0, dir.path(), job.sessions.device(), &Start::Rehearsal)?;
        match server.answer(&mut |_, _| {})? {
            Answer::Ready { .. } => {}
            other => return Err(server.unexpected(&other)),
        }
        server.tell(&Ask::Rehearse { state: state.clone() }).map_err(|failure| {
            Failure::new(
                Kind::Refused,
                format!("a rehearsal of the restart failed, so nothing was published: {failure}"),
            )
        })?;
    }
    Ok(true)
}

fn write_options(options: &CheckpointOptions) -> WriteOptions {
    WriteOptions { compress: options.compress, ..WriteOptions::default() }
}

fn manifest(
    job: &Supervisor,
    draft: &Draft,
    record: &JobRecord,
    device: &Device,
    cut: CutTimes,
    rehearsed: bool,
) -> Manifest {
    Manifest {
        id: draft.id(),
        machine: image::Machine::HOST,
        job: job.facts.job.clone(),
        created_ns: facts::now_ns(),
        dormouse: env!("CARGO_PKG_VERSION").to_owned(),
        parent: job.newest_image(),
        rehearsed,
        host: facts::host(),
        devices: device.devices.clone(),
        command: image::Command { args: job.command.args.clone(), cwd: job.command.cwd.clone() },
        cut,
        stored: image::StoredBytes::default(),
        job_files: record.host.written.iter().map(facts::job_file).collect(),
        mapped_files: record.host.programs.iter().map(facts::mapped_file).collect(),
        objects: Vec::new(),
    }
}
