//! Capabilities: which are needed for what, and which are missing.

use std::fmt;
use std::fs;

/// A Linux capability that jobs need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Namespaces and mounts; CRIU.
    SysAdmin,
    /// CRIU stops tasks and reads their memory.
    SysPtrace,
    /// The job's own `/dev`.
    Mknod,
    /// CRIU gives restored processes their pids (CAP_SYS_ADMIN does too).
    CheckpointRestore,
    /// CRIU restores TCP connections.
    NetAdmin,
    /// CRIU restores locked memory and resource limits.
    SysResource,
}

impl Capability {
    const ALL: [(Self, u32, &'static str, &'static str); 6] = [
        (Self::SysAdmin, 21, "CAP_SYS_ADMIN", "PID and mount namespaces, CRIU"),
        (Self::SysPtrace, 19, "CAP_SYS_PTRACE", "stopping the job's tasks and reading their memory"),
        (Self::Mknod, 27, "CAP_MKNOD", "a /dev of the job's own"),
        (Self::CheckpointRestore, 40, "CAP_CHECKPOINT_RESTORE", "giving restored processes their pids"),
        (Self::NetAdmin, 12, "CAP_NET_ADMIN", "dumping and restoring TCP connections"),
        (Self::SysResource, 24, "CAP_SYS_RESOURCE", "restoring resource limits and memory maps"),
    ];

    fn entry(self) -> (u32, &'static str, &'static str) {
        let found = Self::ALL.iter().find(|(capability, ..)| *capability == self);
        found.map_or((0, "", ""), |&(_, bit, name, purpose)| (bit, name, purpose))
    }

    /// What it is needed for.
    #[must_use]
    pub fn purpose(self) -> &'static str {
        self.entry().2
    }

    /// Every capability that some part of a job needs.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.iter().map(|(capability, ..)| *capability)
    }

    /// Whether this process has it.
    #[must_use]
    pub fn is_held(self) -> bool {
        self.is_held_in("thread-self")
    }

    /// Whether a process has it, by its folder in `/proc`.
    pub(crate) fn is_held_in(self, process: &str) -> bool {
        effective(process) & (1 << self.entry().0) != 0
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().1)
    }
}

/// Capabilities are missing.
#[derive(Debug, thiserror::Error)]
#[error("missing {}; {}", describe(.missing), advice())]
pub struct PrivilegeError {
    /// Which.
    pub missing: Vec<Capability>,
}

/// How this process gets a capability that it lacks.
#[must_use]
pub fn advice() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "this root lacks it; give it to the process, as with `docker run --privileged`"
    } else {
        "run dormouse as root"
    }
}

fn describe(missing: &[Capability]) -> String {
    let each: Vec<String> = missing.iter().map(|c| format!("{c} ({})", c.purpose())).collect();
    each.join(", ")
}

/// Fails with the name of each capability that this process lacks.
///
/// # Errors
/// When one is missing.
pub fn require(needed: &[Capability]) -> Result<(), PrivilegeError> {
    let missing: Vec<Capability> = needed.iter().copied().filter(|c| !c.is_held()).collect();
    if missing.is_empty() { Ok(()) } else { Err(PrivilegeError { missing }) }
}

fn effective(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_is_named() {
        let error = PrivilegeError { missing: vec![Capability::SysAdmin] };
        assert!(error.to_string().contains("CAP_SYS_ADMIN (PID and mount namespaces"), "{error}");
        // Tests run as whoever they run as; a file's capabilities do not reach CRIU, so nobody is sent there.
        assert!(error.to_string().ends_with(advice()) && !error.to_string().contains("setcap"), "{error}");
    }
}
