//! A server that begins again: the kernel has put something of its own where the application had memory that it has registered. The next
//! time it puts it elsewhere.

use crate::control::Start;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What the supervisor has said to this process before it began again.
const START: &str = "DORMOUSE_SERVER_START";
/// How often it has.
const TRIES: &str = "DORMOUSE_SERVER_TRIES";
/// The most tries: with addresses that are drawn at random, two are rare.
const TRIES_MAX: u32 = 16;

/// What the supervisor has said already, if this process has begun again.
pub(crate) fn start() -> Option<Start> {
    serde_json::from_str(&std::env::var(START).ok()?).ok()
}

/// Begins again, with the same descriptors; returns when that cannot be.
pub(crate) fn begin(said: &Start) {
    let tries = std::env::var(TRIES).ok().and_then(|tries| tries.parse::<u32>().ok()).unwrap_or(0);
    let (Ok(program), Ok(said)) = (std::env::current_exe(), serde_json::to_string(said)) else { return };
    if tries < TRIES_MAX {
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1)).env(START, said).env(TRIES, (tries + 1).to_string());
        tracing::warn!("this server does not begin again: {}", command.exec());
    }
}
