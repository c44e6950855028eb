//! Starts a job.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio as ChildStdio};

use rustix::pipe::{PipeFlags, pipe_with};

use super::{Job, JobSpec};
use crate::init::SETUP;
use crate::init::instructions::{INSTRUCTIONS, Instructions, PROGRAM, READY, StartFailure};
use crate::mounts;
use crate::privilege::{self, Capability, PrivilegeError};
use crate::stdio::border::Border;
use crate::tasks::OuterPid;
use crate::tmpfs::Tmpfs;

/// Why a job did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// Capabilities are missing.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// The program could not be executed.
    #[error("cannot run {program}: {source}")]
    Exec {
        /// The program, as it was given.
        program: String,
        /// `ENOENT` and `EACCES` are what shells answer 127 and 126 for.
        source: io::Error,
    },
    /// Something inside the job's namespaces failed.
    #[error("cannot start the job: {0}")]
    Setup(String),
    /// Something out here failed.
    #[error("cannot start the job: {what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl SpawnError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The exit code a shell would give: 127 for a program that is not there, 126 for one that cannot be run, else 125.
    #[must_use]
    pub fn shell_code(&self) -> u8 {
        match self {
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            _ => 125,
        }
    }
}

/// Whether this process may do what running, dumping and restoring jobs takes (`docs/privileges.md`).
///
/// # Errors
/// Names what is missing.
pub fn check_privilege() -> Result<(), PrivilegeError> {
    privilege::require(&[Capability::SysAdmin, Capability::SysPtrace, Capability::Mknod])
}

impl Job {
    /// Starts a job. Returns once the application has been executed; it shares `tmpfs` with this process.
    ///
    /// # Errors
    /// When privilege is missing, a mount fails, or the program cannot be executed. Nothing is left behind then.
    pub fn spawn(spec: JobSpec, tmpfs: Tmpfs) -> Result<Self, SpawnError> {
        check_privilege()?;
        let program = spec.init_program().map_err(SpawnError::io("finding the init program"))?;
        install_init(&program, &tmpfs).map_err(SpawnError::io(format!("copying {}", program.display())))?;
        let (border, ends) = Border::open(spec.stdio).map_err(SpawnError::io("opening the job's streams"))?;
        let (report, report_end) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|e| SpawnError::io("making a pipe")(e.into()))?;
        let told = Instructions {
            argv: spec.argv,
            env: spec.env,
            cwd: spec.cwd,
            umask: spec.umask,
            ignored: spec.ignored,
            blocked: spec.blocked,
            streams: ends.streams,
            terminal: ends.terminal,
            alive: ends.alive,
            report: report_end.as_raw_fd(),
            tmpfs: tmpfs.as_fd().as_raw_fd(),
            binds: spec.binds,
            hide: spec.hide,
            blank: spec.blank,
            library_dir: spec.library_dir,
        };
        let json = serde_json::to_vec(&told).map_err(|e| SpawnError::Setup(e.to_string()))?;
        tmpfs.write_host_file(INSTRUCTIONS, &json).map_err(SpawnError::io("writing init's instructions"))?;

        let passed: Vec<BorrowedFd<'_>> =
            ends.fds.iter().map(AsFd::as_fd).chain([report_end.as_fd(), tmpfs.as_fd()]).collect();
        let setup = run_setup(&tmpfs, &passed);
        drop((ends.fds, report_end));
        let init = setup.map_err(SpawnError::io("running the init program"))?;
        let mut report = File::from(report);
        let first = first_byte(&mut report).map_err(SpawnError::io("hearing from the job's init"))?;
        let Some(init) = init.filter(|_| first == Some(READY)) else {
            let failure = read_failure(first, report);
            if let Some(init) = init {
                reap(init);
            }
            return Err(explain(failure));
        };
        let job = Self::new(init, tmpfs, border).map_err(SpawnError::io("watching the job"))?;
        // All is mounted and nothing of the application runs yet.
        job.settle(mounts::of(init).map_err(SpawnError::io("reading the job's mounts"))?, &BTreeSet::new());
        if let Some(border) = job.border().as_mut() {
            border.grab_terminal().map_err(SpawnError::io("taking over the terminal"))?;
            border.start().map_err(SpawnError::io("starting the application"))?;
        }
        match read_failure(None, report) {
            None => Ok(job),
            failure => Err(explain(failure)),
        }
    }
}

fn install_init(program: &Path, tmpfs: &Tmpfs) -> io::Result<()> {
    let installed = tmpfs.host_file(PROGRAM);
    fs::copy(program, &installed)?;
    fs::set_permissions(installed, fs::Permissions::from_mode(0o755))
}

/// Runs the first stage of init, with `passed` left open. Answers pid 1, if it came to that.
fn run_setup(tmpfs: &Tmpfs, passed: &[BorrowedFd<'_>]) -> io::Result<Option<OuterPid>> {
    let numbers: Vec<RawFd> = passed.iter().map(AsRawFd::as_raw_fd).collect();
    let mut command = Command::new(tmpfs.host_file(PROGRAM));
    command.arg(SETUP).arg(tmpfs.as_fd().as_raw_fd().to_string());
    // Init's memory is in the job's images: what the job is not to know has no place there. Nor is what the program preloads for ldconfig.
    command.env_clear();
    command.stdin(ChildStdio::null()).stdout(ChildStdio::piped()).stderr(ChildStdio::piped());
    // SAFETY: only system calls on numbers made beforehand; the descriptors are open until the child has been executed.
    unsafe {
        command.pre_exec(move || {
            for &fd in &numbers {
                if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let output = command.output()?;
    let pid = String::from_utf8_lossy(&output.stdout).trim().parse().ok();
    if !output.status.success() && !output.stderr.is_empty() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(pid.map(OuterPid))
}

/// What init says first: [`READY`] when it can start the application.
fn first_byte(report: &mut File) -> io::Result<Option<u8>> {
    let mut byte = [0];
    Ok((report.read(&mut byte)? == 1).then_some(byte[0]))
}

/// What else init has to say before it closes the pipe: nothing, when all is well. `first` has been read already.
fn read_failure(first: Option<u8>, report: File) -> Option<StartFailure> {
    let mut text: Vec<u8> = first.into_iter().collect();
    report.take(64 * 1024).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn explain(failure: Option<StartFailure>) -> SpawnError {
    match failure {
        Some(StartFailure::Exec { program, errno }) => SpawnError::Exec {
            program: program.to_string_lossy().into_owned(),
            source: io::Error::from_raw_os_error(errno),
        },
        Some(failure @ StartFailure::Setup { .. }) => SpawnError::Setup(failure.to_string()),
        None => SpawnError::Setup("its init ended without a word".into()),
    }
}

fn reap(init: OuterPid) {
    let mut status = 0;
    // SAFETY: `init` is a child of ours that nobody else waits for.
    unsafe {
        libc::kill(init.0, libc::SIGKILL);
        libc::waitpid(init.0, &mut status, 0);
    }
}
