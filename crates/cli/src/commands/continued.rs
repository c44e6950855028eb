//! Continuing an image in a process of its own, which outlives whoever asked: for a job that comes from another machine, or goes on with other options.

use super::again::repeated;
use crate::flags::{Cli, job_name};
use crate::notify::{Course, Wait};
use checkpoint::{Failure, Kind, runtime};
use clap::CommandFactory;
use image::ImageId;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use store::Location;

/// What decides whether an image can be restarted, of the options of a restart.
const DECISIVE: [&str; 6] = ["device", "gpu", "managed", "shared_memory", "device_memory", "visible-devices"];

/// What is said otherwise, or makes no sense here.
const OURS: [&str; 8] = ["store", "key", "name", "check", "may_run", "after", "arriving", "json"];

/// What is to be continued, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// The image's id.
    pub image: String,
    /// Its store, if that is not the one that is kept at the place.
    pub store: Option<Location>,
    /// What the job is to be called.
    pub job: String,
    /// Options of `dormouse restart`.
    pub options: Vec<String>,
    /// How long its start may take, seconds.
    pub within_s: u64,
}

impl Wanted {
    /// Fails for what no migration asks for.
    ///
    /// # Errors
    /// [`Kind::Usage`].
    pub fn check(&self) -> Result<(), Failure> {
        let odd =
            |what: &str| Failure::new(Kind::Usage, format!("{what:?} is no name of a job, or no image"));
        job_name(&self.job).map_err(|_| odd(&self.job))?;
        self.image.parse::<ImageId>().map_err(|_| odd(&self.image))?;
        check_options(&self.options)
    }
}

/// Where its image lies, and its output goes.
#[derive(Clone, Debug)]
pub struct Place {
    /// The store.
    pub store: Location,
    /// What opens it.
    pub keys: Vec<PathBuf>,
    /// The folder of `JOB.out` and `JOB.err`.
    pub output: PathBuf,
}

/// What another machine asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Question {
    /// [`check`].
    Check(Wanted),
    /// [`begin`], of an image that is on its way.
    Begin(Wanted),
    /// Have it go on: what was begun, if something was, or else [`start`].
    Start(Wanted),
}

/// What it would run on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checked {
    /// Where calls would go.
    pub device: String,
    /// What the program would find otherwise than it was.
    pub warnings: Vec<String>,
}

/// A job that goes on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Continued {
    /// The process that has it: `dormouse restart`.
    pub supervisor: u32,
    /// Where its standard output goes.
    pub stdout: PathBuf,
    /// Where its standard error, and what Dormouse says, goes.
    pub stderr: PathBuf,
}

/// Whether `options` are such as a restart can be given.
///
/// # Errors
/// [`Kind::Usage`], mostly in clap's words.
pub fn check_options(options: &[String]) -> Result<(), Failure> {
    match &given(options, |id| OURS.contains(&id))?[..] {
        [] => Ok(()),
        [first, ..] => {
            let message = format!("{} is no option for the other side", first.to_string_lossy());
            Err(Failure::new(Kind::Usage, message))
        }
    }
}

/// Whether it can be continued here, which changes nothing but that the files of its output are there, in the place of the job that this process has, or beside all others.
///
/// # Errors
/// Those of `dormouse restart --check`; [`Kind::Busy`] when another job has the name.
pub fn check(wanted: &Wanted, place: &Place, instead_of: Option<u32>) -> Result<Checked, Failure> {
    if let Ok(other) = runtime::find(&runtime::root(), &wanted.job)
        && Some(other.supervisor) != instead_of
    {
        let message = format!("a job {:?} runs there already: give this one another --name", wanted.job);
        return Err(Failure::new(Kind::Busy, message));
    }
    ["out", "err"].iter().try_for_each(|which| open(place, &wanted.job, which).map(drop))?;
    let mut command = restart(wanted, place)?;
    command.args(["--check", "--json", "--name", &wanted.job]);
    command.args(given(&wanted.options, |id| DECISIVE.contains(&id))?);
    command.args(instead_of.map(|_| "--may-run")).args(["--", &wanted.image]);
    let output = host::signals::unblocked(&mut command).output();
    let output = output.map_err(|error| Failure::of("cannot run dormouse restart", &error))?;
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Said {
        Failed { error: Failure },
        Checked(Checked),
    }
    match serde_json::from_slice(&output.stdout) {
        Ok(Said::Checked(checked)) => Ok(checked),
        Ok(Said::Failed { error }) => Err(error),
        Err(_) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim();
            Err(Failure::new(Kind::Failed, format!("dormouse restart --check: {}: {said}", output.status)))
        }
    }
}

