//! Stops a job and writes its host half.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use prost::Message;

use super::copies::{self, Duties, Plugin};
use super::dump_error::{DumpError, UNSTOPPABLE, explain, failed, is_under_way};
use super::left_out::LeftOut;
use super::nameless;
use super::record::{self, HostRecord, MountRecord, TaskRecord};
use super::room::CopyRoom;
use super::setback::Setback;
use super::withheld::Unheard;
use crate::criu::rpc::{self, Event, Session};
use crate::criu::{Criu, LogExcerpt};
use crate::files::{self, Collected, Limits, OnDisk};
use crate::init::dev;
use crate::init::instructions::DEV;
use crate::job::{Ending, Job};
use crate::mounts;
use crate::net;
use crate::stdio::{FileKey, SharedFile, shared};
use crate::tasks::{self, InnerPid, OuterPid, Task};
use crate::tmpfs::{EXCLUDES, Scratch};

/// How to dump.
#[derive(Debug, Clone)]
pub struct DumpOptions {
    /// Files open for writing that may be changed in place are saved up to this length in bytes.
    pub save_limit: u64,
    /// The same for each file that the job has written and closed.
    pub save_closed_limit: u64,
    /// And for all of these together.
    pub save_all_closed_limit: u64,
    /// How long CRIU tries to stop all tasks before it gives up, in seconds.
    pub freeze_timeout: u32,
    /// How long output on its way may take to arrive while the job is stopped; what has not is stored.
    pub drain_patience: Duration,
    /// CRIU's log level: 2 for warnings, 4 for everything.
    pub log_level: i32,
}

impl Default for DumpOptions {
    fn default() -> Self {
        Self {
            save_limit: 256 << 20,
            save_closed_limit: 16 << 20,
            save_all_closed_limit: 64 << 20,
            freeze_timeout: 10,
            drain_patience: Duration::from_millis(100),
            log_level: 2,
        }
    }
}

/// How a dump takes private memory. But for the first, files in memory that have no names are copied while the job stands still.
#[derive(Debug)]
pub enum MemoryWay {
    /// CRIU writes it to the images.
    Written,
    /// It is copied while the job stands still.
    Copied {
        /// Room for it.
        private: CopyRoom,
        /// Room for the files.
        shared: CopyRoom,
    },
    /// It is read from copies of the processes when the job has gone on.
    Forked {
        /// Room for the files.
        shared: CopyRoom,
    },
}

/// A CRIU that is about to dump a job. Dropped, it ends; the job has not noticed.
#[derive(Debug)]
pub struct ReadyDump<'a> {
    job: &'a Job,
    criu: Criu,
    images: PathBuf,
    options: DumpOptions,
    memory: MemoryWay,
    withholds: bool,
    started: Result<Started, DumpError>,
}

/// What a CRIU was told of a job.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mounts: Vec<MountRecord>,
    external: Vec<String>,
    network_lock: i32,
}

/// A CRIU that waits before it looks at the job.
#[derive(Debug)]
struct Started {
    session: Session,
    work: Scratch,
    plugin: Option<Plugin>,
    duties: Duties,
    seen: Seen,
    /// Its numbers name these.
    _passed: (File, File, UnixStream),
}

/// What a dump took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DumpReport {
    /// From the first task stopped to the last running again, the caller's own capture included.
    pub stopped: Duration,
    /// The part of it that was the host half's: CRIU, and recording files and streams.
    pub host: Duration,
    /// Bytes written to the images' folder.
    pub bytes: u64,
}

/// A job with every task stopped, and its host half on disk. Dropping it lets the job run on.
#[derive(Debug)]
#[must_use = "dropping it lets the job run on"]
pub struct Frozen<'a> {
    job: &'a Job,
    /// None once the tasks have been let go.
    session: Option<Session>,
    work: Scratch,
    record: HostRecord,
    /// What of its memory is not in the images.
    left_out: Option<LeftOut>,
    /// What makes copies of its processes when CRIU goes on, if something does.
    plugin: Option<Plugin>,
    /// What the images do not hold of its files.
    on_disk: OnDisk,
    warnings: Vec<String>,
    /// When CRIU had written everything, which is when the caller may begin.
    held_since: Instant,
    recording: Duration,
    bytes: u64,
    _cutting: MutexGuard<'a, ()>,
}

