//! The store's errors as failures with a kind.

use crate::error::{Chain, Failure, Kind};
use crate::folder::{read_failure, read_kind, write_failure};
use image::ImageId;
use rustix::fs::{Access as Right, access};
use std::fs;
use std::io;
use std::path::Path;
use store::{
    Access, CopyError, DamagedImage, FindError, Keep, Kept, KeptWhy, LackingImage, OpenError, Pruned,
    Removal, Repack, Rewriting, Store, WriteError,
};

/// Opens a store that must be there.
///
/// # Errors
/// [`Kind::NotFound`] when there is no such folder, and nothing in the bucket, else [`Kind::Store`] saying what is wrong with it.
pub fn open_store(at: &Access) -> Result<Store, Failure> {
    existing_store(at)?.ok_or_else(|| {
        let message =
            format!("there are no images: the store {} does not exist; the first checkpoint makes it", at.at);
        Failure::new(Kind::NotFound, message)
    })
}

/// Opens a store, if there is a folder, or anything in the bucket.
///
/// # Errors
/// [`Kind::Store`] saying what is wrong with it.
pub fn existing_store(at: &Access) -> Result<Option<Store>, Failure> {
    if at.at.as_folder().is_some_and(|dir| !dir.try_exists().unwrap_or(true)) {
        return Ok(None);
    }
    let opened = match at.open() {
        // It may have been made, and used, since.
        Err(OpenError::NotAStore { .. }) if !at.is_being_made() => at.open(),
        opened => opened,
    };
    there_or_not(at, opened)
}

/// A bucket without a store, and a folder where one is being made, are like a folder that is not there.
fn there_or_not(at: &Access, opened: Result<Store, OpenError>) -> Result<Option<Store>, Failure> {
    match opened {
        Err(OpenError::NotAStore { .. }) if at.at.as_folder().is_none() || at.is_being_made() => Ok(None),
        opened => opened.map(Some).map_err(|error| open_failure(&error)),
    }
}

/// A store that cannot be opened, with the kind of failure that it is.
#[must_use]
pub fn open_failure(error: &OpenError) -> Failure {
    let kind = match error {
        OpenError::Config { error, .. } if error.is_newer() => Kind::Mismatch,
        OpenError::Config { .. } | OpenError::Changed { .. } => Kind::Damaged,
        _ => Kind::Store,
    };
    Failure::new(kind, Chain(error).to_string())
}

/// The image that `reference` means.
///
/// # Errors
/// [`Kind::NotFound`], [`Kind::Damaged`], [`Kind::Mismatch`] when a newer Dormouse wrote it.
pub fn find_image(store: &Store, reference: &str) -> Result<ImageId, Failure> {
    let found = store.find(reference).map_err(|error| find_failure(&error))?;
    for DamagedImage { image, path, problem, .. } in &found.unsure {
        tracing::warn!(
            "image {image} is damaged and may be a newer one of the same job than image {}: {}: {problem}",
            found.id,
            path.display()
        );
    }
    Ok(found.id)
}

fn find_failure(error: &FindError) -> Failure {
    let kind = match error {
        FindError::NotFound { .. } | FindError::TooShort { .. } | FindError::Ambiguous { .. } => {
            Kind::NotFound
        }
        FindError::Read(error) => read_kind(error),
        _ => Kind::Damaged,
    };
    Failure::new(kind, Chain(error).to_string())
}

/// How images are removed, and what no other needs.
pub struct Removing<'a> {
    /// Whether it is only to be said what that would be.
    pub dry: bool,
    /// How much may be left unused.
    pub repack: Repack,
    /// Who is told of what is written anew.
    pub progress: &'a mut Rewriting<'a>,
}

impl Removing<'_> {
    fn remove(self, store: &Store, images: &[ImageId]) -> Result<Removal, WriteError> {
        match self.dry {
            true => store.would_remove_and_repack(images, &self.repack),
            false => store.remove_and_repack(images, &self.repack, self.progress),
        }
    }
}

/// Removes the images that `references` mean, if all of them are there, and frees what no image needs.
///
/// # Errors
/// [`Kind::NotFound`], [`Kind::Store`] when the store cannot be changed.
pub fn remove_images(
    store: &Store,
    references: &[String],
    removing: Removing<'_>,
) -> Result<Removal, Failure> {
    let found = references.iter().map(|reference| {
        let failure = |error: &FindError| match error {
            FindError::NotFound { .. } | FindError::TooShort { .. } if has_job(store, reference) => {
                let message = format!(
                    "{reference:?} is a job, and `rm` removes images by their ids, which `dormouse ls` shows; `dormouse prune` removes old ones of a job"
                );
                Failure::new(Kind::Usage, message)
            }
            error => find_failure(error),
        };
        store.find_exactly(reference).map_err(|error| failure(&error))
    });
    let mut images = found.collect::<Result<Vec<_>, _>>()?;
    images.sort_unstable();
    images.dedup();
    removing.remove(store, &images).map_err(removal_failure)
}

