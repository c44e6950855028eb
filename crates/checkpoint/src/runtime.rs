//! The folder of a running job, `$RUNTIME/dormouse/JOB/`: `lock` (held by the supervisor for its life), `job.json` (what `ps`
//! shows), `admin.sock` (where a checkpoint is asked for). A folder whose lock nobody holds is left over and is removed.

use crate::error::{Failure, Kind};
use crate::lineage::Life;
use crate::lock;
use image::Lineage;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use server::memory::Managed;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::Location;

/// How often it is looked whether a supervisor has ended.
const NAP: Duration = Duration::from_millis(5);

/// What is known of a running job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JobFacts {
    /// Its name.
    pub job: String,
    /// What it has in common with its images and with whatever is restarted from them.
    pub lineage: Lineage,
    /// Pid of its supervisor.
    pub supervisor: u32,
    /// When it was started, in ns since 1970 UTC.
    pub started_ns: u64,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Which device was asked for.
    pub device: String,
    /// How its managed memory is had.
    #[serde(default)]
    pub managed: Managed,
    /// Its store.
    pub store: Location,
    /// For whom its store is encrypted, if the job is to make it so.
    #[serde(default)]
    pub recipients: Vec<String>,
    /// The image it was restarted from.
    pub restarted_from: Option<String>,
    /// How much of its device memory is filled, as long as that is not all.
    #[serde(skip)]
    pub filling: Option<Filled>,
    /// That it is suspended, if it is.
    #[serde(skip)]
    pub sleep: Option<Sleep>,
}

/// How much of a job's device memory holds what it is to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Filled {
    /// Bytes that do.
    pub done: u64,
    /// Of how many.
    pub total: u64,
}

/// A job that is suspended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sleep {
    /// Since when, in ns since 1970 UTC.
    pub since_ns: u64,
    /// What its device memory takes of the host's, bytes.
    pub bytes: u64,
    /// Or of the job's store.
    pub stored: u64,
    /// The GPUs that it had; without a list, all of the machine.
    pub gpus: Option<String>,
}

/// A job's folder, claimed: nobody else can use the name until this is dropped.
#[derive(Debug)]
pub struct JobFolder {
    path: PathBuf,
    // Held: the locks go with them, the folder's last, since that is what others wait for.
    life: Life,
    lock: File,
}

/// The file in a job's folder that its supervisor holds.
const LOCK: &str = "lock";
/// What is written there by a supervisor that ends by itself.
const ENDED: &[u8] = b"ended\n";
/// The socket in a job's folder on which its supervisor listens.
const ADMIN_SOCKET: &str = "admin.sock";
/// The file that says how far the filling of memory is.
const FILLING: &str = "filling.json";

/// The file that says that the job is suspended.
const SLEEP: &str = "sleep.json";

/// Where it is noted what becomes of a running job.
#[derive(Clone, Debug)]
pub struct Notes(PathBuf);

impl Notes {
    /// Of the running job of this name.
    #[must_use]
    pub fn of(root: &Path, job: &str) -> Self {
        Self(root.join(job))
    }

    /// Says how much of the job's memory is filled, as long as that is not all.
    pub fn note_filling(&self, filled: Option<Filled>) {
        self.note(FILLING, filled);
    }

    /// Says that the job is suspended, as long as it is.
    pub fn note_sleep(&self, sleep: Option<Sleep>) {
        self.note(SLEEP, sleep);
    }

    fn note<T: Serialize>(&self, name: &str, what: Option<T>) {
        let (path, fresh) = (self.0.join(name), self.0.join(format!("{name}.new")));
        let noted = match what.map(|what| serde_json::to_vec(&what)) {
            Some(Ok(text)) => fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &path)),
            Some(Err(error)) => Err(error.into()),
            None => fs::remove_file(&path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
        };
        if let Err(error) = noted {
            tracing::debug!("{}: {error}", path.display());
        }
    }
}

/// Where the folders of all jobs lie.
#[must_use]
pub fn root() -> PathBuf {
    let base = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !rustix::process::geteuid().is_root() => PathBuf::from(dir),
        _ => PathBuf::from("/run"),
    };
    base.join("dormouse")
}

/// Where the supervisor of the job of this name listens.
#[must_use]
pub fn admin_socket(root: &Path, job: &str) -> PathBuf {
    root.join(job).join(ADMIN_SOCKET)
}

/// Whether `name` can name a job: it becomes a folder and part of messages.
///
/// # Errors
/// [`Kind::Failed`] saying what is allowed.
pub fn check_name(name: &str) -> Result<(), Failure> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(good) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(Failure::new(
        Kind::Failed,
        format!(
            "a job cannot be named {name:?}: use 1 to 64 letters, digits, '-', '_' and '.', not starting with '-' or '.'"
        ),
    ))
}

/// What is said of a name that another job has.
#[must_use]
pub fn name_in_use(name: &str) -> Failure {
    let message = format!("a job named {name:?} is running already; choose another name with --name");
    Failure::new(Kind::Busy, message)
}