/// Continues it, and comes back when it runs.
///
/// # Errors
/// [`Unstarted`].
pub fn start(wanted: &Wanted, place: &Place) -> Result<Continued, Unstarted> {
    begin(wanted, place, When::Now).map_err(Unstarted::Failed)?.finish()
}

/// When an image is continued.
#[derive(Clone, Copy)]
pub enum When {
    /// At once.
    Now,
    /// Behind the end of the job that this process has.
    After(u32),
    /// When it has come whole, and has its name, and [`Starting::finish`] is called: until then all is prepared.
    Arrived,
}

/// Begins to continue it.
///
/// # Errors
/// When `dormouse restart` cannot be run.
pub fn begin(wanted: &Wanted, place: &Place, when: When) -> Result<Starting, Failure> {
    let about = |error: io::Error| Failure::of("cannot start dormouse restart", &error);
    let (stdout, out) = open(place, &wanted.job, "out")?;
    let (stderr, err) = open(place, &wanted.job, "err")?;
    let wait = Wait::begin().map_err(about)?;
    let (name, socket) = wait.variable();
    let mut command = restart(wanted, place)?;
    command.arg(format!("--name={}", wanted.job)).args(&wanted.options);
    match when {
        When::Now => {}
        When::After(supervisor) => drop(command.arg(format!("--after={supervisor}"))),
        When::Arrived => drop(command.arg("--arriving")),
    }
    command.args(["--", &wanted.image]);
    // Not among those that a terminal's keys end.
    command.env(name, socket).stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    let child = host::signals::unblocked(&mut command).spawn().map_err(about)?;
    let within = Duration::from_secs(wanted.within_s);
    Ok(Starting { child, wait, stdout, stderr, within })
}

/// A job that is being continued.
pub struct Starting {
    child: Child,
    wait: Wait,
    stdout: PathBuf,
    stderr: PathBuf,
    within: Duration,
}

impl Starting {
    /// Lets it run, and comes back when it does.
    ///
    /// # Errors
    /// [`Unstarted`].
    pub fn finish(mut self) -> Result<Continued, Unstarted> {
        // One that has ended by now says why.
        let told = self.wait.lets_run();
        told.unwrap_or_else(|error| tracing::debug!(%error, "dormouse restart is not told"));
        let see = format!("see {}", self.stderr.display());
        let failed = |message: String| Failure::new(Kind::Failed, format!("{message}; {see}"));
        let failure = match self.wait.wait(&mut self.child, self.within) {
            Ok(Course::Runs) => {
                let supervisor = self.child.id();
                return Ok(Continued { supervisor, stdout: self.stdout, stderr: self.stderr });
            }
            Ok(Course::Fails(failure)) => {
                // It has nothing more to do.
                let _ = self.child.wait();
                failure
            }
            Ok(Course::Ended(status)) => {
                failed(format!("dormouse restart ended before it said that the program runs: {status}"))
            }
            Ok(Course::Late) => {
                self.give_up();
                let seconds = self.within.as_secs();
                failed(format!("it did not run within {seconds} s, and was ended (--start-within)"))
            }
            Err(error) => {
                self.give_up();
                Failure::of("cannot wait for dormouse restart", &error)
            }
        };
        // Only now, since it may have said so until its end.
        if !self.wait.may_have_run() {
            return Err(Unstarted::Failed(failure));
        }
        let message = format!("{}; its program may have run until then", failure.message);
        Err(Unstarted::Unknown(Failure { message, ..failure }))
    }

