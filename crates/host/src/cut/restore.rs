//! Brings a job back, every task stopped.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::dump::LOG;
use super::record::{HostRecord, MountRecord};
use super::release::HeldBack;
use crate::criu::rpc::{self, BeforeExec, Event, InheritFd, Session};
use crate::criu::{self, Criu, LogExcerpt, tcp};
use crate::files::{self, FileError, NeededFile};
use crate::init::dev;
use crate::init::instructions::{DEV, EMPTY_DIR, EMPTY_FILE};
use crate::job::{Job, check_privilege};
use crate::mounts::{Keeper, Mount};
use crate::net;
use crate::privilege::PrivilegeError;
use crate::stdio::Stdio;
use crate::stdio::border::Border;
use crate::tasks::{OuterPid, Task};
use crate::tmpfs::{HOST_DIR, JOB_DIR, Scratch, Tmpfs};
use crate::userfault;

/// What to bring back, and onto what.
#[derive(Debug)]
pub struct RestoreSpec<'a> {
    /// CRIU's images and the saved files, as the dump left them.
    pub images: &'a Path,
    /// What the dump recorded.
    pub record: &'a HostRecord,
    /// A new tmpfs with everything that the job's had.
    pub tmpfs: Tmpfs,
    /// The streams for the job to go on with.
    pub stdio: Stdio,
    /// Files below `/dev` that the job shall not see on this machine.
    pub hide: Vec<PathBuf>,
    /// As [`crate::JobSpec::blank`]; those that the job had are there besides.
    pub blank: Vec<PathBuf>,
    /// CRIU's log level: 2 for warnings, 4 for everything.
    pub log_level: i32,
}

