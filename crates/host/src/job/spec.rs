//! What a job is to be.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;

use crate::signals;
use crate::stdio::Stdio;

/// Everything that [`crate::Job::spawn`] needs.
#[derive(Debug)]
pub struct JobSpec {
    /// The program (looked up in `PATH`) and its arguments.
    pub argv: Vec<OsString>,
    /// Its environment.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its file mode creation mask.
    pub umask: u32,
    /// Signals it starts out ignoring.
    pub ignored: Vec<i32>,
    /// Signals it starts out with blocked.
    pub blocked: Vec<i32>,
    /// Mounted over existing files: (source as the job sees it, target).
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Files and folders it shall not see; below `/dev` they are left out of the job's own `/dev`.
    pub hide: Vec<PathBuf>,
    /// Nodes right below `/dev` that lead to nothing, as `/dev/null` does, whether the machine has something there or not.
    pub blank: Vec<PathBuf>,
    /// A folder, as the job sees it, that a regenerated `ld.so.cache` names first.
    pub library_dir: Option<PathBuf>,
    /// Its standard streams.
    pub stdio: Stdio,
    /// The `dormouse-init` program; looked for beside this process's executable when not given.
    pub init_program: Option<PathBuf>,
}

impl JobSpec {
    /// A job with this process's environment, folder, mask, ignored signals and streams.
    ///
    /// # Errors
    /// When one of them cannot be found out.
    pub fn inherit(argv: Vec<OsString>) -> io::Result<Self> {
        let own = signals::Inherited::of_this_process()?;
        Ok(Self {
            argv,
            env: std::env::vars_os().collect(),
            cwd: std::env::current_dir()?,
            umask: own.umask,
            ignored: own.ignored,
            blocked: own.blocked,
            binds: Vec::new(),
            hide: Vec::new(),
            blank: Vec::new(),
            library_dir: None,
            stdio: Stdio::take()?,
            init_program: None,
        })
    }

    pub(crate) fn init_program(&self) -> io::Result<PathBuf> {
        if let Some(program) = &self.init_program {
            return Ok(program.clone());
        }
        locate_init()
    }
}

/// `$DORMOUSE_INIT`, or `dormouse-init` beside this executable, or a folder up (test binaries).
pub(crate) fn locate_init() -> io::Result<PathBuf> {
    const NAME: &str = "dormouse-init";
    if let Some(program) = std::env::var_os("DORMOUSE_INIT") {
        return Ok(program.into());
    }
    let executable = fs::canonicalize(std::env::current_exe()?)?;
    let beside = executable.ancestors().skip(1).take(2).map(|folder| folder.join(NAME));
    beside.into_iter().find(|p| p.is_file()).ok_or_else(|| {
        let what =
            format!("{NAME} is not beside {}; reinstall dormouse or set DORMOUSE_INIT", executable.display());
        io::Error::new(io::ErrorKind::NotFound, what)
    })
}
