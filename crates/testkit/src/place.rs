//! Starting, checkpointing, killing and restarting a job, through the `dormouse` command alone.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::job::Job;
use crate::kit::Kit;
use crate::manifest::Managed;
use crate::served::Served;
use crate::tree;

/// Where calls go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// The software device.
    Soft,
    /// The machine's GPU.
    Gpu,
    /// Dormouse's own driver, in a job of its.
    Nested,
}

impl Device {
    /// The value of `--device`.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Gpu => "gpu",
            Self::Nested => "nested",
        }
    }

    /// The GPU where the machine has one, else the software device.
    pub fn of_this_machine() -> Self {
        if Path::new("/dev/nvidiactl").exists() { Self::Gpu } else { Self::Soft }
    }
}

/// Has a program run without the right to a userfaultfd of system calls.
pub const WITHOUT_RIGHT: [&str; 3] = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];

/// A job's place: its name, its device, its store and its working directory.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The programs under test.
    pub kit: &'a Kit,
    /// Where calls go.
    pub device: Device,
    /// Whose device it is, if it is another machine's.
    pub served: Option<&'a Served>,
    /// The job's name.
    pub name: &'a str,
    /// The value of `--managed`, if it is given.
    pub managed: Option<Managed>,
    /// How many MiB of a device its processes may take, if not all.
    pub device_memory: Option<u32>,
    /// The folder that holds its store and, in `cwd`, its working directory.
    pub folder: &'a Path,
}