fn has_job(store: &Store, name: &str) -> bool {
    store.list().is_ok_and(|listing| listing.images.iter().any(|image| image.job == name))
}

/// Removes the images that are not to be kept, of one job or of all, and frees what no image needs.
///
/// # Errors
/// [`Kind::NotFound`] when there is no image of that job, [`Kind::Store`] when the store cannot be changed.
pub fn prune_images(
    store: &Store,
    job: Option<&str>,
    keep: &Keep,
    removing: Removing<'_>,
) -> Result<Pruned, Failure> {
    let pruned = store.prune(job, keep, |gone| removing.remove(store, gone)).map_err(removal_failure)?;
    warn_of_lacking(&pruned);
    match job {
        Some(job) if pruned.kept_images.is_empty() && pruned.removal.images.is_empty() => {
            Err(find_failure(&FindError::NotFound { reference: job.to_owned(), dir: store.dir() }))
        }
        _ => Ok(pruned),
    }
}

/// Tells of images that stay, and in whose place others do.
pub(crate) fn warn_of_lacking(pruned: &Pruned) {
    for LackingImage { image, problem } in &pruned.lacking {
        tracing::warn!(
            "image {image} cannot be restarted, so an older one is kept, too, if there is one: {problem}"
        );
    }
}

/// Images that cannot be removed, with the kind of failure that it is.
#[must_use]
pub fn removal_failure(error: WriteError) -> Failure {
    match error {
        WriteError::Read(error) => read_failure(error),
        error => write_failure(error),
    }
}

/// Room that cannot be freed, with the kind of failure that it is: the images that were meant are gone all the same.
#[must_use]
pub fn kept_kind(kept: &Kept) -> Kind {
    match kept.why {
        KeptWhy::InUse => Kind::Busy,
        KeptWhy::Unreadable => Kind::Damaged,
        KeptWhy::Newer => Kind::Mismatch,
        KeptWhy::Medium => Kind::Store,
    }
}

/// Images that cannot be copied to another store, with the kind of failure that it is.
#[must_use]
pub fn copy_failure(error: CopyError) -> Failure {
    match error {
        CopyError::Source(error) => read_failure(error),
        CopyError::Target(WriteError::Read(error)) => read_failure(error),
        CopyError::Target(error) => write_failure(error),
        other => Failure::new(Kind::Failed, other.to_string()),
    }
}

/// Whether a checkpoint could be written to the store at `at`, or one be made there; of a bucket, whether it can be reached and read. Changes
/// nothing.
///
/// # Errors
/// [`Kind::Store`] saying what is wrong with the place.
pub fn check_store(at: &Access) -> Result<(), Failure> {
    let Some(dir) = at.at.as_folder() else { return there_or_not(at, at.open_at_once()).map(drop) };
    let fail = |message: String| Err(Failure::new(Kind::Store, message));
    let (place, missing) = match dir.ancestors().find(|place| place.exists()) {
        Some(place) => (place, place != dir),
        None => (Path::new("."), true),
    };
    if !place.is_dir() {
        return fail(format!("{} is not a folder", place.display()));
    }
    if let Err(error) = access(place, Right::WRITE_OK | Right::EXEC_OK) {
        let what = if missing { format!(", where {} would be made", dir.display()) } else { String::new() };
        return fail(format!("cannot write to {}{what}: {error}", place.display()));
    }
    let could_be_made = || at.check_new().map_err(|error| open_failure(&error));
    if missing {
        return could_be_made();
    }
    match (at.open(), first_name(dir)) {
        (Err(OpenError::NotAStore { .. }), Ok(None)) => could_be_made(),
        (Err(OpenError::NotAStore { .. }), _) if at.is_being_made() => could_be_made(),
        (Ok(_), _) => Ok(()),
        (Err(OpenError::NotAStore { dir }), Ok(Some(found))) => {
            fail(OpenError::NotEmpty { dir, found }.to_string())
        }
        (Err(OpenError::NotAStore { dir }), Err(error)) => {
            fail(format!("cannot read {}: {error}", dir.display()))
        }
        (Err(error), _) => Err(open_failure(&error)),
    }
}

