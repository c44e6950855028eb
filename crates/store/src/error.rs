//! What can go wrong with a store: one enum for each thing that is done with it.
//!
//! Messages are complete: they contain their causes, name the file, and say what to do. So errors here have no `source()` that would
//! be printed twice.

use std::io;
use std::path::PathBuf;

use crate::DamagedImage;
use image::{ChunkError, ChunkId, FormatError, ImageId, Machine, ObjectKind};

/// An operation of the medium that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}: {error}", path.display())]
pub struct MediaError {
    /// What was tried.
    pub operation: &'static str,
    /// On which file or folder.
    pub path: PathBuf,
    /// What the system said.
    pub error: io::Error,
}

/// A store that cannot be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no store.
    #[error("{} is not a Dormouse store: give --store the folder of one (if its file `config` is lost, that of any new store that is not encrypted does); the first checkpoint makes one in an empty or new folder", dir.display())]
    NotAStore {
        /// The folder.
        dir: PathBuf,
    },
    /// A store cannot be created in a folder with other things in it.
    #[error("{} is not empty and not a Dormouse store (it has {found:?}): choose an empty or new folder", dir.display())]
    NotEmpty {
        /// The folder.
        dir: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// There is no store, a key was given, and no recipient: one that was made here would not be encrypted.
    #[error(
        "there is no store in {}, and a key was given with --key or in DORMOUSE_KEY, so none is made that is not encrypted: if the store is gone, as when \
         its disk is not mounted, bring it back; --encrypt RECIPIENT makes a new encrypted one; without a key a new one is not encrypted",
        dir.display()
    )]
    Gone {
        /// The folder.
        dir: PathBuf,
    },
    /// The store's own file is damaged or newer than this program.
    #[error("{} is not usable: {error}{}", path.display(), if error.is_newer() { "" } else { NEW_CONFIG })]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: FormatError,
    },
    /// The store is encrypted, and there is no key.
    #[error(
        "the store {} is encrypted for {}: give the key file of one of them with --key FILE, or in DORMOUSE_KEY",
        dir.display(),
        recipients.join(", ")
    )]
    Locked {
        /// The store.
        dir: PathBuf,
        /// For whom.
        recipients: Vec<String>,
    },
    /// The store is encrypted, and for another key.
    #[error(
        "the key given with --key or in DORMOUSE_KEY does not open the store {}, which is encrypted for {}: give the key file of one of them",
        dir.display(),
        recipients.join(", ")
    )]
    WrongKey {
        /// The store.
        dir: PathBuf,
        /// For whom.
        recipients: Vec<String>,
    },
    /// A store is to be made that the key at hand will not open.
    #[error(
        "no key given with --key or in DORMOUSE_KEY opens a store that is encrypted for {}, as {} would be: give the key file of one of \
         them, too, or, where no encrypted store is read, none: without a key one is made that others can open",
        recipients.join(", "),
        dir.display()
    )]
    KeptOut {
        /// Where.
        dir: PathBuf,
        /// For whom.
        recipients: Vec<String>,
    },
    /// The file that holds an encrypted store's secret is not as it was made.
    #[error(
        "{} was changed since the store was made: its secret cannot be trusted; bring the file back from a copy, nothing else opens the store",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// An encrypted store is insisted on, and this one is not.
    #[error(
        "the store {} is not encrypted, and must be, since --encrypt was given or the job's own store is: choose a new place, and bring images there with `dormouse copy --encrypt`",
        dir.display()
    )]
    NotEncrypted {
        /// The store.
        dir: PathBuf,
    },
    /// The store is encrypted, but not for everybody for whom it is to be.
    #[error(
        "the store {} is encrypted for {}, not for {missing}, as --encrypt or the job's own store has it: for whom a store is encrypted is decided when \
         it is made",
        dir.display(),
        recipients.join(", ")
    )]
    NotFor {
        /// The store.
        dir: PathBuf,
        /// Who is missing.
        missing: String,
        /// For whom it is encrypted.
        recipients: Vec<String>,
    },
    /// A store cannot be encrypted for these recipients.
    #[error("the store cannot be encrypted for these recipients: {problem}")]
    Recipients {
        /// Why not.
        problem: String,
    },
    /// The medium failed.
    #[error("{}{}", .0, if is_not_yours(.0) { NOT_YOURS } else { "" })]
    Media(#[from] MediaError),
}