impl Job {
    /// The quickest way in which a dump can take this job's private memory, which is made ready before the job is stopped. `goes_on` is
    /// whether the job is to go on behind the dump.
    #[must_use]
    pub fn way_of_memory(&self, goes_on: bool) -> MemoryWay {
        let (bytes, addresses) = self.private_memory();
        let is_noted = !self.withholds();
        if is_noted && addresses / NOTED > bytes / 2 || self.leaving_out.is_passed_over() {
            return MemoryWay::Written;
        }
        let is_asked = goes_on && !self.forking.is_passed_over();
        let forks = is_asked && copies::plugins().is_some() && self.may_fork();
        let shared =
            if is_noted || self.withholding_files.is_passed_over() { 0 } else { self.nameless_files() };
        let way = CopyRoom::made_for(shared).and_then(|shared| match forks {
            true => Ok(MemoryWay::Forked { shared }),
            false => CopyRoom::made_for(bytes).map(|private| MemoryWay::Copied { private, shared }),
        });
        match way {
            Ok(way) => way,
            Err(error) => {
                tracing::info!(%error, "there are no addresses for a copy of the job's memory");
                MemoryWay::Written
            }
        }
    }

    /// Whether CRIU does not hear of memory that it is to leave out.
    fn withholds(&self) -> bool {
        copies::withholds().is_some() && !self.withholding.is_passed_over()
    }

