//! What a CRIU can really do on this machine: it dumps and restores a job that holds one of everything.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::pty::OpenptFlags;

use super::Criu;
use crate::cut::{DumpOptions, RestoreSpec, Restored};
use crate::init::PROBE;
use crate::init::instructions::PROGRAM;
use crate::job::{Job, JobSpec};
use crate::stdio::Stdio;
use crate::tmpfs::{HOST_DIR, JOB_DIR, Scratch, Tmpfs, copy_tree};

/// Something that processes hold and a checkpoint must carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Memory, registers, pids: a process with nothing special.
    Process,
    /// An established TCP connection.
    Tcp,
    /// A connected pair of UNIX sockets.
    UnixSocket,
    /// A pseudo-terminal.
    Pty,
    /// A memfd.
    Memfd,
    /// A file that is open but has no name any more.
    DeletedFile,
    /// A shared mapping of a file on the job's tmpfs.
    TmpfsMapping,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Process,
        Self::Tcp,
        Self::UnixSocket,
        Self::Pty,
        Self::Memfd,
        Self::DeletedFile,
        Self::TmpfsMapping,
    ];

    /// A short name, for tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Tcp => "tcp",
            Self::UnixSocket => "unix-socket",
            Self::Pty => "pty",
            Self::Memfd => "memfd",
            Self::DeletedFile => "deleted-file",
            Self::TmpfsMapping => "tmpfs-mapping",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "processes",
            Self::Tcp | Self::UnixSocket => "sockets",
            Self::Pty => "terminals",
            Self::Memfd => "memfds",
            Self::DeletedFile => "deleted files",
            Self::TmpfsMapping => "mappings of the job's tmpfs",
        })
    }
}

/// What a probe found out.
#[derive(Debug, Clone)]
pub struct Capabilities {
    criu: Criu,
    failures: Vec<(Resource, String)>,
}

/// What is known of a [`Resource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It is dumped and restored.
    Works,
    /// It is not, and why.
    Fails(&'a str),
    /// Nobody knows: not even a process with nothing special could be dumped and restored.
    Untested,
}

/// A CRIU lacks something that jobs need.
#[derive(Debug, thiserror::Error)]
#[error(
    "{criu} cannot dump {resource} on this kernel ({kernel}); install a newer CRIU or set DORMOUSE_CRIU to one: {why}"
)]
pub struct ProbeError {
    criu: String,
    resource: Resource,
    kernel: String,
    why: String,
}

impl Capabilities {
    /// Whether `resource` can be dumped and restored.
    #[must_use]
    pub fn verdict(&self, resource: Resource) -> Verdict<'_> {
        let failure = |of| self.failures.iter().find(|(failed, _)| *failed == of);
        match (failure(resource), failure(Resource::Process)) {
            (Some((_, why)), _) => Verdict::Fails(why),
            (None, Some(_)) => Verdict::Untested,
            (None, None) => Verdict::Works,
        }
    }

    /// Fails unless everything can be dumped and restored.
    ///
    /// # Errors
    /// Names the first thing that cannot.
    pub fn require_all(&self) -> Result<(), ProbeError> {
        match self.failures.first() {
            None => Ok(()),
            Some((resource, why)) => Err(ProbeError {
                criu: self.criu.to_string(),
                resource: *resource,
                kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
                why: why.clone(),
            }),
        }
    }
}

impl Criu {
    /// Dumps and restores a job that holds one of each [`Resource`]; where that fails, one job for each. Takes about a second.
    /// `init_program` as in [`JobSpec`].
    #[must_use]
    pub fn probe(&self, init_program: Option<&Path>) -> Capabilities {
        // Next to nothing is carried: one that takes long hangs.
        let criu = self.clone().with_silence(self.silence().min(PATIENCE));
        let round =
            |resources: &[Resource]| round(&criu, resources, init_program).err().map(|e| e.to_string());
        let mut failures = Vec::new();
        if round(&Resource::ALL).is_some() {
            for resource in Resource::ALL {
                if let Some(why) = round(&[resource]) {
                    failures.push((resource, why));
                    if resource == Resource::Process {
                        // Nothing else can work then.
                        break;
                    }
                }
            }
        }
        Capabilities { criu: self.clone(), failures }
    }
}

const READY: &str = "probe-ready";
const GO: &str = "probe-go";
const MAPPED: &str = "probe-mapped";
const BEFORE: &[u8; 8] = b"before__";
const AFTER: &[u8; 8] = b"after___";
const PATIENCE: Duration = Duration::from_secs(10);

