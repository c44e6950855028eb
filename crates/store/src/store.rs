//! The store as a whole: opening, creating, and its small common operations.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use image::{FormatError, StoreConfig, StoreId};

use crate::key::{Key, Recipient, Secret, Unopened, seal_config, unseal_config};
use crate::media::{Covered, Cursor, Dir, Media, MediaLock, MediaRead};
use crate::{Access, Location, MediaError, OpenError, ReadError, layout};

/// A folder of images. Cheap to clone; every clone is the same store.
#[derive(Debug, Clone)]
pub struct Store {
    media: Arc<dyn Media>,
    id: StoreId,
    /// What its files are encrypted with.
    secret: Option<Secret>,
    /// For whom that is kept in it.
    recipients: Arc<[Recipient]>,
}

impl Store {
    /// Opens the store in `dir`, which is not encrypted. Nothing is written.
    ///
    /// # Errors
    /// As [`Store::open_with`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::open_media(Arc::new(Dir::new(dir)))
    }

    /// Opens the store in `dir`, which is not encrypted; where that is empty or not there, creates one first.
    ///
    /// # Errors
    /// As [`Store::open_or_create_with`].
    pub fn open_or_create(dir: &Path) -> Result<Self, OpenError> {
        Self::open_or_create_folder(dir, &Key::None, &[])
    }

    /// [`Store::open_or_create_with`] in a folder.
    pub(crate) fn open_or_create_folder(
        dir: &Path,
        key: &Key,
        recipients: &[Recipient],
    ) -> Result<Self, OpenError> {
        if !dir.exists() {
            create_durably(dir).map_err(|error| MediaError {
                operation: "create",
                path: dir.to_owned(),
                error,
            })?;
        }
        Self::open_or_create_with(Arc::new(Dir::new(dir)), key, recipients)
    }

    /// [`Store::open`] on any medium.
    ///
    /// # Errors
    /// As [`Store::open_with`].
    pub fn open_media(media: Arc<dyn Media>) -> Result<Self, OpenError> {
        Self::open_with(media, &Key::None, &[])
    }

    /// [`Store::open_or_create`] on any medium.
    ///
    /// # Errors
    /// As [`Store::open_or_create_with`].
    pub fn open_or_create_media(media: Arc<dyn Media>) -> Result<Self, OpenError> {
        Self::open_or_create_with(media, &Key::None, &[])
    }

    /// Opens the store on a medium. Nothing is written. With `recipients` it must be one that is encrypted, and for all of them.
    ///
    /// # Errors
    /// [`OpenError::NotAStore`], [`OpenError::Config`] and [`OpenError::Media`]; of an encrypted store [`OpenError::Locked`],
    /// [`OpenError::WrongKey`], [`OpenError::Changed`]; where one is insisted on, [`OpenError::NotEncrypted`] and [`OpenError::NotFor`].
    pub fn open_with(media: Arc<dyn Media>, key: &Key, recipients: &[Recipient]) -> Result<Self, OpenError> {
        let (dir, path) = (media.full_path(""), media.full_path(layout::CONFIG));
        let file = match media.open(layout::CONFIG) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(OpenError::NotAStore { dir });
            }
            Err(error) => return Err(MediaError { operation: "open", path, error }.into()),
        };
        let config = read_whole(&*file).and_then(StoreConfig::read);
        let config = config.map_err(|error| OpenError::Config { path: path.clone(), error })?;
        let Some(encryption) = &config.encryption else {
            return match recipients {
                [] => Ok(Self { media, id: config.id, secret: None, recipients: Arc::default() }),
                _ => Err(OpenError::NotEncrypted { dir }),
            };
        };
        let secret = unseal_config(&config, encryption, key).map_err(|why| {
            let (dir, recipients) = (dir.clone(), encryption.recipients.clone());
            match why {
                Unopened::NoKey => OpenError::Locked { dir, recipients },
                Unopened::WrongKey => OpenError::WrongKey { dir, recipients },
                Unopened::Changed => OpenError::Changed { path },
            }
        })?;
        let is_for = |recipient: &Recipient| encryption.recipients.contains(&recipient.to_string());
        if let Some(missing) = recipients.iter().find(|recipient| !is_for(recipient)) {
            let (missing, recipients) = (missing.to_string(), encryption.recipients.clone());
            return Err(OpenError::NotFor { dir, missing, recipients });
        }
        let media = Arc::new(Covered::new(media, secret.clone()));
        // Proven to be those that it was made for.
        let recipients = encryption.recipients.iter().filter_map(|each| each.parse().ok()).collect();
        Ok(Self { media, id: config.id, secret: Some(secret), recipients })
    }

    /// Opens the store on a medium; where there is none, creates one first: encrypted, if there are `recipients`. That one is then open
    /// without a key; but a key that is given must be one that opens it.
    ///
    /// # Errors
    /// As [`Store::open_with`], and [`OpenError::NotEmpty`], [`OpenError::Recipients`].
    pub fn open_or_create_with(
        media: Arc<dyn Media>,
        key: &Key,
        recipients: &[Recipient],
    ) -> Result<Self, OpenError> {
        let secret = match Self::open_with(media.clone(), key, recipients) {
            Err(OpenError::NotAStore { .. }) => create(&*media, key, recipients)?,
            opened => return opened,
        };
        // Another process may have been faster: what is there now counts, and has a secret of its own.
        match (secret, key) {
            (Some(secret), Key::None) => Self::open_with(media, &Key::Secret(secret), recipients),
            _ => Self::open_with(media, key, recipients),
        }
    }

    /// Whether something is there, and no more than [`create`] makes.
    pub(crate) fn is_being_made(media: &dyn Media) -> bool {
        let is_empty = |folder: &str| media.list(folder).is_ok_and(|names| names.is_empty());
        let of_new = |name: &String| name.starts_with(layout::CONFIG) || is_folder(name) && is_empty(name);
        media.list("").is_ok_and(|names| !names.is_empty() && names.iter().all(of_new))
    }

    /// The store's folder, or its bucket as if it were one, for messages.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.media.full_path("")
    }

    /// Where it is.
    #[must_use]
    pub fn location(&self) -> Location {
        let shown = self.dir();
        Location::parse(shown.as_os_str()).unwrap_or(Location::Folder(shown))
    }

    /// Where it is and what opens it, for another process that is to open it, and nothing that is put in its place.
    #[must_use]
    pub fn access(&self) -> Access {
        let key = self.secret.clone().map_or(Key::None, Key::Secret);
        Access { at: self.location(), key, recipients: self.recipients.to_vec() }
    }

    /// Whether what is in it is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.secret.is_some()
    }

    /// For whom it is encrypted; nobody, where it is not.
    #[must_use]
    pub fn recipients(&self) -> &[Recipient] {
        &self.recipients
    }

    /// The store's id.
    #[must_use]
    pub fn id(&self) -> StoreId {
        self.id
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

    /// Holds the store so that nothing of it is removed; waits a while for who removes.
    pub(crate) fn share(&self) -> Result<MediaLock, MediaError> {
        self.on("lock", layout::CONFIG, |media| media.share(layout::CONFIG))
    }

    /// The same. None where that cannot be had, for want of rights or because the medium has no locks: whoever removes images there cannot know.
    pub(crate) fn share_to_read(&self) -> Result<Option<MediaLock>, MediaError> {
        match self.share() {
            Err(MediaError { error, .. }) if cannot_lock(&error) => Ok(None),
            held => held.map(Some),
        }
    }

    /// Reads and parses a whole metadata file.
    pub(crate) fn read_file<T>(
        &self,
        path: &str,
        parse: impl Fn(Cursor<'_>) -> Result<T, FormatError>,
    ) -> Result<T, ReadError> {
        match self.read_file_once(path, &parse) {
            // An object that was replaced meanwhile may have been read in parts of both.
            Err(ReadError::File { .. }) => self.read_file_once(path, &parse),
            read => read,
        }
    }

    fn read_file_once<T>(
        &self,
        path: &str,
        parse: impl Fn(Cursor<'_>) -> Result<T, FormatError>,
    ) -> Result<T, ReadError> {
        let damaged = |error| ReadError::File { path: self.media.full_path(path), error };
        let file = match self.media.open(path) {
            // Under its cover a file can be damaged before a byte of it is read.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(damaged(FormatError::of_reading(error)));
            }
            opened => self.on("open", path, |_| opened)?,
        };
        read_whole(&*file).and_then(parse).map_err(damaged)
    }
}

fn is_folder(name: &str) -> bool {
    layout::FOLDERS.contains(&name)
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
    random()
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    // Linux gives up to 256 bytes at once, whole.
    if got == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn read_whole(file: &dyn MediaRead) -> Result<Cursor<'_>, FormatError> {
    Ok(Cursor::new(file, 0, file.len().map_err(FormatError::Read)?))
}

/// Creates `dir`, which is its owner's alone, and what is missing above it, and makes their names durable.
fn create_durably(dir: &Path) -> io::Result<()> {
    let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let missing: Vec<&Path> = dir.ancestors().take_while(is_missing).collect();
    dir.parent().map_or(Ok(()), fs::create_dir_all)?;
    match DirBuilder::new().mode(0o700).create(dir) {
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
        made => made?,
    }
    // Wherever each really lies, in a mount that is attached nowhere, too.
    missing.iter().try_for_each(|made| File::open(made.join(".."))?.sync_all())
}

/// Lays a store out, and says what it is encrypted with, unless somebody else made it meanwhile. May be called again after it failed or was
/// cut off at any point.
fn create(media: &dyn Media, key: &Key, recipients: &[Recipient]) -> Result<Option<Secret>, OpenError> {
    let at = |operation, path: &str| {
        let path = media.full_path(path);
        move |error| MediaError { operation, path, error }
    };
    let ours = |name: &String| is_folder(name) || name.starts_with(layout::CONFIG);
    let names = media.list("").map_err(at("list", ""))?;
    if let Some(found) = names.iter().find(|name| !ours(name)) {
        return Err(OpenError::NotEmpty { dir: media.full_path(""), found: found.clone() });
    }
    key.check_fits(recipients, media.full_path(""))?;
    let id = random_id().map(StoreId).map_err(at("find an id for", layout::CONFIG))?;
    let mut config = StoreConfig { id, created_ns: now_ns(), encryption: None };
    let mut secret = None;
    if !recipients.is_empty() {
        let made = Secret::random().map_err(at("find a secret for", layout::CONFIG))?;
        seal_config(&mut config, &made, recipients).map_err(|problem| OpenError::Recipients { problem })?;
        secret = Some(made);
    }
    let bytes = config.to_bytes().map_err(|error| match recipients {
        [] => OpenError::Config { path: media.full_path(layout::CONFIG), error },
        _ => OpenError::Recipients { problem: error.to_string() },
    })?;
    // Nothing is left of a store that cannot be made.
    for folder in layout::FOLDERS {
        media.create_folder(folder).map_err(at("create", folder))?;
    }
    let temporary = format!("{}-{id}", layout::CONFIG);
    let written = (|| {
        let mut file = media.create(&temporary).map_err(at("create", &temporary))?;
        file.write_all(&bytes).map_err(at("write", &temporary))?;
        file.sync().map_err(at("sync", &temporary))?;
        // The folders first: a config promises them.
        media.sync_folder("").map_err(at("sync", ""))?;
        // Never in the place of another's: with its secret all that he has written would go.
        let is_ours = match media.rename_new(&temporary, layout::CONFIG) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            named => named.map(|()| true).map_err(at("name", layout::CONFIG))?,
        };
        // Who comes second counts on the name, too.
        media.sync_folder("").map_err(at("sync", ""))?;
        Ok::<_, MediaError>(is_ours)
    })();
    if !matches!(written, Ok(true)) {
        // Left behind it would do no harm.
        let _ = media.remove(&temporary);
    }
    Ok(if written? { secret } else { None })
}
