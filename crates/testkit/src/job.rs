//! A program under test: started, watched, checkpointed, killed, restarted through the `dormouse` command alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::capture::Capture;
use crate::kit::Kit;
use crate::outcome::Exit;

/// Nothing here takes longer, unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Where calls go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// The software device.
    Soft,
    /// The machine's GPU.
    Gpu,
}

impl Device {
    /// The value of `--device`.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Gpu => "gpu",
        }
    }

    /// The GPU where the machine has one, else the software device.
    pub fn of_this_machine() -> Self {
        if Path::new("/dev/nvidiactl").exists() { Self::Gpu } else { Self::Soft }
    }
}

/// A job's place: its name, its device, its store and its working directory.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The programs under test.
    pub kit: &'a Kit,
    /// Where calls go.
    pub device: Device,
    /// The job's name.
    pub name: &'a str,
    /// The folder that holds its store and, in `cwd`, its working directory.
    pub folder: &'a Path,
}

impl Place<'_> {
    /// The program's working directory.
    pub fn cwd(&self) -> std::path::PathBuf {
        self.folder.join("cwd")
    }

    fn store(&self) -> std::path::PathBuf {
        self.folder.join("store")
    }

    /// A `dormouse` command for this place.
    pub fn dormouse(&self, subcommand: &str) -> Command {
        let mut command = Command::new(self.kit.dormouse());
        command.arg(subcommand).current_dir(self.cwd()).stdin(Stdio::null());
        command
    }

    /// Starts a program under Dormouse.
    pub fn run(&self, program: &Path, args: &[String]) -> anyhow::Result<Job> {
        let mut command = self.dormouse("run");
        command.args(["--name", self.name, "--device", self.device.flag()]).arg("--store").arg(self.store());
        command.arg("--").arg(program).args(args);
        Job::start(command)
    }

    /// Starts a program as it is.
    pub fn run_natively(&self, program: &Path, args: &[String]) -> anyhow::Result<Job> {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.cwd()).stdin(Stdio::null());
        Job::start(command)
    }

    /// Continues an image.
    pub fn restart(&self, image: &str) -> anyhow::Result<Job> {
        let mut command = self.dormouse("restart");
        command.args(["--device", self.device.flag()]).arg("--store").arg(self.store()).arg(image);
        Job::start(command)
    }

    /// Takes a checkpoint.
    pub fn checkpoint(&self, after: After) -> anyhow::Result<Checkpoint> {
        let mut command = self.dormouse("checkpoint");
        command.args([self.name, after.flag(), "--json"]);
        let output = command.output().context("cannot run dormouse checkpoint")?;
        Checkpoint::from_output(&output)
    }

    /// The processes that `dormouse ps` says the job has.
    fn pids(&self) -> anyhow::Result<Vec<i32>> {
        #[derive(Deserialize)]
        struct Row {
            job: String,
            #[serde(default)]
            pids: Vec<i32>,
        }
        let output = self.dormouse("ps").arg("--json").output().context("cannot run dormouse ps")?;
        let rows: Vec<Row> = serde_json::from_slice(&output.stdout).with_context(|| {
            format!("dormouse ps said something unexpected: {}", String::from_utf8_lossy(&output.stdout))
        })?;
        Ok(rows.into_iter().filter(|row| row.job == self.name).flat_map(|row| row.pids).collect())
    }

    /// Kills application, servers and supervisor with SIGKILL, all at once, and waits until they are gone.
    pub fn kill_everything(&self, job: Job) -> anyhow::Result<Vec<u8>> {
        let supervisor = job.child.pid();
        let mut doomed: BTreeSet<i32> = self.pids()?.into_iter().collect();
        doomed.extend(descendants(supervisor)?);
        doomed.insert(supervisor);
        for pid in doomed.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // Some die with others; that is what was asked for.
            let _ = kill_process(pid, Signal::KILL);
        }
        let stdout = job.finish()?.stdout;
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Some(pid) = doomed.iter().find(|pid| is_alive(**pid)) {
            if Instant::now() > deadline {
                bail!("process {pid} of the job is still there 10 s after SIGKILL");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(stdout)
    }
}

/// What becomes of the job after its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It runs on.
    LeaveRunning,
    /// It ends.
    Stop,
}

impl After {
    fn flag(self) -> &'static str {
        match self {
            Self::LeaveRunning => "--leave-running",
            Self::Stop => "--stop",
        }
    }
}