    /// Nothing of it is left: a job ends with its supervisor.
    pub fn give_up(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why a job has not been started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Unstarted {
    /// It could not be, and nothing of it runs there, or has run.
    Failed(Failure),
    /// It may have run there, or still run: the place has been lost meanwhile, or the job there when it might run. It must not run anywhere else by itself.
    Unknown(Failure),
}

fn restart(wanted: &Wanted, place: &Place) -> Result<Command, Failure> {
    let program =
        std::env::current_exe().map_err(|error| Failure::of("cannot find this program's file", &error))?;
    let mut command = Command::new(program);
    command.arg("restart").arg("--store").arg(wanted.store.as_ref().unwrap_or(&place.store).to_path());
    for key in &place.keys {
        command.arg("--key").arg(key);
    }
    Ok(command)
}

/// Those options of a restart that are `taken`.
fn given(options: &[String], taken: impl Fn(&str) -> bool) -> Result<Vec<OsString>, Failure> {
    let cli = Cli::command();
    let options = options.iter().map(String::as_str);
    let line = ["dormouse", "restart"].into_iter().chain(options).chain(["--", "IMAGE"]);
    let usage = |error: clap::Error| Failure::new(Kind::Usage, error.to_string().trim_end().to_owned());
    let given = cli.clone().try_get_matches_from(line).map_err(usage)?;
    let (Some((_, given)), Some(restart)) = (given.subcommand(), cli.find_subcommand("restart")) else {
        return Err(Failure::new(Kind::Usage, "these are no options of dormouse restart"));
    };
    Ok(repeated(given, restart, taken))
}

/// The file that what a job writes is appended to.
fn open(place: &Place, job: &str, which: &str) -> Result<(PathBuf, File), Failure> {
    let path = place.output.join(format!("{job}.{which}"));
    let mut options = OpenOptions::new();
    // What a program says is its user's, who was root there.
    options.append(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let opened = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&place.output)
        .and_then(|()| options.open(&path))
        .map_err(|error| {
            Failure::of(format_args!("cannot write the job's output to {}", path.display()), &error)
        })?;
    Ok((path, opened))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    const MAY_RUN: &str = "X_DORMOUSE_MAY_RUN=1";
    const LONG: Duration = Duration::from_secs(60);

    /// A process that says nothing by itself, in the place of a restart; and something to say it by.
    fn starting(seconds: &str, within: Duration) -> (Starting, impl Fn(&str) + Send + 'static) {
        let wait = Wait::begin().unwrap();
        let at = wait.variable().1;
        let child = Command::new("sleep").arg(seconds).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap();
        let socket = UnixDatagram::unbound().unwrap();
        let say = move |what: &str| {
            socket.send_to(what.as_bytes(), &at).unwrap();
        };
        (Starting { child, wait, stdout: PathBuf::new(), stderr: PathBuf::new(), within }, say)
    }

    #[test]
    fn what_no_migration_asks_for_is_not_done() {
        let fine = Wanted {
            image: "07".repeat(16),
            store: None,
            job: "train".to_owned(),
            options: vec!["--every=5m".to_owned()],
            within_s: 60,
        };
        fine.check().unwrap();
        for bad in [
            Wanted { job: "../../etc/cron.d/x".to_owned(), ..fine.clone() },
            Wanted { job: "/x".to_owned(), ..fine.clone() },
            Wanted { image: "--check".to_owned(), ..fine.clone() },
            Wanted { image: "train".to_owned(), ..fine.clone() },
            Wanted { options: vec!["--store=/x".to_owned()], ..fine.clone() },
            Wanted { options: vec!["--after=1".to_owned()], ..fine.clone() },
            Wanted { options: vec!["--arriving".to_owned()], ..fine },
        ] {
            assert_eq!(bad.check().unwrap_err().kind, Kind::Usage, "{bad:?}");
        }
    }

    /// Whoever hears that it has failed has the program go on elsewhere.
    #[test]
    fn what_may_have_run_has_not_just_failed() {
        let failure = serde_json::to_string(&Failure::new(Kind::Failed, "no such server")).unwrap();
        let fails = format!("X_DORMOUSE_FAILURE={failure}");
        let ways = [("60", Duration::ZERO, "--start-within"), ("0.2", LONG, "ended before it said")];
        for (seconds, within, word) in ways {
            let (starting, _) = starting(seconds, within);
            let Err(Unstarted::Failed(failure)) = starting.finish() else { panic!("it has not run: {word}") };
            assert!(failure.message.contains(word), "{failure}");
        }
        let (failing, say) = starting("0.2", LONG);
        say(&fails);
        assert!(matches!(failing.finish(), Err(Unstarted::Failed(_))));
        for (then, word) in [("STATUS=on its way", "ended before it said"), (&*fails, "no such server")] {
            // However little time it had.
            let (starting, say) = starting("0.2", Duration::ZERO);
            say(MAY_RUN);
            say(then);
            let Err(Unstarted::Unknown(failure)) = starting.finish() else { panic!("it may have: {word}") };
            assert!(failure.message.contains(word), "{failure}");
            assert!(failure.message.ends_with("its program may have run until then"), "{failure}");
        }
    }

    #[test]
    fn what_may_run_is_not_late() {
        let (starting, say) = starting("2", Duration::ZERO);
        let pid = starting.child.id();
        say(MAY_RUN);
        let saying = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            say("READY=1");
        });
        let continued = starting.finish().unwrap();
        saying.join().unwrap();
        assert_eq!(continued.supervisor, pid);
    }

    #[test]
    fn a_check_is_told_what_decides() {
        let options = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let all = options("--visible-devices 1,0 --every 5m --keep-last 2 --device soft");
        check_options(&all).unwrap();
        let words = given(&all, |id| DECISIVE.contains(&id)).unwrap();
        assert_eq!(words, ["--device=soft", "--visible-devices=1,0"]);
        for wrong in ["--nmae x", "another", "--visible-devices", "--store /x", "-n x"] {
            assert_eq!(check_options(&options(wrong)).unwrap_err().kind, Kind::Usage, "{wrong}");
        }
    }
}
