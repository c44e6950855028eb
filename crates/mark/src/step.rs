//! A phase of nvcc, run with what marks need.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;

use rustix::fs::MemfdFlags;
use thiserror::Error;

use crate::pragma::{self, Misplaced};

/// A phase that has to do with marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The preprocessed source's half for the host: cudafe++ reads it.
    Host,
    /// The preprocessed source's half for one kind of devices: cicc makes PTX of it.
    Device,
    /// PTX: ptxas makes machine code of it.
    Assembler,
}

/// Why a phase was not run.
#[derive(Debug, Error)]
pub enum Failed {
    /// A mark where none can be.
    #[error(transparent)]
    Misplaced(#[from] Misplaced),
    /// nvcc's file.
    #[error("cannot put marks into {file}")]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// nvcc's program.
    #[error("cannot run {}", command.display())]
    Run {
        /// Which.
        command: OsString,
        /// Why.
        source: io::Error,
    },
}

impl Phase {
    /// All, with the option by which nvcc runs them by way of another command.
    pub(crate) const ALL: [(Self, &str); 3] = [
        (Self::Host, "--cudafe-prefix"),
        (Self::Device, "--cicc-prefix"),
        (Self::Assembler, "--ptxas-prefix"),
    ];

    /// What it is called on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device => "device",
            Self::Assembler => "assembler",
        }
    }

    /// By what is known which argument is the file that it reads.
    fn ending(self) -> &'static str {
        match self {
            Self::Host | Self::Device => ".ii",
            Self::Assembler => ".ptx",
        }
    }
}

/// No phase's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no phase of nvcc that has to do with marks")]
pub struct NoPhase;

impl FromStr for Phase {
    type Err = NoPhase;

    fn from_str(text: &str) -> Result<Self, NoPhase> {
        Self::ALL.into_iter().map(|(phase, _)| phase).find(|phase| phase.name() == text).ok_or(NoPhase)
    }
}

/// Becomes the phase's command, after what is to be done about marks. `on_marks` is called, with the source file, if there are any in device code.
///
/// # Errors
/// When it cannot; else this does not return.
pub fn step(phase: Phase, mut command: Vec<OsString>, on_marks: impl FnOnce(&str)) -> Failed {
    let input = command.iter().rposition(|word| word.to_string_lossy().ends_with(phase.ending()));
    if let Some(input) = input {
        let prepared = prepare(phase, &command[input], on_marks);
        match prepared {
            Ok(None) => {}
            Ok(Some(instead)) => command[input] = instead,
            Err(failed) => return failed,
        }
    }
    let program = command.first().cloned().unwrap_or_default();
    let source = Command::new(&program).args(command.iter().skip(1)).exec();
    Failed::Run { command: program, source }
}

/// Prepares the file that a phase reads; what it is to read instead, if not that.
fn prepare(phase: Phase, input: &OsStr, on_marks: impl FnOnce(&str)) -> Result<Option<OsString>, Failed> {
    let about = |source| Failed::File { file: input.into(), source };
    let text = fs::read(input).map_err(about)?;
    let changed = match phase {
        Phase::Host => pragma::without(&text),
        Phase::Device => {
            let marked = pragma::marked(&text)?;
            if marked.is_some() || pragma::has_statements(&text) {
                on_marks(&pragma::source(&text));
            }
            marked
        }
        Phase::Assembler => pragma::unmarked_ptx(&text),
    };
    let Some(changed) = changed else { return Ok(None) };
    if phase != Phase::Assembler {
        // It is nvcc's own, read by this phase alone, and cicc wants a file whose name ends so.
        return fs::write(input, changed).map(|()| None).map_err(about);
    }
    // The PTX itself goes into the fatbin, marks and all.
    in_memory(&changed).map(Some).map_err(about)
}

/// A name by which a program that this process becomes reads these bytes; there is no such file.
fn in_memory(bytes: &[u8]) -> io::Result<OsString> {
    let mut file = File::from(rustix::fs::memfd_create("unmarked.ptx", MemfdFlags::empty())?);
    file.write_all(bytes)?;
    // Open until that program ends.
    Ok(format!("/proc/self/fd/{}", file.into_raw_fd()).into())
}