/// One job with `resources`: run, dump, kill, restore, check.
fn round(criu: &Criu, resources: &[Resource], init: Option<&Path>) -> Result<(), Box<dyn std::error::Error>> {
    const SIZE: u64 = 256 << 20;
    let names: Vec<&str> = resources.iter().map(|r| r.name()).collect();
    let program = Path::new(JOB_DIR).join(HOST_DIR).join(PROGRAM);
    let spec = JobSpec {
        argv: vec![program.into(), PROBE.into(), names.join(",").into()],
        env: Vec::new(),
        cwd: "/".into(),
        umask: 0o022,
        ignored: Vec::new(),
        blocked: Vec::new(),
        binds: Vec::new(),
        hide: Vec::new(),
        blank: Vec::new(),
        library_dir: None,
        stdio: Stdio::null()?,
        init_program: init.map(Path::to_owned),
    };
    let job = Job::spawn(spec, Tmpfs::create(SIZE)?)?;
    let started = Instant::now();
    while !job.tmpfs().path().join(READY).exists() {
        if job.application_ending().is_some() || started.elapsed() > PATIENCE {
            return Err("the probe's helper could not open what it is to hold".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let images = Scratch::create(SIZE)?;
    let frozen = job.dump(criu, &images.path(), &DumpOptions::default(), crate::MemoryWay::Written)?;
    let record = frozen.record().clone();
    let tmpfs = Tmpfs::create(SIZE)?;
    copy_tree(&job.tmpfs().path(), &tmpfs.path())?;
    frozen.kill()?;

    fs::write(tmpfs.path().join(MAPPED), AFTER)?;
    fs::write(tmpfs.path().join(GO), "")?;
    let (stdio, hide, blank) = (Stdio::null()?, Vec::new(), Vec::new());
    let spec =
        RestoreSpec { images: &images.path(), record: &record, tmpfs, stdio, hide, blank, log_level: 2 };
    let job = Restored::restore(criu, spec)?.resume()?;
    let ending = job.wait()?;
    if ending.status().success() {
        Ok(())
    } else {
        Err("what the helper held was not the same afterwards".into())
    }
}

/// The helper: opens `what`, says so, and looks at it again after the restart.
pub(crate) fn helper(what: &str) -> ExitCode {
    match hold(what) {
        Ok(true) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

type Check = Box<dyn FnOnce() -> io::Result<bool>>;

fn hold(what: &str) -> io::Result<bool> {
    let resources = Resource::ALL.into_iter().filter(|r| what.split(',').any(|name| name == r.name()));
    let checks: Vec<Check> = resources.map(open).collect::<io::Result<_>>()?;
    let here = Path::new(JOB_DIR);
    File::create(here.join(READY))?;
    while !here.join(GO).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    for check in checks {
        if !check()? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn open(resource: Resource) -> io::Result<Check> {
    Ok(match resource {
        Resource::Process => {
            let pid = std::process::id();
            Box::new(move || Ok(pid == std::process::id()))
        }
        Resource::Tcp => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let mut one = TcpStream::connect(listener.local_addr()?)?;
            let mut other = listener.accept()?.0;
            one.write_all(BEFORE)?;
            Box::new(move || {
                Ok(arrives(&mut other, BEFORE)?
                    && other.write_all(AFTER).is_ok()
                    && arrives(&mut one, AFTER)?)
            })
        }
        Resource::UnixSocket => {
            let (mut one, mut other) = UnixStream::pair()?;
            one.write_all(BEFORE)?;
            Box::new(move || {
                Ok(arrives(&mut other, BEFORE)?
                    && other.write_all(AFTER).is_ok()
                    && arrives(&mut one, AFTER)?)
            })
        }
        Resource::Pty => {
            let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
            rustix::pty::unlockpt(&master)?;
            let name = rustix::pty::ptsname(&master, Vec::new())?;
            let slave = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
            Box::new(move || {
                File::from(slave).write_all(AFTER)?;
                arrives(&mut File::from(master), AFTER)
            })
        }
        Resource::Memfd => {
            let mut memfd = File::from(rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC)?);
            memfd.write_all(BEFORE)?;
            Box::new(move || {
                memfd.rewind()?;
                arrives(&mut memfd, BEFORE)
            })
        }
        Resource::DeletedFile => {
            let mut file = tempfile::tempfile()?;
            file.write_all(BEFORE)?;
            Box::new(move || {
                file.rewind()?;
                arrives(&mut file, BEFORE)
            })
        }
        Resource::TmpfsMapping => {
            let path = Path::new(JOB_DIR).join(MAPPED);
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
            file.write_all_at(BEFORE, 0)?;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at a place of the kernel's choosing.
            let mapped =
                unsafe { rustix::mm::mmap(std::ptr::null_mut(), 8, protection, MapFlags::SHARED, &file, 0)? };
            Box::new(move || {
                drop(file);
                // SAFETY: the mapping is 8 bytes long and stays for as long as the process lives.
                Ok(unsafe { mapped.cast::<[u8; 8]>().read_volatile() } == *AFTER)
            })
        }
    })
}

fn arrives(from: &mut impl Read, expected: &[u8; 8]) -> io::Result<bool> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(&bytes == expected)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_not_tried_is_not_said_to_work() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("criu");
        fs::write(&program, "#!/bin/sh\necho Version: 4.2\n").unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let criu = Criu::at(&program).unwrap();
        let of = |failed: &[Resource]| {
            let failures = failed.iter().map(|resource| (*resource, "so it is".to_owned())).collect();
            Capabilities { criu: criu.clone(), failures }
        };
        assert_eq!(of(&[]).verdict(Resource::Tcp), Verdict::Works);
        assert_eq!(of(&[Resource::Tcp]).verdict(Resource::Tcp), Verdict::Fails("so it is"));
        assert_eq!(of(&[Resource::Tcp]).verdict(Resource::Process), Verdict::Works);
        assert_eq!(of(&[Resource::Process]).verdict(Resource::Process), Verdict::Fails("so it is"));
        assert_eq!(of(&[Resource::Process]).verdict(Resource::Tcp), Verdict::Untested);
    }
}
