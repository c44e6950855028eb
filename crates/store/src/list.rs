//! Which images there are, and which one a name means.

use std::io;
use std::path::PathBuf;

use image::{ImageId, Manifest};
use serde::Serialize;

use crate::report::{ImageDetails, ImageSummary};
use crate::{FindError, MediaError, ReadError, Store, layout};

/// The images of a store.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Listing {
    /// Complete images, newest last.
    pub images: Vec<ImageSummary>,
    /// Files in the place of manifests that cannot be read.
    pub damaged: Vec<DamagedFile>,
}

/// A file that cannot be read, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedFile {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// The fewest digits that stand for an image.
const LEAST_PREFIX: usize = 4;

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
                Err(error) => {
                    let path = self.media().full_path(&layout::image(id));
                    listing.damaged.push(DamagedFile { path, problem: problem_of(&error) });
                }
            }
        }
        listing.images.sort_by_key(|image| (image.created_ns, image.id));
        listing.damaged.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(listing)
    }

    /// The image that `reference` means: the name of a job (its newest image), `JOB@latest`, an image's id or at least four of its
    /// first digits. A job's name goes before a prefix.
    ///
    /// # Errors
    /// Any [`FindError`].
    pub fn find(&self, reference: &str) -> Result<ImageId, FindError> {
        if let Ok(id) = reference.parse::<ImageId>() {
            return Ok(self.manifest(&id)?.id);
        }
        let listing = self.list()?;
        let job = reference.strip_suffix("@latest").unwrap_or(reference);
        if let Some(newest) = listing.images.iter().rfind(|image| image.job == job) {
            return Ok(newest.id);
        }
        let fits = |id: &ImageId| !reference.is_empty() && id.to_string().starts_with(reference);
        let candidates: Vec<_> = listing.images.iter().map(|image| image.id).filter(fits).collect();
        if !candidates.is_empty() && reference.len() < LEAST_PREFIX {
            return Err(FindError::TooShort { reference: reference.to_owned(), least: LEAST_PREFIX });
        }
        match (candidates.as_slice(), listing.damaged.into_iter().next()) {
            ([one], _) => Ok(*one),
            ([], None) => Err(FindError::NotFound { reference: reference.to_owned(), dir: self.dir() }),
            ([], Some(DamagedFile { path, problem })) => {
                // What a newer program wrote is not damaged.
                match self.newer()? {
                    Some(error) => Err(error.into()),
                    None => Err(FindError::Damaged { reference: reference.to_owned(), path, problem }),
                }
            }
            _ => Err(FindError::Ambiguous { reference: reference.to_owned(), candidates }),
        }
    }

    /// Why a manifest that a newer program wrote cannot be read, if there is one.
    fn newer(&self) -> Result<Option<ReadError>, ReadError> {
        let names = self.on("list", layout::IMAGES, |media| media.list(layout::IMAGES))?;
        let mut ids = names.iter().filter_map(|name| layout::image_of(name));
        Ok(ids.find_map(|id| self.manifest(&id).err().filter(ReadError::is_newer)))
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
