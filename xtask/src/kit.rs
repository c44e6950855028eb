//! The kit: binaries, shim and guests in the bundle's layout, built for this machine, for the tests and the demonstration.
//!
//! ```text
//! kit/bin/{dormouse,dormouse-init,gpu-check}   kit/bin/dormouse-nvcc -> dormouse   kit/lib/libcuda.so.1   kit/lib/libdormouse_bounce.so   kit/lib/criu/dormouse.so   kit/criu -> .prefix/criu
//! kit/lib/libdormouse.{so.1,so,a}   kit/include/dormouse.{h,cuh}   kit/python/dormouse
//! kit/guests/…   kit/bench/…   kit/checks/…   kit/measure
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::guests::{self, Linker, Wanted};
use crate::process::{cargo, quiet, step};
use crate::workspace::Workspace;

/// The packages whose programs and libraries make up a kit.
pub const PACKAGES: [&str; 9] =
    ["ask", "bounce", "cli", "criu-plugin", "dormouse-tests", "host", "python", "shim", "testkit"];

/// Where they lie in it that are no programs, and what they are built of. CRIU loads all that is in a folder.
const LIBRARIES: [(&str, &str); 6] = [
    ("lib/libcuda.so.1", "crates/shim/src/lib.rs"),
    ("lib/libdormouse_bounce.so", "crates/bounce/src/lib.rs"),
    ("lib/criu/dormouse.so", "crates/criu-plugin/src/lib.rs"),
    (ASK, "crates/ask/src/lib.rs"),
    ("lib/libdormouse.a", "crates/ask/src/lib.rs"),
    ("python/dormouse/_native.abi3.so", "crates/python/src/lib.rs"),
];

/// What programs link that ask for their own checkpoints.
const ASK: &str = "lib/libdormouse.so.1";

/// Builds everything, and of guests those that are wanted, and stages it; returns the kit's folder.
pub fn build(workspace: &Workspace, wanted: Wanted<'_>) -> anyhow::Result<PathBuf> {
    let kit = workspace.kit();
    step("building dormouse and its libcuda.so.1");
    let mut command = cargo(&workspace.root);
    command.args(["build", "--locked"]);
    let artifacts = Artifacts::build(&mut command)?;
    artifacts.stage(workspace, &kit)?;
    // Images hold these.
    for file in ["lib/libcuda.so.1", "lib/libdormouse_bounce.so", "bin/dormouse-init"] {
        quiet(Command::new("strip").arg("--strip-debug").arg(kit.join(file)))?;
    }
    link(&workspace.criu(), &workspace.criu(), &kit.join("criu"))?;
    guests::build(workspace, &kit, wanted, Linker::Nvcc)?;
    Ok(kit)
}

/// What cargo built.
pub struct Artifacts {
    programs: Vec<PathBuf>,
    checks: Vec<PathBuf>,
    /// In the order of [`LIBRARIES`].
    libraries: Vec<PathBuf>,
}

#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact {
        target: Target,
        filenames: Vec<PathBuf>,
        executable: Option<PathBuf>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

impl Artifacts {
    /// Runs a `cargo build` of the kit's packages and notes the files it made.
    pub fn build(command: &mut std::process::Command) -> anyhow::Result<Self> {
        for package in PACKAGES {
            command.args(["--package", package]);
        }
        command.args(["--lib", "--bins", "--message-format", "json-render-diagnostics"]);
        let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
        if !output.status.success() {
            bail!("the build failed ({})", output.status);
        }
        let (mut programs, mut checks) = (Vec::new(), Vec::new());
        let mut libraries = LIBRARIES.map(|_| None);
        for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let message = serde_json::from_slice(line).context("cargo said something unexpected")?;
            let Message::CompilerArtifact { target, filenames, executable } = message else { continue };
            let is_check = target.src_path.parent().is_some_and(|folder| folder.ends_with("tests"));
            if is_check { &mut checks } else { &mut programs }.extend(executable);
            let is_library = target.kind.iter().any(|kind| kind == "cdylib");
            for (library, (name, source)) in libraries.iter_mut().zip(LIBRARIES).filter(|_| is_library) {
                let end = if name.ends_with(".a") { "a" } else { "so" };
                let is_it = |file: &&PathBuf| file.extension().is_some_and(|e| e == end);
                if target.src_path.ends_with(source) {
                    *library = filenames.iter().find(is_it).cloned();
                }
            }
        }
        let made = |(file, (name, _)): (Option<PathBuf>, _)| {
            file.with_context(|| format!("the build made no {name}"))
        };
        let libraries = libraries.into_iter().zip(LIBRARIES).map(made).collect::<anyhow::Result<_>>()?;
        Ok(Self { programs, checks, libraries })
    }

    /// Copies them to where a kit has them.
    pub fn stage(&self, workspace: &Workspace, kit: &Path) -> anyhow::Result<()> {
        for (folder, programs) in [("bin", &self.programs), ("checks", &self.checks)] {
            for program in programs {
                let name = program.file_name().context("a program has a name")?;
                install(program, &kit.join(folder).join(name))?;
            }
        }
        for (library, (name, _)) in self.libraries.iter().zip(LIBRARIES) {
            install(library, &kit.join(name))?;
        }
        for file in ["__init__.py", "_native.pyi", "py.typed"] {
            let package = workspace.root.join("crates/python/python/dormouse");
            install(&package.join(file), &kit.join("python/dormouse").join(file))?;
        }
        let name = Path::new(ASK).file_name().context("a library has a name")?;
        link(&kit.join(ASK), Path::new(name), &kit.join("lib/libdormouse.so"))?;
        link(&kit.join("bin/dormouse"), Path::new("dormouse"), &kit.join("bin/dormouse-nvcc"))?;
        for (owner, header) in [("ask", "dormouse.h"), ("mark", "dormouse.cuh")] {
            let from = workspace.root.join("crates").join(owner).join("include").join(header);
            install(&from, &kit.join("include").join(header))?;
        }
        Ok(())
    }
}

/// Copies a file by way of a new one, so that a running program keeps the old.
pub fn install(from: &Path, to: &Path) -> anyhow::Result<()> {
    let folder = to.parent().context("a file lies in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let fresh = to.with_extension("new");
    std::fs::copy(from, &fresh).with_context(|| format!("cannot copy {}", from.display()))?;
    std::fs::rename(&fresh, to).with_context(|| format!("cannot put {} in place", to.display()))
}

/// Makes `link` say `name`, by which it leads to `target`, if there is such a thing.
fn link(target: &Path, name: &Path, link: &Path) -> anyhow::Result<()> {
    if link.is_symlink() {
        std::fs::remove_file(link).with_context(|| format!("cannot replace {}", link.display()))?;
    }
    if target.exists() {
        std::os::unix::fs::symlink(name, link).with_context(|| format!("cannot link {}", link.display()))?;
    }
    Ok(())
}
