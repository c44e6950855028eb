//! Finding CRIU, talking to it, and finding out what it can do here.

pub mod ghost;
pub(crate) mod log;
pub mod memfd;
pub mod mounts;
pub mod pagemap;
pub mod probe;
mod pulse;
pub(crate) mod rpc;
pub mod tcp;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use log::LogExcerpt;
pub use probe::{Capabilities, ProbeError, Resource, Verdict};

/// Why no CRIU could be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CriuError {
    /// There is none.
    #[error(
        "no CRIU found (looked at {}); install the distribution's criu package, unpack a dormouse bundle, \
         or set DORMOUSE_CRIU to a criu program or prefix",
        describe(.looked_at)
    )]
    NotFound {
        /// Where one could have been.
        looked_at: Vec<PathBuf>,
    },
    /// There is one that does not run.
    #[error("CRIU at {path} does not start: {why}; install a newer one or set DORMOUSE_CRIU")]
    DoesNotStart {
        /// Its program.
        path: PathBuf,
        /// What it said.
        why: String,
    },
}

fn describe(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A CRIU program, and how to start it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Criu {
    program: PathBuf,
    /// The loader and libraries of a private prefix, where the program does not use the machine's.
    loader: Option<(PathBuf, PathBuf)>,
    version: String,
    /// How long it may get nowhere before it counts as hung.
    silence: Duration,
}

impl fmt::Display for Criu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CRIU {} at {}", self.version, self.program.display())
    }
}

impl Criu {
    /// The first CRIU that starts: `$DORMOUSE_CRIU` (a program or a prefix; nothing else is tried then), `../criu` beside this
    /// executable's folder, `.prefix/criu` of the workspace it was built in, `PATH`.
    ///
    /// # Errors
    /// When there is none, or none that starts.
    pub fn find() -> Result<Self, CriuError> {
        let (places, mut failure) = (candidates(), None);
        for place in &places {
            match Self::at(place) {
                Ok(criu) => return Ok(criu),
                Err(CriuError::NotFound { .. }) => {}
                Err(e) => drop(failure.get_or_insert(e)),
            }
        }
        Err(failure.unwrap_or(CriuError::NotFound { looked_at: places }))
    }

    /// The CRIU at `place`: a program, or a prefix into which packages were unpacked.
    ///
    /// # Errors
    /// When there is none, or it does not start.
    pub fn at(place: &Path) -> Result<Self, CriuError> {
        let not_found = || CriuError::NotFound { looked_at: vec![place.to_owned()] };
        let (program, loader) = if place.is_dir() {
            let program = ["usr/sbin/criu", "usr/bin/criu", "sbin/criu", "bin/criu"].map(|p| place.join(p));
            (program.into_iter().find(|p| p.is_file()).ok_or_else(not_found)?, find_loader(place))
        } else if place.is_file() {
            (place.to_owned(), None)
        } else {
            return Err(not_found());
        };
        let mut criu = Self { program, loader, version: String::new(), silence: silence() };
        criu.version =
            criu.ask_version().map_err(|why| CriuError::DoesNotStart { path: criu.program.clone(), why })?;
        Ok(criu)
    }

    /// Its version, as it says.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Its program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The same CRIU, given up after `silence` (else `$DORMOUSE_CRIU_SILENCE` seconds, else a minute) without writing, reading or using a processor, and after ten
    /// times that without writing or reading.
    #[must_use]
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence, ..self }
    }

    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// A command that runs it, through its own loader where it has one.
    pub(crate) fn command(&self) -> Command {
        match &self.loader {
            None => Command::new(&self.program),
            Some((loader, libraries)) => {
                let mut command = Command::new(loader);
                command.arg("--library-path").arg(libraries).arg(&self.program);
                command
            }
        }
    }

    fn ask_version(&self) -> Result<String, String> {
        let output = self.command().arg("--version").output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().find_map(|l| l.strip_prefix("Version:"));
        version.map(|v| v.trim().to_owned()).ok_or_else(|| {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if said.is_empty() { output.status.to_string() } else { said }
        })
    }
}

/// `$DORMOUSE_CRIU_SILENCE`, in seconds, for machines on which even a minute is not enough.
fn silence() -> Duration {
    let Some(asked) = std::env::var_os("DORMOUSE_CRIU_SILENCE") else { return pulse::SILENCE };
    match asked.to_str().and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0) {
        Some(seconds) => Duration::from_secs(seconds),
        None => {
            tracing::warn!(
                ?asked,
                "DORMOUSE_CRIU_SILENCE is not a number of seconds: {:?} it is",
                pulse::SILENCE
            );
            pulse::SILENCE
        }
    }
}

fn candidates() -> Vec<PathBuf> {
    if let Some(place) = std::env::var_os("DORMOUSE_CRIU") {
        return vec![place.into()];
    }
    let mut places = Vec::new();
    if let Ok(executable) = std::env::current_exe().and_then(fs::canonicalize) {
        places.extend(executable.parent().and_then(Path::parent).map(|bundle| bundle.join("criu")));
        places.extend(
            executable.ancestors().skip(1).map(|folder| folder.join(".prefix/criu")).find(|p| p.is_dir()),
        );
    }
    // Where cargo runs something, the workspace is known though its target folder may be elsewhere.
    if let Some(manifest) = std::env::var_os("CARGO_MANIFEST_DIR") {
        places.extend(Path::new(&manifest).ancestors().map(|f| f.join(".prefix/criu")).find(|p| p.is_dir()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    places.extend(folders.map(|folder| folder.join("criu")).find(|p| p.is_file()));
    places
}

/// The dynamic loader in an unpacked set of packages, and the folder it lies in, which holds the libraries.
fn find_loader(prefix: &Path) -> Option<(PathBuf, PathBuf)> {
    for libraries in
        ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64"].map(|p| prefix.join(p))
    {
        let loader = libraries.join("ld-linux-x86-64.so.2");
        if loader.is_file() && libraries.join("libc.so.6").is_file() {
            return Some((loader, libraries));
        }
    }
    None
}
