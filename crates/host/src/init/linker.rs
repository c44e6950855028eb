//! A regenerated `ld.so.cache`, where a machine has no driver library over which the shim could be mounted.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::mount_bind;

use super::instructions::LD_CACHE;
use super::setup::host_path;

const CACHE: &str = "/etc/ld.so.cache";
const CONFIGURATION: &str = "/etc/ld.so.conf";

/// Makes every lookup by name find the libraries in `folder` first.
pub(super) fn name_first(folder: &Path) -> io::Result<()> {
    if !Path::new(CACHE).exists() {
        // A machine that does without has no default to override; the caller's LD_LIBRARY_PATH must do.
        return Ok(());
    }
    let configuration = host_path("ld.so.conf");
    let include =
        if Path::new(CONFIGURATION).exists() { format!("include {CONFIGURATION}\n") } else { String::new() };
    fs::write(&configuration, format!("{}\n{include}", folder.display()))?;
    let cache = host_path(LD_CACHE);
    let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|p| Path::new(p).exists());
    let output = Command::new(ldconfig.unwrap_or("ldconfig"))
        .args(["-X", "-f"])
        .arg(&configuration)
        .arg("-C")
        .arg(&cache)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(mount_bind(cache, CACHE)?)
}