/// One of the names in a folder.
fn first_name(dir: &Path) -> io::Result<Option<String>> {
    let entry = fs::read_dir(dir)?.next().transpose()?;
    Ok(entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
}

/// [`check_store`] for a job: where a store must be there, its place alone is not enough.
///
/// # Errors
/// As [`check_store`].
pub(crate) fn check_store_for_job(at: &Access) -> Result<(), Failure> {
    check_store(at)?;
    if !at.must_be_there() {
        return Ok(());
    }
    match at.open_at_once() {
        Err(OpenError::NotAStore { dir }) => Err(open_failure(&OpenError::Gone { dir })),
        _ => Ok(()),
    }
}

/// Opens the store that a job's memory goes into, or creates it where there is none; not without encryption where there is a key.
///
/// # Errors
/// [`Kind::Store`] saying what is wrong with the place.
pub(crate) fn open_store_for_job(at: &Access) -> Result<Store, Failure> {
    at.open_for_job().map_err(|error| open_failure(&error))
}

/// Opens a store, or creates it where there is none.
///
/// # Errors
/// [`Kind::Store`] saying what is wrong with the place.
pub fn open_or_create_store(at: &Access) -> Result<Store, Failure> {
    at.open_or_create().map_err(|error| open_failure(&error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use store::Location;

    #[test]
    fn a_store_that_somebody_makes_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let at: Access = Location::Folder(folder.path().to_owned()).into();
        let is_not_there = || {
            check_store(&at).unwrap();
            assert!(existing_store(&at).unwrap().is_none());
        };
        check_store(&at).unwrap();
        // As the place of a disk that is not mounted.
        assert!(existing_store(&at).is_err());
        for part in ["packs", "index", "images", "tmp"] {
            fs::create_dir(folder.path().join(part)).unwrap();
            is_not_there();
        }
        fs::write(folder.path().join("config-0123"), "half").unwrap();
        is_not_there();
        // What has lost its config is no new one.
        fs::write(folder.path().join("packs/one"), "").unwrap();
        let failure = existing_store(&at).unwrap_err();
        assert!(failure.message.contains("is not a Dormouse store"), "{failure:?}");
        fs::remove_file(folder.path().join("packs/one")).unwrap();
        open_or_create_store(&at).unwrap();
        assert!(existing_store(&at).unwrap().is_some());
    }

    #[test]
    fn a_place_for_a_store_is_told_from_one_that_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let check_store = |dir: &Path| check_store(&Location::Folder(dir.to_owned()).into());
        check_store(&at("to/be/made")).unwrap();
        fs::create_dir(at("empty")).unwrap();
        check_store(&at("empty")).unwrap();
        assert_eq!(fs::read_dir(at("empty")).unwrap().count(), 0);
        open_or_create_store(&Location::Folder(at("store")).into()).unwrap();
        check_store(&at("store")).unwrap();
        fs::create_dir(at("other")).unwrap();
        fs::write(at("other/thing"), "").unwrap();
        for (bad, word) in [
            (at("other"), "\"thing\""),
            (at("other/thing"), "thing"),
            ("/dev/null/store".into(), "/dev/null is not a folder"),
        ] {
            let failure = check_store(&bad).unwrap_err();
            assert_eq!(failure.kind, Kind::Store);
            assert!(failure.message.contains(word), "{failure}");
        }
    }

    #[test]
    fn a_damaged_config_is_damage_and_its_cure_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let store = open_or_create_store(&Location::Folder(folder.path().to_owned()).into()).unwrap();
        fs::write(folder.path().join("config"), "").unwrap();
        let failures = [
            open_store(&store.access()).unwrap_err(),
            open_or_create_store(&store.access()).unwrap_err(),
            check_store(&store.access()).unwrap_err(),
        ];
        for failure in failures {
            assert_eq!(failure.kind, Kind::Damaged);
            assert!(
                failure.message.contains("config") && failure.message.contains("of a new store"),
                "{failure}"
            );
            assert!(!failure.message.contains("another image"), "{failure}");
        }
        // Which helps.
        let other = tempfile::tempdir().unwrap();
        open_or_create_store(&Location::Folder(other.path().to_owned()).into()).unwrap();
        fs::copy(other.path().join("config"), folder.path().join("config")).unwrap();
        open_store(&store.access()).unwrap();
    }

    #[test]
    fn a_store_that_does_not_exist_has_no_images() {
        let folder = tempfile::tempdir().unwrap();
        let failure = open_store(&Location::Folder(folder.path().join("none")).into()).unwrap_err();
        assert_eq!(failure.kind, Kind::NotFound);
        assert!(failure.message.contains("none does not exist"), "{failure}");
    }
}
