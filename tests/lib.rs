//! Tests of the whole: each runs programs through the `dormouse` command of a kit made by `cargo xtask kit`.

pub mod elsewhere;
pub mod faults;
pub mod planned;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use tempfile::TempDir;
use testkit::job::{Finished, Job, LIMIT};
use testkit::kit::Kit;
use testkit::place::{After, Checkpoint, Device, Place, Report};
use testkit::served::Served;
use testkit::suite::job_name;

/// A test of whole jobs, on a device.
pub type Body = fn(Device) -> anyhow::Result<()>;

/// Every such test that the test harness runs in CI and a bundle's check on a GPU, and what it is called.
pub fn bodies() -> impl Iterator<Item = (&'static str, Body)> {
    faults::ALL.iter().chain(planned::ALL).copied()
}

/// The guest for tests that want a job which goes on for some seconds, whatever it computes: it makes a hundred steps in a second or
/// somewhat more, and leaves the processor to other tests.
pub const PACED: &str = "paced";

/// A job's place that cleans up after itself.
#[derive(Debug)]
pub struct Stage {
    kit: Kit,
    device: Device,
    name: String,
    folder: TempDir,
}

impl Stage {
    /// A fresh place for a job.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        Self::on(Device::of_this_machine(), name)
    }

    /// The same, on a device.
    pub fn on(device: Device, name: &str) -> anyhow::Result<Self> {
        let kit = Kit::locate()?;
        let folder =
            tempfile::Builder::new().prefix("dormouse-test-").tempdir().context("cannot make a folder")?;
        let stage = Self { kit, device, name: job_name(name), folder };
        std::fs::create_dir_all(stage.place().cwd()).context("cannot make a working directory")?;
        Ok(stage)
    }

    /// The place.
    pub fn place(&self) -> Place<'_> {
        Place {
            kit: &self.kit,
            device: self.device,
            served: None,
            name: &self.name,
            managed: None,
            device_memory: None,
            folder: self.folder.path(),
        }
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A guest's program.
    pub fn guest(&self, name: &str) -> PathBuf {
        self.kit.guest(name)
    }

    /// The command that runs Python, in a job or natively, with the kit's package.
    pub fn python(&self, in_a_job: bool, args: &[&str]) -> Command {
        let mut command = if in_a_job {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            self.place().run_command(Path::new("python3"), &args)
        } else {
            let mut command = Command::new("python3");
            command.args(args);
            command
        };
        command.env("PYTHONPATH", self.kit.part("python"));
        command
    }

    /// The command that runs a guest.
    pub fn command(&self, guest: &str, args: &[&str]) -> Command {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        self.place().run_command(&self.guest(guest), &args)
    }

    /// The command that runs a guest with more flags.
    pub fn command_with<F: AsRef<OsStr>>(&self, flags: &[F], guest: &str, args: &[&str]) -> Command {
        let place = self.place();
        let mut command = place.dormouse("run");
        command
            .args(["--name", place.name, "--device", place.device.flag()])
            .arg("--store")
            .arg(place.store());
        command.args(flags).arg("--").arg(self.guest(guest)).args(args);
        command
    }

    /// Another machine that serves a device at an address of this one, and is not known to its client yet.
    pub fn served(&self, device: Device, listen: &str) -> anyhow::Result<Served> {
        Served::begin(&self.kit, device, (self.folder.path(), listen), |_| {})
    }

    /// One that serves so many software devices.
    pub fn served_devices(&self, count: u32) -> anyhow::Result<Served> {
        Served::begin(&self.kit, Device::Soft, (self.folder.path(), "127.0.0.1"), |command| {
            command.env_remove("CUDA_VISIBLE_DEVICES").env("DORMOUSE_SOFT_DEVICES", count.to_string());
        })
    }

    /// One that serves the software device by RDMA, too, with this librdmacm.
    pub fn served_by_rdma(&self, library: &Path) -> anyhow::Result<Served> {
        Served::begin(&self.kit, Device::Soft, (self.folder.path(), "127.0.0.1"), |command| {
            command.arg("--rdma").env("DORMOUSE_RDMACM", library);
        })
    }

    /// Another machine that takes over jobs of a client that has these `rights`, and is known to it; what they bring and write is in `folder`.
    pub fn receiving(&self, folder: &Path, rights: &[&str], listen: &str) -> anyhow::Result<Served> {
        self.receiving_with(folder, rights, listen, |_| {})
    }

    /// The same, with more than that.
    pub fn receiving_with(
        &self,
        folder: &Path,
        rights: &[&str],
        listen: &str,
        also: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Served> {
        let store = folder.join("store");
        let served = Served::receiving(&self.kit, &store, rights, (self.folder.path(), listen), also)?;
        served.is_trusted()?;
        Ok(served)
    }

    /// The command that runs a guest whose device is another machine's.
    pub fn command_at(&self, served: &Served, guest: &str, args: &[&str]) -> Command {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        Place { served: Some(served), ..self.place() }.run_command(&self.guest(guest), &args)
    }

    /// The command that continues an image with another machine's device.
    pub fn restart_at(&self, served: &Served, image: &str) -> Command {
        Place { served: Some(served), ..self.place() }.restart_command(image)
    }

    /// The command that runs a script of the shell.
    pub fn shell(&self, script: &str) -> Command {
        self.place().run_command("/bin/sh".as_ref(), &["-c".to_owned(), script.to_owned()])
    }

    /// The command that runs a guest whose output goes to a file that the job itself opens, for appending.
    pub fn command_into_file(&self, guest: &str, args: &[&str], file: &str) -> Command {
        let script = format!("exec \"$0\" \"$@\" >>{file}");
        let guest = self.guest(guest).display().to_string();
        let words = ["-c", &script, &guest].into_iter().chain(args.iter().copied());
        let words: Vec<String> = words.map(str::to_owned).collect();
        self.place().run_command("/bin/sh".as_ref(), &words)
    }

    /// Starts a guest and waits for its first line.
    pub fn started(&self, guest: &str, args: &[&str]) -> anyhow::Result<Job> {
        first_line(Job::start(self.command(guest, args))?)
    }

    /// What [`PACED`] does undisturbed, with the pauses left out.
    pub fn undisturbed(&self, args: &[&str]) -> anyhow::Result<Finished> {
        let mut command = self.command(PACED, args);
        command.env("GUEST_IN_A_HURRY", "1");
        planned::finish(command)
    }

    /// The file that guests which are held wait for.
    fn told(&self) -> PathBuf {
        self.folder.path().join("told")
    }

    /// The command that runs a guest which is not over before [`Self::let_end`]: however slow this machine is, what the test does
    /// meanwhile is done to a job that runs.
    pub fn held_command(&self, guest: &str, args: &[&str]) -> Command {
        let mut command = self.command(guest, args);
        self.hold(&mut command);
        command
    }

    /// Holds the guests that a command runs, likewise, whatever those before were told.
    pub fn hold(&self, command: &mut Command) {
        let _ = std::fs::remove_file(self.told());
        command.env("GUEST_LAST_LINE_AFTER", self.told());
    }

    /// Starts such a guest and waits for its first line.
    pub fn held(&self, guest: &str, args: &[&str]) -> anyhow::Result<Job> {
        self.held_by(self.command(guest, args))
    }

    /// Starts a command that runs such guests, likewise.
    pub fn held_by(&self, mut command: Command) -> anyhow::Result<Job> {
        self.hold(&mut command);
        first_line(Job::start(command)?)
    }

    /// Lets guests that are held come to their end, those that are restarted later also.
    pub fn let_end(&self) -> anyhow::Result<()> {
        std::fs::write(self.told(), "").context("cannot tell the guests to end")
    }

    /// Lets a job come to its end, and waits for that.
    pub fn finish(&self, job: Job) -> anyhow::Result<Finished> {
        self.let_end()?;
        job.finish()
    }

    /// Takes a checkpoint that must succeed, and answers with the image.
    pub fn checkpoint(&self, after: After) -> anyhow::Result<String> {
        Ok(self.reported_checkpoint(after)?.image)
    }

    /// The same; all that is said of it.
    pub fn reported_checkpoint(&self, after: After) -> anyhow::Result<Report> {
        match self.place().checkpoint(after)? {
            Checkpoint::Published(report) => Ok(report),
            Checkpoint::Ended => bail!("the job was over before its checkpoint"),
            Checkpoint::Refused(why) => bail!("the checkpoint was refused: {why}"),
        }
    }

    /// Takes a checkpoint that must fail.
    pub fn refused_checkpoint(&self, extra: &[&str]) -> anyhow::Result<Failure> {
        let mut command = self.place().checkpoint_command(After::LeaveRunning);
        Failure::of(&command.args(extra).output().context("cannot run dormouse checkpoint")?)
    }

    /// The images that `dormouse ls` lists.
    pub fn images(&self) -> anyhow::Result<Vec<String>> {
        let store = self.place().store();
        if !store.join("config").exists() {
            return Ok(Vec::new());
        }
        let mut command = self.place().dormouse("ls");
        let output =
            command.arg("--json").arg("--store").arg(store).output().context("cannot run dormouse ls")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "dormouse ls failed: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let listing: Listing = serde_json::from_str(&said).context("dormouse ls said something else")?;
        Ok(listing.images.into_iter().map(|image| image.id).collect())
    }

    /// What `dormouse inspect` says of an image.
    pub fn inspect(&self, image: &str) -> anyhow::Result<serde_json::Value> {
        let mut command = self.place().dormouse("inspect");
        command.args([image, "--json", "--store"]).arg(self.place().store());
        let output = command.output().context("cannot run dormouse inspect")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).context("dormouse inspect said something else")
    }
}

