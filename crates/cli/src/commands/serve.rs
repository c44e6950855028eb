//! `dormouse serve`: this machine's devices for programs on others.

use crate::flags::Serve;
use checkpoint::{Chain, Failure, Kind};
use link::{Front, FrontError, FrontOptions, Keys, KeysError, rdma};
use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};

/// How many connections may be there that have not said what they want.
const HALF_OPEN: usize = 64;

/// Serves until it is ended.
pub fn run(flags: &Serve) -> Result<(), Failure> {
    let device = super::device(flags.device)?;
    let program =
        std::env::current_exe().map_err(|error| Failure::of("cannot find this program's file", &error))?;
    let keys = Keys::default();
    let front = Front::bind(FrontOptions {
        listen: flags.listen,
        keys,
        insecure_loopback: flags.insecure_loopback,
        max_clients: flags.max_clients.into(),
        half_open: HALF_OPEN,
    })
    .map_err(front_failure)?;
    if flags.rdma {
        rdma::is_there().map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
    }
    say_where(&front, &format!("serving device {device}"))?;
    if flags.insecure_loopback {
        tracing::warn!("anybody on this machine is let in without a key (--insecure-loopback)");
    }
    let is_kept = |name: &OsStr| is_for_sessions(name) || flags.rdma && name == rdma::LIBRARY_VARIABLE;
    let kept: Vec<_> = std::env::vars_os().filter(|(name, _)| is_kept(name)).collect();
    let served = front.run(|control| {
        let mut far_end = Command::new(&program);
        far_end.arg("far-end").env_clear().envs(kept.iter().cloned());
        far_end.args(["--device", device, "--grace-ms", &flags.grace.as_millis().to_string()]);
        if let Some(user) = flags.user {
            far_end.args(["--user", &user.to_string()]);
        }
        if let Some(memory) = flags.device_memory {
            far_end.args(["--device-memory", &memory.to_string()]);
        }
        if let Some(idle) = flags.idle {
            far_end.args(["--idle-ms", &idle.as_millis().to_string()]);
        }
        if flags.rdma {
            far_end.arg("--rdma");
        }
        if flags.insecure_loopback {
            far_end.arg("--insecure-loopback");
        }
        far_end.stdin(control).stdout(Stdio::null()).spawn()
    });
    served.map_err(front_failure)
}

/// Says what is done where, and with which key.
pub fn say_where(front: &Front, what: &str) -> Result<(), Failure> {
    let at = front.local_addr().map_err(|error| Failure::of("cannot listen", &error))?;
    let known = front.key().map_or_else(|| "no key".to_owned(), |key| format!("key {key}"));
    // Who waits for this line to connect may have closed the other end.
    let _ = writeln!(std::io::stderr(), "dormouse: {what} on {at}; {known}");
    Ok(())
}

/// What a session's process has of the environment: what devices and logs look at. There may be secrets among the rest.
fn is_for_sessions(name: &OsStr) -> bool {
    const NAMES: [&str; 5] = [
        "DORMOUSE_LOG",
        "DORMOUSE_SOFT_DEVICES",
        "DORMOUSE_SOFT_MEMORY",
        "LD_LIBRARY_PATH",
        "RUST_BACKTRACE",
    ];
    const FAMILIES: [&[u8]; 2] = [b"CUDA_", b"NVIDIA_"];
    let is_in = |family: &&[u8]| name.as_encoded_bytes().starts_with(family);
    NAMES.iter().any(|kept| name == *kept) || FAMILIES.iter().any(is_in)
}

/// Why nothing is served, as an exit code.
pub fn front_failure(error: FrontError) -> Failure {
    match error {
        FrontError::Keys(error) => keys_failure(&error),
        FrontError::InsecureBeyondLoopback(_) => Failure::new(Kind::Usage, error.to_string()),
        _ => Failure::new(Kind::Failed, Chain(&error).to_string()),
    }
}

/// What is wrong with keys, as an exit code.
pub fn keys_failure(error: &KeysError) -> Failure {
    let kind = match error {
        KeysError::None { .. } | KeysError::Unknown(_) => Kind::NotFound,
        KeysError::BadName(_) => Kind::Usage,
        KeysError::Damaged { .. } => Kind::Damaged,
        KeysError::Exists { .. }
        | KeysError::OpenToOthers { .. }
        | KeysError::OfOthers { .. }
        | KeysError::Expired(_)
        | KeysError::Taken(_) => Kind::Refused,
        _ => Kind::Failed,
    };
    Failure::new(kind, Chain(error).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_have_no_secrets_of_the_environment() {
        for kept in ["CUDA_VISIBLE_DEVICES", "DORMOUSE_LOG", "LD_LIBRARY_PATH"] {
            assert!(is_for_sessions(OsStr::new(kept)), "{kept}");
        }
        for secret in ["DORMOUSE_KEY", "DORMOUSE_KEYS", "AWS_SECRET_ACCESS_KEY", "DORMOUSE_LOGIN", "CUDA"] {
            assert!(!is_for_sessions(OsStr::new(secret)), "{secret}");
        }
    }
}
