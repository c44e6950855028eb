//! nvcc: where it is, and how it is started so that marks survive it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

use crate::Phase;
use crate::kept::Kept;

/// Names nvcc.
const VARIABLE: &str = "DORMOUSE_NVCC";
/// Name CUDA's folder, as CUDA's own tools have it.
const FOLDERS: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];
/// Where CUDA is, if nobody says.
const DEFAULT: &str = "/usr/local/cuda";

/// The compiler.
#[derive(Debug)]
pub struct Nvcc(PathBuf);

/// There is no compiler.
#[derive(Debug, Error)]
pub enum NotThere {
    /// None where one could be.
    #[error(
        "nvcc is not found: it is not in PATH, CUDA_HOME and CUDA_PATH name no folder that has it in bin, nor has /usr/local/cuda; set DORMOUSE_NVCC to its path"
    )]
    Nowhere,
    /// The variable names nothing.
    #[error("DORMOUSE_NVCC names {0}, which is no file")]
    NoFile(PathBuf),
    /// The variable names whoever reads it.
    #[error("DORMOUSE_NVCC names {0}, which is Dormouse itself; it is to name CUDA's nvcc")]
    Itself(PathBuf),
}

impl Nvcc {
    /// `$DORMOUSE_NVCC`, else that of `PATH`, else that of CUDA's folder.
    ///
    /// # Errors
    /// When there is none.
    pub fn find() -> Result<Self, NotThere> {
        if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
            let named = PathBuf::from(named);
            return match named.is_file() {
                true if is_this_program(&named) => Err(NotThere::Itself(named)),
                true => Ok(Self(named)),
                false => Err(NotThere::NoFile(named)),
            };
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = FOLDERS.iter().filter_map(std::env::var_os).chain([DEFAULT.into()]);
        let places = std::env::split_paths(&path).chain(folders.map(|folder| Path::new(&folder).join("bin")));
        let found =
            places.map(|place| place.join("nvcc")).find(|nvcc| nvcc.is_file() && !is_this_program(nvcc));
        found.map(Self).ok_or(NotThere::Nowhere)
    }

    /// Becomes the compiler. `step` is a command, as a shell takes it, that calls [`crate::step()`] with the arguments it is given: a phase, maybe [`NO_PTX`], and a
    /// command. What would have machine code alone gets its PTX, too, as far as nvcc can be told so; where not, steps hear of it.
    ///
    /// # Errors
    /// When it cannot be started; else this does not return.
    pub fn compile(&self, args: &[OsString], step: &str) -> io::Error {
        // Arguments that nvcc refuses it is to refuse itself.
        let kept = Kept::of(&self.0, args).unwrap_or_default();
        let flags = kept.ptx_flags();
        let are_enough =
            || Kept::of(&self.0, &[&flags, args].concat()).is_some_and(|kept| kept.ptx_flags().is_empty());
        let keeps_all = flags.is_empty() || are_enough();
        let told = if keeps_all { "" } else { NO_PTX };
        let mut nvcc = Command::new(&self.0);
        for (phase, prefix) in Phase::ALL {
            nvcc.arg(prefix).arg(format!("{step} {} {told}", phase.name()));
        }
        nvcc.args(flags.iter().filter(|_| keeps_all)).args(args).exec()
    }
}

/// Tells a step that what is compiled has no PTX in the end.
pub const NO_PTX: &str = "--no-ptx";

/// Whether a file is the program that runs.
fn is_this_program(file: &Path) -> bool {
    let own = std::env::current_exe().ok();
    own.is_some_and(|own| file.canonicalize().is_ok_and(|file| file == own))
}
