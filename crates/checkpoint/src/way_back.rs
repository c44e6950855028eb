//! The way back: how a job is continued that has ended, or cannot go on.

use image::ImageId;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use store::Location;

/// An image, and what `dormouse restart` has to be told to find it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Newest {
    /// The image.
    pub image: ImageId,
    /// Its job's name, where that cannot mean another, else its id or the beginning of it.
    pub reference: String,
    /// Its store, where that is not the one which is looked in anyway.
    pub store: Option<Location>,
    /// The key files that open it, if it is encrypted.
    pub keys: Vec<PathBuf>,
}

impl Newest {
    /// The command that continues it.
    #[must_use]
    pub fn command(&self) -> String {
        let store = self.store.as_ref().map(|store| format!("--store {} ", quoted(&store.to_string())));
        let key = |file: &PathBuf| format!("--key {} ", quoted(&file.to_string_lossy()));
        let keys: String = self.keys.iter().map(key).collect();
        format!("dormouse restart {}{keys}{}", store.unwrap_or_default(), self.reference)
    }
}

/// A job's newest image, and whether the job has need of it.
pub struct WayBack {
    job: String,
    newest: Mutex<Option<Newest>>,
    lost: AtomicBool,
    /// Whether an image is being written, which may yet be whole.
    under_way: AtomicBool,
    /// Ends the job, if whoever started it continues it from its newest image then.
    end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl WayBack {
    /// That of job `job`.
    #[must_use]
    pub fn new(job: String, newest: Option<Newest>) -> Self {
        Self {
            job,
            newest: Mutex::new(newest),
            lost: AtomicBool::new(false),
            under_way: AtomicBool::new(false),
            end: OnceLock::new(),
        }
    }

    /// Whoever started the job continues it when a GPU server is lost and there is an image: `end` ends it.
    pub fn is_taken(&self, end: impl Fn() + Send + Sync + 'static) {
        // It is said once.
        let _ = self.end.set(Box::new(end));
    }

    /// The newest image, if there is one.
    #[must_use]
    pub fn newest(&self) -> Option<Newest> {
        self.lock().clone()
    }

    /// Notes whether an image is being written.
    pub fn writes(&self, under_way: bool) {
        self.under_way.store(under_way, Ordering::Release);
    }

    /// There is a newer image of the job.
    pub fn published(&self, newest: Newest) {
        *self.lock() = Some(newest);
    }

    /// The job has lost a GPU server, and goes on without if it goes on at all. What its user can do about it, in a sentence.
    pub fn lose(&self) -> String {
        self.lost.store(true, Ordering::Release);
        match (self.newest(), self.end.get()) {
            (Some(newest), Some(end)) => {
                end();
                format!("The job is ended, and continued from image {} (--restart-on-failure)", newest.image)
            }
            (Some(newest), None) => {
                format!("End the job and continue it from image {} with '{}'", newest.image, newest.command())
            }
            (None, _) if self.under_way.load(Ordering::Acquire) => format!(
                "Its first image is just being written: if 'dormouse ls {}' shows it then, 'dormouse restart {}' continues from it; start it anew otherwise",
                self.job, self.job
            ),
            (None, _) => format!(
                "There is no image of the job to continue from: start it anew, and have 'dormouse checkpoint {}' take one now and then",
                self.job
            ),
        }
    }

    /// Whether the job has lost a GPU server.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Newest>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A word as a shell takes it.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_command_finds_the_image() {
        let way = WayBack::new("training".into(), None);
        assert!(way.lose().contains("dormouse checkpoint training") && way.is_lost());
        way.writes(true);
        assert!(way.lose().contains("dormouse ls training"));
        way.writes(false);
        assert!(way.lose().contains("dormouse checkpoint training"));
        let image = ImageId([7; 16]);
        way.published(Newest { image, reference: "training".into(), store: None, keys: Vec::new() });
        assert_eq!(way.newest().unwrap().command(), "dormouse restart training");
        assert!(way.lose().contains(&image.to_string()));
        way.published(Newest {
            image,
            reference: "07070707".into(),
            store: Some(Location::Folder("/my store/it's".into())),
            keys: vec!["/my keys/it".into()],
        });
        assert_eq!(
            way.newest().unwrap().command(),
            r"dormouse restart --store '/my store/it'\''s' --key '/my keys/it' 07070707"
        );
    }
}
