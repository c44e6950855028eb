//! Continuing an image in a process of its own, which outlives whoever asked: for a job that comes from another machine, or goes on with other options.

use super::again::repeated;
use crate::flags::Cli;
use crate::notify::{Course, Wait};
use checkpoint::{Failure, Kind};
use clap::CommandFactory;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use store::Location;

/// What decides whether an image can be restarted, of the options of a restart.
const DECISIVE: [&str; 6] = ["device", "gpu", "managed", "shared_memory", "device_memory", "visible-devices"];

/// What is said otherwise, or makes no sense here.
const OURS: [&str; 6] = ["store", "key", "name", "check", "may_run", "json"];

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
    /// [`start`].
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

/// Whether it can be continued here, which changes nothing. The job may still run.
///
/// # Errors
/// Those of `dormouse restart --check`.
pub fn check(wanted: &Wanted, place: &Place) -> Result<Checked, Failure> {
    let mut command = restart(wanted, place)?;
    command
        .args(["--check", "--may-run", "--json"])
        .args(given(&wanted.options, |id| DECISIVE.contains(&id))?)
        .arg(&wanted.image);
    let output = command.output().map_err(|error| Failure::of("cannot run dormouse restart", &error))?;
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
/// Those of `dormouse restart`: then nothing of it runs.
pub fn start(wanted: &Wanted, place: &Place) -> Result<Continued, Failure> {
    let about = |error: io::Error| Failure::of("cannot start dormouse restart", &error);
    let (stdout, out) = open(place, &wanted.job, "out")?;
    let (stderr, err) = open(place, &wanted.job, "err")?;
    let wait = Wait::begin().map_err(about)?;
    let (name, socket) = wait.variable();
    let mut command = restart(wanted, place)?;
    command.arg(format!("--name={}", wanted.job)).args(&wanted.options).arg(&wanted.image);
    // Not among those that a terminal's keys end.
    command.env(name, socket).stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    let mut child = command.spawn().map_err(about)?;
    match wait.wait(&mut child).map_err(about)? {
        Course::Runs => Ok(Continued { supervisor: child.id(), stdout, stderr }),
        Course::Fails(failure) => {
            // It has nothing more to do.
            let _ = child.wait();
            Err(failure)
        }
        Course::Ended(status) => {
            let message =
                format!("dormouse restart ended before the program ran: {status}; see {}", stderr.display());
            Err(Failure::new(Kind::Failed, message))
        }
    }
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
    let opened = fs::create_dir_all(&place.output)
        .and_then(|()| OpenOptions::new().append(true).create(true).open(&path))
        .map_err(|error| {
            Failure::of(format_args!("cannot write the job's output to {}", path.display()), &error)
        })?;
    Ok((path, opened))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