/// Why a job could not be brought back. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// Capabilities are missing.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// A program or library is not what it was.
    #[error("{path} {what}; the job cannot go on without the file it was started with: bring it back", path = .path.display())]
    Changed {
        /// Which.
        path: PathBuf,
        /// How.
        what: String,
    },
    /// A folder over which something is mounted in the job, and which the job used, does not exist here.
    #[error("{path} does not exist here, but the job used what was mounted there; make it", path = .path.display())]
    NoMountPoint {
        /// Which.
        path: PathBuf,
    },
    /// A folder the job was in, or a file it was reading, is not there or not what it was.
    #[error("{path} {what}; the job was in it or had it open: bring it back", path = .path.display())]
    Needed {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file the job was writing cannot be brought back.
    #[error(transparent)]
    File(#[from] FileError),
    /// CRIU failed.
    #[error("{criu} cannot restore the job: {why}{log}")]
    Refused {
        /// Which CRIU.
        criu: String,
        /// What it said.
        why: String,
        /// The end of its log.
        log: LogExcerpt,
    },
    /// Something on this side failed.
    #[error("cannot restore the job: {what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> RestoreError {
    move |source| RestoreError::Io { what, source }
}

impl HostRecord {
    /// Whether this process may restore the job, and whether what it needs of this machine is there: its programs as they
    /// were, its mount points, the files it was writing or reading, its working folders. Changes nothing.
    ///
    /// # Errors
    /// Names the first thing that is missing.
    pub fn check(&self) -> Result<(), RestoreError> {
        check_privilege()?;
        self.check_programs()?;
        mounts_here(self)?;
        files::restorable(&self.written)?;
        let lacking = |file: &NeededFile| Some((file.path.clone(), files::lacking(file, &self.written)?));
        match self.needed.iter().find_map(lacking) {
            None => Ok(()),
            Some((path, what)) => Err(RestoreError::Needed { path, what }),
        }
    }

    fn check_programs(&self) -> Result<(), RestoreError> {
        match self.programs.iter().find_map(|file| Some((file, files::changed(file)?))) {
            None => Ok(()),
            Some((file, what)) => Err(RestoreError::Changed { path: file.path.clone(), what }),
        }
    }
}

/// A job that is complete but has not run yet: CRIU holds every task. Dropping it kills the job.
#[derive(Debug)]
#[must_use = "dropping it kills the job"]
pub struct Restored {
    // Dropped before the job, whose end waits for whom CRIU holds.
    session: Session,
    job: Job,
    work: Scratch,
    criu: String,
}

impl Restored {
    /// Brings the job back, up to the point where its tasks would run.
    ///
    /// # Errors
    /// When a program has changed, a written file is gone, or CRIU fails. Files the job was writing are touched last: when CRIU
    /// has made the job's processes and mounts and is about to open them.
    pub fn restore(criu: &Criu, spec: RestoreSpec<'_>) -> Result<Self, RestoreError> {
        Self::restore_asking(criu, spec, &|| Ok(()))
    }

    /// The same; but before a file is changed, since it is not as it was any more, `may_change` is asked, and waited for.
    ///
    /// # Errors
    /// As [`Self::restore`]'s, and when none may be changed.
    pub fn restore_asking(
        criu: &Criu,
        spec: RestoreSpec<'_>,
        may_change: &dyn Fn() -> io::Result<()>,
    ) -> Result<Self, RestoreError> {
        let RestoreSpec { images, record, tmpfs, stdio, hide, blank, log_level } = spec;
        record.check()?;
        let blank = blank.iter().chain(&record.blank);
        prepare_tmpfs(&tmpfs, &hide, blank).map_err(failed("preparing the job's tmpfs"))?;
        let Mounts { external, left_out } = mounts_here(record)?;

        let work = Scratch::for_log().map_err(failed("making a folder"))?;
        let images_dir = File::open(images).map_err(failed("opening the images' folder"))?;
        let work_dir = File::open(work.path()).map_err(failed("opening a folder"))?;
        let (border, pipes) = Border::reopen(&record.channels, &record.files, stdio)
            .map_err(failed("opening the job's streams"))?;

        net::forget(&record.connections);
        criu::mounts::leave_out(images, &left_out)
            .map_err(failed("leaving out mounts that this machine lacks"))?;
        tcp::count_unsent_as_sent(images).map_err(failed("reading CRIU's images of TCP connections"))?;

        let inherit = |(key, fd): &(String, OwnedFd)| InheritFd { key: key.clone(), fd: fd.as_raw_fd() };
        let request = rpc::Options {
            images_dir_fd: images_dir.as_raw_fd(),
            work_dir_fd: Some(work_dir.as_raw_fd()),
            root: Some(root_dir().to_string_lossy().into_owned()),
            rst_sibling: Some(true),
            tcp_established: Some(true),
            file_locks: Some(true),
            link_remap: Some(true),
            log_level: Some(log_level),
            log_file: Some(LOG.into()),
            notify_scripts: Some(true),
            manage_cgroups_mode: Some(rpc::CGROUPS_IGNORE),
            network_lock: Some(if net::any_leads_out(&record.connections) {
                rpc::NETWORK_NFTABLES
            } else {
                rpc::NETWORK_SKIP
            }),
            inherit_fd: pipes.iter().map(inherit).collect(),
            external,
            ..rpc::Options::default()
        };
        let mut passed: Vec<BorrowedFd<'_>> = pipes.iter().map(|(_, fd)| fd.as_fd()).collect();
        passed.extend([images_dir.as_fd(), work_dir.as_fd()]);
        let mut namespace = Namespace::new(tmpfs.as_fd());
        let started = Instant::now();
        let put_back = || files::put_back(&record.written, images, may_change);
        let (session, init) = loop {
            let (why, log) = match attempt(criu, &passed, &mut namespace, &request, &put_back) {
                Ok(restored) => break restored,
                Err(Stopped::ByFile(error)) => return Err(error.into()),
                Err(Stopped::ByCriu(why)) => (why, LogExcerpt::of(&work.path().join(LOG))),
            };
            if !lingers(&log) || started.elapsed() > LINGER_PATIENCE {
                return Err(RestoreError::Refused {
                    criu: criu.to_string(),
                    why: explain(&log).unwrap_or(why),
                    log,
                });
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        drop(pipes);
        let job = Job::new(init, tmpfs, border).map_err(failed("watching the job"))?;
        // Until it runs, what is on its way is the image's.
        job.discard_output();
        let is_base = |m: &&MountRecord| m.key.as_ref().is_some_and(|key| !left_out.contains(key));
        let base = record.mounts.iter().filter(is_base).map(|m| m.mount.clone()).collect();
        job.settle(base, &record.written.iter().map(|file| file.path.clone()).collect());
        Ok(Self { job, session, work, criu: criu.to_string() })
    }

    /// The job, of which nothing runs yet.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Its processes.
    #[must_use]
    pub fn tasks(&self) -> Vec<Task> {
        self.job.tasks()
    }

    /// Lets the job run.
    ///
    /// # Errors
    /// When CRIU fails at the last moment. Nothing of the job is left then.
    pub fn resume(self) -> Result<Job, RestoreError> {
        self.resume_behind(&[], |_, _| Ok(()))
    }

    /// The same; but before these processes go on, a userfaultfd of the memory of each is given away.
    ///
    /// # Errors
    /// As [`Self::resume`]'s, and when a process may have none or nobody takes it.
    pub fn resume_behind(
        self,
        held: &[OuterPid],
        mut give: impl FnMut(OuterPid, OwnedFd) -> io::Result<()>,
    ) -> Result<Job, RestoreError> {
        let Self { job, session, work, criu } = self;
        // One that had ended when the image was taken runs no more, and is gone as soon as its parent hears of it.
        let tasks = job.tasks();
        let is_over = |process: &OuterPid| tasks.iter().any(|task| task.outer == *process && task.is_over());
        let held: Vec<OuterPid> = held.iter().copied().filter(|process| !is_over(process)).collect();
        // They stop when CRIU lets go of them, before they do anything else.
        held.iter()
            .try_for_each(|process| signal(*process, libc::SIGSTOP))
            .map_err(failed("holding the job"))?;
        if let Some(border) = job.border().as_ref() {
            border.move_files().map_err(failed("going to where the job was in its input"))?;
        }
        let held_back = HeldBack::behind(session.pid(), &tasks);
        session.acknowledge().map_err(failed("resuming the job"))?;
        let resumed = session.run_to("post-resume");
        held_back.release(&job);
        let success = match resumed {
            Ok(Event::Reached { .. }) => session.acknowledge().and_then(|()| session.finish()),
            Ok(Event::Done { success, .. }) => Ok(success),
            Err(e) => Err(e),
        };
        let success = success.map_err(failed("resuming the job"))?;
        if !success {
            let log = LogExcerpt::of(&work.path().join(LOG));
            return Err(RestoreError::Refused { criu, why: "while resuming it".into(), log });
        }
        // Whoever is not held, or goes on first, may end others. What is not permitted may end a process itself.
        let is_told = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let unless_over = |process: OuterPid, done: io::Result<()>| match done {
            Err(error) if !is_told(&error) && crate::tasks::is_gone(process) => {
                tracing::debug!("process {process} of the job has ended: {error}");
                Ok(())
            }
            done => done,
        };
        for process in &held {
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("process {process}: {error}"));
            let given =
                userfault::of(*process).map_err(named).and_then(|userfault| give(*process, userfault));
            unless_over(*process, given)
                .map_err(failed("finding out what the job touches of its managed memory"))?;
        }
        held.iter()
            .try_for_each(|process| unless_over(*process, signal(*process, libc::SIGCONT)))
            .map_err(failed("resuming the job"))?;
        job.let_streams_go_on();
        if let Some(border) = job.border().as_mut() {
            border.grab_terminal().map_err(failed("taking over the terminal"))?;
        }
        job.resize();
        Ok(job)
    }
}

fn signal(process: OuterPid, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: a process of the job, of which this is the ancestor.
    if unsafe { libc::kill(process.0, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a job's tmpfs, as an image has it, may hold a symbolic link at `path`: only in the job's `/dev`, and not where a folder of
/// this machine's is to be. Everything else there is written to by Dormouse, which must not be led elsewhere.
#[must_use]
pub fn may_be_link(path: &Path) -> bool {
    let is_folder = |path: PathBuf| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    path.strip_prefix(Path::new(HOST_DIR).join(DEV))
        .is_ok_and(|node| node.components().next().is_some() && !is_folder(Path::new("/dev").join(node)))
}

/// What every job finds on its tmpfs, wherever it wakes up.
fn prepare_tmpfs<'a>(
    tmpfs: &Tmpfs,
    hide: &[PathBuf],
    blank: impl Iterator<Item = &'a PathBuf>,
) -> io::Result<()> {
    fs::create_dir_all(JOB_DIR)?;
    fs::create_dir_all(tmpfs.host_file(EMPTY_DIR))?;
    fs::write(tmpfs.host_file(EMPTY_FILE), "")?;
    dev::populate(&tmpfs.host_file(DEV), hide, blank)
}

/// What becomes of the mounts that are ours to bring back.
struct Mounts {
    /// What CRIU is to mount where: what the job had, or something empty where this machine lacks it.
    external: Vec<String>,
    /// The keys of those that have no place here, and that nobody used.
    left_out: Vec<String>,
}

fn mounts_here(record: &HostRecord) -> Result<Mounts, RestoreError> {
    let mut mounts = Mounts { external: Vec::new(), left_out: Vec::new() };
    for mount in &record.mounts {
        let Some(key) = &mount.key else { continue };
        let Mount { target, is_dir, .. } = &mount.mount;
        let ours = mount.source.starts_with(JOB_DIR);
        if !target.exists() && target.as_os_str() != JOB_DIR {
            if mount.used {
                return Err(RestoreError::NoMountPoint { path: target.clone() });
            }
            mounts.left_out.push(key.clone());
            continue;
        }
        let source = if ours || is_mount_point(target) {
            mount.source.clone()
        } else {
            Path::new(JOB_DIR).join(HOST_DIR).join(if *is_dir { EMPTY_DIR } else { EMPTY_FILE })
        };
        mounts.external.push(format!("mnt[{key}]:{}", source.display()));
    }
    Ok(mounts)
}

fn is_mount_point(path: &Path) -> bool {
    let here = OuterPid(i32::try_from(std::process::id()).unwrap_or(0));
    crate::mounts::of(here)
        .is_ok_and(|all| all.iter().any(|m| m.target == path && m.keeper(&[]) != Keeper::Root))
}

fn root_dir() -> PathBuf {
    Path::new(JOB_DIR).join(HOST_DIR).join("root")
}

/// CRIU's words when a connection of the job's former life is in TIME_WAIT and the kernel cannot destroy it. Between two ends on
/// one machine it may be taken over once it is a second old.
const CONNECTION_LINGERS: [&str; 2] =
    ["Can't connect inet socket back: Cannot assign requested", "Can't bind inet socket"];
const LINGER_PATIENCE: Duration = Duration::from_secs(3);

fn lingers(log: &LogExcerpt) -> bool {
    CONNECTION_LINGERS.iter().any(|text| log.mentions(text))
}

fn explain(log: &LogExcerpt) -> Option<String> {
    lingers(log).then(|| {
        "a TCP port of the job is taken: by another process, or by a connection of its own before it was killed, \
         which the kernel keeps for a minute; free it, or try again then"
            .to_owned()
    })
}

/// Why an attempt went no further.
enum Stopped {
    ByFile(FileError),
    ByCriu(String),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::ByCriu(error.to_string())
    }
}

/// Where CRIU has made the job's first process and all its mounts, and has opened none of its files.
const BEFORE_FILES: &str = "post-setup-namespaces";

/// Runs CRIU up to the point where the tasks would run. Answers the job's init. `put_back` returns files to what they were.
fn attempt(
    criu: &Criu,
    passed: &[BorrowedFd<'_>],
    namespace: &mut Namespace,
    request: &rpc::Options,
    put_back: &dyn Fn() -> Result<(), FileError>,
) -> Result<(Session, OuterPid), Stopped> {
    let session = Session::start(criu, passed, Vec::new(), Some(namespace.enter()))
        .map_err(|e| Stopped::ByCriu(format!("it does not start: {e}")))?;
    namespace.keep(session.pid())?;
    session.request(rpc::RESTORE, request.clone())?;
    let mut event = session.run_to(BEFORE_FILES)?;
    if let Event::Reached { .. } = event {
        put_back().map_err(Stopped::ByFile)?;
        session.acknowledge()?;
        event = session.run_to("pre-resume")?;
    }
    match event {
        Event::Reached { .. } => match session.adopt() {
            Some(init) => Ok((session, init)),
            None => Err(Stopped::ByCriu("it did not say which process is the job's init".into())),
        },
        Event::Done { message, .. } => {
            Err(Stopped::ByCriu(if message.trim().is_empty() { "see its log".into() } else { message }))
        }
    }
}

/// A mount namespace for CRIU, gone with the last attempt: the job's tmpfs at its place, and the machine's root bound below it
/// (CRIU wants the new root to be a mount).
struct Namespace {
    tmpfs: RawFd,
    /// Made by the first attempt: a tmpfs can be attached once.
    made: Option<OwnedFd>,
    job_dir: CString,
    root: CString,
}

impl Namespace {
    fn new(tmpfs: BorrowedFd<'_>) -> Self {
        let path = |p: PathBuf| CString::new(p.into_os_string().into_encoded_bytes()).unwrap_or_default();
        Self { tmpfs: tmpfs.as_raw_fd(), made: None, job_dir: path(JOB_DIR.into()), root: path(root_dir()) }
    }

    fn keep(&mut self, of: u32) -> io::Result<()> {
        if self.made.is_none() {
            self.made = Some(File::open(format!("/proc/{of}/ns/mnt"))?.into());
        }
        Ok(())
    }

    /// To be run in the child that becomes CRIU.
    fn enter(&self) -> BeforeExec {
        let (tmpfs, job_dir, root) = (self.tmpfs, self.job_dir.clone(), self.root.clone());
        let made = self.made.as_ref().map(AsRawFd::as_raw_fd);
        Box::new(move || {
            let ok = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
            // SAFETY: system calls only, on strings and descriptors that outlive them, in a freshly forked child.
            unsafe {
                if let Some(made) = made {
                    return ok(libc::setns(made, libc::CLONE_NEWNS).into());
                }
                ok(libc::unshare(libc::CLONE_NEWNS).into())?;
                let private = libc::MS_REC | libc::MS_PRIVATE;
                ok(libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    private,
                    std::ptr::null(),
                )
                .into())?;
                const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
                let (here, empty) = (libc::AT_FDCWD, c"".as_ptr());
                ok(libc::syscall(
                    libc::SYS_move_mount,
                    tmpfs,
                    empty,
                    here,
                    job_dir.as_ptr(),
                    MOVE_MOUNT_F_EMPTY_PATH,
                ))?;
                if libc::mkdir(root.as_ptr(), 0o755) < 0 && *libc::__errno_location() != libc::EEXIST {
                    return Err(io::Error::last_os_error());
                }
                ok(libc::mount(
                    c"/".as_ptr(),
                    root.as_ptr(),
                    std::ptr::null(),
                    libc::MS_BIND,
                    std::ptr::null(),
                )
                .into())
            }
        })
    }
}
