//! Which images there are, and which one a name means.

use std::io;
use std::path::PathBuf;

use image::{Glimpse, ImageId, Manifest};
use serde::Serialize;

use crate::media::Cursor;
use crate::report::{ImageDetails, ImageSummary};
use crate::{FindError, MediaError, ReadError, Store, layout};

/// The images of a store.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Listing {
    /// Complete images, newest last.
    pub images: Vec<ImageSummary>,
    /// Files in the place of manifests that cannot be read.
    pub damaged: Vec<DamagedImage>,
}

/// An image whose manifest cannot be read, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedImage {
    /// The image, as the file's name has it.
    pub image: ImageId,
    /// The job's name, where it is still legible; nothing vouches for it.
    pub job: Option<String>,
    /// When it was cut, likewise.
    #[serde(skip)]
    pub created_ns: Option<u64>,
    /// Whether it is not damaged at all, but written by a newer program.
    pub newer: bool,
    /// Whether its bytes could not be had, as for want of rights or of an answer: nobody knows whether it is damaged.
    #[serde(skip)]
    pub unread: bool,
    /// The manifest.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

impl DamagedImage {
    /// Whether it is an image of `job`, or may be one.
    #[must_use]
    pub fn may_be_of(&self, job: &str) -> bool {
        self.job.as_deref().is_none_or(|legible| legible == job)
    }
}

/// The image that a name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The image.
    pub id: ImageId,
    /// Images so damaged that nobody can tell whether they are newer ones of the same job.
    pub unsure: Vec<DamagedImage>,
}

impl Found {
    /// Whether it is `image` beyond doubt.
    #[must_use]
    pub fn is(&self, image: ImageId) -> bool {
        self.id == image && self.unsure.is_empty()
    }
}

/// A file that cannot be read, and why.
#[derive(Debug)]
pub(crate) struct DamagedFile {
    pub(crate) path: PathBuf,
    pub(crate) problem: String,
}

/// The fewest digits that stand for an image.
pub(crate) const LEAST_PREFIX: usize = 4;

impl Store {
    /// The images, newest last, and the manifests that cannot be read.
    ///
    /// # Errors
    /// [`ReadError::Media`] where the folder cannot be read.
    pub fn list(&self) -> Result<Listing, ReadError> {
        let names = self.on("list", layout::IMAGES, |media| media.list(layout::IMAGES))?;
        let mut listing = Listing::default();
        for id in names.iter().filter_map(|name| layout::image_of(name)) {
            match self.manifest(&id) {
                Ok(manifest) => listing.images.push(ImageSummary::of(&manifest)),
                // Removed since it was listed.
                Err(ReadError::NoImage { .. }) => {}
                Err(error) => listing.damaged.push(self.damaged(id, &error)),
            }
        }
        listing.images.sort_by_key(|image| (image.created_ns, image.id));
        listing.damaged.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(listing)
    }

    /// When the newest image of `job` was cut, if none before `since` is meant. Of other images no more is read than where their manifests begin.
    ///
    /// # Errors
    /// [`ReadError::Media`] where the folder cannot be read.
    pub(crate) fn newest_since(&self, job: &str, since: u64) -> Result<Option<u64>, ReadError> {
        let names = self.on("list", layout::IMAGES, |media| media.list(layout::IMAGES))?;
        let ids = names.iter().filter_map(|name| layout::image_of(name));
        // A manifest that begins otherwise than it says as a whole is damaged, and no image.
        let may_be =
            |id: &ImageId| self.glimpse(*id).is_some_and(|seen| seen.job == job && seen.created_ns >= since);
        let whole = ids.filter(may_be).filter_map(|id| self.manifest(&id).ok());
        Ok(whole.map(|manifest| manifest.created_ns).max())
    }

    /// What a manifest says first, if that is legible; nothing vouches for it.
    fn glimpse(&self, image: ImageId) -> Option<Glimpse> {
        let file = self.media().open(&layout::image(image)).ok()?;
        Glimpse::read(Cursor::new(&*file, 0, file.len().ok()?))
    }

    /// What can be said of an image whose manifest cannot be read.
    fn damaged(&self, image: ImageId, error: &ReadError) -> DamagedImage {
        let (job, created_ns) = self.glimpse(image).map(|seen| (seen.job, seen.created_ns)).unzip();
        let path = self.media().full_path(&layout::image(image));
        let (newer, unread, problem) = (error.is_newer(), error.is_unread(), problem_of(error));
        DamagedImage { image, job, created_ns, newer, unread, path, problem }
    }

