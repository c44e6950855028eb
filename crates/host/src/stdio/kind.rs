//! What the supervisor's own descriptors are: 0, 1 and 2, and those above that it was started with.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};

use super::inherited;
use super::shared::{FileKey, SharedFile};

/// The kind of one stream, which decides how the job gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamKind {
    /// A terminal: the job gets a pty of its own, relayed.
    Terminal,
    /// A regular file that has a name: handed over as it is, offset and all.
    Shared,
    /// One above 2 that is both read and written, or a folder: opened again inside the job with the same flags, at the same offset.
    File {
        /// Where it lies.
        path: PathBuf,
        /// Open flags, without those that only matter when opening.
        flags: OFlags,
        /// The offset of the supervisor's own descriptor.
        offset: u64,
    },
    /// A device such as `/dev/null`: opened again inside the job.
    Device {
        /// Where it lies.
        path: PathBuf,
        /// Open flags.
        flags: OFlags,
    },
    /// An end of an anonymous pipe, at descriptor 0 or above 2: handed over, so that what the job does not read stays in it.
    Handed,
    /// Everything else (pipes, sockets, files without a name): a pipe, relayed.
    Relayed,
    /// What only works in both directions, or not as a stream at all, above 2: no job can have it.
    Foreign {
        /// The kernel's name for it.
        what: String,
    },
}

/// One of the supervisor's streams.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) fd: i32,
    pub(crate) kind: StreamKind,
    pub(crate) outer: OwnedFd,
    /// An earlier stream with the same open file description (`2>&1`).
    pub(crate) shares: Option<i32>,
}

impl Stream {
    /// Whether it can be read from, and whether it can be written to.
    pub(crate) fn directions(&self) -> (bool, bool) {
        let access = rustix::fs::fcntl_getfl(&self.outer).map(|flags| flags & OFlags::RWMODE);
        (access != Ok(OFlags::WRONLY), access.is_ok_and(|access| access != OFlags::RDONLY))
    }
}

/// The streams that a job is to have: the three standard ones, as far as they are open, and what else it is to inherit.
#[derive(Debug)]
pub struct Stdio {
    pub(crate) streams: Vec<Stream>,
}

impl Stdio {
    /// Takes this process's own streams, and every other descriptor that it was started with: those are the job's, and closed here. An
    /// anonymous pipe at descriptor 0 is replaced by `/dev/null` here, so that its writer learns when the job closes it.
    ///
    /// # Errors
    /// When a descriptor cannot be duplicated.
    pub fn take() -> io::Result<Self> {
        let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
        let mut stdio = Self { streams: Vec::new() };
        for (fd, given) in (0..).zip([input.as_fd(), output.as_fd(), error.as_fd()]) {
            if !inherited::was_closed(fd) {
                stdio.add(fd, given.try_clone_to_owned()?);
            }
        }
        if stdio.kind(0) == Some(&StreamKind::Handed) {
            rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        }
        for (fd, taken) in inherited::take_others()? {
            stdio.add(fd, taken);
        }
        Ok(stdio)
    }

    /// Streams from three descriptors, which are duplicated. Equal open files stay shared.
    ///
    /// # Errors
    /// When a descriptor cannot be duplicated.
    pub fn of(fds: [BorrowedFd<'_>; 3]) -> io::Result<Self> {
        let mut stdio = Self { streams: Vec::with_capacity(3) };
        for (fd, given) in (0..).zip(fds) {
            stdio.add(fd, given.try_clone_to_owned()?);
        }
        Ok(stdio)
    }

    fn add(&mut self, fd: i32, outer: OwnedFd) {
        let mut kind = classify(fd, outer.as_fd());
        let shares =
            self.streams.iter().find(|s| same_open_file(s.outer.as_fd(), outer.as_fd())).map(|s| s.fd);
        if kind == StreamKind::Shared && shares.is_none() && self.is_other_way(fd, outer.as_fd()) {
            kind = StreamKind::Relayed;
        }
        self.streams.push(Stream { fd, kind, outer, shares });
    }

    /// Whether an earlier stream is on the same file, for reading where this one is for writing or the other way round: CRIU
    /// could not tell them apart.
    fn is_other_way(&self, fd: i32, outer: BorrowedFd<'_>) -> bool {
        let of = |fd: i32, outer: BorrowedFd<'_>| {
            Some((FileKey::of(outer).ok()?, SharedFile::is_input(fd, rustix::fs::fcntl_getfl(outer).ok()?)))
        };
        let Some((key, input)) = of(fd, outer) else { return true };
        let mut earlier = self.streams.iter().filter(|s| s.kind == StreamKind::Shared);
        earlier.any(|s| of(s.fd, s.outer.as_fd()) == Some((key, !input)))
    }

