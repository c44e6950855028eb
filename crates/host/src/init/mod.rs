//! The program that starts a job and is pid 1 in it.
//!
//! It runs three times over: `setup` outside, which makes the namespaces and clones pid 1 as a child of the supervisor; pid 1,
//! which finishes the mounts and executes itself again from the job's tmpfs (CRIU cannot dump an executable or descriptor that
//! comes from outside the mount namespace); and then as `init`, which starts the application as pid 2 and serves it.
//!
//! Nothing here may allocate much or keep a descriptor that CRIU cannot dump: init is part of every image.

mod application;
pub(crate) mod dev;
pub(crate) mod instructions;
mod linker;
mod reaper;
mod setup;
mod terminal;

use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use instructions::{Instructions, StartFailure};

/// First argument: make the job's namespaces.
pub(crate) const SETUP: &str = "setup";
/// First argument: be pid 1.
pub(crate) const INIT: &str = "init";
/// First argument: hold one of everything a checkpoint must be able to carry.
pub(crate) const PROBE: &str = "probe";

/// The entry point of `dormouse-init`.
pub fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some(SETUP), Some(tmpfs)) => setup::main(&tmpfs),
        (Some(INIT), None) => reaper::main(),
        (Some(PROBE), Some(what)) => crate::criu::probe::helper(&what),
        _ => {
            eprintln!("dormouse-init is started by dormouse, not by hand");
            ExitCode::FAILURE
        }
    }
}

/// Tells the supervisor why the job did not start.
fn report(to: i32, failure: &StartFailure) {
    if let Ok(json) = serde_json::to_vec(failure) {
        // SAFETY: the supervisor passed this descriptor for this purpose, and this process ends right after.
        let mut file = unsafe { File::from_raw_fd(to) };
        let _ = file.write_all(&json);
    }
}

/// Takes over a descriptor that the instructions name.
///
/// # Safety
/// Each inherited descriptor may be taken once.
unsafe fn inherited(fd: i32) -> OwnedFd {
    // SAFETY: the supervisor left it open for us, and the caller takes it once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn read_instructions(path: &std::path::Path) -> Result<Instructions, StartFailure> {
    let text = std::fs::read(path).map_err(StartFailure::setup(format!("reading {}", path.display())))?;
    serde_json::from_slice(&text).map_err(|e| StartFailure::Setup {
        what: format!("understanding {}: {e}", path.display()),
        errno: libc::EPROTO,
    })
}