impl Place<'_> {
    /// The program's working directory.
    pub fn cwd(&self) -> PathBuf {
        self.folder.join("cwd")
    }

    /// Its store.
    pub fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// A `dormouse` command for this place.
    pub fn dormouse(&self, subcommand: &str) -> Command {
        let mut command = Command::new(self.kit.dormouse());
        command.arg(subcommand).current_dir(self.cwd()).stdin(Stdio::null());
        command
    }

    /// The command that runs a program under Dormouse.
    pub fn run_command(&self, program: &Path, args: &[String]) -> Command {
        let mut command = self.dormouse("run");
        command.args(["--name", self.name]).arg("--store").arg(self.store());
        self.choose_device(&mut command);
        // A restart is told neither: it has what the job had.
        command.args(self.managed.map(|managed| format!("--managed={}", managed.flag())));
        // Another machine bounds what is taken of its devices itself.
        let memory = self.device_memory.filter(|_| self.served.is_none());
        command.args(memory.map(|memory| format!("--device-memory={memory}M")));
        if self.managed == Some(Managed::User) {
            command.args(["--user-faults", "--"]).args(WITHOUT_RIGHT);
        } else {
            command.arg("--");
        }
        command.arg(program).args(args);
        command
    }

    fn choose_device(&self, command: &mut Command) {
        match self.served {
            Some(served) => served.used_by(command),
            None => drop(command.args(["--device", self.device.flag()])),
        }
    }

    /// Starts a program under Dormouse.
    pub fn run(&self, program: &Path, args: &[String]) -> anyhow::Result<Job> {
        Job::start(self.run_command(program, args))
    }

    /// Starts a program as it is.
    pub fn run_natively(&self, program: &Path, args: &[String]) -> anyhow::Result<Job> {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.cwd()).stdin(Stdio::null());
        Job::start(command)
    }

    /// The command that continues an image.
    pub fn restart_command(&self, image: &str) -> Command {
        let mut command = self.dormouse("restart");
        self.choose_device(&mut command);
        command.arg("--store").arg(self.store()).arg(image);
        command
    }

    /// Continues an image.
    pub fn restart(&self, image: &str) -> anyhow::Result<Job> {
        Job::start(self.restart_command(image))
    }

    /// Takes a checkpoint.
    pub fn checkpoint(&self, after: After) -> anyhow::Result<Checkpoint> {
        let output = self.checkpoint_command(after).output().context("cannot run dormouse checkpoint")?;
        Checkpoint::from_output(&output)
    }

    /// The command that takes a checkpoint.
    pub fn checkpoint_command(&self, after: After) -> Command {
        let mut command = self.dormouse("checkpoint");
        command.args([self.name, after.flag(), "--json"]);
        command
    }

    /// Suspends the job.
    pub fn suspend(&self) -> anyhow::Result<Suspension> {
        let output = self.asked("suspend").output().context("cannot run dormouse suspend")?;
        match output.status.code() {
            Some(0) => Ok(Suspension::Suspended),
            Some(code) if Checkpoint::NOT_THERE.contains(&code) => Ok(Suspension::Ended),
            Some(Checkpoint::NOT_RESTORABLE) => {
                Ok(Suspension::Refused(String::from_utf8_lossy(&output.stdout).into_owned()))
            }
            _ => bail!("the job is not suspended: {output:?}"),
        }
    }

    /// Has the job go on that was suspended.
    pub fn resume(&self) -> anyhow::Result<()> {
        let output = self.asked("resume").output().context("cannot run dormouse resume")?;
        ensure!(output.status.success(), "the job is not resumed: {output:?}");
        Ok(())
    }

    /// A `dormouse` command that asks the job's supervisor for something, and answers in JSON.
    pub fn asked(&self, subcommand: &str) -> Command {
        let mut command = self.dormouse(subcommand);
        command.args([self.name, "--json"]);
        command
    }

    /// Whether the job is among those that run.
    pub fn is_listed(&self, job: &Job) -> anyhow::Result<bool> {
        let output = self.dormouse("ps").arg("--json").output().context("cannot run dormouse ps")?;
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout).context("what ps says")?;
        let jobs = listed["jobs"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(jobs.iter().any(|each| each["supervisor"] == job.pid()))
    }

    /// The job's GPU servers.
    pub fn servers(&self, job: &Job) -> anyhow::Result<Vec<i32>> {
        let is_server = |pid: &i32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split('\0').nth(1) == Some("server")
        };
        Ok(tree::descendants(job.pid())?.into_iter().filter(is_server).collect())
    }

    /// All processes of the job: supervisor, servers, application.
    pub fn processes(&self, job: &Job) -> anyhow::Result<Vec<i32>> {
        let mut all = tree::descendants(job.pid())?;
        all.push(job.pid());
        Ok(all)
    }

    /// Kills application, servers and supervisor with SIGKILL, all at once, waits until they are gone, and answers with what
    /// was printed until then.
    pub fn kill_everything(&self, job: Job) -> anyhow::Result<Vec<u8>> {
        let (doomed, listed) = (self.processes(&job)?, Instant::now());
        tree::kill_all(&doomed);
        let stdout = job.finish()?.stdout;
        tree::wait_until_gone(&doomed, listed, Duration::from_secs(10)).context("after SIGKILL")?;
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

/// How a suspension went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suspension {
    /// It is suspended.
    Suspended,
    /// The job was over.
    Ended,
    /// The job holds what cannot be had again; what was said.
    Refused(String),
}

/// How a checkpoint went.
#[derive(Debug, Clone, PartialEq)]
pub enum Checkpoint {
    /// There is an image.
    Published(Report),
    /// The job was over.
    Ended,
    /// The job holds what cannot be restored; what was said.
    Refused(String),
}

/// What is said of a published image; only what the tests read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Report {
    /// The image.
    pub image: String,
    /// The longest any thread was stopped, ms.
    pub stall_ms: f64,
    /// Of it, device memory, ms.
    pub device_ms: f64,
    /// Of it, the host half, ms.
    pub host_ms: f64,
    /// From the request to the published image, ms.
    pub total_ms: f64,
    /// Launches of marked kernels that the image has half-way.
    pub half_way: u64,
}

impl Checkpoint {
    /// Exit codes of `dormouse checkpoint` for a job that is not there (any more).
    const NOT_THERE: [i32; 2] = [3, 11];
    const NOT_RESTORABLE: i32 = 6;

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
        if output.status.code() == Some(Self::NOT_RESTORABLE) {
            return Ok(Self::Refused(String::from_utf8_lossy(&output.stdout).into_owned()));
        }
        bail!(
            "the checkpoint failed ({}): {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    }
}
