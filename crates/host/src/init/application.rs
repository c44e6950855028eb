//! Starts the application: pid 2.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::OFlags;

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
            let failure = execute(told, streams, terminal);
            report(told.report, &failure);
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
fn execute(told: &Instructions, streams: Vec<(i32, OwnedFd)>, terminal: Option<&Terminal>) -> StartFailure {
    let what = || format!("changing to {}", told.cwd.display());
    if let Err(e) = std::env::set_current_dir(&told.cwd) {
        return StartFailure::setup(what())(e);
    }
    if let Err(e) = place(streams, terminal.map(Terminal::slave)) {
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

/// Puts the streams at their numbers and marks all else to be closed at exec; a process group of its own, in the foreground.
fn place(streams: Vec<(i32, OwnedFd)>, terminal: Option<BorrowedFd<'_>>) -> io::Result<()> {
    rustix::process::setpgid(None, None)?;
    if let Some(terminal) = terminal {
        // init has every signal blocked here, so that SIGTTOU does not stop us.
        rustix::termios::tcsetpgrp(terminal, rustix::process::getpid())?;
    }
    // First out of the way of the target numbers.
    let mut parked = Vec::new();
    for (target, fd) in streams {
        parked.push((target, rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 10)?.into_raw_fd()));
    }
    for (target, fd) in parked {
        // SAFETY: plain duplication onto a number that the application is to have.
        if unsafe { libc::dup2(fd, target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    super::setup::close_at_exec()
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