/// What is read of `dormouse ls --json`.
#[derive(Deserialize)]
struct Listing {
    images: Vec<Image>,
}

#[derive(Deserialize)]
struct Image {
    id: String,
}

/// Waits for a job's first line.
pub fn first_line(job: Job) -> anyhow::Result<Job> {
    if job.stdout.wait_for_line(LIMIT) {
        return Ok(job);
    }
    let finished = job.finish()?;
    bail!("the job printed nothing; {}; stderr: {}", finished.exit, finished.stderr)
}

/// How a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its exit code.
    pub code: Option<i32>,
    /// All it said.
    pub message: String,
}

impl Failure {
    /// The failure of a command that must have failed.
    pub fn of(output: &Output) -> anyhow::Result<Self> {
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let message = String::from_utf8_lossy(&said).into_owned();
        ensure!(!output.status.success(), "this was to fail: {message}");
        Ok(Self { code: output.status.code(), message })
    }

    /// Checks exit code and message.
    #[track_caller]
    pub fn expect(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "exit code; it said: {}", self.message);
        for word in words {
            assert!(self.message.contains(word), "{word:?} is not in: {}", self.message);
        }
    }
}

/// The number that an environment variable is, or else this.
///
/// # Errors
/// When it is none.
pub fn number<T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    name: &str,
    default: T,
) -> anyhow::Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text} is not a number")),
        Err(_) => Ok(default),
    }
}

