//! A librdmacm for machines without RDMA: its streams are TCP connections.

use anyhow::{Context, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles it into a folder, and says which file it is.
///
/// # Errors
/// Without a C compiler.
pub fn stand_in(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("rdmacm.c"), folder.join("librdmacm.so.1"));
    // Sessions' processes are another user's.
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    fs::write(&source, include_str!("rdmacm.c"))?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(&source);
    let done = cc.output().context("cc")?;
    ensure!(done.status.success(), "cc: {}", String::from_utf8_lossy(&done.stderr));
    Ok(library)
}