    /// The image that `reference` means: the name of a job (its newest image, readable or not), `JOB@latest`, an image's id or at least
    /// four of its first digits. A job's name goes before a prefix.
    ///
    /// # Errors
    /// Any [`FindError`].
    pub fn find(&self, reference: &str) -> Result<Found, FindError> {
        if let Ok(id) = reference.parse::<ImageId>() {
            return Ok(Found { id: self.manifest(&id)?.id, unsure: Vec::new() });
        }
        let listing = self.list()?;
        let job = reference.strip_suffix("@latest").unwrap_or(reference);
        if let Some(found) = self.newest(job, &listing)? {
            return Ok(found);
        }
        let fits = |id: &ImageId| !reference.is_empty() && id.to_string().starts_with(reference);
        let readable = listing.images.iter().map(|image| image.id);
        let candidates: Vec<_> =
            readable.chain(listing.damaged.iter().map(|image| image.image)).filter(fits).collect();
        if !candidates.is_empty() && reference.len() < LEAST_PREFIX {
            return Err(FindError::TooShort { reference: reference.to_owned(), least: LEAST_PREFIX });
        }
        // Nothing vouches for the name of a job in a damaged manifest either.
        let damaged = listing.damaged.into_iter().min_by_key(|image| !image.may_be_of(job));
        match (candidates.as_slice(), damaged) {
            ([one], _) => Ok(Found { id: self.manifest(one)?.id, unsure: Vec::new() }),
            ([], None) => Err(FindError::NotFound { reference: reference.to_owned(), dir: self.dir() }),
            ([], Some(damaged)) => Err(self.unusable(reference, damaged, None)),
            _ => Err(FindError::Ambiguous { reference: reference.to_owned(), candidates }),
        }
    }

    /// The newest image of `job`; none where there are no images of it.
    fn newest(&self, job: &str, listing: &Listing) -> Result<Option<Found>, FindError> {
        let readable = listing.images.iter().rfind(|image| image.job == job);
        let since = readable.map(|image| image.created_ns);
        let stands_in_the_way = |image: &&DamagedImage| match &image.job {
            Some(legible) => legible == job && image.created_ns >= since,
            // Where reading failed, the next try may tell; what is illegible stays so.
            None => image.unread && readable.is_some(),
        };
        let damaged = listing.damaged.iter().filter(stands_in_the_way);
        if let Some(damaged) = damaged.max_by_key(|image| image.created_ns) {
            return Err(self.unusable(job, damaged.clone(), readable.map(|image| image.id)));
        }
        let unsure = listing.damaged.iter().filter(|image| image.job.is_none()).cloned();
        Ok(readable.map(|image| Found { id: image.id, unsure: unsure.collect() }))
    }

    /// Why what `reference` means cannot be had. What a newer program wrote is not damaged.
    fn unusable(&self, reference: &str, damaged: DamagedImage, older: Option<ImageId>) -> FindError {
        let reference = reference.to_owned();
        match self.manifest(&damaged.image) {
            Err(error) if error.is_newer() => FindError::Read(error),
            _ if damaged.unread => FindError::Unread { reference, unread: Box::new(damaged), older },
            _ => FindError::Damaged { reference, damaged: Box::new(damaged), older },
        }
    }

    /// The manifest of an image, of whatever machine.
    ///
    /// # Errors
    /// [`ReadError::NoImage`], [`ReadError::File`], [`ReadError::WrongName`], [`ReadError::Media`].
    pub fn manifest(&self, image: &ImageId) -> Result<Manifest, ReadError> {
        let path = layout::image(*image);
        let manifest = match self.read_file(&path, |file| Manifest::read(file)) {
            Err(ReadError::Media(MediaError { error, .. })) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ReadError::NoImage { image: *image, dir: self.dir() });
            }
            read => read?,
        };
        if manifest.id != *image {
            let path = self.media().full_path(&path);
            return Err(ReadError::WrongName { path, found: format!("image {}", manifest.id) });
        }
        Ok(manifest)
    }

    /// Everything about an image but its bytes, for people and scripts.
    ///
    /// # Errors
    /// As [`Store::manifest`].
    pub fn inspect(&self, image: &ImageId) -> Result<ImageDetails, ReadError> {
        Ok(ImageDetails::of(&self.manifest(image)?))
    }
}

/// What is wrong, without the file's name where that stands beside it.
pub(crate) fn problem_of(error: &ReadError) -> String {
    match error {
        ReadError::File { error, .. } => error.to_string(),
        ReadError::WrongName { found, .. } => format!("it is not what its name says: it is {found}"),
        ReadError::Media(error) => format!("cannot {}: {}", error.operation, error.error),
        other => other.to_string(),
    }
}
