//! `cargo xtask setup`: installs or unpacks what a machine lacks.
//!
//! Compilers come from the distribution's packages; the CUDA compiler, CRIU and zig go into a private prefix and
//! leave the machine as it is, and so does the server that tests of object storage talk to. Every step is skipped, quickly, when it has been done.

mod apt;
mod stubs;
mod wheels;

use std::fs::File;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::process::{quiet, step, succeeds};
use crate::workspace::Workspace;

/// Installs what building, testing and running from the checkout needs.
pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let _lock = lock(workspace)?;
    compilers()?;
    cuda_compiler(workspace)?;
    s3_server(workspace)?;
    crate::criu::install(&workspace.criu())
}

/// Installs what the tests need beside that: programs that make networks, disks and builds for them.
pub fn tests(workspace: &Workspace) -> anyhow::Result<()> {
    run(workspace)?;
    let _lock = lock(workspace)?;
    programs(
        &[
            ("ip", "iproute2"),
            ("mkfs.ext4", "e2fsprogs"),
            ("kill", "procps"),
            ("cmake", "cmake"),
            ("make", "make"),
        ],
        &[],
    )
}

/// Installs what the bundle needs beside that: a linker for older C libraries.
pub fn bundle(workspace: &Workspace) -> anyhow::Result<()> {
    let _lock = lock(workspace)?;
    let prefix = workspace.zig();
    if !wheels::up_to_date(&prefix, ZIG_WHEELS) {
        step("unpacking zig and cargo-zigbuild");
        wheels::unpack(ZIG_WHEELS, &prefix, "")?;
    }
    let zig = prefix.join("ziglang/zig");
    ensure!(succeeds(Command::new(&zig).arg("version")), "{} does not run", zig.display());
    Ok(())
}

/// Installs what the Python wheel needs beside that: maturin, and the same linker.
pub fn wheel(workspace: &Workspace) -> anyhow::Result<()> {
    bundle(workspace)?;
    let _lock = lock(workspace)?;
    let prefix = workspace.maturin();
    if !wheels::up_to_date(&prefix, MATURIN_WHEELS) {
        step("unpacking maturin");
        wheels::unpack(MATURIN_WHEELS, &prefix, "")?;
    }
    Ok(())
}

const MATURIN_WHEELS: &str = include_str!("../requirements/maturin.txt");
const S3_WHEELS: &str = include_str!("../requirements/s3.txt");
const CUDA_WHEELS: &str = include_str!("../requirements/cuda.txt");
const ZIG_WHEELS: &str = include_str!("../requirements/zig.txt");

/// One set-up at a time: two at once would unpack into the same folder.
fn lock(workspace: &Workspace) -> anyhow::Result<File> {
    let prefix = workspace.prefix();
    std::fs::create_dir_all(&prefix).with_context(|| format!("cannot make {}", prefix.display()))?;
    let path = prefix.join(".lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// An S3-compatible server, for tests. Python itself is there or comes with the unpacking.
fn s3_server(workspace: &Workspace) -> anyhow::Result<()> {
    let prefix = workspace.s3();
    if !wheels::up_to_date(&prefix, S3_WHEELS) {
        step("unpacking an S3-compatible server");
        wheels::unpack(S3_WHEELS, &prefix, "")?;
    }
    Ok(())
}

/// The host's C and C++ compilers, which the CUDA compiler and some crates call.
fn compilers() -> anyhow::Result<()> {
    programs(&[("gcc", "gcc"), ("g++", "g++")], &["libc6-dev"])
}

/// Programs, and the packages that have them; if one is missing, so are those that come `with` them.
fn programs(wanted: &[(&str, &'static str)], with: &[&'static str]) -> anyhow::Result<()> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let is_missing = |name: &str| !std::env::split_paths(&paths).any(|folder| folder.join(name).exists());
    let missing: Vec<&str> =
        wanted.iter().filter(|(name, _)| is_missing(name)).map(|&(_, package)| package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    step(format_args!("installing {}", missing.join(" and ")));
    apt::install(&[&missing[..], with].concat())
}

/// nvcc and the libraries it links, from their Python wheels.
fn cuda_compiler(workspace: &Workspace) -> anyhow::Result<()> {
    let prefix = workspace.cuda();
    if !wheels::up_to_date(&prefix, CUDA_WHEELS) {
        step("unpacking the CUDA compiler");
        wheels::unpack(CUDA_WHEELS, &prefix, "nvidia/cu13")?;
        // nvcc looks for its libraries in lib64; the wheels lay them in lib.
        std::os::unix::fs::symlink("lib", prefix.join("lib64")).context("cannot link lib64")?;
    }
    quiet(Command::new(prefix.join("bin/nvcc")).arg("--version"))
        .context("the CUDA compiler does not run")?;
    stubs::complete(&prefix)
}
