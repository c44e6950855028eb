//! Makes the job's namespaces and everything mounted in them, then clones pid 1.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, mount_bind, mount_change, unmount,
};
use rustix::thread::UnshareFlags;

use super::instructions::{DEV, EMPTY_DIR, EMPTY_FILE, Instructions, PROGRAM, StartFailure};
use super::{INIT, dev, inherited, instructions, linker, read_instructions, report};
use crate::tmpfs::{HOST_DIR, JOB_DIR};

/// `tmpfs` is the number of the inherited descriptor of the job's tmpfs. Prints pid 1's outer pid.
pub(super) fn main(tmpfs: &str) -> ExitCode {
    let file = format!("/proc/self/fd/{tmpfs}/{HOST_DIR}/{}", instructions::INSTRUCTIONS);
    let told = match read_instructions(Path::new(&file)) {
        Ok(told) => told,
        Err(failure) => {
            eprintln!("{failure}");
            return ExitCode::FAILURE;
        }
    };
    match enter(&told).and_then(|()| clone_pid_1()) {
        Ok(Cloned::Parent(pid)) => {
            println!("{pid}");
            ExitCode::SUCCESS
        }
        Ok(Cloned::Pid1) => {
            let failure = become_init(&told);
            report(told.report, &failure);
            ExitCode::FAILURE
        }
        Err(failure) => {
            report(told.report, &failure);
            ExitCode::FAILURE
        }
    }
}

fn enter(told: &Instructions) -> Result<(), StartFailure> {
    // SAFETY: this process has one thread and shares nothing with another.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(io::Error::from)
        .map_err(StartFailure::setup("making the job's namespaces (needs CAP_SYS_ADMIN)"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(io::Error::from)
        .map_err(StartFailure::setup("making the job's mounts private"))?;
    mount_tmpfs(told.tmpfs).map_err(StartFailure::setup(format!("mounting the job's tmpfs at {JOB_DIR}")))?;
    mount_dev(told).map_err(StartFailure::setup("giving the job its own /dev (needs CAP_MKNOD)"))?;
    for (source, target) in &told.binds {
        bind_over(source, target).map_err(StartFailure::setup(format!(
            "mounting {} over {}",
            source.display(),
            target.display()
        )))?;
    }
    for path in told.hide.iter().filter(|p| !p.starts_with("/dev")) {
        hide(path).map_err(StartFailure::setup(format!("hiding {}", path.display())))?;
    }
    if let Some(folder) = &told.library_dir {
        linker::name_first(folder).map_err(StartFailure::setup("making the job's ld.so.cache"))?;
    }
    // Last: the first process made from here on is pid 1 of the job, and ldconfig must not be.
    // SAFETY: as above.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWPID) }
        .map_err(io::Error::from)
        .map_err(StartFailure::setup("making the job's PID namespace (needs CAP_SYS_ADMIN)"))
}

fn mount_tmpfs(number: i32) -> io::Result<()> {
    fs::create_dir_all(JOB_DIR)?;
    // SAFETY: taken here only.
    let tmpfs = unsafe { inherited(number) };
    rustix::mount::move_mount(
        tmpfs.as_fd(),
        c"",
        rustix::fs::CWD,
        JOB_DIR,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?;
    fs::write(host_path(EMPTY_FILE), "")?;
    fs::create_dir_all(host_path(EMPTY_DIR))
}

/// A `/dev` of the job's own: the machine's nodes but those to hide, blank ones, `/dev/shm` on the job's tmpfs (so that it is part of the
/// image), and a private devpts (so that terminal numbers are free wherever the job wakes up).
fn mount_dev(told: &Instructions) -> io::Result<()> {
    let ours = host_path(DEV);
    dev::populate(&ours, &told.hide, &told.blank)?;
    match unmount("/dev", UnmountFlags::DETACH) {
        // Not a mount of its own in some containers.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(e) => return Err(e.into()),
    }
    mount_bind(&ours, "/dev")?;
    let options = c"newinstance,ptmxmode=0666,mode=0620,gid=5";
    rustix::mount::mount("devpts", "/dev/pts", "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)?;
    Ok(())
}

fn bind_over(source: &Path, target: &Path) -> io::Result<()> {
    // Several names of one file (libcuda.so, libcuda.so.1) would pile up several mounts on it.
    let target = fs::canonicalize(target)?;
    let source = fs::canonicalize(source)?;
    if same_file(&source, &target)? {
        return Ok(());
    }
    Ok(mount_bind(source, target)?)
}

fn same_file(a: &Path, b: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (a, b) = (fs::metadata(a)?, fs::metadata(b)?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

fn hide(path: &Path) -> io::Result<()> {
    let Ok(meta) = fs::metadata(path) else { return Ok(()) };
    bind_over(&host_path(if meta.is_dir() { EMPTY_DIR } else { EMPTY_FILE }), path)
}

enum Cloned {
    Parent(i32),
    Pid1,
}

/// Clones pid 1 of the new namespace as a sibling of this process: the supervisor is its parent.
fn clone_pid_1() -> Result<Cloned, StartFailure> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: without CLONE_VM this is a fork of a process with one thread.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(StartFailure::setup("starting the job's init")(io::Error::last_os_error())),
        0 => Ok(Cloned::Pid1),
        pid => Ok(Cloned::Parent(i32::try_from(pid).unwrap_or(-1))),
    }
}

/// Mounts `/proc`, replaces every descriptor from outside, and executes init from the tmpfs. Returns only on failure.
fn become_init(told: &Instructions) -> StartFailure {
    let prepared = (|| -> io::Result<()> {
        match unmount("/proc", UnmountFlags::DETACH) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("proc", "/proc", "proc", flags, None::<&CStr>)?;
        std::env::set_current_dir("/")?;
        let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        close_at_exec()?;
        told.passed().try_for_each(keep_at_exec)
    })();
    if let Err(e) = prepared {
        return StartFailure::setup("preparing the job's init")(e);
    }
    let program = cstring(host_path(PROGRAM).as_os_str());
    let argv = [c"dormouse-init", c"init"].map(CStr::as_ptr);
    debug_assert_eq!(INIT, "init");
    let argv = [argv[0], argv[1], std::ptr::null()];
    let envp: [*const libc::c_char; 1] = [std::ptr::null()];
    // SAFETY: both arrays end with a null pointer and their strings outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    StartFailure::setup(format!("executing {}", host_path(PROGRAM).display()))(io::Error::last_os_error())
}

/// Marks everything but the standard streams to be closed by the next exec: whatever the supervisor was started with.
pub(super) fn close_at_exec() -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: only sets a flag on descriptors of this process.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn keep_at_exec(fd: i32) -> io::Result<()> {
    // SAFETY: only clears a flag on a descriptor of this process.
    match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(super) fn host_path(name: &str) -> PathBuf {
    Path::new(JOB_DIR).join(HOST_DIR).join(name)
}

fn cstring(s: &OsStr) -> CString {
    // Our own constant paths hold no zero byte.
    CString::new(s.as_bytes()).unwrap_or_default()
}