    /// Starts CRIU for a dump of this job into `images`, an empty folder. It learns about the kernel, which takes it longer than the dump of a small job, and waits; the
    /// job does not notice, and may go on for as long as it likes.
    #[must_use]
    pub fn ready_dump(
        &self,
        criu: &Criu,
        images: &Path,
        options: &DumpOptions,
        memory: MemoryWay,
    ) -> ReadyDump<'_> {
        let withholds = self.withholds();
        let started =
            self.seen().and_then(|seen| self.start_criu(criu, images, options, (&memory, withholds), seen));
        let (criu, images, options) = (criu.clone(), images.to_owned(), options.clone());
        ReadyDump { job: self, criu, images, options, memory, withholds, started }
    }

    /// [`ReadyDump::dump`] at once.
    ///
    /// # Errors
    /// As [`ReadyDump::dump`].
    pub fn dump(
        &self,
        criu: &Criu,
        images: &Path,
        options: &DumpOptions,
        memory: MemoryWay,
    ) -> Result<Frozen<'_>, DumpError> {
        self.ready_dump(criu, images, options, memory).dump()
    }

    /// What CRIU is told of the job when it is asked.
    fn seen(&self) -> Result<Seen, DumpError> {
        let all = mounts::of(self.init).map_err(|_| DumpError::Ended)?;
        let mounts = record::mounts(all, self.base_mounts());
        let keyed = mounts.iter().filter_map(|m| Some((m.key.as_ref()?, &m.mount.target)));
        let mut external: Vec<String> =
            keyed.map(|(key, target)| format!("mnt[{}]:{key}", target.display())).collect();
        let given = self.border().as_ref().ok_or(DumpError::Ended)?.file_keys();
        external.extend(given.map_err(failed(GIVEN_FILES))?.into_iter().map(FileKey::external));
        Ok(Seen { mounts, external, network_lock: self.network_lock() })
    }

    /// A CRIU that is to dump what was seen, and waits before it looks at the job.
    fn start_criu(
        &self,
        criu: &Criu,
        images: &Path,
        options: &DumpOptions,
        (memory, withholds): (&MemoryWay, bool),
        seen: Seen,
    ) -> Result<Started, DumpError> {
        let work = Scratch::for_log().map_err(failed("making a folder"))?;
        let images_dir = File::open(images).map_err(failed("opening the images' folder"))?;
        let work_dir = File::open(work.path()).map_err(failed("opening a folder"))?;

        // Whoever serves the pages that are left out is asked for none, and reads that this is all.
        let nobody = UnixStream::pair().map_err(failed("making a socket"))?.0;
        fs::write(work.path().join(SETTINGS), format!("ps-socket {}\n", nobody.as_raw_fd()))
            .map_err(failed("writing CRIU's settings"))?;
        let settings = format!("/proc/self/fd/{}/{SETTINGS}", work_dir.as_raw_fd());

        let is_left_out = !matches!(memory, MemoryWay::Written);
        let withholds = is_left_out && withholds;
        let files = withholds && !self.withholding_files.is_passed_over();
        let duties = Duties { copies: matches!(memory, MemoryWay::Forked { .. }), withholds, files };
        let plugin = (duties.copies || duties.withholds).then(|| Plugin::new(duties)).transpose();
        let plugin = plugin.map_err(failed(COPYING))?;
        let passed = [images_dir.as_fd(), work_dir.as_fd(), nobody.as_fd()];
        let environment = plugin.as_ref().map(Plugin::environment).unwrap_or_default();
        let passed: Vec<_> = passed.into_iter().chain(plugin.iter().flat_map(Plugin::passed)).collect();
        let session = Session::start(criu, &passed, environment, Some(rpc::ended_with_us()));
        let session = session.map_err(failed("starting CRIU"))?;
        let is_lazy = is_left_out && !withholds;
        let request = rpc::Options {
            images_dir_fd: images_dir.as_raw_fd(),
            work_dir_fd: Some(work_dir.as_raw_fd()),
            pid: Some(self.init.0),
            leave_running: Some(true),
            tcp_established: Some(true),
            file_locks: Some(true),
            link_remap: Some(true),
            force_irmap: Some(true),
            log_level: Some(options.log_level),
            log_file: Some(LOG.into()),
            notify_scripts: Some(true),
            manage_cgroups_mode: Some(rpc::CGROUPS_IGNORE),
            network_lock: Some(seen.network_lock),
            lazy_pages: is_lazy.then_some(true),
            config_file: is_lazy.then_some(settings),
            // Deleted files that are still open are carried whatever their size.
            ghost_limit: Some(u32::MAX),
            timeout: Some(options.freeze_timeout),
            external: seen.external.clone(),
            ..rpc::Options::default()
        };
        let reached = session.request(rpc::DUMP, request).and_then(|()| session.run_to("pre-dump"));
        let (seen, _passed) = (seen, (images_dir, work_dir, nobody));
        let started = Started { session, work, plugin, duties, seen, _passed };
        self.has_reached(criu, reached, &started).map(|()| started)
    }

    /// Fails with what CRIU has said, where it has not got there.
    fn has_reached(
        &self,
        criu: &Criu,
        reached: io::Result<Event>,
        started: &Started,
    ) -> Result<(), DumpError> {
        let work = started.work.path();
        Err(match reached {
            Ok(Event::Reached { .. }) => return Ok(()),
            Ok(Event::Done { message, .. }) => self.refused(criu, &message, &work),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                let is_locked = started.seen.network_lock == rpc::NETWORK_NFTABLES;
                let why = format!("{e}; the job runs on{}", if is_locked { LOCKED } else { "" });
                match self.refused(criu, &why, &work) {
                    DumpError::Refused { criu, why, log } => DumpError::Hung { criu, why, log },
                    other => other,
                }
            }
            Err(e) => self.refused(criu, &format!("it ended before it was done ({e})"), &work),
        })
    }

    /// Dumps with a CRIU that has been started, or another one if the job is not any more as that was told; and nothing else if that fails.
    fn dump_with(
        &self,
        criu: &Criu,
        started: Result<Started, DumpError>,
        images: &Path,
        options: &DumpOptions,
        (memory, withholds): (MemoryWay, bool),
    ) -> Result<Frozen<'_>, DumpError> {
        let cutting = match self.cutting.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(DumpError::Busy),
        };
        let seen = self.seen()?;
        let started = match started? {
            as_told if as_told.seen == seen => as_told,
            other => {
                drop(other);
                self.start_criu(criu, images, options, (&memory, withholds), seen)?
            }
        };
        let reached = started.session.acknowledge().and_then(|()| started.session.run_to("post-dump"));
        self.has_reached(criu, reached, &started)?;
        let Started { session, work, plugin, duties, seen: Seen { mounts, .. }, .. } = started;

        // Everything is stopped. From here on, failing lets the job go.
        let held_since = Instant::now();
        let mut frozen = Frozen {
            job: self,
            session: Some(session),
            work,
            record: HostRecord {
                version: HostRecord::VERSION,
                criu: criu.version().to_owned(),
                kernel: kernel_release(),
                mounts,
                channels: Vec::new(),
                files: Vec::new(),
                connections: Vec::new(),
                written: Vec::new(),
                needed: Vec::new(),
                programs: Vec::new(),
                blank: Vec::new(),
                tasks: Vec::new(),
            },
            left_out: None,
            plugin,
            on_disk: OnDisk::default(),
            warnings: Vec::new(),
            held_since,
            recording: Duration::ZERO,
            bytes: 0,
            _cutting: cutting,
        };
        let tasks = self.tasks();
        // Whoever was killed before CRIU came would end again at each restart.
        if tasks.iter().all(|task| task.inner == InnerPid::INIT || tasks::is_gone(task.outer)) {
            return Err(DumpError::Ended);
        }
        let mut plugin = frozen.plugin.take();
        frozen.left_out = thread::scope(|scope| {
            let taking = thread::Builder::new().spawn_scoped(scope, || {
                let unheard = plugin.as_mut().map_or_else(|| Ok(Unheard::default()), Plugin::withheld);
                let unheard = unheard.map_err(failed(COPYING))?;
                if duties.withholds && unheard.pages.is_empty() {
                    tracing::info!("CRIU has heard of the job's memory all the same, and written it");
                    self.withholding.failed();
                } else if duties.withholds {
                    self.withholding.worked();
                }
                let shared = nameless::lacking(images, unheard.files).map_err(DumpError::Nameless)?;
                if duties.files {
                    self.withholding_files.worked();
                }
                let excludes = self.tmpfs().path().join(EXCLUDES).exists();
                let seen = || {
                    let seen = plugin.as_mut().map_or_else(|| Ok(copies::Seen::default()), Plugin::dumped);
                    seen.map(|seen| if excludes { seen } else { seen.with_nothing_excluded() })
                };
                LeftOut::taken(images, &tasks, memory, (unheard.pages, shared), seen).map_err(failed(COPYING))
            });
            let taking = taking.map_err(failed(COPYING))?;
            frozen.fill_record(images, options, &tasks)?;
            taking.join().unwrap_or_else(|_| Err(failed(COPYING)(io::ErrorKind::Other.into())))
        })?;
        // Nobody is copied of whom nothing is left.
        frozen.plugin =
            plugin.filter(|_| frozen.left_out.as_ref().is_some_and(|left_out| left_out.forked() > 0));
        let copied = frozen.left_out.as_ref().map_or(0, LeftOut::bytes);
        frozen.bytes = copied + folder_size(images).map_err(failed("measuring the images"))?;
        frozen.recording = held_since.elapsed();
        Ok(frozen)
    }

    /// nftables is asked for only where it is needed: not every kernel has it.
    fn network_lock(&self) -> i32 {
        let pids: Vec<OuterPid> = self.tasks().iter().map(|t| t.outer).collect();
        if net::any_leads_out(&net::of(&pids)) { rpc::NETWORK_NFTABLES } else { rpc::NETWORK_SKIP }
    }

    fn refused(&self, criu: &Criu, message: &str, work: &Path) -> DumpError {
        if self.tasks().is_empty() {
            return DumpError::Ended;
        }
        let log = LogExcerpt::of(&work.join(LOG));
        if let Some(held) = self.unrestorable(&log) {
            return DumpError::Unrestorable(held);
        }
        if is_under_way(&log) {
            return DumpError::UnderWay;
        }
        if log.mentions(UNSTOPPABLE) {
            return DumpError::Unstoppable { log };
        }
        let why = match explain(&log) {
            Some(known) => known.to_owned(),
            None if message.is_empty() => "see its log".to_owned(),
            None => message.trim().to_owned(),
        };
        DumpError::Refused { criu: criu.to_string(), why, log }
    }
}

