//! What the supervisor's own descriptors 0, 1 and 2 are.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The kind of one standard stream, which decides how the job gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamKind {
    /// A terminal: the job gets a pty of its own, relayed.
    Terminal,
    /// A regular file that has a name: opened again inside the job with the same flags, at the same offset.
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
    /// The read end of an anonymous pipe at descriptor 0: handed over, so that what the job does not read stays in it.
    Handed,
    /// Everything else (pipes, sockets, files without a name): a pipe, relayed.
    Relayed,
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

/// The three standard streams that a job is to have.
#[derive(Debug)]
pub struct Stdio {
    pub(crate) streams: Vec<Stream>,
}

impl Stdio {
    /// Takes this process's own streams. An anonymous pipe at descriptor 0 is replaced by `/dev/null` here, so that its writer
    /// learns when the job closes it.
    ///
    /// # Errors
    /// When a descriptor cannot be duplicated.
    pub fn take() -> io::Result<Self> {
        let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
        let stdio = Self::of([input.as_fd(), output.as_fd(), error.as_fd()])?;
        if stdio.streams[0].kind == StreamKind::Handed {
            rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        }
        Ok(stdio)
    }

    /// Streams from three descriptors, which are duplicated. Equal open files stay shared.
    ///
    /// # Errors
    /// When a descriptor cannot be duplicated.
    pub fn of(fds: [BorrowedFd<'_>; 3]) -> io::Result<Self> {
        let mut streams: Vec<Stream> = Vec::with_capacity(3);
        for (fd, given) in (0..).zip(fds) {
            let outer = given.try_clone_to_owned()?;
            let kind = classify(outer.as_fd(), fd == 0);
            let shares =
                streams.iter().find(|s| same_open_file(s.outer.as_fd(), outer.as_fd())).map(|s| s.fd);
            streams.push(Stream { fd, kind, outer, shares });
        }
        Ok(Self { streams })
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
        self.streams.iter().find(|s| s.fd == fd).map(|s| &s.kind)
    }

    pub(crate) fn outer(&self, fd: i32) -> Option<BorrowedFd<'_>> {
        self.streams.iter().find(|s| s.fd == fd).map(|s| s.outer.as_fd())
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

fn classify(fd: BorrowedFd<'_>, input: bool) -> StreamKind {
    if rustix::termios::isatty(fd) {
        return StreamKind::Terminal;
    }
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let (Ok(flags), Ok(path), Ok(meta)) =
        (rustix::fs::fcntl_getfl(fd), fs::read_link(&link), fs::metadata(&link))
    else {
        return StreamKind::Relayed;
    };
    let file_type = meta.file_type();
    if input && file_type.is_fifo() && path.starts_with("pipe:") || is_anonymous_pipe(&path) && input {
        return StreamKind::Handed;
    }
    // The job has a /dev and a /proc of its own; only device nodes are the same there.
    let hidden = path.starts_with("/dev") || path.starts_with("/proc");
    let named = fs::metadata(&path).is_ok_and(|there| (there.dev(), there.ino()) == (meta.dev(), meta.ino()));
    let flags =
        flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOCTTY | OFlags::LARGEFILE);
    if file_type.is_char_device() && named {
        StreamKind::Device { path, flags }
    } else if file_type.is_file() && named && !hidden {
        let offset = rustix::fs::seek(fd, rustix::fs::SeekFrom::Current(0)).unwrap_or(0);
        StreamKind::File { path, flags, offset }
    } else {
        StreamKind::Relayed
    }
}

fn is_anonymous_pipe(link: &Path) -> bool {
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
    // Without kcmp: the same pipe, terminal or file is close enough, as offsets of pipes and terminals mean nothing.
    match (rustix::fs::fstat(a), rustix::fs::fstat(b)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}
