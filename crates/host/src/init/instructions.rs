//! What the supervisor tells init, through a file on the job's tmpfs.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::stdio::{TerminalModes, Window};

/// The instructions' file, and others in [`crate::tmpfs::HOST_DIR`].
pub(crate) const INSTRUCTIONS: &str = "instructions.json";
/// The application's wait status, as soon as it has one.
pub(crate) const STATUS: &str = "status";
/// The size that the job's terminal is to have.
pub(crate) const WINDOW: &str = "window";
/// The init program itself.
pub(crate) const PROGRAM: &str = "init";
/// The job's `/dev`.
pub(crate) const DEV: &str = "dev";
/// Stands in for hidden files, and for mounts that a machine does not have.
pub(crate) const EMPTY_FILE: &str = "empty-file";
/// The same for folders.
pub(crate) const EMPTY_DIR: &str = "empty-dir";
/// The job's `ld.so.cache`.
pub(crate) const LD_CACHE: &str = "ld.so.cache";

/// What init says on the report pipe when all is mounted; a [`StartFailure`] as JSON takes its place or follows it. It then waits
/// for the same byte from the `alive` pipe.
pub(crate) const READY: u8 = b'\n';

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Instructions {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    #[serde(with = "crate::raw")]
    pub(crate) cwd: PathBuf,
    pub(crate) umask: u32,
    /// Signals the application starts out ignoring, as whoever started the supervisor wanted (`nohup`).
    pub(crate) ignored: Vec<i32>,
    pub(crate) blocked: Vec<i32>,
    pub(crate) streams: Vec<InnerStream>,
    pub(crate) terminal: Option<InnerTerminal>,
    /// Read end of a pipe whose other end dies with the supervisor.
    pub(crate) alive: i32,
    /// Write end of a pipe that says why the application could not be started, or closes when it could.
    pub(crate) report: i32,
    /// The tmpfs, a detached mount.
    pub(crate) tmpfs: i32,
    /// (source, target): source as seen inside.
    #[serde(with = "crate::raw")]
    pub(crate) binds: Vec<(PathBuf, PathBuf)>,
    /// Files and folders that shall not be seen.
    #[serde(with = "crate::raw")]
    pub(crate) hide: Vec<PathBuf>,
    /// Nodes of `/dev` with nothing behind them.
    #[serde(with = "crate::raw")]
    pub(crate) blank: Vec<PathBuf>,
    /// A folder that the regenerated `ld.so.cache` is to name first.
    #[serde(with = "crate::raw")]
    pub(crate) library_dir: Option<PathBuf>,
}

impl Instructions {
    /// The descriptors that init needs after it has been executed inside.
    pub(crate) fn passed(&self) -> impl Iterator<Item = i32> {
        let streams = self.streams.iter().filter_map(|s| match s.source {
            InnerSource::Inherited(fd) => Some(fd),
            _ => None,
        });
        let terminal = self.terminal.iter().flat_map(|t| [t.input, t.output, t.stops]);
        streams.chain(terminal).chain([self.alive, self.report])
    }
}

/// Where the application's descriptor `fd` comes from.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InnerStream {
    pub(crate) fd: i32,
    pub(crate) source: InnerSource,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum InnerSource {
    Terminal,
    /// Opened by path inside; must be the file that the supervisor has open.
    Path {
        #[serde(with = "crate::raw")]
        path: PathBuf,
        flags: u32,
        offset: u64,
        device: u64,
        inode: u64,
    },
    /// A descriptor inherited from the supervisor.
    Inherited(i32),
    /// The same open file as an earlier stream.
    Same(i32),
}

/// The pty that init is to make, and the pipes to relay it through.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InnerTerminal {
    pub(crate) input: i32,
    pub(crate) output: i32,
    /// Gets a byte whenever the application has been stopped from the keyboard.
    pub(crate) stops: i32,
    pub(crate) modes: TerminalModes,
    pub(crate) window: Option<Window>,
}

/// Why the application did not start.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum StartFailure {
    #[error("{what}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Setup { what: String, errno: i32 },
    #[error("cannot run {}: {}", .program.to_string_lossy(), std::io::Error::from_raw_os_error(*.errno))]
    Exec { program: OsString, errno: i32 },
}

impl StartFailure {
    /// Such a failure from an I/O error.
    pub(crate) fn setup(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |e| Self::Setup { what, errno: e.raw_os_error().unwrap_or(0) }
    }
}
