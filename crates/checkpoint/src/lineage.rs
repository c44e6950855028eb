//! One life at a time: a job and everything restarted from its images share the files it writes and the ports it listens on,
//! so at most one of them runs. Whoever does holds the lock of `$RUNTIME/dormouse/.lineages/LINEAGE`, which has its name in it.

use crate::error::{Failure, Kind};
use crate::lock;
use image::Lineage;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Among the folders of jobs, whose names do not begin with a dot.
const FOLDER: &str = ".lineages";
/// The longest name of a job is far shorter.
const NAME_MAX: usize = 256;

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
        let life = Self { path: path.clone(), _lock: lock };
        fs::write(&path, name).map_err(fail)?;
        forget_the_dead(&folder);
        Ok(life)
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
        Ok(Some(_)) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::of(format_args!("cannot use {}", path.display()), &error)),
    }
}

fn lives(path: &Path) -> Failure {
    // Whoever holds the lock may be about to write its name.
    let name = fs::read_to_string(path).unwrap_or_default();
    let who = match name.len() {
        1..=NAME_MAX => {
            format!("job {name:?}, from which this image was taken or which was restarted from it,")
        }
        _ => "the job from which this image was taken".to_owned(),
    };
    let message = format!(
        "{who} still runs: it and a restart would write the same files; stop it, or wait until it has ended"
    );
    Failure::new(Kind::Busy, message)
}

/// Removes the files of lives that were killed.
fn forget_the_dead(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Ok(Some(_held)) = lock::try_existing(&path)
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