/// A small file system of its own, unmounted at the end.
#[derive(Debug)]
pub struct Mount(PathBuf);

impl Mount {
    /// A tmpfs at `path`.
    pub fn tmpfs(path: PathBuf, options: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&path).context("cannot make a folder")?;
        // Seen by this thread and what it starts alone: jobs of other tests must not have it among their mounts.
        // SAFETY: only this thread's view of the file system changes, and no file is open by a path in it.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
            .context("cannot make a mount namespace")?;
        let mut private = Command::new("mount");
        ensure!(private.args(["--make-rprivate", "/"]).status()?.success(), "cannot make mounts private");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(&path);
        ensure!(mount.status()?.success(), "cannot mount a tmpfs at {}", path.display());
        Ok(Self(path))
    }

    /// Gives it room for so many bytes.
    pub fn resize(&self, bytes: u64) -> anyhow::Result<()> {
        let mut mount = Command::new("mount");
        mount.arg("-o").arg(format!("remount,size={bytes}")).arg(&self.0);
        ensure!(mount.status()?.success(), "cannot make {} of {bytes} bytes", self.0.display());
        Ok(())
    }

    /// How many bytes of it are used.
    pub fn used(&self) -> anyhow::Result<u64> {
        let about = rustix::fs::statvfs(&self.0)?;
        Ok((about.f_blocks - about.f_bfree) * about.f_frsize)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
