//! A running program under test, and what it left when it has ended.

use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::capture::Capture;
use crate::outcome::Exit;
use crate::tree::Tree;

/// Nothing here takes longer, unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(180);

/// A running program: `dormouse run`, `dormouse restart`, or the guest itself.
#[derive(Debug)]
pub struct Job {
    child: Tree,
    started: Instant,
    /// Its standard output.
    pub stdout: Capture,
    /// Its standard error.
    pub stderr: Capture,
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
    /// Starts a command with a pipe for its standard output and one for its standard error.
    pub fn start(mut command: Command) -> anyhow::Result<Self> {
        let (stdout, stdout_end) = std::io::pipe().context("cannot make a pipe")?;
        let (stderr, stderr_end) = std::io::pipe().context("cannot make a pipe")?;
        command.stdout(stdout_end).stderr(stderr_end);
        Self::spawn(command, stdout, stderr)
    }

    /// Starts a command with one pipe for both, as `2>&1` does.
    pub fn start_merged(mut command: Command) -> anyhow::Result<Self> {
        let (stdout, stdout_end) = std::io::pipe().context("cannot make a pipe")?;
        let stderr_end = stdout_end.try_clone().context("cannot share a pipe")?;
        command.stdout(stdout_end).stderr(stderr_end);
        Self::spawn(command, stdout, std::io::empty())
    }

    fn spawn(
        mut command: Command,
        stdout: impl Read + Send + 'static,
        stderr: impl Read + Send + 'static,
    ) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = Tree::new(
            host::signals::unblocked(&mut command).spawn().with_context(|| format!("cannot run {name}"))?,
        );
        // The command holds the writing ends: the pipes end when nobody does.
        drop(command);
        let (stdout, stderr) = (Capture::start(stdout), Capture::start(stderr));
        Ok(Self { child, started: Instant::now(), stdout, stderr })
    }

    /// The pid of what was started.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Sends a signal to the program that was started.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.pid()).context("a child has a pid")?;
        kill_process(pid, signal).context("cannot send a signal")
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for the end; kills the job and fails when it does not come.
    pub fn finish(mut self) -> anyhow::Result<Finished> {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
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
