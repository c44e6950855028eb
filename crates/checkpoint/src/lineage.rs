//! One life at a time: a job and everything restarted from its images share the files it writes and the ports it listens on,
//! so at most one of them runs. Whoever does holds the lock of `$RUNTIME/dormouse/.lineages/LINEAGE`, which has its name in it and
//! its init: a killed supervisor's lock is free before the last of its processes is gone.

use crate::error::{Failure, Kind};
use crate::lock;
use image::Lineage;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Among the folders of jobs, whose names do not begin with a dot.
const FOLDER: &str = ".lineages";
/// How long the processes of a killed supervisor may take to end.
const END: Duration = Duration::from_secs(10);
/// Between two looks at them.
const NAP: Duration = Duration::from_millis(2);

/// A lineage that has not been seen before.
///
/// # Errors
/// When the kernel has no random bytes.
pub fn fresh() -> Result<Lineage, Failure> {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => Ok(Lineage(bytes)),
        Ok(_) => Err(Failure::new(Kind::Failed, "the kernel gave fewer random bytes than asked for")),
        Err(error) => Err(Failure::of("cannot get random bytes", &error)),
    }
}

/// The right to run a job of some lineage, until this is dropped.
#[derive(Debug)]
pub struct Life {
    path: PathBuf,
    // Held, never read: the lock goes with it.
    _lock: OwnedFd,
}

impl Life {
    /// Begins a life of `lineage` as the job `name`.
    ///
    /// # Errors
    /// [`Kind::Busy`] while another runs, naming it.
    pub fn begin(root: &Path, lineage: Lineage, name: &str) -> Result<Self, Failure> {
        let folder = root.join(FOLDER);
        let path = folder.join(lineage.to_string());
        let fail = |error: io::Error| Failure::of(format_args!("cannot use {}", path.display()), &error);
        fs::create_dir_all(&folder).map_err(fail)?;
        let Some(lock) = lock::take(&path).map_err(fail)? else { return Err(lives(&path)) };
        let began = Instant::now();
        while Living::lingers(&path) {
            if began.elapsed() > END {
                return Err(lives(&path));
            }
            std::thread::sleep(NAP);
        }
        let life = Self { path: path.clone(), _lock: lock };
        life.write(&Living { job: name.to_owned(), init: None }).map_err(fail)?;
        forget_the_dead(&folder);
        Ok(life)
    }

    /// Notes the init of the job `name`, with which every process of the job ends.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note_init(&self, name: &str, pid: i32) -> io::Result<()> {
        self.write(&Living { job: name.to_owned(), init: Process::find(pid) })
    }

    /// What is left of it if this process is killed, until the next life removes it.
    #[must_use]
    pub fn trace(&self) -> &Path {
        &self.path
    }

    fn write(&self, living: &Living) -> io::Result<()> {
        fs::write(&self.path, serde_json::to_vec(living)?)
    }
}

/// Fails while a job of `lineage` runs.
///
/// # Errors
/// [`Kind::Busy`], naming it.
pub fn check(root: &Path, lineage: Lineage) -> Result<(), Failure> {
    let path = root.join(FOLDER).join(lineage.to_string());
    match lock::try_existing(&path) {
        Ok(None) => Err(lives(&path)),
        Ok(Some(_)) if Living::lingers(&path) => Err(lives(&path)),
        Ok(Some(_)) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::of(format_args!("cannot use {}", path.display()), &error)),
    }
}

/// What the file of a lineage says.
#[derive(Serialize, Deserialize)]
struct Living {
    job: String,
    /// Once there is one.
    init: Option<Process>,
}

impl Living {
    fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Whether something is left of a life whose supervisor is gone. An init ends after every process of its namespace.
    fn lingers(path: &Path) -> bool {
        Self::read(path).and_then(|living| living.init).is_some_and(|init| init.is_alive())
    }
}

/// A process, told from a later one with the same pid.
#[derive(PartialEq, Debug, Serialize, Deserialize)]
struct Process {
    pid: i32,
    /// When it started, as `/proc/PID/stat` counts.
    started: u64,
}