impl JobFolder {
    /// Claims the name of a job and its lineage.
    ///
    /// # Errors
    /// [`Kind::Busy`] when a job of that lineage runs, or one of that name.
    pub fn claim(root: &Path, facts: &JobFacts) -> Result<Self, Failure> {
        check_name(&facts.job)?;
        let path = root.join(&facts.job);
        let fail = |error: io::Error| {
            Failure::of(format_args!("cannot make the job's folder {}", path.display()), &error)
        };
        let life = Life::begin(root, facts.lineage, &facts.job)?;
        let Some(lock) = take(&path).map_err(fail)? else { return Err(name_in_use(&facts.job)) };
        // A folder left over from a killed supervisor may hold its socket.
        match fs::remove_file(admin_socket(root, &facts.job)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
            _ => {}
        }
        // Nor is it the end of this one that one before may have noted.
        let lock = File::from(lock);
        lock.set_len(0).map_err(fail)?;
        let text = serde_json::to_vec_pretty(facts).map_err(|error| fail(error.into()))?;
        let fresh = path.join("job.json.new");
        fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, path.join("job.json"))).map_err(fail)?;
        Ok(Self { path, life, lock })
    }

    /// Notes the job's init: should this process be killed, the job has ended only when that has.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn note_init(&self, name: &str, pid: i32) -> Result<(), Failure> {
        self.life.note_init(name, pid).map_err(|error| Failure::of("cannot note the job's init", &error))
    }

    /// Where it is noted what becomes of the job.
    #[must_use]
    pub fn notes(&self) -> Notes {
        Notes(self.path.clone())
    }

    /// Where the supervisor listens.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.path.join(ADMIN_SOCKET)
    }

    /// What is left of the claim if this process is killed, until somebody comes across it.
    #[must_use]
    pub fn traces(&self) -> [&Path; 2] {
        [&self.path, self.life.trace()]
    }
}

impl Drop for JobFolder {
    fn drop(&mut self) {
        if let Err(error) = self.lock.write_all(ENDED) {
            tracing::debug!("{}: {error}", self.path.display());
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::debug!("{}: {error}", self.path.display());
        }
    }
}

/// Every running job, by name. Folders that nobody holds are removed on the way.
///
/// # Errors
/// When the folder of all jobs cannot be read.
pub fn list(root: &Path) -> Result<Vec<JobFacts>, Failure> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::of(format_args!("cannot read {}", root.display()), &error)),
        Ok(entries) => entries,
    };
    let mut jobs: Vec<JobFacts> =
        entries.filter_map(Result::ok).filter_map(|entry| running(&entry.path())).collect();
    jobs.sort_by(|a, b| a.job.cmp(&b.job));
    Ok(jobs)
}

/// The running job of this name.
///
/// # Errors
/// [`Kind::NotFound`] when there is none, naming those there are.
pub fn find(root: &Path, name: &str) -> Result<JobFacts, Failure> {
    check_name(name)?;
    if let Some(facts) = running(&root.join(name)) {
        return Ok(facts);
    }
    let others: Vec<String> = list(root)?.into_iter().map(|facts| facts.job).collect();
    let hint = if others.is_empty() {
        "no job is running".to_owned()
    } else {
        format!("running: {}", others.join(", "))
    };
    Err(Failure::new(Kind::NotFound, format!("no job named {name:?} is running ({hint})")))
}

/// Waits until the supervisor of a job has ended, or for `patience`: then its name and its images can be used again.
pub fn wait_until_gone(root: &Path, job: &JobFacts, patience: Duration) {
    let began = Instant::now();
    let is_there = || running(&root.join(&job.job)).is_some_and(|now| now.supervisor == job.supervisor);
    while is_there() && began.elapsed() < patience {
        std::thread::sleep(NAP);
    }
}

/// The supervisor of a job, of which it can be told how it has ended, also when somebody has removed what it has left.
#[derive(Debug)]
pub struct Watched(File);

impl Watched {
    /// That of a running job.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when it has ended.
    pub fn of(root: &Path, job: &JobFacts) -> Result<Self, Failure> {
        let path = root.join(&job.job).join(LOCK);
        let file = File::open(&path).map_err(|error| {
            Failure::new(
                Kind::NotFound,
                format!("job {} has just ended: {}: {error}", job.job, path.display()),
            )
        })?;
        Ok(Self(file))
    }

    /// Whether it was killed, or is gone so within `patience`.
    #[must_use]
    pub fn was_killed(&self, patience: Duration) -> bool {
        let began = Instant::now();
        loop {
            match flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if began.elapsed() < patience => std::thread::sleep(NAP),
                Err(_) => return false,
            }
        }
        // Somebody else may be about to use the name.
        let _ = flock(&self.0, FlockOperation::Unlock);
        self.0.metadata().is_ok_and(|lock| lock.len() == 0)
    }
}

fn facts(path: &Path) -> Option<JobFacts> {
    serde_json::from_slice(&fs::read(path.join("job.json")).ok()?).ok()
}

