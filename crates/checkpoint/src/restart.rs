//! A restart: the cut in reverse. The order of the steps is in `ARCHITECTURE.md`.

use crate::admin::Event;
use crate::beside::Beside;
use crate::cut::explained;
use crate::differences::differences;
use crate::error::{Chain, Failure, Kind};
use crate::facts;
use crate::folder::{self, Target, read_failure};
use crate::gpus::{self, Gpus};
use crate::interrupt::Preparing;
use crate::libraries;
use crate::lineage;
use crate::record::JobRecord;
use crate::runtime;
use crate::sessions::{Destination, Session, Sessions, panicked};
use crate::starting::{Settings, admin_socket, claim, hello, put_up_board, tmpfs};
use crate::stores::open_store;
use crate::supervisor::{Ended, Supervisor, criu, keys};
use crate::trace::Trace;
use crate::way_back::{Newest, WayBack};
use crate::work::WorkFolder;
use image::{Extent, ImageId, Object, ObjectKind};
use server::TURNS;
use server::control::{Answer, Ask, Fills, Origin};
use server::memory::Managed;
use shadow::Userfault;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Duration;
use store::report::ImageSummary;
use store::{Access, Store};

/// CRIU's log holds its warnings.
const CRIU_LOG_LEVEL: i32 = 2;
/// The most a job's record may take.
const RECORD_MAX: usize = 256 << 20;

/// Hears how a restart goes: its steps, and the bytes of the job's memory that are read. Dropped before the job runs.
pub type Progress = Box<dyn Fn(&Event) + Send + Sync>;

/// Somebody who has to know whether the program goes on.
pub trait Ready: Send + Sync {
    /// It may run from now on. Where that cannot be told it does not.
    ///
    /// # Errors
    /// When it cannot be told.
    fn may_run(&self) -> Result<(), Failure>;

    /// It runs.
    fn runs(&self);
}

/// An image that is to be restarted.
pub struct Restart {
    store: Store,
    image: store::Image,
    record: JobRecord,
    /// Whether it may still be on its way here.
    origin: Origin,
    lazy: bool,
    ready: Option<Arc<dyn Ready>>,
}

impl Restart {
    /// Reads the image's manifest and record.
    ///
    /// # Errors
    /// [`Kind::NotFound`], [`Kind::Damaged`], [`Kind::Mismatch`] when it is of another architecture or a newer Dormouse, [`Kind::Busy`] while others
    /// remove images from the store.
    pub fn open(store: &Access, reference: &str) -> Result<Self, Failure> {
        let store = open_store(store)?;
        let id = crate::find_image(&store, reference)?;
        let image = store.open_image(&id).map_err(read_failure)?;
        Self::of(store, image, Origin::Store)
    }

    /// The same of an image that may still be on its way here, from another machine: what has not come is waited for, and the program does not go on before the
    /// image has its name.
    ///
    /// # Errors
    /// As [`Self::open`]; [`Kind::NotFound`] also when nobody brings it.
    pub fn open_arriving(store: &Access, id: &ImageId) -> Result<Self, Failure> {
        let store = open_store(store)?;
        let image = store.open_arriving(id).map_err(read_failure)?;
        Self::of(store, image, Origin::Arriving)
    }

    fn of(store: Store, image: store::Image, origin: Origin) -> Result<Self, Failure> {
        let json = image.read_to_vec(&ObjectKind::HostRecord, RECORD_MAX).map_err(read_failure)?;
        let record = JobRecord::read(&json, image.manifest())?;
        Ok(Self { store, image, record, origin, lazy: false, ready: None })
    }

    /// Has the program go on before all its device memory is filled.
    #[must_use]
    pub fn lazily(self, lazy: bool) -> Self {
        Self { lazy, ..self }
    }

    /// Has somebody told when the program goes on.
    #[must_use]
    pub fn telling(self, ready: Arc<dyn Ready>) -> Self {
        Self { ready: Some(ready), ..self }
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> ImageId {
        self.image.manifest().id
    }

    /// What `dormouse ls` says of the image.
    #[must_use]
    pub fn summary(&self) -> ImageSummary {
        ImageSummary::of(self.image.manifest())
    }

    /// The job's name when the image was taken.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.image.manifest().job
    }