impl Process {
    /// The process that has this pid now, unless it is over and only waited for.
    fn find(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name comes in parentheses and may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        let started = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Self { pid, started })
    }

    fn is_alive(&self) -> bool {
        Self::find(self.pid).as_ref() == Some(self)
    }
}

fn lives(path: &Path) -> Failure {
    // Whoever holds the lock may be about to write its name.
    let job =
        Living::read(path).map_or_else(|| "the image's job".to_owned(), |job| format!("job {:?}", job.job));
    let message = format!(
        "{job} is still running; it is the one of this image or was restarted from one of its images, and a restart \
         would write the same files: stop it, or wait until it has ended"
    );
    Failure::new(Kind::Busy, message)
}

/// Removes the files of lives that were killed.
fn forget_the_dead(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Ok(Some(_held)) = lock::try_existing(&path)
            && !Living::lingers(&path)
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::debug!("{}: {error}", path.display());
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!("{}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_life_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let lineage = fresh().unwrap();
        check(root.path(), lineage).unwrap();
        let life = Life::begin(root.path(), lineage, "first").unwrap();
        for failure in [
            Life::begin(root.path(), lineage, "second").unwrap_err(),
            check(root.path(), lineage).unwrap_err(),
        ] {
            assert_eq!(failure.kind, Kind::Busy);
            assert!(failure.message.contains("job \"first\""), "{failure}");
            assert!(!failure.message.contains("--name"), "{failure}");
        }
        let other = Life::begin(root.path(), fresh().unwrap(), "other").unwrap();
        drop(life);
        check(root.path(), lineage).unwrap();
        drop(Life::begin(root.path(), lineage, "third").unwrap());
        drop(other);
        assert_eq!(fs::read_dir(root.path().join(FOLDER)).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_supervisor_left_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let (folder, dead) = (root.path().join(FOLDER), fresh().unwrap());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(dead.to_string()), "killed").unwrap();
        check(root.path(), dead).unwrap();
        let _life = Life::begin(root.path(), fresh().unwrap(), "next").unwrap();
        assert!(!folder.join(dead.to_string()).exists());
    }

    #[test]
    fn the_processes_of_a_killed_supervisor_are_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let lineage = fresh().unwrap();
        let mut init = std::process::Command::new("sleep").arg("0.5").spawn().unwrap();
        let life = Life::begin(root.path(), lineage, "killed").unwrap();
        life.note_init("killed", init.id() as i32).unwrap();
        // As a killed process leaves it: unlocked, but there.
        let (path, left) = (life.path.clone(), fs::read(&life.path).unwrap());
        drop(life);
        fs::write(&path, left).unwrap();
        assert_eq!(check(root.path(), lineage).unwrap_err().kind, Kind::Busy);
        let _other = Life::begin(root.path(), fresh().unwrap(), "other").unwrap();
        let _life = Life::begin(root.path(), lineage, "next").unwrap();
        assert_eq!(Process::find(init.id() as i32), None);
        init.wait().unwrap();
    }

    #[test]
    fn a_process_is_told_from_a_later_one() {
        let own = Process::find(std::process::id() as i32).unwrap();
        assert!(own.is_alive());
        assert!(!Process { started: own.started + 1, ..own }.is_alive());
    }

    #[test]
    fn of_two_at_once_one_runs() {
        let root = tempfile::tempdir().unwrap();
        let lineage = fresh().unwrap();
        for _ in 0..5 {
            let lives: Vec<_> = std::thread::scope(|scope| {
                let each: Vec<_> = ["a", "b", "c"]
                    .map(|name| scope.spawn(|| Life::begin(root.path(), lineage, name)))
                    .into_iter()
                    .collect();
                each.into_iter().map(|each| each.join().unwrap()).collect()
            });
            assert_eq!(lives.iter().filter(|life| life.is_ok()).count(), 1);
        }
    }
}