/// How a checkpoint went.
#[derive(Debug, Clone, PartialEq)]
pub enum Checkpoint {
    /// There is an image.
    Published(Report),
    /// The job was over.
    Ended,
}

/// What is said of a published image; only what the tests read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Report {
    /// The image.
    pub image: String,
    /// The longest any thread was stopped, ms.
    pub stall_ms: f64,
    /// Of it, the host half, ms.
    pub host_ms: f64,
}

impl Checkpoint {
    /// Exit codes of `dormouse checkpoint` for a job that is not there (any more).
    const NOT_THERE: [i32; 2] = [3, 11];

    fn from_output(output: &Output) -> anyhow::Result<Self> {
        if output.status.success() {
            let report = serde_json::from_slice(&output.stdout).with_context(|| {
                format!(
                    "dormouse checkpoint said something unexpected: {}",
                    String::from_utf8_lossy(&output.stdout)
                )
            })?;
            return Ok(Self::Published(report));
        }
        if output.status.code().is_some_and(|code| Self::NOT_THERE.contains(&code)) {
            return Ok(Self::Ended);
        }
        bail!(
            "the checkpoint failed ({}): {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    }
}

/// A running program: `dormouse run`, `dormouse restart`, or the guest itself. Dropped while it runs, it is killed with
/// all its descendants: a test that fails leaves nothing behind.
#[derive(Debug)]
pub struct Job {
    child: Tree,
    started: Instant,
    /// Its standard output.
    pub stdout: Capture,
    stderr: Capture,
}

/// A job that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub exit: Exit,
    /// All it printed.
    pub stdout: Vec<u8>,
    /// All it, and Dormouse, complained about.
    pub stderr: String,
    /// From its start to its end.
    pub took: Duration,
    /// From its first line to its last.
    pub window: Duration,
}

impl Job {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_owned();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {}", name.to_string_lossy()))?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            bail!("a piped child has pipes");
        };
        let (stdout, stderr) = (Capture::start(stdout), Capture::start(stderr));
        Ok(Self { child: Tree(child), started: Instant::now(), stdout, stderr })
    }

    /// Sends a signal to the program that was started.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.pid()).context("a child has a pid")?;
        kill_process(pid, signal).context("cannot send a signal")
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.0.try_wait().context("cannot wait for a child")?.is_some())
    }

    /// Waits for the end; kills the job and fails when it does not come.
    pub fn finish(mut self) -> anyhow::Result<Finished> {
        let deadline = self.started + LIMIT;
        let status = loop {
            if let Some(status) = self.child.0.try_wait().context("cannot wait for a child")? {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill();
                let printed = String::from_utf8_lossy(&self.stdout.so_far()).into_owned();
                let complained = String::from_utf8_lossy(&self.stderr.so_far()).into_owned();
                bail!("hung: not over after {LIMIT:?}\nstdout: {printed}\nstderr: {complained}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let took = self.started.elapsed();
        let window = self.stdout.window();
        let rest = Duration::from_secs(10);
        let stdout = self.stdout.finish(rest).context("somebody keeps the job's standard output open")?;
        let stderr = self.stderr.finish(rest).context("somebody keeps the job's standard error open")?;
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        Ok(Finished { exit: Exit::from(status), stdout, stderr, took, window })
    }
}

/// A process and its descendants.
#[derive(Debug)]
struct Tree(Child);

impl Tree {
    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn kill(&mut self) {
        let doomed = descendants(self.pid()).unwrap_or_default();
        // Whoever is gone already need not be killed.
        let _ = self.0.kill();
        for pid in doomed.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// All children of `ancestor`, their children, and so on.
fn descendants(ancestor: i32) -> anyhow::Result<Vec<i32>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").context("cannot list /proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if let Some((_, parent)) = state_and_parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![ancestor];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.push(child);
            open.push(child);
        }
    }
    Ok(found)
}

fn is_alive(pid: i32) -> bool {
    state_and_parent(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// A process's state and its parent's pid, or nothing when it is gone.
fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name comes in parentheses and may hold anything, parentheses too.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn grandchildren_are_found_and_their_death_is_seen() {
        let mut child = Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let pid = child.id() as i32;
        let deadline = Instant::now() + Duration::from_secs(10);
        let grandchild = loop {
            if let [grandchild] = descendants(pid).unwrap()[..] {
                break grandchild;
            }
            assert!(Instant::now() < deadline, "the shell made no child");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(is_alive(pid) && is_alive(grandchild));
        kill_process(Pid::from_raw(grandchild).unwrap(), Signal::KILL).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(pid));
    }
}
