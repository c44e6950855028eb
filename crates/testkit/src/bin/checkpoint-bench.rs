//! What a checkpoint costs a program with much device memory: copied by itself (naive), by the driver's own checkpoint, and by Dormouse; side by side, as a table.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use serde_json::Value;
use tempfile::TempDir;
use testkit::kit::Kit;
use testkit::place::Device;

/// Longer than the slowest part of a run with the largest memory.
const LIMIT: Duration = Duration::from_secs(180);
/// What the raw disk is measured with: as many bytes at a time, and as many of them under way, as a checkpoint's writer has.
const PIECE: usize = 16 << 20;
const WRITERS: u64 = 4;
/// Which of the numbers of a device's memory is what is used (`docs/nvml.md`).
const USED: usize = 3;

/// What checkpoints cost: by the program itself, by the driver, and by Dormouse, side by side
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where CUDA calls go; only Dormouse is measured without a GPU [default: the GPU if there is one]
    #[arg(long, value_enum)]
    device: Option<Device>,
    /// GiB of device memory whose images go to the disk; none to leave that out
    #[arg(long, num_args = 0.., value_delimiter = ',', default_value = "1,8,32")]
    to_disk: Vec<f64>,
    /// GiB of device memory, of little entropy, whose images go to memory: what capturing takes. None to leave that out
    #[arg(long, num_args = 0.., value_delimiter = ',', default_value = "64,100")]
    to_memory: Vec<f64>,
    /// GiB of device memory, random, of a program that is suspended and resumed. None to leave that out
    #[arg(long, num_args = 0.., value_delimiter = ',', default_value = "1,20")]
    suspended: Vec<f64>,
    /// Leave out what the program itself and the driver take
    #[arg(long)]
    ours: bool,
    /// How those are compressed that go to memory, as `dormouse checkpoint` has it: two images are there beside the copies that they are written from
    #[arg(long, default_value = "zstd")]
    compress: String,
    /// A folder on the disk
    #[arg(long, default_value = "/tmp")]
    disk: PathBuf,
    /// A folder in memory
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
    /// The program's matrices are so wide and high
    #[arg(long, default_value_t = 2048)]
    side: u32,
    /// So many MiB of pinned memory the program copies to the device and back in each step
    #[arg(long, default_value_t = 0)]
    copied: u32,
}

fn main() -> ExitCode {
    match Bench::new(Arguments::parse()).and_then(|bench| bench.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Bench {
    arguments: Arguments,
    device: Device,
    kit: Kit,
}

/// Where the program itself copies its memory to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saved {
    ToDisk,
    /// What copying it takes.
    Nowhere,
}

/// One line of the table; what does not apply is left out.
#[derive(Default)]
struct Row {
    how: String,
    gib: f64,
    what: String,
    stall_ms: Option<f64>,
    device_ms: Option<f64>,
    gap_ms: Option<f64>,
    durable_s: Option<f64>,
    /// Of it, what came when the program had gone on.
    drain_s: Option<f64>,
    written: Option<f64>,
    /// What the raw disk took before and after, bytes/s.
    raw: Option<[f64; 2]>,
    slower: Option<f64>,
    restored_s: Vec<f64>,
}

impl Row {
    const HEAD: &str = "| how | GiB | contents, or what has changed | stood still, ms | of it the device | longest step more than others, ms | durable after, s | written, MB | of it a second when the program had gone on, and the raw disk before and after, GB | steps meanwhile | restored, s |\n|---|---|---|---|---|---|---|---|---|---|---|";

    /// Prints the line at once, so that a run that is cut off has told what it found.
    fn print(&self) {
        let figure =
            |value: Option<f64>, digits: usize| value.map_or_else(String::new, |it| format!("{it:.digits$}"));
        let slower = self.slower.map_or_else(String::new, |ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0));
        let rates = self.rates().unwrap_or_default();
        let mut restored = String::new();
        for (number, seconds) in self.restored_s.iter().enumerate() {
            let _ = write!(restored, "{}{seconds:.2}", if number > 0 { ", " } else { "" });
        }
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {rates} | {slower} | {restored} |",
            self.how,
            self.gib,
            self.what,
            figure(self.stall_ms, 0),
            figure(self.device_ms, 1),
            figure(self.gap_ms, 0),
            figure(self.durable_s, 2),
            figure(self.written.map(|bytes| bytes / 1e6), 1),
        );
    }

    /// How fast it was written, and what the disk could do.
    fn rates(&self) -> Option<String> {
        let (rate, [before, after]) = (self.written? / self.drain_s.or(self.durable_s)?, self.raw?);
        Some(format!("{:.2}; {:.2}, {:.2}", rate / 1e9, before / 1e9, after / 1e9))
    }
}