/// An image that cannot be written. Whatever it is, nothing of the image is listed and the job is not concerned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// There is no room.
    #[error(
        "the store is full: {operation}: make room there (`dormouse prune --keep-last 1 --dry-run`, with this store, says what older images would give back), or use another store"
    )]
    Full {
        /// The operation that found out.
        operation: MediaError,
    },
    /// The store may not be written.
    #[error("the store is not writable: {operation}: check its permissions and mount, or use another store")]
    NotWritable {
        /// The operation that found out.
        operation: MediaError,
    },
    /// The medium failed in another way.
    #[error(transparent)]
    Media(MediaError),
    /// The draft's folder is gone: its supervisor has ended, or a cleaner believed so.
    #[error(
        "image {image} cannot be finished, since {} is gone: whoever began it has ended or was stopped for so long that others took it for dead, or somebody has \
         removed files of the store by hand; nothing of the image is listed: begin the checkpoint or the copy again",
        path.display()
    )]
    Abandoned {
        /// The image that will not be.
        image: ImageId,
        /// What was not found of its files.
        path: PathBuf,
    },
    /// An object's source failed.
    #[error("{what} cannot be read for the image: {error}")]
    Source {
        /// The object.
        what: String,
        /// What its reader said.
        error: io::Error,
    },
    /// There is no thread to write in.
    #[error(
        "there is no thread to write the image in; is a limit on processes reached (pids.max of its control group, ulimit -u)? {0}"
    )]
    NoThread(io::Error),
    /// An object was dropped before it was finished.
    #[error("{what} was not written to its end")]
    Unfinished {
        /// The object.
        what: String,
    },
    /// The image's writer failed before, and has said why: to whichever of its objects, or its end, came first.
    #[error("the image's writer has failed already")]
    Stopped,
    /// A receipt is not one.
    #[error("a writer's receipt is damaged: {reason}")]
    Receipt {
        /// What is wrong with it.
        reason: String,
    },
    /// A chunk that the manifest needs is neither in the receipts nor in the store.
    #[error("chunk {chunk} of {what} was not written")]
    MissingChunk {
        /// The chunk.
        chunk: ChunkId,
        /// The object that has it.
        what: String,
    },
    /// The manifest or index is one that no reader would accept.
    #[error("the {what} of image {image} would not be readable: {error}")]
    Format {
        /// Which file.
        what: &'static str,
        /// Of which image.
        image: ImageId,
        /// What a reader would say.
        error: FormatError,
    },
    /// A chunk cannot be compressed.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// What is in the store already cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl From<MediaError> for WriteError {
    fn from(operation: MediaError) -> Self {
        match operation.error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { operation },
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                Self::NotWritable { operation }
            }
            _ => Self::Media(operation),
        }
    }
}

