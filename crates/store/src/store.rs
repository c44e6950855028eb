//! The store as a whole: opening, creating, and its small common operations.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use image::{FormatError, StoreConfig, StoreId};

use crate::media::{Cursor, Dir, Media, MediaLock, MediaRead};
use crate::{Location, MediaError, OpenError, ReadError, layout};

/// A folder of images. Cheap to clone; every clone is the same store.
#[derive(Debug, Clone)]
pub struct Store {
    media: Arc<dyn Media>,
    config: StoreConfig,
}

impl Store {
    /// Opens the store in `dir`. Nothing is written.
    ///
    /// # Errors
    /// [`OpenError::NotAStore`], [`OpenError::Config`] and [`OpenError::Media`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::open_media(Arc::new(Dir::new(dir)))
    }

    /// Opens the store in `dir`; where that is empty or not there, creates one first.
    ///
    /// # Errors
    /// [`OpenError::NotEmpty`], [`OpenError::Config`] and [`OpenError::Media`].
    pub fn open_or_create(dir: &Path) -> Result<Self, OpenError> {
        if !dir.exists() {
            create_durably(dir).map_err(|error| MediaError {
                operation: "create",
                path: dir.to_owned(),
                error,
            })?;
        }
        Self::open_or_create_media(Arc::new(Dir::new(dir)))
    }

    /// [`Store::open`] on any medium.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_media(media: Arc<dyn Media>) -> Result<Self, OpenError> {
        let path = media.full_path(layout::CONFIG);
        let file = match media.open(layout::CONFIG) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(OpenError::NotAStore { dir: media.full_path("") });
            }
            Err(error) => return Err(MediaError { operation: "open", path, error }.into()),
        };
        let config = read_whole(&*file).and_then(StoreConfig::read);
        let config = config.map_err(|error| OpenError::Config { path, error })?;
        Ok(Self { media, config })
    }

    /// [`Store::open_or_create`] on any medium.
    ///
    /// # Errors
    /// As [`Store::open_or_create`].
    pub fn open_or_create_media(media: Arc<dyn Media>) -> Result<Self, OpenError> {
        match Self::open_media(media.clone()) {
            Err(OpenError::NotAStore { .. }) => create(&*media)?,
            opened => return opened,
        }
        // Another process may have created it at the same time: what is there now counts.
        Self::open_media(media)
    }

    /// The store's folder, or its bucket as if it were one, for messages.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.media.full_path("")
    }

    /// Where it is, for another process that is to open it.
    #[must_use]
    pub fn location(&self) -> Location {
        let shown = self.dir();
        Location::parse(shown.as_os_str()).unwrap_or(Location::Folder(shown))
    }

    /// The store's id.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.config.id
    }

    pub(crate) fn media(&self) -> &dyn Media {
        &*self.media
    }

    /// Runs one operation of the medium on `path`, and names both where it fails.
    pub(crate) fn on<T>(
        &self,
        operation: &'static str,
        path: &str,
        run: impl FnOnce(&dyn Media) -> io::Result<T>,
    ) -> Result<T, MediaError> {
        run(&*self.media).map_err(|error| MediaError { operation, path: self.media.full_path(path), error })
    }

    /// Holds the store so that nothing of it is removed. None where that cannot be had, for want of rights or because the medium has no locks: whoever removes
    /// images there cannot know.
    pub(crate) fn share_to_read(&self) -> Result<Option<MediaLock>, MediaError> {
        match self.on("lock", layout::CONFIG, |media| media.share(layout::CONFIG)) {
            Err(MediaError { error, .. }) if cannot_lock(&error) => Ok(None),
            held => held.map(Some),
        }
    }

    /// Reads and parses a whole metadata file.
    pub(crate) fn read_file<T>(
        &self,
        path: &str,
        parse: impl FnOnce(Cursor<'_>) -> Result<T, FormatError>,
    ) -> Result<T, ReadError> {
        let file = self.on("open", path, |media| media.open(path))?;
        let content = read_whole(&*file).and_then(parse);
        content.map_err(|error| ReadError::File { path: self.media.full_path(path), error })
    }
}

fn cannot_lock(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), NotFound | PermissionDenied | ReadOnlyFilesystem | Unsupported)
        || error.raw_os_error() == Some(rustix::io::Errno::NOLCK.raw_os_error())
}

/// Nanoseconds since 1970 UTC.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Sixteen bytes that nobody else has.
pub(crate) fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    let got = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
    // Linux gives up to 256 bytes at once, whole.
    if got == id.len() { Ok(id) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn read_whole(file: &dyn MediaRead) -> Result<Cursor<'_>, FormatError> {
    Ok(Cursor::new(file, 0, file.len().map_err(FormatError::Read)?))
}

/// Creates `dir` and what is missing above it, and makes its name durable.
fn create_durably(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    match dir.canonicalize()?.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Lays a store out. May be called again after it failed or was cut off at any point.
fn create(media: &dyn Media) -> Result<(), OpenError> {
    let at = |operation, path: &str| {
        let path = media.full_path(path);
        move |error| MediaError { operation, path, error }
    };
    let ours = |name: &String| layout::FOLDERS.contains(&name.as_str()) || name.starts_with(layout::CONFIG);
    let names = media.list("").map_err(at("list", ""))?;
    if let Some(found) = names.iter().find(|name| !ours(name)) {
        return Err(OpenError::NotEmpty { dir: media.full_path(""), found: found.clone() });
    }
    for folder in layout::FOLDERS {
        media.create_folder(folder).map_err(at("create", folder))?;
    }
    let id = random_id().map(StoreId).map_err(at("find an id for", layout::CONFIG))?;
    let bytes = StoreConfig { id, created_ns: now_ns() }.to_bytes();
    let bytes = bytes.map_err(|error| OpenError::Config { path: media.full_path(layout::CONFIG), error })?;
    let temporary = format!("{}-{id}", layout::CONFIG);
    let written = (|| {
        let mut file = media.create(&temporary).map_err(at("create", &temporary))?;
        file.write_all(&bytes).map_err(at("write", &temporary))?;
        file.sync().map_err(at("sync", &temporary))?;
        // The folders first: a config promises them.
        media.sync_folder("").map_err(at("sync", ""))?;
        media.rename(&temporary, layout::CONFIG).map_err(at("name", layout::CONFIG))?;
        media.sync_folder("").map_err(at("sync", ""))
    })();
    if written.is_err() {
        // Left behind it would do no harm.
        let _ = media.remove(&temporary);
    }
    Ok(written?)
}
