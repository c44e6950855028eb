//! Compiling the guest and benchmark programs with nvcc, as any CUDA program is compiled.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use testkit::manifest::{Code, Library, Manifest};

use crate::process::{quiet, step};
use crate::workspace::Workspace;

/// PTX for the oldest chip we compile for, and its machine code.
const PTX_AND_SASS: &str = "arch=compute_90,code=[compute_90,sm_90]";
const SASS: &str = "arch=compute_90,code=sm_90";
/// Where guests find libdormouse.
const RUN_PATH: &str = "-Wl,-rpath,$ORIGIN/../lib";

/// Who links the guests.
#[derive(Debug, Clone, Copy)]
pub enum Linker<'a> {
    /// nvcc, for this machine's C library.
    Nvcc,
    /// zig, for the C library of that version and later ones.
    Zig {
        /// The program.
        zig: &'a Path,
        /// The version.
        glibc: &'a str,
    },
}

/// One file to be made, and the commands that make it.
struct Job {
    output: PathBuf,
    commands: Vec<Command>,
}

/// What is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// Every guest and every benchmark.
    All,
    /// This guest.
    One(&'a str),
}

/// Compiles guests into the kit's `guests/`, with what they need beside them, and benchmarks into `bench/`.
pub fn build(
    workspace: &Workspace,
    kit: &Path,
    wanted: Wanted<'_>,
    linker: Linker<'_>,
) -> anyhow::Result<()> {
    let (sources, benches) = (workspace.root.join("guests"), workspace.root.join("benches"));
    let manifest = Manifest::read(&sources.join("guests.toml"))?;
    let compiler = Compiler { cuda: workspace.cuda(), kit, objects: kit.join(".objects"), linker };
    let (guests, bench) = (kit.join("guests"), kit.join("bench"));
    for folder in [&guests, &bench, &compiler.objects] {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    compiler.make_libraries()?;

    let newest = newest_input(&sources)?.max(newest_input(&benches)?);
    let program = |name: &str, libraries: &[Library]| {
        let build = Build { libraries, ..Build::default() };
        compiler.program(&[benches.join(format!("{name}.cu"))], &bench.join(name), &build)
    };
    let mut jobs: Vec<Job> = Vec::new();
    if wanted == Wanted::All {
        let names =
            ["calls", "changes", "dot_product", "last_byte", "launches", "managed", "many_kernels", "marked"];
        jobs.extend(names.map(|name| program(name, &[])));
        jobs.push(program("driver_checkpoint", &[Library::Cuda]));
    }
    let is_wanted = |name: &str| wanted == Wanted::All || wanted == Wanted::One(name);
    for guest in manifest.guests.iter().filter(|guest| is_wanted(&guest.name)) {
        let build = Build {
            flags: &guest.flags,
            libraries: &guest.libraries,
            code: guest.code,
            marked: guest.marked,
        };
        let files: Vec<_> = guest.sources().map(|source| sources.join(source)).collect();
        jobs.push(compiler.program(&files, &guests.join(guest.program()), &build));
        for module in &guest.modules {
            let source = sources.join(format!("modules/{module}.cu"));
            jobs.push(compiler.module(&source, &guests.join(format!("{module}.fatbin"))));
            jobs.push(compiler.module(&source, &guests.join(format!("{module}.ptx"))));
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
        (sources.join("guests.toml"), "guests.toml"),
        (sources.join("self_checkpoint.py"), "self_checkpoint.py"),
    ] {
        std::fs::copy(&from, guests.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    for name in ["jobs.py", "migrate.py", "shared.py", "steps.py", "stopped.py", "train.py", "whole.py"] {
        crate::kit::install(&benches.join(name), &bench.join(name))?;
    }
    crate::kit::install(&benches.join("measure.sh"), &kit.join("measure"))
}

/// How one program is built.
#[derive(Default)]
struct Build<'a> {
    flags: &'a [String],
    libraries: &'a [Library],
    code: Code,
    /// By the kit's own compiler, which keeps marks.
    marked: bool,
}

struct Compiler<'a> {
    cuda: PathBuf,
    /// What else programs link.
    kit: &'a Path,
    /// What is of no use once the guests are linked.
    objects: PathBuf,
    linker: Linker<'a>,
}

impl Compiler<'_> {
    fn include(&self) -> PathBuf {
        self.kit.join("include")
    }

    /// The wheel has it by this name alone.
    fn nvrtc(&self) -> PathBuf {
        self.cuda.join("lib/libnvrtc.so.13")
    }

    fn nvcc(&self, output: &Path) -> Command {
        self.compiler(Command::new(self.cuda.join("bin/nvcc")), output)
    }

    fn dormouse_nvcc(&self, output: &Path) -> Command {
        let mut command = Command::new(self.kit.join("bin/dormouse"));
        command.arg("nvcc").env("DORMOUSE_NVCC", self.cuda.join("bin/nvcc"));
        self.compiler(command, output)
    }

    fn compiler(&self, mut command: Command, output: &Path) -> Command {
        command.args(["-std=c++17", "-O2", "-o"]).arg(output);
        command
    }

    fn program(&self, sources: &[PathBuf], output: &Path, build: &Build<'_>) -> Job {
        let output = output.to_owned();
        if sources.iter().any(|source| source.extension().is_some_and(|extension| extension == "c")) {
            let mut command = self.c_compiler(&output);
            command.args(["-O2", "-Wall", "-Wextra"]).arg("-I").arg(self.include()).args(sources);
            if build.libraries.contains(&Library::Dormouse) {
                command.arg("-L").arg(self.kit.join("lib")).args(["-ldormouse", RUN_PATH]);
            }
            return Job { output, commands: vec![command] };
        }
        let code = match build.code {
            Code::PtxAndSass => PTX_AND_SASS,
            Code::Sass => SASS,
        };
        let compile = |sources: &[PathBuf], into: &Path| {
            let mut nvcc = if build.marked { self.dormouse_nvcc(into) } else { self.nvcc(into) };
            nvcc.args(["-Xcompiler", "-Wall,-Wextra", "-gencode", code]).arg("-I").arg(self.include());
            nvcc.args(build.flags).args(sources);
            nvcc
        };
        let commands = match self.linker {
            Linker::Nvcc => {
                let mut nvcc = compile(sources, &output);
                for library in build.libraries {
                    match library {
                        Library::Cuda => nvcc.arg("-lcuda"),
                        Library::Nvrtc => {
                            let (file, folder) = (self.nvrtc(), self.cuda.join("lib"));
                            nvcc.arg(format!("-Xlinker={}", file.display()));
                            // It looks for its other half where the program's own libraries are.
                            nvcc.arg("-Xlinker=--disable-new-dtags");
                            nvcc.arg(format!("-Xlinker=-rpath={}", folder.display()))
                        }
                        Library::Cudart => nvcc.args(["-cudart", "shared", "-Xlinker", "-rpath=$ORIGIN"]),
                        Library::Dormouse => {
                            nvcc.arg("-L").arg(self.kit.join("lib"));
                            nvcc.args(["-ldormouse", "-Xlinker", "-rpath=$ORIGIN/../lib"])
                        }
                    };
                }
                vec![nvcc]
            }
            Linker::Zig { .. } => {
                let object =
                    |of: &Path| self.objects.join(of.file_stem().unwrap_or_default()).with_extension("o");
                let mut objects: Vec<_> = sources.iter().map(|source| object(source)).collect();
                let mut commands: Vec<_> = sources
                    .iter()
                    .zip(&objects)
                    .map(|(source, object)| {
                        let mut nvcc = compile(std::slice::from_ref(source), object);
                        nvcc.arg("-c");
                        nvcc
                    })
                    .collect();
                if objects.len() > 1 {
                    let linked = object(&output).with_extension("linked.o");
                    let mut nvcc = compile(&objects, &linked);
                    nvcc.arg("-dlink");
                    commands.push(nvcc);
                    objects.push(linked);
                }
                commands.push(self.link(build, &objects, &output));
                commands
            }
        };
        Job { output, commands }
    }

    fn c_compiler(&self, output: &Path) -> Command {
        let mut command = match self.linker {
            Linker::Nvcc => Command::new("gcc"),
            Linker::Zig { zig, glibc } => {
                let mut command = Command::new(zig);
                command.args(["cc", "-target", &format!("x86_64-linux-gnu.{glibc}")]);
                command
            }
        };
        command.arg("-o").arg(output);
        command
    }

    /// What nvcc's own link step does, with another linker.
    fn link(&self, build: &Build<'_>, objects: &[PathBuf], output: &Path) -> Command {
        let mut command = self.c_compiler(output);
        command.args(objects).arg("-L").arg(self.cuda.join("lib")).arg("-L").arg(self.cuda.join("lib/stubs"));
        command.args(build.libraries.contains(&Library::Cuda).then_some("-lcuda"));
        command.args(build.libraries.contains(&Library::Nvrtc).then(|| self.nvrtc()));
        if build.libraries.contains(&Library::Dormouse) {
            command.arg("-L").arg(self.kit.join("lib")).args(["-ldormouse", RUN_PATH]);
        }
        match build.libraries.contains(&Library::Cudart) {
            true => command.args(["-lcudart", "-Wl,-rpath,$ORIGIN"]),
            false => command.arg("-lcudart_static"),
        };
        // This machine's C++ library is newer than the C library that is linked for; the target machine brings its own.
        for library in ["libstdc++.so.6", "libgcc_s.so.1"] {
            command.arg(self.objects.join(library));
        }
        command.args(["-lpthread", "-ldl", "-lrt", "-lm", "-Wl,--allow-shlib-undefined"]);
        command
    }

    fn module(&self, source: &Path, output: &Path) -> Job {
        let mut command = self.nvcc(output);
        match output.extension().is_some_and(|extension| extension == "ptx") {
            true => command.args(["-ptx", "-arch=compute_90"]),
            false => command.args(["-fatbin", "-gencode", PTX_AND_SASS]),
        };
        command.arg(source);
        Job { output: output.to_owned(), commands: vec![command] }
    }

    /// Gathers what zig is to link and the machine's C++ compiler has.
    fn make_libraries(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.objects)
            .with_context(|| format!("cannot make {}", self.objects.display()))?;
        for library in ["libstdc++.so.6", "libgcc_s.so.1"] {
            let output = quiet(Command::new("g++").arg(format!("-print-file-name={library}")))?;
            let path = String::from_utf8(output.stdout).context("g++ named a strange file")?;
            link(Path::new(path.trim_end()), &self.objects.join(library))?;
        }
        Ok(())
    }
}

/// Makes `link` point at `target`, whatever was there.
fn link(target: &Path, link: &Path) -> anyhow::Result<()> {
    if link.is_symlink() {
        std::fs::remove_file(link).with_context(|| format!("cannot replace {}", link.display()))?;
    }
    std::os::unix::fs::symlink(target, link).with_context(|| format!("cannot link {}", link.display()))
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
        while let Some(job) = next()? {
            for mut command in job.commands {
                quiet(&mut command)?;
            }
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