    /// Where its calls went.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.record.device
    }

    /// The most that the job's tmpfs might hold when the image was taken, bytes.
    #[must_use]
    pub fn shared_memory(&self) -> u64 {
        self.record.shared_memory
    }

    /// The most memory of each device that a process might take, bytes.
    #[must_use]
    pub fn device_memory(&self) -> Option<u64> {
        self.record.device_memory
    }

    /// The GPUs that the job has here: `asked`, or what the environment says.
    #[must_use]
    pub fn gpus(&self, asked: Option<&gpus::List>) -> Gpus {
        Gpus::of_restart(self.record.gpus.clone(), asked)
    }

    /// The GPUs that the job was begun with; without a list, all of its machine.
    #[must_use]
    pub fn first_gpus(&self) -> Option<&str> {
        self.record.gpus.as_deref()
    }

    /// How long its marked kernels may have a device that others wait for, as it was.
    #[must_use]
    pub fn preempt_after(&self) -> Option<Duration> {
        self.record.preempt_after.map(|after| after.clamp(*TURNS.start(), *TURNS.end()))
    }

    /// How managed memory is had: as it was, or as is `asked` for what is allocated from now on; and what a user should know of that.
    ///
    /// # Errors
    /// [`Kind::Refused`] where programs that run have the other kind, and one of the two is exclusive: what there is stays as it was.
    pub fn managed(&self, asked: Option<Managed>) -> Result<(Managed, Option<String>), Failure> {
        let (had, now) = (self.record.managed(), self.record.managed_as(asked));
        let now = now.map_err(|why| Failure::new(Kind::Refused, why))?;
        let warning = (now != had && !self.record.sessions.is_empty()).then(|| {
            format!(
                "--managed={} is for what is allocated from now on; the managed memory that there is stays as it is",
                now.name()
            )
        });
        Ok((now, warning))
    }

    /// Finds out whether [`Self::run`] would succeed, changing nothing: the job does not run (unless it `may_run` yet), this machine has what it needs,
    /// CRIU works, and the device can hold the job's objects and memory at their addresses, which is tried. What the program would find otherwise than
    /// it was is answered, a sentence each.
    ///
    /// # Errors
    /// [`Kind::Busy`], [`Kind::Unavailable`], [`Kind::Mismatch`], [`Kind::DeviceFull`], [`Kind::Damaged`].
    pub fn check(
        &self,
        device: &str,
        (shared_memory, device_memory): (u64, Option<u64>),
        gpus: Gpus,
        may_run: bool,
    ) -> Result<Vec<String>, Failure> {
        self.check_machine()?;
        if !may_run {
            lineage::check(&runtime::root(), self.record.lineage)?;
        }
        criu()?
            .probe(None)
            .require_all()
            .map_err(|error| Failure::new(Kind::Unavailable, Chain(&error).to_string()))?;
        let tmpfs = tmpfs(shared_memory)?;
        self.load_shared(&tmpfs, &Meter::silent())?;
        let way_back = Arc::new(WayBack::new(self.job().to_owned(), None));
        let target = Destination {
            device: device.to_owned(),
            managed: Managed::Coherent,
            preempt_after: None,
            memory: device_memory,
            gpus,
        };
        let sessions = Sessions::new(tmpfs.path(), target, way_back, None);
        match self.restore_sessions(&sessions, Fills::Before) {
            // The servers end here.
            Ok(restored) => self.differences(&restored),
            Err(failure) if failure.kind == Kind::Failed => Err(self.blamed(failure)),
            Err(failure) => Err(failure),
        }
    }

    /// What the program finds otherwise, on this machine and on the devices on which its sessions have been made again.
    fn differences(&self, restored: &[Session]) -> Result<Vec<String>, Failure> {
        let mut here = Vec::new();
        for session in restored {
            let mut server = session.server();
            match server.ask(&Ask::Devices, &mut |_, _| {})? {
                Answer::Devices { devices } => here.extend(devices),
                other => return Err(server.unexpected(&other)),
            }
        }
        let before = self.image.manifest();
        Ok(differences((&before.host, &before.devices), (&facts::host(), &here)))
    }

    /// Continues the job, to its end.
    ///
    /// # Errors
    /// When it cannot be restored; then nothing of it is left running, and files it has written are as they were unless CRIU
    /// failed half-way. A signal that asks this process to end does so, as long as it is `preparing`.
    pub fn run(
        mut self,
        settings: Settings,
        stdio: host::Stdio,
        signals: host::signals::Forwarder,
        preparing: Preparing,
        progress: Progress,
    ) -> Result<Ended, Failure> {
        let trace = settings.trace.as_deref().map(Trace::begin).transpose()?;
        self.check_machine()?;
        let criu = criu()?;
        let command = self.image.manifest().command.clone();
        let id = self.image();
        let lineage = self.record.lineage;
        let (facts, folder) = claim(&runtime::root(), &settings, &command, lineage, Some(id.to_string()))?;
        folder.traces().into_iter().for_each(|trace| preparing.leaves(trace));
        let tmpfs = tmpfs(settings.shared_memory)?;
        let shared = tmpfs.path();
        let to_fill = if self.lazy { 0 } else { self.bytes_of(is_device_memory) };
        let to_unpack = self.chunks_of(is_shared).saturating_add(self.chunks_of(is_criu));
        let meter = Meter::new(progress, to_unpack.saturating_add(to_fill));
        meter.step("reading");
        self.load_shared(&tmpfs, &meter)?;
        let device_memory = if settings.device == "soft" { self.bytes_of(is_device_memory) } else { 0 };
        let work = WorkFolder::for_restart(self.bytes_of(is_criu), device_memory)?;
        work.on_disk().into_iter().for_each(|folder| preparing.leaves(folder));
        let images = work.images();
        let way_back = Arc::new(WayBack::new(facts.job.clone(), Some(self.newest(&settings))));
        let sessions = Sessions::new(shared.clone(), settings.target(), Arc::clone(&way_back), trace.clone());
        sessions.watch_programs(settings.watching());
        put_up_board(&sessions, &tmpfs, Some(id), &settings)?;
        let unpack = || {
            let target = Target { dir: &images, may_link: &|_| false, when_full: work.when_full() };
            let name = |name| ObjectKind::CriuFile { name };
            folder::load(&target, &self.image, &self.record.criu, name, &|bytes| meter.advance(bytes))
        };
        // Servers rebuild their sessions while CRIU's files are unpacked.
        let (restored, unpacked) = std::thread::scope(|scope| {
            let unpacking = Builder::new().spawn_scoped(scope, unpack);
            let fills = if self.lazy { Fills::Lazily } else { Fills::Beside };
            let restored = self.restore_sessions(&sessions, fills);
            // Where there is no thread one comes after the other.
            let unpacked = match unpacking {
                Ok(unpacking) => unpacking.join().unwrap_or_else(|_| Err(panicked())),
                Err(_) => unpack(),
            };
            (restored, unpacked)
        });
        let (restored, ()) = (restored?, unpacked?);
        self.differences(&restored)?.iter().for_each(|difference| tracing::warn!("{difference}"));
        let lazy = self.lazy;
        if lazy {
            // As long as nothing is touched; what fails later ends the job.
            restored.iter().try_for_each(|session| session.filled().map(drop))?;
        }
        let hello = hello(&shared)?;
        let callers = admin_socket(&folder)?;
        let spec = host::RestoreSpec {
            images: &images,
            record: &self.record.host,
            tmpfs,
            stdio,
            hide: host::driver::device_nodes(),
            blank: host::driver::blank_nodes(),
            log_level: CRIU_LOG_LEVEL,
        };
        // Servers go on filling memory while processes are restored.
        let awaited: &[Session] = if lazy { &[] } else { &restored };
        let filling = Beside::of(awaited.len());
        let (serving, stopped) = std::thread::scope(|scope| {
            let waiting = Builder::new().name("filling".into());
            waiting
                .spawn_scoped(scope, || filling.fill(awaited, &|bytes| meter.advance(bytes)))
                .map_err(|error| Failure::of("there is no thread to wait for memory in", &error))?;
            filling.await_nearly()?;
            let serving = sessions.serve(hello);
            meter.step("restoring processes");
            // From here on the job's files are touched, unless they are as they were; those are as soon as all memory is filled, and the job may not go on
            // where it comes from.
            drop(preparing);
            let has_come = || self.image.await_arrival().map_err(read_failure);
            let may_change = || {
                let may = filling.await_over().and_then(|()| has_come());
                may.map_err(|failure| io::Error::other(failure.message))
            };
            let stopped = host::Restored::restore_asking(&criu, spec, &may_change);
            let stopped = stopped.map_err(|error| explained(&criu, failure_of(&error)));
            Ok((serving, filling.await_over().and(stopped)))
        })?;
        drop(meter);
        // Whoever moves a job gives its image a name when it may run here.
        let stopped =
            stopped.and_then(|stopped| self.image.await_arrival().map_err(read_failure).map(|()| stopped));
        let ready = self.ready.take();
        // Its store stays one for these.
        let store = Access { recipients: self.store.recipients().to_vec(), ..settings.store.clone() };
        // The job goes on without its image, which may be removed.
        drop(self);
        let job = stopped.and_then(|stopped| {
            ready.as_ref().map_or(Ok(()), |ready| ready.may_run())?;
            wake(stopped, &sessions, restored)
        });
        drop(work);
        let ending = job.and_then(|job| {
            let told = (way_back, store, settings.store_is_default);
            let supervisor = Supervisor::new(facts, command, job, Arc::clone(&sessions), told);
            ready.into_iter().for_each(|ready| ready.runs());
            if lazy {
                supervisor.begin_filling();
            }
            if settings.continued {
                supervisor.ends_when_lost();
            }
            let seen = Arc::clone(&supervisor);
            std::thread::scope(|scope| {
                let seeing = lazy.then(|| scope.spawn(|| seen.see_filled(&folder)));
                let ended = supervisor.supervise(&folder, callers, signals, settings.regularly);
                // One that panicked has said so.
                drop(seeing.map(std::thread::ScopedJoinHandle::join));
                ended
            })
        });
        serving.end();
        trace.inspect(|trace| trace.end());
        ending
    }

    /// The image itself, as what its job can be continued from.
    fn newest(&self, settings: &Settings) -> Newest {
        let store = (!settings.store_is_default).then(|| settings.store.at.clone());
        let keys = keys(&self.store, &settings.store);
        // By its name only what was called so is found.
        Newest { image: self.image(), reference: self.image().to_string(), store, keys }
    }

    fn check_machine(&self) -> Result<(), Failure> {
        let before = &self.image.manifest().host;
        let missing = facts::missing_instructions(before, &facts::host());
        if !missing.is_empty() {
            let message = format!(
                "image {} was taken on a {}, whose programs may use what this machine's processor lacks: {}; restart it on one \
                 that has it",
                self.image(),
                before.cpu_model,
                missing.join(", ")
            );
            return Err(Failure::new(Kind::Mismatch, message));
        }
        self.record.host.check().map_err(|error| failure_of(&error))?;
        // What a missing privilege would seem to be the kernel's.
        self.check_faults()
    }

    /// Shadow pages that there are need to be kept from the processes' first instruction on.
    fn check_faults(&self) -> Result<(), Failure> {
        if !self.record.sessions.iter().any(|session| session.shadows) {
            return Ok(());
        }
        if self.record.sessions.iter().any(|session| session.unprivileged) && !host::all_may() {
            let message = format!(
                "managed memory of job {} has shadow pages, and its processes may have the userfaultfd that these take only where every process may: set \
                 vm.unprivileged_userfaultfd = 1, as it was where the image was taken (sysctl -w vm.unprivileged_userfaultfd=1)",
                self.job()
            );
            return Err(Failure::new(Kind::Unavailable, message));
        }
        Userfault::create().and_then(Userfault::open).map(drop).map_err(|error| {
            let message = format!(
                "managed memory of job {} has shadow pages, and this machine gives no userfaultfd to keep them by: {error}; restart it where Linux is 5.19 or newer, \
                 and no filter of system calls (seccomp) forbids userfaultfd",
                self.job()
            );
            Failure::new(Kind::Unavailable, message)
        })
    }

    fn load_shared(&self, tmpfs: &host::Tmpfs, meter: &Meter) -> Result<(), Failure> {
        let when_full = format!(
            "; the job's shared memory does not fit into {} bytes: give --shared-memory a larger size",
            tmpfs.size()
        );
        let dir = tmpfs.path();
        // Nothing is written to what lies in the shim's folder any more.
        let may_link = |path: &Path| host::may_be_link(path) || libraries::is_link(path);
        let target = Target { dir: &dir, may_link: &may_link, when_full: &when_full };
        let name = |path| ObjectKind::SharedFile { path };
        folder::load(&target, &self.image, &self.record.shared, name, &|bytes| meter.advance(bytes))
    }

    fn restore_sessions(&self, sessions: &Sessions, fills: Fills) -> Result<Vec<Session>, Failure> {
        sessions.restore(
            &self.record.sessions,
            &self.store.access(),
            &self.image().to_string(),
            (fills, self.origin),
        )
    }

    /// How many bytes there are to be read for the objects `of` a kind: zeros are not stored.
    fn chunks_of(&self, of: fn(&ObjectKind) -> bool) -> u64 {
        let objects = self.image.manifest().objects.iter().filter(|object| of(&object.kind));
        let chunks = objects
            .flat_map(|object| &object.extents)
            .filter(|extent| matches!(extent, Extent::Chunk { .. }));
        chunks.map(Extent::len).fold(0, u64::saturating_add)
    }

    /// How many bytes the objects `of` a kind have.
    fn bytes_of(&self, of: fn(&ObjectKind) -> bool) -> u64 {
        let objects = self.image.manifest().objects.iter().filter(|object| of(&object.kind));
        objects.map(Object::len).fold(0, u64::saturating_add)
    }

    /// A session that cannot be rebuilt here: either its bytes are damaged, or the device is not one for it.
    fn blamed(&self, failure: Failure) -> Failure {
        let kind = match self.store.verify(&self.image(), &mut |_| {}) {
            Ok(report) if report.ok => Kind::Mismatch,
            _ => Kind::Damaged,
        };
        Failure { kind, ..failure }
    }
}