/// An image, or a part of one, that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no such image.
    #[error("there is no image {image} in {}: `dormouse ls` shows those that are", dir.display())]
    NoImage {
        /// The image.
        image: ImageId,
        /// The store.
        dir: PathBuf,
    },
    /// A file of the store is damaged, or newer than this program.
    #[error("{} is not usable: {error}{}", path.display(), what_to_do(error))]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: FormatError,
    },
    /// A file is intact and bears another's name.
    #[error("{} is not what its name says: it is {found}; {RESCUE}", path.display())]
    WrongName {
        /// The file.
        path: PathBuf,
        /// The id inside it.
        found: String,
    },
    /// The image was taken on a machine of another architecture.
    #[error("image {image} was taken on {found}, this machine is {host}: restart it on {found}")]
    WrongMachine {
        /// The image.
        image: ImageId,
        /// Its machine.
        found: Machine,
        /// This machine.
        host: Machine,
    },
    /// The image was on its way here, and whoever brought it is gone.
    #[error("image {image} has not come whole: whoever sent it has given it up, or is gone")]
    NotCome {
        /// The image.
        image: ImageId,
    },
    /// The image has no such object.
    #[error("image {image} has no {}", describe(kind))]
    NoObject {
        /// The image.
        image: ImageId,
        /// What was looked for.
        kind: ObjectKind,
    },
    /// An object does not have the length that its reader expects.
    #[error("{} of image {image} has {found} bytes, at most {expected} can be taken", describe(kind))]
    ObjectLength {
        /// The image.
        image: ImageId,
        /// The object.
        kind: ObjectKind,
        /// What fits.
        expected: u64,
        /// What it has.
        found: u64,
    },
    /// A chunk cannot be had.
    #[error("{object} at offset {offset:#x} cannot be had: {problem}; {RESCUE}")]
    Chunk {
        /// The object that it belongs to.
        object: String,
        /// Where in the object.
        offset: u64,
        /// Why not.
        problem: String,
    },
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The caller's buffer, file or function failed.
    #[error("{object} cannot be handed on at offset {offset:#x}: {error}")]
    Sink {
        /// The object.
        object: String,
        /// Where in the object.
        offset: u64,
        /// What the receiver said.
        error: io::Error,
    },
}

impl ReadError {
    /// Whether the file is fine and a newer program could read it.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::File { error, .. } if error.is_newer())
    }

    /// Whether the file's bytes could not be had: of a file that ends too soon they could.
    pub(crate) fn is_unread(&self) -> bool {
        match self {
            Self::Media(_) => true,
            Self::File { error: FormatError::Read(error), .. } => is_unread(error),
            _ => false,
        }
    }
}

/// Whether reading failed because bytes could not be had, and not because of what they are, or since there are too few.
pub(crate) fn is_unread(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
}

/// Images that cannot be copied from one store to another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// They cannot be read.
    #[error(transparent)]
    Source(ReadError),
    /// The other store cannot take them.
    #[error(transparent)]
    Target(#[from] WriteError),
}

/// A name or prefix that stands for no image, or for several.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// Nothing fits.
    #[error("no image fits {reference:?} in {}: `dormouse ls` shows those that are there", dir.display())]
    NotFound {
        /// What was asked for.
        reference: String,
        /// The store.
        dir: PathBuf,
    },
    /// It is the beginning of ids, but too few digits of them.
    #[error("{reference:?} is too short for an image's id: give at least {least} characters of it")]
    TooShort {
        /// What was asked for.
        reference: String,
        /// How many stand for an image.
        least: usize,
    },
    /// Several fit.
    #[error("{reference:?} fits {} images: {}", candidates.len(), join(candidates))]
    Ambiguous {
        /// What was asked for.
        reference: String,
        /// What it could mean.
        candidates: Vec<ImageId>,
    },
    /// The image that is meant, or may be meant, cannot be read.
    #[error("{}", damaged_newest(reference, damaged, *older))]
    Damaged {
        /// What was asked for.
        reference: String,
        /// The image.
        damaged: Box<DamagedImage>,
        /// The newest image of the same job that can be read.
        older: Option<ImageId>,
    },
    /// The bytes of the image that is meant, or may be meant, cannot be had.
    #[error("{}", unread_newest(reference, unread, *older))]
    Unread {
        /// What was asked for.
        reference: String,
        /// The image.
        unread: Box<DamagedImage>,
        /// The newest image of the same job that can be read.
        older: Option<ImageId>,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A name that is no object's, or several objects'.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// Nothing fits.
    #[error("image {image} has no object {reference:?}: {}", what_is_near(inside.as_ref()))]
    NotFound {
        /// The image.
        image: ImageId,
        /// What was asked for.
        reference: String,
        /// The device memory that it is an address in, and how far.
        inside: Option<(String, u64)>,
    },
    /// Several fit.
    #[error("{reference:?} fits {} objects: {}", candidates.len(), candidates.join(", "))]
    Ambiguous {
        /// What was asked for.
        reference: String,
        /// Their names.
        candidates: Vec<String>,
    },
}