    /// `/dev/null` three times.
    ///
    /// # Errors
    /// When `/dev/null` cannot be opened.
    pub fn null() -> io::Result<Self> {
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        Self::of([null.as_fd(); 3])
    }

    /// The kind of descriptor `fd`.
    #[must_use]
    pub fn kind(&self, fd: i32) -> Option<&StreamKind> {
        self.stream(fd).map(|s| &s.kind)
    }

    pub(crate) fn stream(&self, fd: i32) -> Option<&Stream> {
        self.streams.iter().find(|s| s.fd == fd)
    }

    /// The descriptor to show a terminal's output on, and the one to read its input from.
    pub(crate) fn terminal_ends(&self) -> (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        let terminal = |s: &&Stream| s.kind == StreamKind::Terminal;
        let output =
            self.streams.iter().filter(terminal).max_by_key(|s| (s.fd == 1, s.fd)).map(|s| s.outer.as_fd());
        let input = self.streams.iter().filter(terminal).find(|s| s.fd == 0).map(|s| s.outer.as_fd());
        (output, input)
    }
}

/// What the open file at descriptor `number` is.
fn classify(number: i32, fd: BorrowedFd<'_>) -> StreamKind {
    if rustix::termios::isatty(fd) {
        return StreamKind::Terminal;
    }
    let standard = number <= 2;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let path = fs::read_link(&link).unwrap_or_default();
    let foreign = || StreamKind::Foreign { what: path.to_string_lossy().into_owned() };
    let (Ok(flags), Ok(meta)) = (rustix::fs::fcntl_getfl(fd), fs::metadata(&link)) else {
        return if standard { StreamKind::Relayed } else { foreign() };
    };
    let kind = FileType::from_raw_mode(meta.mode());
    if number != 1 && number != 2 && kind == FileType::Fifo && is_anonymous(&path) {
        return StreamKind::Handed;
    }
    // The job has a /dev and a /proc of its own; only device nodes are the same there.
    let hidden = path.starts_with("/dev") || path.starts_with("/proc");
    let named = fs::metadata(&path).is_ok_and(|there| (there.dev(), there.ino()) == (meta.dev(), meta.ino()));
    let one_way = (flags & OFlags::RWMODE) != OFlags::RDWR;
    let flags =
        flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOCTTY | OFlags::LARGEFILE);
    match kind {
        _ if flags.contains(OFlags::PATH) => foreign(),
        FileType::CharacterDevice if named => StreamKind::Device { path, flags },
        FileType::RegularFile if named && !hidden && (standard || one_way) => StreamKind::Shared,
        FileType::RegularFile if named && !hidden => {
            let offset = rustix::fs::seek(fd, rustix::fs::SeekFrom::Current(0)).unwrap_or(0);
            StreamKind::File { path, flags, offset }
        }
        FileType::Directory if named && !hidden && !standard => StreamKind::File { path, flags, offset: 0 },
        _ if standard => StreamKind::Relayed,
        FileType::RegularFile | FileType::Fifo if one_way => StreamKind::Relayed,
        _ => foreign(),
    }
}

fn is_anonymous(link: &Path) -> bool {
    link.to_str().is_some_and(|s| s.starts_with("pipe:["))
}

fn same_open_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    const KCMP_FILE: libc::c_int = 0;
    let me = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: kcmp reads no memory of ours; both descriptors are open for the call.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, me, me, KCMP_FILE, a.as_raw_fd(), b.as_raw_fd()) };
    if answer >= 0 {
        return answer == 0;
    }
    // Without kcmp: the same pipe, terminal or file, used the same way, is close enough, as offsets of pipes and terminals mean
    // nothing.
    let file = |fd| {
        let (stat, flags) = (rustix::fs::fstat(fd).ok()?, rustix::fs::fcntl_getfl(fd).ok()?);
        Some((stat.st_dev, stat.st_ino, flags))
    };
    file(a).is_some() && file(a) == file(b)
}
