//! Compiling the guest programs with nvcc, as any CUDA program is compiled.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use testkit::manifest::{Code, Guest, Library, Manifest};

use crate::process::{quiet, step};
use crate::workspace::Workspace;

/// PTX for the oldest chip we compile for, and its machine code.
const PTX_AND_SASS: &str = "arch=compute_90,code=[compute_90,sm_90]";
const SASS: &str = "arch=compute_90,code=sm_90";

/// One file to be made, and the command that makes it.
struct Job {
    output: PathBuf,
    command: Command,
}

/// Compiles every guest into `folder`, with what it needs beside it, and copies the list there.
pub fn build(workspace: &Workspace, folder: &Path) -> anyhow::Result<()> {
    let sources = workspace.root.join("guests");
    let manifest = Manifest::read(&sources.join("guests.toml"))?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let compiler = Compiler { cuda: workspace.cuda(), sources, stubs: folder.join(".stubs") };
    compiler.make_stub_library()?;

    let newest = newest_input(&compiler.sources)?;
    let mut jobs = Vec::new();
    for guest in &manifest.guests {
        jobs.push(compiler.program(guest, folder));
        for module in &guest.modules {
            jobs.push(compiler.module(module, "fatbin", folder));
            jobs.push(compiler.module(module, "ptx", folder));
        }
    }
    jobs.sort_by(|a, b| a.output.cmp(&b.output));
    jobs.dedup_by(|a, b| a.output == b.output);
    jobs.retain(|job| !is_newer(&job.output, newest));
    if !jobs.is_empty() {
        step(format_args!("compiling {} guest programs and modules", jobs.len()));
    }
    run_side_by_side(jobs)?;

    for (from, name) in [
        (compiler.cuda.join("lib/libcudart.so.13"), "libcudart.so.13"),
        (compiler.sources.join("guests.toml"), "guests.toml"),
    ] {
        std::fs::copy(&from, folder.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

struct Compiler {
    cuda: PathBuf,
    sources: PathBuf,
    stubs: PathBuf,
}

impl Compiler {
    fn nvcc(&self, output: &Path) -> Command {
        let mut command = Command::new(self.cuda.join("bin/nvcc"));
        command.args(["-std=c++17", "-O2", "-o"]).arg(output);
        command
    }

    fn program(&self, guest: &Guest, folder: &Path) -> Job {
        let output = folder.join(guest.program());
        let source = self.sources.join(guest.source());
        if source.extension().is_some_and(|extension| extension == "c") {
            let mut command = Command::new("gcc");
            command.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(&output).arg(source);
            return Job { output, command };
        }
        let mut command = self.nvcc(&output);
        let code = match guest.code {
            Code::PtxAndSass => PTX_AND_SASS,
            Code::Sass => SASS,
        };
        command.args(["-Xcompiler", "-Wall,-Wextra", "-gencode", code]).args(&guest.flags);
        for library in &guest.libraries {
            match library {
                Library::Cuda => command.arg("-L").arg(&self.stubs).arg("-lcuda"),
                Library::Cudart => command.args(["-cudart", "shared", "-Xlinker", "-rpath=$ORIGIN"]),
            };
        }
        command.arg(source);
        Job { output, command }
    }

    fn module(&self, name: &str, kind: &str, folder: &Path) -> Job {
        let output = folder.join(format!("{name}.{kind}"));
        let mut command = self.nvcc(&output);
        match kind {
            "ptx" => command.args(["-ptx", "-arch=compute_90"]),
            _ => command.args(["-fatbin", "-gencode", PTX_AND_SASS]),
        };
        command.arg(self.sources.join(format!("modules/{name}.cu")));
        Job { output, command }
    }

    /// What `-lcuda` finds: names only, as in the toolkit's stub library.
    fn make_stub_library(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.stubs)
            .with_context(|| format!("cannot make {}", self.stubs.display()))?;
        quiet(
            Command::new("gcc")
                .args(["-shared", "-Wl,-soname,libcuda.so.1", "-o"])
                .arg(self.stubs.join("libcuda.so"))
                .arg(self.sources.join("libcuda-stub.c")),
        )?;
        // The shared runtime is linked by its plain name, which its wheel does not carry.
        let link = self.cuda.join("lib/libcudart.so");
        if !link.exists() {
            std::os::unix::fs::symlink("libcudart.so.13", &link).context("cannot link libcudart.so")?;
        }
        Ok(())
    }
}

/// When the newest source was written.
fn newest_input(folder: &Path) -> anyhow::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let time = if entry.file_type()?.is_dir() {
            newest_input(&entry.path())?
        } else {
            entry.metadata()?.modified()?
        };
        newest = newest.max(time);
    }
    Ok(newest)
}

fn is_newer(path: &Path, than: SystemTime) -> bool {
    path.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|time| time > than)
}

/// Runs the jobs on all cores, and reports the first that fails.
fn run_side_by_side(jobs: Vec<Job>) -> anyhow::Result<()> {
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let queue = Mutex::new(jobs);
    let next = || queue.lock().map_err(|_| panicked()).map(|mut jobs| jobs.pop());
    let work = || -> anyhow::Result<()> {
        while let Some(mut job) = next()? {
            quiet(&mut job.command)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| panicked())?)
    })
}

fn panicked() -> anyhow::Error {
    anyhow!("a compiling thread panicked")
}