/// One line of the table of suspensions.
struct Slept {
    gib: f64,
    asleep_s: f64,
    copied_s: f64,
    left: u64,
    holders: usize,
    awake_s: f64,
    step_s: f64,
}

impl Slept {
    const HEAD: &str = "| GiB | nothing on a device after, s | of it copying, s | left on devices, MB | processes that have the driver open | resumed after, s | next step after, s |\n|---|---|---|---|---|---|---|";

    fn print(&self) {
        let Self { gib, asleep_s, copied_s, left, holders, awake_s, step_s } = self;
        let left = *left as f64 / 1e6;
        println!(
            "| {gib} | {asleep_s:.2} | {copied_s:.2} | {left:.0} | {holders} | {awake_s:.2} | {step_s:.2} |"
        );
    }
}

/// What `changes` says of its steps, in ms; the mean is without the longest.
struct Steps {
    median: f64,
    mean: f64,
    longest: f64,
}

/// `changes`, running natively or in a job.
struct Program {
    child: Child,
    folder: PathBuf,
    output: PathBuf,
}

impl Program {
    fn start(mut command: Command, folder: &Path) -> anyhow::Result<Self> {
        let output = folder.join("output");
        let _ = std::fs::remove_file(&output);
        let file = File::create_new(&output).context("cannot make a file for what the program prints")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(Stdio::inherit())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { child, folder: folder.to_owned(), output })
    }

    /// Waits until something is so.
    fn until(&mut self, what: &str, so: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !so(self) {
            if let Some(status) = self.child.try_wait()? {
                bail!("the program ended ({status}) before {what}");
            }
            ensure!(start.elapsed() < LIMIT, "{what} did not come within {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn is_ready(&mut self) -> anyhow::Result<()> {
        self.until("it was ready", |it| it.printed().is_ok_and(|text| text.contains("ready\n")))
    }

    fn printed(&self) -> anyhow::Result<String> {
        std::fs::read_to_string(&self.output).context("cannot read what the program printed")
    }

    /// Leaves a request where the program looks between two steps.
    fn request(&self, what: &str) -> anyhow::Result<()> {
        let fresh = self.folder.join("go.new");
        std::fs::write(&fresh, what)?;
        std::fs::rename(&fresh, self.folder.join("go")).context("cannot ask the program")
    }

    fn answered(&mut self) -> anyhow::Result<()> {
        self.until("an answer", |it| !it.folder.join("go").exists())
    }

    /// Has the program do something; what it prints then.
    fn ask(&mut self, what: &str) -> anyhow::Result<String> {
        self.request(what)?;
        self.answered()?;
        Ok(self.printed()?.lines().last().unwrap_or_default().to_owned())
    }

    /// What its steps took since this was last asked.
    fn steps(&mut self) -> anyhow::Result<Steps> {
        let line = self.ask("0 report")?;
        let named = |name: &str| number_after(&line, name);
        Ok(Steps { median: named("median")?, mean: named("mean")?, longest: named("longest")? })
    }

    /// What its steps take when nothing is going on.
    fn calm_steps(&mut self) -> anyhow::Result<Steps> {
        self.steps()?;
        std::thread::sleep(Duration::from_secs(1));
        self.steps()
    }

    fn end(mut self) -> anyhow::Result<()> {
        let stop = self.folder.join("stop");
        File::create(&stop).context("cannot ask the program to end")?;
        let status = self.child.wait()?;
        std::fs::remove_file(&stop)?;
        ensure!(status.success(), "the program ended with {status}");
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number that follows a word in what a benchmark printed.
fn number_after(line: &str, word: &str) -> anyhow::Result<f64> {
    let mut words = line.split_whitespace();
    let number = words.by_ref().find(|it| *it == word).and_then(|_| words.next());
    number.and_then(|it| it.parse().ok()).with_context(|| format!("no {word} in {line:?}"))
}

impl Bench {
    fn new(arguments: Arguments) -> anyhow::Result<Self> {
        let device = arguments.device.unwrap_or_else(Device::of_this_machine);
        Ok(Self { arguments, device, kit: Kit::locate()? })
    }

    fn run(&self) -> anyhow::Result<()> {
        println!("{}", Row::HEAD);
        for &gib in &self.arguments.to_disk {
            if self.others() {
                self.naive(gib, Saved::ToDisk)?.print();
                self.driver(gib)?.print();
            }
            for contents in ["random", "half", "zero"] {
                self.ours(gib, contents, &self.arguments.disk, &[])?;
            }
        }
        for &gib in &self.arguments.to_memory {
            if self.others() {
                self.naive(gib, Saved::Nowhere)?.print();
                self.driver(gib)?.print();
            }
            let changes = ["0 contiguous", "1 contiguous", "1 scattered", "10 scattered", "100 contiguous"];
            self.ours(gib, "thin", &self.arguments.memory, &changes)?;
        }
        if !self.arguments.suspended.is_empty() {
            println!("{}", Slept::HEAD);
        }
        self.arguments.suspended.iter().try_for_each(|&gib| self.suspended(gib))
    }

    /// Whether other ways are measured beside ours.
    fn others(&self) -> bool {
        self.device == Device::Gpu && !self.arguments.ours
    }

    /// Suspends the program and resumes it, twice: the second time no object is new.
    fn suspended(&self, gib: f64) -> anyhow::Result<()> {
        let (folder, store) = (scratch(&self.arguments.disk)?, scratch(&self.arguments.disk)?);
        let name = format!("bench-{}", std::process::id());
        let before = self.used()?;
        let mut command = self.dormouse("run", store.path());
        command.args(["--name", &name, "--device", self.device.flag(), "--"]);
        command.args(self.changes(gib, "random", folder.path()));
        let mut program = Program::start(command, folder.path())?;
        program.is_ready()?;
        for _ in 0..2 {
            program.calm_steps()?;
            let said = answer(self.asked("suspend").arg(&name))?;
            let left = self.used()?.saturating_sub(before);
            let holders = holders_of_the_driver()?;
            program.request("0 report")?;
            let start = Instant::now();
            let resumed = answer(self.asked("resume").arg(&name))?;
            program.answered()?;
            let step_s = start.elapsed().as_secs_f64();
            let seconds = |of: &Value, name: &str| {
                of.get(name).and_then(Value::as_f64).map(|ms| ms / 1e3).context("a time is missing")
            };
            Slept {
                gib,
                asleep_s: seconds(&said, "total_ms")?,
                copied_s: seconds(&said, "copy_ms")?,
                left,
                holders,
                awake_s: seconds(&resumed, "total_ms")?,
                step_s,
            }
            .print();
        }
        program.end()
    }

    /// What a job's supervisor is asked with.
    fn asked(&self, command: &str) -> Command {
        let mut asked = Command::new(self.kit.dormouse());
        asked.args([command, "--json"]);
        asked
    }

    /// Memory of all devices that is used, bytes, by NVML.
    fn used(&self) -> anyhow::Result<u64> {
        let mut command = Command::new(self.kit.dormouse());
        let said = run(command.args(["devices", "--json", "--device", self.device.flag()]))?;
        let said: Value = serde_json::from_str(&said).context("the devices are no JSON")?;
        let devices = said["devices"].as_array().context("no devices")?;
        let used = |device: &Value| device["numbers"]["memory"][USED].as_u64();
        devices.iter().map(used).sum::<Option<u64>>().context("a device does not say what is used")
    }

    /// The program that is checkpointed.
    fn changes(&self, gib: f64, contents: &str, folder: &Path) -> Vec<String> {
        let program = self.kit.bench("changes").display().to_string();
        let folder = folder.display().to_string();
        let (side, copied) = (self.arguments.side.to_string(), self.arguments.copied.to_string());
        vec![program, gib.to_string(), folder, contents.to_owned(), side, copied]
    }

    fn native(&self, gib: f64, folder: &Path) -> anyhow::Result<Program> {
        let words = self.changes(gib, "random", folder);
        let (program, arguments) = words.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(arguments);
        let mut program = Program::start(command, folder)?;
        program.is_ready()?;
        Ok(program)
    }

    /// The program copies its memory to a file itself.
    fn naive(&self, gib: f64, saved: Saved) -> anyhow::Result<Row> {
        let folder = scratch(&self.arguments.disk)?;
        let mut program = self.native(gib, folder.path())?;
        let mut row = Row { how: "naive".into(), gib, what: "random".into(), ..Row::default() };
        let save = |program: &mut Program| number_after(&program.ask("0 save")?, "ms");
        match saved {
            Saved::ToDisk => {
                let before = raw_disk(&self.arguments.disk)?;
                let ms = save(&mut program)?;
                row.stall_ms = Some(ms);
                row.durable_s = Some(ms / 1e3);
                row.written = Some(gib * (1u64 << 30) as f64);
                row.raw = Some([before, raw_disk(&self.arguments.disk)?]);
                row.restored_s.push(number_after(&program.ask("0 load")?, "ms")? / 1e3);
            }
            Saved::Nowhere => {
                std::os::unix::fs::symlink("/dev/null", folder.path().join("naive"))?;
                row.what = "random; thrown away".into();
                row.stall_ms = Some(save(&mut program)?);
            }
        }
        program.end()?;
        Ok(row)
    }

    /// The driver moves its memory to the host's and back. What a dump of the process would then take is not in it.
    fn driver(&self, gib: f64) -> anyhow::Result<Row> {
        let folder = scratch(&self.arguments.disk)?;
        let mut program = self.native(gib, folder.path())?;
        let before = program.calm_steps()?;
        let mut command = Command::new(self.kit.bench("driver_checkpoint"));
        let output = command.arg(program.child.id().to_string()).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "the driver's checkpoint failed");
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        let steps = program.steps()?;
        program.end()?;
        let named = |name: &str| number_after(&line, name);
        let (saved, restored) = (named("lock")? + named("checkpoint")?, named("restore")?);
        Ok(Row {
            how: "driver".into(),
            gib,
            what: "random; to the host's memory and back".into(),
            stall_ms: Some(saved + restored),
            gap_ms: Some(steps.longest - before.median),
            restored_s: vec![restored / 1e3],
            ..Row::default()
        })
    }

    /// Dormouse: a first checkpoint and, of one in memory, another one after each of `changes`; and restarts, the last one lazy.
    /// Of the first the store may be on the disk only; what is read a second time the kernel moves to another list meanwhile.
    fn ours(&self, gib: f64, contents: &str, place: &Path, changes: &[&str]) -> anyhow::Result<()> {
        // A job has a `/dev/shm` of its own, so the folder through which both talk lies on the disk.
        let (folder, store) = (scratch(&self.arguments.disk)?, scratch(place)?);
        let name = format!("bench-{}", std::process::id());
        let mut command = self.dormouse("run", store.path());
        command.args(["--name", &name, "--device", self.device.flag(), "--"]);
        command.args(self.changes(gib, contents, folder.path()));
        let mut program = Program::start(command, folder.path())?;
        program.is_ready()?;
        let to_disk = changes.is_empty();
        let raw = || to_disk.then(|| raw_disk(place)).transpose();
        let before = raw()?;
        let compress = (!to_disk).then_some(&*self.arguments.compress);
        let mut row = self.checkpoint(&mut program, &name, compress, (gib, contents))?;
        row.raw = before.zip(raw()?).map(<[f64; 2]>::from);
        if !to_disk {
            row.print();
        }
        for change in changes {
            program.ask(change)?;
            row = self.checkpoint(&mut program, &name, compress, (gib, &change.replacen(' ', " % ", 1)))?;
            row.print();
            let mut prune = self.dormouse("prune", store.path());
            run(prune.args(["--keep-last", "1", &name]))?;
        }
        program.end()?;
        let mut restored_s = Vec::new();
        for options in [&[][..], &[], &[], &["--lazy"]] {
            let mut command = self.dormouse("restart", store.path());
            command.args(["--device", self.device.flag()]).args(options).arg(&name);
            std::fs::write(folder.path().join("go"), "0 report")?;
            let start = Instant::now();
            let mut program = Program::start(command, folder.path())?;
            program.answered()?;
            restored_s.push(start.elapsed().as_secs_f64());
            program.end()?;
        }
        if to_disk {
            row.restored_s = restored_s;
        } else {
            row = Row { how: "Dormouse".into(), gib, what: "restarts".into(), restored_s, ..Row::default() };
        }
        row.print();
        Ok(())
    }

    fn checkpoint(
        &self,
        program: &mut Program,
        name: &str,
        compress: Option<&str>,
        (gib, what): (f64, &str),
    ) -> anyhow::Result<Row> {
        let before = program.calm_steps()?;
        let mut command = self.asked("checkpoint");
        command.args(compress.into_iter().flat_map(|how| ["--compress", how]));
        let said = answer(command.arg(name))?;
        let steps = program.steps()?;
        let field = |name: &str| said.get(name).and_then(Value::as_f64);
        Ok(Row {
            how: "Dormouse".into(),
            gib,
            what: what.to_owned(),
            stall_ms: field("stall_ms"),
            device_ms: field("device_ms"),
            gap_ms: Some(steps.longest - before.median),
            durable_s: field("total_ms").map(|ms| ms / 1e3),
            drain_s: field("write_ms").map(|ms| ms / 1e3),
            written: field("written"),
            raw: None,
            slower: Some(steps.mean / before.mean),
            restored_s: Vec::new(),
        })
    }

    fn dormouse(&self, command: &str, store: &Path) -> Command {
        let mut it = Command::new(self.kit.dormouse());
        it.arg(command).arg("--store").arg(store);
        it
    }
}

/// What a job's supervisor answers.
fn answer(asked: &mut Command) -> anyhow::Result<Value> {
    let said = run(asked)?;
    serde_json::from_str(&said).with_context(|| format!("what {asked:?} prints is no JSON"))
}

/// Runs a command to its end; what it printed.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?} ended with {}, and said {said:?}", output.status);
    Ok(said)
}

/// How many processes of this machine have a node of the driver open.
fn holders_of_the_driver() -> anyhow::Result<usize> {
    let is_node = |link: std::io::Result<PathBuf>| {
        link.is_ok_and(|link| link.to_str().is_some_and(|link| link.starts_with("/dev/nvidia")))
    };
    let holds = |process: &Path| {
        let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().filter_map(Result::ok);
        descriptors.map(|descriptor| std::fs::read_link(descriptor.path())).any(is_node)
    };
    let processes = std::fs::read_dir("/proc").context("cannot read /proc")?;
    Ok(processes.filter_map(Result::ok).filter(|process| holds(&process.path())).count())
}

fn scratch(place: &Path) -> anyhow::Result<TempDir> {
    tempfile::Builder::new()
        .prefix("dormouse-bench-")
        .tempdir_in(place)
        .with_context(|| format!("cannot make a folder in {}", place.display()))
}

/// Bytes in a second that the disk takes, past the page cache, to the last sync.
fn raw_disk(folder: &Path) -> anyhow::Result<f64> {
    const PIECES: u64 = 256;
    let folder = scratch(folder)?;
    let mut memory = vec![0; PIECE + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let piece = memory.get_mut(start..start + PIECE).context("no aligned memory")?;
    File::open("/dev/urandom")?.read_exact(piece)?;
    let piece = &*piece;
    let start = Instant::now();
    let write = |writer: u64| -> anyhow::Result<()> {
        let path = folder.path().join(writer.to_string());
        let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).context("no such flag")?;
        let file = File::options().create_new(true).write(true).custom_flags(direct).open(path);
        let file = file.context("the disk's files cannot be written past the page cache")?;
        for at in 0..PIECES / WRITERS {
            file.write_all_at(piece, at * PIECE as u64)?;
        }
        Ok(file.sync_all()?)
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        writers.into_iter().try_for_each(|it| it.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?)
    })?;
    Ok((PIECES * PIECE as u64) as f64 / start.elapsed().as_secs_f64())
}