/// What a CRIU that was killed may have left.
const LOCKED: &str =
    ", but its connections to the outside may be blocked until CRIU's table (`nft list tables`) is deleted";

/// Where CRIU leaves memory out it notes 32 bytes for each page of private addresses, used or not: one byte of so many.
const NOTED: u64 = 4096 / 32;

/// What was being done.
const RESUMING: &str = "resuming the job";
const COPYING: &str = "copying its memory";
/// Behind a failure that the job does not notice.
const ANOTHER_WAY: &str = "the job's memory is taken in another way this time, which takes longer";

/// The name of a file of settings in the working folder.
const SETTINGS: &str = "settings";

/// The log's name in the working folder.
pub(super) const LOG: &str = "criu.log";

/// What was being done.
const GIVEN_FILES: &str = "looking at the files that it was started with";

fn lost_input(file: &SharedFile) -> String {
    format!(
        "{}, which the job reads as descriptor {}, has no name any more: a restart must be given it again",
        file.path.display(),
        file.fd
    )
}

impl<'a> ReadyDump<'a> {
    /// Stops every task, in a way that none of them can see, and writes the host half.
    ///
    /// # Errors
    /// When the job is over, another dump is under way, or it holds something that CRIU cannot dump. The job runs on then.
    pub fn dump(self) -> Result<Frozen<'a>, DumpError> {
        let Self { job, criu, images, options, memory, withholds, started } = self;
        let other_way = match memory {
            MemoryWay::Written => None,
            MemoryWay::Copied { .. } => Some(&job.leaving_out),
            MemoryWay::Forked { .. } => Some(&*job.forking),
        };
        let ways = [&job.leaving_out, &job.withholding, &job.withholding_files, &*job.forking];
        ways.into_iter().for_each(Setback::dumping);
        match (job.dump_with(&criu, started, &images, &options, (memory, withholds)), other_way) {
            // Not every CRIU and kernel can leave memory out.
            (
                Err(error @ (DumpError::Refused { .. } | DumpError::Io { .. } | DumpError::Nameless(_))),
                Some(other_way),
            ) => {
                let emptied = fs::read_dir(&images)
                    .and_then(|mut entries| entries.try_for_each(|entry| fs::remove_file(entry?.path())));
                emptied.map_err(failed("emptying the images' folder"))?;
                let written = (MemoryWay::Written, false);
                let started = job.start_criu(&criu, &images, &options, (&written.0, written.1), job.seen()?);
                let frozen = job.dump_with(&criu, started, &images, &options, written)?;
                tracing::info!(%error, "{ANOTHER_WAY}");
                match error {
                    DumpError::Nameless(_) => job.withholding_files.failed(),
                    _ => other_way.failed(),
                }
                Ok(frozen)
            }
            // Whether copies of the processes are good for something is seen when they have been read.
            (Ok(frozen), Some(way)) if !std::ptr::eq(way, &*job.forking) => {
                way.worked();
                Ok(frozen)
            }
            (done, _) => done,
        }
    }
}