fn what_is_near(inside: Option<&(String, u64)>) -> String {
    match inside {
        Some((object, offset)) => {
            format!("it is an address in {object}, {offset:#x} bytes behind its begin")
        }
        None => "`dormouse inspect` lists those that it has".to_owned(),
    }
}

/// What can be done about damage.
pub(crate) const RESCUE: &str = "bring the file back from a copy, or use another image (`dormouse verify`, with this store, tells which are whole)";

/// What comes of it when a damaged pack is moved out of the store: the jobs still have the memory.
pub(crate) const WRITTEN_ANEW: &str =
    "the next checkpoint of each running job writes anew what that has needed of it (docs/store.md)";

/// What can be done about a store's own file: nothing in the store depends on what it says, unless that is the secret.
const NEW_CONFIG: &str = "; bring it back from a copy, or, if the store is not encrypted, copy the file of a new store there: the images are not \
     concerned";
/// What is behind a folder that is somebody else's.
const NOT_YOURS: &str = ": a folder's store is its owner's alone until that one shares it, as with `chgrp -R GROUP STORE; chmod -R g+rwX STORE`";

/// Buckets refuse in words of their own.
fn is_not_yours(error: &MediaError) -> bool {
    error.error.kind() == io::ErrorKind::PermissionDenied && error.path.is_absolute()
}

/// What to do about a file that is not usable, unless the error says so itself.
fn what_to_do(error: &FormatError) -> String {
    if error.is_newer() { String::new() } else { format!("; {RESCUE}") }
}

fn damaged_newest(reference: &str, damaged: &DamagedImage, older: Option<ImageId>) -> String {
    let DamagedImage { image, job, path, problem, .. } = damaged;
    let what = match job {
        Some(job) if reference.strip_suffix("@latest").unwrap_or(reference) == job => {
            format!("the newest image of job {job:?}, {image}, is damaged")
        }
        _ => format!("no readable image fits {reference:?}, and image {image}, which may, is damaged"),
    };
    let rescue = match older {
        Some(older) => {
            format!("bring the file back from a copy, or take the image before it by its id: {older}")
        }
        None => RESCUE.to_owned(),
    };
    format!("{what}: {}: {problem}; {rescue}", path.display())
}

fn unread_newest(reference: &str, unread: &DamagedImage, older: Option<ImageId>) -> String {
    let DamagedImage { image, path, problem, .. } = unread;
    let or_older = older
        .map(|older| format!(", or take the newest that can be read by its id: {older}"))
        .unwrap_or_default();
    format!(
        "image {image} may be the one that {reference:?} means, and its file {} cannot be read, though it may be whole: {problem}; see to its \
         permissions, the disk or the network and try again{or_older}",
        path.display()
    )
}

fn join(ids: &[ImageId]) -> String {
    ids.iter().map(ImageId::to_string).collect::<Vec<_>>().join(", ")
}

/// What an object is, in words.
#[must_use]
pub(crate) fn describe(kind: &ObjectKind) -> String {
    match kind {
        ObjectKind::DeviceMemory { session, device, memory, base } => {
            let memory = match memory {
                image::MemoryKind::Allocation => "memory",
                image::MemoryKind::Global => "module global",
                image::MemoryKind::Driver => "driver memory",
                image::MemoryKind::Array => "array",
                image::MemoryKind::Physical => "mappable memory",
            };
            format!("device {device}'s {memory} at {base:#x} of session {session}")
        }
        ObjectKind::SessionState { session } => format!("state of session {session}"),
        ObjectKind::SharedFile { path } => format!("shared file {path}"),
        ObjectKind::CriuFile { name } => format!("CRIU file {name}"),
        ObjectKind::JobFileContent { path } => format!("content of job file {path}"),
        ObjectKind::HostRecord => "host record".to_owned(),
        _ => format!("{kind:?}"),
    }
}
