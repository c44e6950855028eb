//! Starts the application: pid 2.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::instructions::{InnerSource, InnerStream, Instructions, StartFailure};
use super::terminal::Terminal;
use super::{inherited, report};

/// Forks and executes the application; what the application is to have as descriptors is closed here afterwards.
pub(super) fn start(told: &Instructions, terminal: Option<&Terminal>) -> Result<libc::pid_t, StartFailure> {
    let streams = open_streams(&told.streams, terminal)?;
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(StartFailure::setup("forking the application")(io::Error::last_os_error())),
        0 => {
            let targets = Targets::of(&streams);
            // SAFETY: open, and closed in this process by nobody but what takes its number.
            let report_end = targets.avoid(unsafe { BorrowedFd::borrow_raw(told.report) });
            let failure = execute(told, streams, &targets, terminal);
            report(report_end.map_or(told.report, IntoRawFd::into_raw_fd), &failure);
            // SAFETY: ends this process without running what belongs to its parent.
            unsafe { libc::_exit(127) }
        }
        pid => Ok(pid),
    }
}

fn open_streams(
    wanted: &[InnerStream],
    terminal: Option<&Terminal>,
) -> Result<Vec<(i32, OwnedFd)>, StartFailure> {
    let mut open: Vec<(i32, OwnedFd)> = Vec::new();
    for stream in wanted {
        let fd = match &stream.source {
            InnerSource::Terminal => terminal
                .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
                .and_then(|t| t.slave().try_clone_to_owned()),
            InnerSource::Path { path, flags, offset, device, inode } => {
                reopen(path, OFlags::from_bits_retain(*flags), *offset, (*device, *inode))
            }
            // SAFETY: each inherited stream is named once.
            InnerSource::Inherited(fd) => Ok(unsafe { inherited(*fd) }),
            InnerSource::Same(as_fd) => open
                .iter()
                .find(|(fd, _)| fd == as_fd)
                .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
                .and_then(|(_, fd)| fd.try_clone()),
        };
        open.push((stream.fd, fd.map_err(StartFailure::setup(format!("opening descriptor {}", stream.fd)))?));
    }
    Ok(open)
}

/// Opens by its path inside the job a file that the supervisor has open.
fn reopen(path: &Path, flags: OFlags, offset: u64, identity: (u64, u64)) -> io::Result<OwnedFd> {
    let access = flags & OFlags::RWMODE;
    let file = OpenOptions::new()
        .read(access != OFlags::WRONLY)
        .write(access != OFlags::RDONLY)
        .custom_flags(flags.difference(OFlags::RWMODE).bits().cast_signed())
        .open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() && (meta.dev(), meta.ino()) != identity {
        return Err(io::Error::other(format!("{} is another file inside the job", path.display())));
    }
    if meta.is_file() {
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(offset))?;
    }
    Ok(file.into())
}

/// Returns only on failure.
fn execute(
    told: &Instructions,
    streams: Vec<(i32, OwnedFd)>,
    targets: &Targets,
    terminal: Option<&Terminal>,
) -> StartFailure {
    let what = || format!("changing to {}", told.cwd.display());
    if let Err(e) = std::env::set_current_dir(&told.cwd) {
        return StartFailure::setup(what())(e);
    }
    if let Err(e) = place(streams, targets, terminal.map(Terminal::slave)) {
        return StartFailure::setup("preparing the application's descriptors")(e);
    }
    let Some((program, arguments)) = told.argv.split_first() else {
        return StartFailure::Setup { what: "no program named".into(), errno: libc::EINVAL };
    };
    let (ignored, blocked) = (told.ignored.clone(), told.blocked.clone());
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(told.umask));
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(told.env.iter().map(|(k, v)| (k, v)));
    // SAFETY: runs right before exec, in a process with one thread, and makes system calls only.
    unsafe { command.pre_exec(move || restore_signals(&ignored, &blocked)) };
    let error = command.exec();
    StartFailure::Exec { program: program.clone(), errno: error.raw_os_error().unwrap_or(0) }
}

/// The numbers that the application is to have.
struct Targets(Vec<i32>);

impl Targets {
    fn of(streams: &[(i32, OwnedFd)]) -> Self {
        Self(streams.iter().map(|(target, _)| *target).collect())
    }

    /// The same open file at a number that is nobody's target, to be closed at exec.
    fn avoid(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let mut in_the_way = Vec::new();
        loop {
            let copy = rustix::io::fcntl_dupfd_cloexec(fd, 3)?;
            if !self.0.contains(&copy.as_raw_fd()) {
                return Ok(copy);
            }
            in_the_way.push(copy);
        }
    }
}

/// Puts the streams at their numbers, closes the standard descriptors that it was started without, and marks all else to be
/// closed at exec; a process group of its own, in the foreground.
fn place(
    streams: Vec<(i32, OwnedFd)>,
    targets: &Targets,
    terminal: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    rustix::process::setpgid(None, None)?;
    if let Some(terminal) = terminal {
        // init has every signal blocked here, so that SIGTTOU does not stop us.
        rustix::termios::tcsetpgrp(terminal, rustix::process::getpid())?;
    }
    // First out of the way of the target numbers, but for what has its own already.
    let (placed, others): (Vec<_>, Vec<_>) =
        streams.into_iter().partition(|(target, fd)| fd.as_raw_fd() == *target);
    let mut parked = Vec::new();
    for (target, fd) in &others {
        parked.push((*target, targets.avoid(fd.as_fd())?));
    }
    // Not one by one: a number may be somebody's target by then.
    drop(others);
    super::setup::close_at_exec()?;
    for (_, fd) in placed {
        rustix::io::fcntl_setfd(&fd, FdFlags::empty())?;
        let _ = fd.into_raw_fd();
    }
    with_room_for(parked.iter().map(|(target, _)| *target).max().unwrap_or(0), || {
        parked.iter().try_for_each(|(target, fd)| {
            // SAFETY: plain duplication onto a number that the application is to have, and that nothing here needs.
            match unsafe { libc::dup2(fd.as_raw_fd(), *target) } {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        })
    })?;
    for standard in (0..3).filter(|fd| !targets.0.contains(fd)) {
        // SAFETY: `/dev/null`, which nobody here uses.
        unsafe { libc::close(standard) };
    }
    Ok(())
}

/// Does `what` with the number `fd` within the limit of open files: whoever opened it had a higher one.
fn with_room_for(fd: i32, what: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let needed = u64::try_from(fd).unwrap_or(0) + 1;
    if limit.current.is_none_or(|current| current >= needed) {
        return what();
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(needed));
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })?;
    what()?;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

fn restore_signals(ignored: &[i32], blocked: &[i32]) -> io::Result<()> {
    // SAFETY: sigset_t is plain data that sigemptyset initialises; all calls are async-signal-safe.
    unsafe {
        for &signal in ignored {
            libc::signal(signal, libc::SIG_IGN);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in blocked {
            libc::sigaddset(&mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes what only the application needed: the supervisor waits for the last holder of the report.
pub(super) fn close_passed(told: &Instructions) {
    // SAFETY: nothing in this process owns it.
    drop(unsafe { inherited(told.report) });
}