impl Frozen<'_> {
    fn fill_record(&mut self, images: &Path, options: &DumpOptions, tasks: &[Task]) -> Result<(), DumpError> {
        let pids: Vec<OuterPid> = tasks.iter().map(|t| t.outer).collect();
        {
            let border = self.job.border();
            let border = border.as_ref().ok_or(DumpError::Ended)?;
            border.drain(options.drain_patience);
            self.record.channels = border.record(&pids);
            self.record.files = border.record_files().map_err(failed(GIVEN_FILES))?;
        }
        let given = shared::keys(&self.record.files);
        let limits = Limits {
            open: options.save_limit,
            closed: options.save_closed_limit,
            all_closed: options.save_all_closed_limit,
        };
        let closed = self.job.written();
        let doubtful = &self.job.doubtful;
        let Collected { files, on_disk, warnings } =
            files::collect(&pids, closed, &given, images, limits, doubtful)?;
        (self.record.written, self.on_disk, self.warnings) = (files, on_disk, warnings);
        self.warnings.extend(self.record.files.iter().filter(|file| file.is_lost_input()).map(lost_input));
        self.record.needed = files::needed_by(&pids, &given, &self.record.written);
        self.record.connections = net::of(&pids);
        record::note_used(&mut self.record.mounts, &pids, &given);
        self.record.programs = files::mapped_by(&pids);
        self.record.blank =
            dev::blanks(&self.job.tmpfs().host_file(DEV)).map_err(failed("reading the job's /dev"))?;
        let record = |task: &Task| TaskRecord {
            pid: task.inner,
            parent: task.parent,
            comm: task.comm.clone(),
            threads: task.threads.len(),
        };
        self.record.tasks = tasks.iter().map(record).collect();
        Ok(())
    }

    /// What must be stored with the images.
    #[must_use]
    pub fn record(&self) -> &HostRecord {
        &self.record
    }

    /// The job's memory, as far as it has been copied and is not in the images, which are not complete without it.
    pub fn take_left_out(&mut self) -> Option<LeftOut> {
        self.left_out.take()
    }

    /// The job's files that the images rely on as they lie on disk. To be synced before the image exists, best while the job goes on.
    pub fn take_on_disk(&mut self) -> OnDisk {
        std::mem::take(&mut self.on_disk)
    }

    /// What a restart of this image will not bring back, for the user to read.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Lets the job run on. Its memory, as far as it is not in the images, is answered.
    ///
    /// # Errors
    /// When CRIU failed to let it go as it should.
    pub fn resume(mut self) -> Result<(DumpReport, Option<LeftOut>), DumpError> {
        let asked = self.plugin.as_mut().map_or(Ok(()), Plugin::ask);
        let report = asked.map_err(failed(RESUMING)).and_then(|()| self.release());
        self.job.let_streams_go_on();
        Ok((report?, self.left_out.take()))
    }

    /// Ends the job, which has not run since the cut. What it had not delivered is in the record and goes nowhere else.
    ///
    /// # Errors
    /// When the job's init cannot be collected.
    pub fn kill(mut self) -> Result<(DumpReport, Ending), DumpError> {
        self.job.discard_output();
        self.plugin = None;
        // SAFETY: `init` is a child of ours that has not been waited for. It dies when CRIU lets it go.
        unsafe { libc::kill(self.job.init.0, libc::SIGKILL) };
        // Everybody else at once too: whoever CRIU lets go before init would run on for a moment and be heard.
        for task in self.job.tasks() {
            // SAFETY: a signal to a process of the job, which CRIU holds: its pid cannot be another's.
            unsafe { libc::kill(task.outer.0, libc::SIGKILL) };
        }
        let report = self.release().unwrap_or(DumpReport {
            stopped: self.held_since.elapsed(),
            host: self.recording,
            bytes: self.bytes,
        });
        let ending = self.job.kill().map_err(failed("ending the job"))?;
        Ok((report, ending))
    }

    fn release(&mut self) -> Result<DumpReport, DumpError> {
        let Some(session) = self.session.take() else {
            return Err(failed(RESUMING)(io::ErrorKind::NotConnected.into()));
        };
        let held = self.held_since.elapsed();
        let acknowledged = session.acknowledge();
        let (job, plugin) = (self.job, self.plugin.take());
        let (taken, success) = thread::scope(|scope| {
            // CRIU says more before it comes to the plugin.
            let taking = plugin.zip(self.left_out.as_mut());
            let taking = taking.map(|(plugin, left_out)| {
                // Where there is no thread the plugin hears that nobody is there any more.
                thread::Builder::new().spawn_scoped(scope, || take_copies(job, left_out, plugin))
            });
            let success = session.finish();
            let taken = taking.map(|taking| taking?.join().unwrap_or(Err(io::ErrorKind::Other.into())));
            (taken.unwrap_or(Ok(())), success)
        });
        acknowledged.map_err(failed(RESUMING))?;
        if !success.map_err(failed(RESUMING))? {
            let log = LogExcerpt::of(&self.work.path().join(LOG));
            return Err(failed(RESUMING)(io::Error::other(format!("CRIU failed:{log}"))));
        }
        taken.map_err(failed("copying the memory of the job, which goes on"))?;
        let stopped = frozen_time(&self.work.path()).unwrap_or(held);
        Ok(DumpReport { stopped, host: stopped.saturating_sub(held) + self.recording, bytes: self.bytes })
    }
}