fn is_shared(kind: &ObjectKind) -> bool {
    matches!(kind, ObjectKind::SharedFile { .. })
}

fn is_criu(kind: &ObjectKind) -> bool {
    matches!(kind, ObjectKind::CriuFile { .. })
}

fn is_device_memory(kind: &ObjectKind) -> bool {
    matches!(kind, ObjectKind::DeviceMemory { .. })
}

/// Tells how far a restart is.
struct Meter {
    progress: Progress,
    done: AtomicU64,
    total: u64,
}

impl Meter {
    fn new(progress: Progress, total: u64) -> Self {
        progress(&Event::Progress { done: 0, total });
        Self { progress, done: AtomicU64::new(0), total }
    }

    fn silent() -> Self {
        Self::new(Box::new(|_| {}), 0)
    }

    fn step(&self, step: &str) {
        (self.progress)(&Event::Step { step: step.to_owned() });
    }

    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.progress)(&Event::Progress { done, total: self.total });
    }
}

fn failure_of(error: &host::RestoreError) -> Failure {
    let kind = match error {
        host::RestoreError::Privilege(_) => Kind::Unavailable,
        host::RestoreError::Changed { .. }
        | host::RestoreError::NoMountPoint { .. }
        | host::RestoreError::Needed { .. }
        | host::RestoreError::File(_) => Kind::Mismatch,
        _ => Kind::Failed,
    };
    Failure::new(kind, Chain(error).to_string())
}

