//! `cargo xtask bundle`: one folder with everything, to be copied to a machine that has nothing but a GPU.
//!
//! ```text
//! dormouse-VERSION-x86_64-linux/
//!   bin/ lib/ include/ python/ criu/ guests/ bench/ checks/   as in a kit, but optimised, and for C libraries from 2.28 on
//!   gpu-check                          runs every check and prints a table
//!   measure                            takes the figures of docs/benchmarks.md
//!   README.md LICENSES/
//! ```

mod licences;
mod symbols;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::guests::{self, Linker, Wanted};
use crate::kit::Artifacts;
use crate::process::{quiet, step};
use crate::setup;
use crate::workspace::Workspace;

/// The oldest C library that the bundle's own programs run with.
pub const GLIBC: &str = "2.28";
/// It must fit into what people copy to borrowed machines.
const SIZE_LIMIT: u64 = 128 << 20;

const GPU_CHECK: &str = "#!/bin/sh
# Runs every check of this bundle on this machine's GPU and prints a table last; --soak for the long runs.
exec \"$(dirname \"$(readlink -f \"$0\")\")/bin/gpu-check\" \"$@\"
";

/// Makes the bundle and says where it is.
pub fn make(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    setup::run(workspace)?;
    setup::bundle(workspace)?;
    let name = format!("dormouse-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let bundle = workspace.root.join(".bundle").join(name);
    if bundle.exists() {
        std::fs::remove_dir_all(&bundle).with_context(|| format!("cannot remove {}", bundle.display()))?;
    }

    step(format_args!("building for C libraries from {GLIBC} on"));
    let artifacts = Artifacts::build(&mut zigbuild(workspace))?;
    artifacts.stage(workspace, &bundle)?;
    let zig = zig(workspace);
    guests::build(workspace, &bundle, Wanted::All, Linker::Zig { zig: &zig, glibc: GLIBC })?;
    std::fs::remove_dir_all(bundle.join(".objects")).context("cannot remove object files")?;
    strip(&bundle)?;
    symbols::check(&bundle, GLIBC)?;
    crate::criu::install_here(&workspace.criu())?;
    quiet(Command::new("cp").arg("--archive").arg(workspace.criu()).arg(bundle.join("criu")))?;
    let script = bundle.join("gpu-check");
    std::fs::write(&script, GPU_CHECK).context("cannot write gpu-check")?;
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755))
        .context("cannot make gpu-check executable")?;
    crate::kit::install(&workspace.root.join("README.md"), &bundle.join("README.md"))?;
    licences::write(workspace, &bundle)?;

    let size = size_of(&bundle)?;
    ensure!(
        size < SIZE_LIMIT,
        "{} takes {} MiB; the limit is {}",
        bundle.display(),
        size >> 20,
        SIZE_LIMIT >> 20
    );
    step(format_args!("{} MiB", size >> 20));
    Ok(bundle)
}

/// Cargo with zig as linker, which brings the symbols of every C library there was.
fn zigbuild(workspace: &Workspace) -> Command {
    let mut command = Command::new(workspace.zig().join("bin/cargo-zigbuild"));
    command.current_dir(&workspace.root).env("CARGO_ZIGBUILD_ZIG_PATH", zig(workspace));
    command.args(["zigbuild", "--locked", "--release", "--target"]);
    command.arg(format!("x86_64-unknown-linux-gnu.{GLIBC}"));
    command
}

/// The linker.
pub fn zig(workspace: &Workspace) -> PathBuf {
    workspace.zig().join("ziglang/zig")
}

/// Drops what only a debugger or a linker reads: a kit has it.
fn strip(bundle: &Path) -> anyhow::Result<()> {
    for file in symbols::binaries(bundle)? {
        quiet(Command::new("strip").arg("--strip-all").arg(file))?;
    }
    // What only the compiler reads is three quarters of an archive of Rust's.
    let mut archive = Command::new("objcopy");
    archive.args(["--strip-debug", "--remove-section=.llvmbc", "--remove-section=.llvmcmd"]);
    quiet(archive.arg(bundle.join("lib/libdormouse.a")))?;
    Ok(())
}

fn size_of(folder: &Path) -> anyhow::Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        total += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.len() };
    }
    Ok(total)
}