/// Has the plugin make copies of the processes, which stand still until it is told to go on. Where there are none their memory is copied meanwhile.
fn take_copies(job: &Job, left_out: &mut LeftOut, mut plugin: Plugin) -> io::Result<()> {
    let copied = plugin.copies(&job.copies).and_then(|copies| left_out.is_in(copies, &job.forking));
    if let Err(error) = copied {
        tracing::info!(%error, "{ANOTHER_WAY}");
        job.forking.failed();
        match error.kind() {
            io::ErrorKind::Unsupported => left_out.copy()?,
            _ => return Err(error),
        }
    }
    plugin.go_on()
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.plugin = None;
        if self.session.is_some() {
            if let Err(error) = self.release() {
                tracing::error!(%error, "the job may not run on after its checkpoint");
            }
            self.job.let_streams_go_on();
        }
    }
}

/// How long CRIU had the tasks stopped.
fn frozen_time(work: &Path) -> Option<Duration> {
    // CRIU's image header: two magic numbers and a length before the one message.
    const HEADER: usize = 12;
    let file = fs::read(work.join("stats-dump")).ok()?;
    let stats = rpc::Stats::decode(file.get(HEADER..)?).ok()?.dump?;
    Some(Duration::from_micros(u64::from(stats.frozen_time)))
}

fn folder_size(folder: &Path) -> io::Result<u64> {
    fs::read_dir(folder)?.map(|entry| entry?.metadata().map(|m| m.len())).sum()
}

pub(super) fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