/// Gives every restored process its session back and lets the job go on.
fn wake(
    stopped: host::Restored,
    sessions: &Arc<Sessions>,
    restored: Vec<Session>,
) -> Result<host::Job, Failure> {
    let mut shadowed = BTreeMap::new();
    for session in restored {
        let inner = session.record.inner_pid;
        let outer = stopped.job().outer(inner).ok_or_else(|| {
            Failure::new(
                Kind::Damaged,
                format!("the image has a GPU session for process {}, but no such process", inner.0),
            )
        })?;
        let process = sessions.introduce(outer.0, &session)?;
        if session.record.shadows {
            shadowed.insert(outer, (session, process));
        } else {
            session.server().tell(&Ask::Ungate { keep: false })?;
            sessions.watch(process, session)?;
        }
    }
    let held: Vec<host::OuterPid> = shadowed.keys().copied().collect();
    // Its managed memory is kept from its first instruction on.
    let mut keep = |process: host::OuterPid, userfault: OwnedFd| {
        let Some((session, process)) = shadowed.remove(&process) else { return Ok(()) };
        sessions.give_userfault(&session, userfault)?;
        session.server().tell(&Ask::Keep)?;
        session.server().tell(&Ask::Ungate { keep: false })?;
        sessions.watch(process, session).map(drop)
    };
    stopped
        .resume_behind(&held, |process, userfault| {
            keep(process, userfault).map_err(|failure| io::Error::other(failure.message))
        })
        .map_err(|error| Failure::of("the restored job does not go on", &error))
}
