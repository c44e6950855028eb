//! Programs that come as Python wheels: pinned, checked against their hashes, unpacked into a folder of ours. Nothing
//! is installed into any Python, and the index is whatever the machine's pip is configured for.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use super::apt;
use crate::process::{quiet, step, succeeds};

/// The file in an unpacked folder that says which wheels it was made from.
const RECORD: &str = ".requirements.txt";

/// Whether `prefix` was unpacked from exactly these requirements.
pub fn up_to_date(prefix: &Path, requirements: &str) -> bool {
    std::fs::read_to_string(prefix.join(RECORD)).is_ok_and(|recorded| recorded == requirements)
}

/// Unpacks the required wheels and leaves the folder `inside` them as `prefix`, all of it or nothing.
pub fn unpack(requirements: &str, prefix: &Path, inside: &str) -> anyhow::Result<()> {
    let python = python_with_pip()?;
    let parent = prefix.parent().context("a prefix lies in a folder")?;
    let unpacked =
        tempfile::Builder::new().prefix(".wheels-").tempdir_in(parent).context("cannot make a folder")?;
    let list = tempfile::Builder::new().suffix(".txt").tempfile().context("cannot make a file")?;
    std::fs::write(list.path(), requirements).context("cannot write the requirements")?;
    quiet(
        Command::new(python)
            .args(["-m", "pip", "install", "--no-deps", "--require-hashes", "--only-binary=:all:"])
            .args([
                "--no-compile",
                "--no-cache-dir",
                "--disable-pip-version-check",
                "--root-user-action=ignore",
            ])
            .arg("--target")
            .arg(unpacked.path())
            .arg("--requirement")
            .arg(list.path()),
    )?;

    let folder = unpacked.path().join(inside);
    std::fs::write(folder.join(RECORD), requirements).context("cannot record what was unpacked")?;
    if prefix.exists() {
        std::fs::remove_dir_all(prefix).with_context(|| format!("cannot remove {}", prefix.display()))?;
    }
    std::fs::rename(&folder, prefix).with_context(|| format!("cannot put {} in place", prefix.display()))
}

/// A Python that has pip: the user's own first, then the distribution's.
fn python_with_pip() -> anyhow::Result<&'static str> {
    let usable = || {
        ["python3", "/usr/bin/python3"]
            .into_iter()
            .find(|python| succeeds(Command::new(python).args(["-m", "pip", "--version"])))
    };
    if let Some(python) = usable() {
        return Ok(python);
    }
    step("installing pip");
    apt::install(&["python3", "python3-pip"])?;
    match usable() {
        Some(python) => Ok(python),
        None => bail!("python3 has no pip, even after its package was installed"),
    }
}