fn running(path: &Path) -> Option<JobFacts> {
    if let Ok(Some(_held)) = lock::try_existing(&path.join(LOCK)) {
        // Its supervisor was killed.
        let _ = fs::remove_dir_all(path);
        return None;
    }
    let (filling, sleep) = (noted(path, FILLING), noted(path, SLEEP));
    facts(path).map(|facts| JobFacts { filling, sleep, ..facts })
}

fn noted<T: DeserializeOwned>(path: &Path, name: &str) -> Option<T> {
    fs::read(path.join(name)).ok().and_then(|text| serde_json::from_slice(&text).ok())
}

/// The lock of a job's folder, which is made if need be.
fn take(path: &Path) -> io::Result<Option<OwnedFd>> {
    loop {
        fs::create_dir_all(path)?;
        match lock::take(&path.join(LOCK)) {
            // Somebody has just removed it as left over.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            taken => return taken,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn facts(job: &str) -> JobFacts {
        JobFacts {
            job: job.into(),
            lineage: Lineage([7; 16]),
            supervisor: 1,
            started_ns: 0,
            command: vec!["true".into()],
            device: "soft".into(),
            managed: Managed::default(),
            store: Location::Folder("/store".into()),
            recipients: Vec::new(),
            restarted_from: None,
            filling: None,
            sleep: None,
        }
    }

    #[test]
    fn how_far_memory_is_filled_is_told_until_it_is() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::claim(root.path(), &facts("a")).unwrap();
        let held = folder.notes();
        let filling = || find(root.path(), "a").unwrap().filling;
        assert_eq!(filling(), None);
        held.note_filling(None);
        let some = Some(Filled { done: 3, total: 7 });
        held.note_filling(some);
        assert_eq!(filling(), some);
        held.note_filling(None);
        assert_eq!(filling(), None);
    }

    /// Who was killed is told from who has ended, whoever has removed what was left of him.
    #[test]
    fn a_supervisor_that_was_killed_is_told_from_one_that_has_ended() {
        let root = tempfile::tempdir().unwrap();
        let (claimed, patience) = (JobFolder::claim(root.path(), &facts("a")).unwrap(), Duration::ZERO);
        let watched = Watched::of(root.path(), &facts("a")).unwrap();
        assert!(!watched.was_killed(patience), "it runs");
        drop(claimed);
        assert!(!watched.was_killed(patience), "it has ended by itself");
        assert!(Watched::of(root.path(), &facts("a")).is_err());
        let path = root.path().join("b");
        for is_removed in [false, true] {
            let lock = take(&path).unwrap().unwrap();
            let watched = Watched::of(root.path(), &facts("b")).unwrap();
            assert!(!watched.was_killed(patience), "it runs");
            drop(lock);
            if is_removed {
                assert!(list(root.path()).unwrap().is_empty() && !path.exists());
            }
            assert!(watched.was_killed(patience), "{is_removed}");
        }
    }

    #[test]
    fn a_name_is_used_once() {
        let root = tempfile::tempdir().unwrap();
        let held = JobFolder::claim(root.path(), &facts("a")).unwrap();
        let stranger = JobFacts { lineage: Lineage([8; 16]), ..facts("a") };
        let failure = JobFolder::claim(root.path(), &stranger).unwrap_err();
        assert_eq!(failure.kind, Kind::Busy);
        assert!(failure.message.contains("choose another name"), "{failure}");
        let failure = JobFolder::claim(root.path(), &facts("b")).unwrap_err();
        assert_eq!(failure.kind, Kind::Busy);
        assert!(
            failure.message.contains("job \"a\"") && failure.message.contains("still running"),
            "{failure}"
        );
        assert_eq!(list(root.path()).unwrap(), [facts("a")]);
        assert_eq!(find(root.path(), "b").unwrap_err().message, "no job named \"b\" is running (running: a)");
        drop(held);
        assert_eq!(list(root.path()).unwrap(), []);
        JobFolder::claim(root.path(), &stranger).unwrap();
    }

    #[test]
    fn the_end_of_a_supervisor_is_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let held = JobFolder::claim(root.path(), &facts("a")).unwrap();
        wait_until_gone(root.path(), &facts("a"), Duration::from_millis(20));
        assert!(find(root.path(), "a").is_ok(), "patience has an end");
        let end = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(held);
        });
        wait_until_gone(root.path(), &facts("a"), Duration::from_secs(60));
        assert!(find(root.path(), "a").is_err());
        end.join().unwrap();
    }

    #[test]
    fn a_folder_left_over_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let left = root.path().join("old");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("lock"), "").unwrap();
        fs::write(left.join("job.json"), serde_json::to_vec(&facts("old")).unwrap()).unwrap();
        assert_eq!(list(root.path()).unwrap(), []);
        assert!(!left.exists());
    }

    #[test]
    fn names_that_could_be_paths_are_refused() {
        for name in ["", "..", "a/b", "-x", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        check_name("train-7.b_2").unwrap();
    }
}
