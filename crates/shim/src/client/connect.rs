//! Starting a session: finding the job, asking it for a server, opening the shared files.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use cuda_abi::{CuError, CuResult};
use transport::{ClientSession, TransportError, hello};
use wire::{GetFacts, Notice};

use super::session::{SESSION, Session};
use super::thread::{first_call, with};
use super::{fork, reserved, session};
use crate::facts;
use crate::log::{self, Level};
use crate::report::{self, Unsupported};

/// Where a job's shared folder is, inside the job: always there, so that mappings find their files wherever it wakes up.
pub const JOB: &str = "/run/dormouse-job";

/// Starts the session of this process, once.
///
/// # Errors
/// `NO_DEVICE` outside a job or when the job has no server for this process; `NOT_INITIALIZED` in a child forked from a
/// process that has a session.
pub fn start(job: &Path) -> CuResult {
    static STARTING: Mutex<()> = Mutex::new(());
    if fork::is_child() {
        return Err(CuError::NOT_INITIALIZED);
    }
    if SESSION.get().is_some() {
        return Ok(());
    }
    let _only_one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if SESSION.get().is_some() {
        return Ok(());
    }
    let visible = visible();
    if visible.as_deref().is_some_and(hides_all) {
        return Err(CuError::NO_DEVICE);
    }
    let (transport, folder) =
        connect(job, visible).inspect_err(|error| explain(job, error)).map_err(|_| CuError::NO_DEVICE)?;
    let facts = first_call(&transport, &GetFacts {})?;
    if facts.devices.is_empty() {
        return Err(CuError::NO_DEVICE);
    }
    if let Err(device) = reserved::keep(&folder, facts.devices.len()) {
        // The program can run all the same: what it has mapped there stays, and managed memory lies elsewhere.
        log::message(Level::Warn, format_args!("the addresses of device {device} cannot be reserved"));
    }
    fork::mark()?;
    let _ = SESSION.set(Session::new(transport, folder, facts.devices));
    facts::provide(session()?);
    report::listen(tell_user);
    Ok(())
}

/// Has the job's log say what the program asked for in vain.
fn tell_user(what: Unsupported) {
    // A session that has failed answers the program with that; the notice is not worth another error.
    let _ = with(|call| call.submit(&Notice { text: what.to_string() }));
}

type Connected = (std::sync::Arc<ClientSession>, std::path::PathBuf);

fn connect(job: &Path, visible: Option<String>) -> Result<Connected, TransportError> {
    let session = hello::ask(&job.join("hello.sock"), visible)?;
    let folder = job.join(format!("s{session}"));
    Ok((ClientSession::open(&folder)?, folder))
}

/// Which GPUs the program wants to see, if it says so.
fn visible() -> Option<String> {
    std::env::var("CUDA_VISIBLE_DEVICES").ok()
}

/// Whether such a list has no GPU, on whatever machine: CUDA looks no further than the first entry that is none.
fn hides_all(list: &str) -> bool {
    let first = list.split(',').next().unwrap_or_default().trim();
    !(first.starts_with(|first: char| first.is_ascii_digit())
        || first.starts_with("GPU-")
        || first.starts_with("MIG-"))
}

/// Says on stderr why there is no GPU: a program may not, and without this nobody could tell.
fn explain(job: &Path, error: &TransportError) {
    let text = if job.join("hello.sock").exists() {
        format!("dormouse: no GPU for this process: {error}\n")
    } else {
        "dormouse: this libcuda.so.1 works inside a job only; start the program with `dormouse run -- PROGRAM ARGS…`\n"
            .to_owned()
    };
    use std::io::Write;
    // A program that closed its stderr goes without.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
