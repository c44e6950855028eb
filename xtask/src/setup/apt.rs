//! The distribution's packages.

use std::process::Command;

use anyhow::{Context, bail};

use crate::process::{quiet, succeeds};

/// Installs Debian or Ubuntu packages, or says what somebody else has to install.
pub fn install(packages: &[&str]) -> anyhow::Result<()> {
    let wanted = packages.join(" ");
    if !succeeds(Command::new("apt-get").arg("--version")) {
        bail!("this needs {wanted}; install what your distribution calls them, and run this again");
    }
    if !rustix::process::geteuid().is_root() {
        bail!("this needs {wanted}; run `apt-get install {wanted}` as root, and run this again");
    }
    quiet(apt_get().arg("update")).context("cannot update the package lists")?;
    quiet(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(packages))
        .with_context(|| format!("cannot install {wanted}"))?;
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}
