//! `cargo xtask wheel`: the Python package as one wheel, and a look whether Python can import it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::bundle::{GLIBC, zig};
use crate::process::{quiet, step};
use crate::setup;
use crate::workspace::Workspace;

/// What every program may ask that imports it, without Dormouse.
const TRIAL: &str = "import dormouse; assert not dormouse.available() and dormouse.checkpoint() is None and dormouse.convenient_point() is None";

/// Makes the wheel and says where it is.
pub fn make(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    setup::wheel(workspace)?;
    let folder = workspace.target.join("wheels");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    step(format_args!("building the wheel for C libraries from {GLIBC} on"));
    let mut maturin = Command::new(workspace.maturin().join("bin/maturin"));
    maturin.current_dir(&workspace.root).env("CARGO_ZIGBUILD_ZIG_PATH", zig(workspace));
    maturin.args([
        "build",
        "--release",
        "--locked",
        "--strip",
        "--zig",
        "--manifest-path",
        "crates/python/Cargo.toml",
    ]);
    maturin
        .args(["--compatibility", &format!("manylinux_{}", GLIBC.replace('.', "_"))])
        .arg("--out")
        .arg(&folder);
    quiet(&mut maturin)?;
    let mut made = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let wheel = made.next().context("maturin has made no wheel")??.path();
    ensure!(made.next().is_none(), "maturin has made more than one wheel");

    step("importing it");
    // Unpacked, as an installation has it: nothing of this machine's Python is touched.
    let unpacked = tempfile::tempdir().context("cannot make a folder")?;
    quiet(Command::new("python3").args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(unpacked.path()))?;
    quiet(Command::new("python3").args(["-c", TRIAL]).current_dir(unpacked.path()))?;
    Ok(wheel)
}
