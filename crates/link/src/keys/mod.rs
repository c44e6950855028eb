//! The folder of a machine's keys: its own, whom it lets in, and which servers it knows.
//!
//! There is no authority that signs keys. As with SSH, each side knows the other's key by its fingerprint, which people carry from one machine to the
//! other. `docs/security.md` says what that is worth.

mod file;
mod identity;
mod trust;

pub use identity::Identity;
pub use trust::{Client, Clients, DEVICES_MAX, Denied, Moment, Pin, Quota, Server, Servers};

use crate::fingerprint::Fingerprint;
use file::Others;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Names the folder where nothing else does.
pub const FOLDER_VARIABLE: &str = "DORMOUSE_KEYS";
/// For how long a certificate is good, unless somebody says otherwise.
pub const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// For how long an old key is taken beside its successor, unless somebody says otherwise.
pub const GRACE: Duration = Duration::from_secs(30 * 86_400);

const IDENTITY: &str = "identity.pem";
const PREVIOUS: &str = "previous.pem";
const CLIENTS: &str = "clients.json";
const SERVERS: &str = "servers.json";

/// What is wrong with keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// There is no key yet.
    #[error("this machine has no key in {}; `dormouse keys new` makes one", folder.display())]
    None {
        /// Where.
        folder: PathBuf,
    },
    /// There is one already.
    #[error("this machine has a key in {} already; `dormouse keys rotate` makes a new one and lets others take the old one for a while", folder.display())]
    Exists {
        /// Where.
        folder: PathBuf,
    },
    /// A file can be read or changed by others.
    #[error("others than its owner may use {} (mode {mode:o}): `chmod 600 {}`, and make a new key if somebody has", path.display(), path.display())]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file is another user's.
    #[error("{} belongs to user {owner}, not to whoever uses it", path.display())]
    OfOthers {
        /// The file.
        path: PathBuf,
        /// The user's number.
        owner: u32,
    },
    /// A file holds something else.
    #[error("{} is damaged: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong. Nothing of what it holds.
        problem: String,
    },
    /// The system failed.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// No key could be made.
    #[error("cannot make a key: {0}")]
    NotMade(String),
    /// A certificate's time is over.
    #[error("this machine's certificate expired at {0}; `dormouse keys rotate` makes a new key")]
    Expired(Moment),
    /// Somebody else has this key.
    #[error("{0}")]
    Taken(String),
    /// There is no such name.
    #[error("no client and no server is known as {0}; `dormouse keys list` lists them")]
    Unknown(String),
    /// No client can be called so.
    #[error("{0:?} is no name for a client: expected letters, digits, '.', '-' or '_', 64 at most")]
    BadName(String),
}

impl KeysError {
    fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), problem: problem.into() }
    }

    fn not_made(error: impl std::fmt::Display) -> Self {
        Self::NotMade(error.to_string())
    }
}

/// Which files there were: number and time of each.
pub(crate) type Version = [Option<(u64, SystemTime)>; 2];

/// The folder. Every question reads it anew.
#[derive(Clone, Debug)]
pub struct Keys {
    folder: PathBuf,
}

impl Default for Keys {
    /// `$DORMOUSE_KEYS`, or `/etc/dormouse` for root, else `~/.config/dormouse`.
    fn default() -> Self {
        let folder = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from).unwrap_or_else(|| {
            if rustix::process::geteuid().is_root() {
                return "/etc/dormouse".into();
            }
            let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
            let configuration = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
            configuration.unwrap_or_else(|| home.join(".config")).join("dormouse")
        });
        Self { folder }
    }
}

impl Keys {
    /// A folder, which need not be there yet.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// This machine's key.
    ///
    /// # Errors
    /// [`KeysError::None`] and what else is wrong with its file. One that has expired is no error yet.
    pub fn identity(&self) -> Result<Identity, KeysError> {
        self.read_identity(IDENTITY)?.ok_or_else(|| KeysError::None { folder: self.folder.clone() })
    }

    /// The key before that, while others may still know this machine by it.
    ///
    /// # Errors
    /// What is wrong with its file.
    pub fn previous(&self) -> Result<Option<Identity>, KeysError> {
        Ok(self.read_identity(PREVIOUS)?.filter(|identity| !identity.has_expired()))
    }

    fn read_identity(&self, name: &str) -> Result<Option<Identity>, KeysError> {
        let path = self.folder.join(name);
        let pem = file::read(&path, Others::Nothing)?;
        pem.map(|pem| Identity::from_pem(&pem, &path)).transpose()
    }

    /// Makes this machine's key.
    ///
    /// # Errors
    /// [`KeysError::Exists`]; as the system's.
    pub fn create(&self, expires: SystemTime) -> Result<Identity, KeysError> {
        let _lock = file::lock(&self.folder)?;
        if self.folder.join(IDENTITY).exists() {
            return Err(KeysError::Exists { folder: self.folder.clone() });
        }
        let identity = Identity::new(expires)?;
        file::write(&self.folder.join(IDENTITY), identity.to_pem().as_bytes())?;
        Ok(identity)
    }

    /// Makes a new key. The old one is good for `grace` yet: its certificate is made anew to end then, so whoever looks at it knows.
    ///
    /// # Errors
    /// [`KeysError::None`]; as the system's.
    pub fn rotate(&self, expires: SystemTime, grace: Duration) -> Result<Identity, KeysError> {
        let _lock = file::lock(&self.folder)?;
        let old = self.identity()?.until(SystemTime::now() + grace)?;
        let new = Identity::new(expires)?;
        // A crash between the two leaves the old key in both files, which is harmless.
        file::write(&self.folder.join(PREVIOUS), old.to_pem().as_bytes())?;
        file::write(&self.folder.join(IDENTITY), new.to_pem().as_bytes())?;
        Ok(new)
    }

    /// Whom this machine lets in.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn clients(&self) -> Result<Clients, KeysError> {
        self.read_json(CLIENTS)
    }

    /// Which servers it knows.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn servers(&self) -> Result<Servers, KeysError> {
        self.read_json(SERVERS)
    }

    /// Lets a client in. `replace` says for how long an old key of the same name is taken yet.
    ///
    /// # Errors
    /// [`KeysError::Taken`] when the name has another key and nothing is to be replaced, or the key another name; [`KeysError::BadName`].
    pub fn authorize(
        &self,
        name: &str,
        key: Fingerprint,
        quota: Quota,
        replace: Option<Duration>,
    ) -> Result<(), KeysError> {
        self.change(CLIENTS, |clients: &mut Clients| clients.authorize(name, key, quota, replace))
    }

    /// Remembers a server's key. `replace` as for [`Keys::authorize`].
    ///
    /// # Errors
    /// [`KeysError::Taken`] when another key is known and not to be replaced.
    pub fn trust(&self, machine: &str, key: Fingerprint, replace: Option<Duration>) -> Result<(), KeysError> {
        self.change(SERVERS, |servers: &mut Servers| servers.trust(machine, key, replace))
    }

    /// Lets a client in no more, whose sessions end within a second or two; or forgets a server.
    ///
    /// # Errors
    /// [`KeysError::Unknown`].
    pub fn revoke(&self, name: &str) -> Result<(), KeysError> {
        let unknown = || KeysError::Unknown(name.to_owned());
        if self.clients()?.named(name).is_some() {
            return self.change(CLIENTS, |clients: &mut Clients| {
                clients.revoke(name).then_some(()).ok_or_else(unknown)
            });
        }
        self.change(SERVERS, |servers: &mut Servers| servers.forget(name).then_some(()).ok_or_else(unknown))
    }

    /// By what one can see whether the list of clients has been changed.
    pub(crate) fn clients_version(&self) -> Version {
        [self.version(CLIENTS), None]
    }

    /// The same of this machine's own keys.
    pub(crate) fn identity_version(&self) -> Version {
        [self.version(IDENTITY), self.version(PREVIOUS)]
    }

    fn version(&self, name: &str) -> Option<(u64, SystemTime)> {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::metadata(self.folder.join(name)).ok()?;
        Some((found.ino(), found.modified().ok()?))
    }

    fn read_json<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, KeysError> {
        let path = self.folder.join(name);
        let Some(text) = file::read(&path, Others::Read)? else { return Ok(T::default()) };
        serde_json::from_str(&text).map_err(|error| KeysError::damaged(&path, error.to_string()))
    }

    fn change<T: DeserializeOwned + Default + Serialize>(
        &self,
        name: &str,
        change: impl FnOnce(&mut T) -> Result<(), KeysError>,
    ) -> Result<(), KeysError> {
        let _lock = file::lock(&self.folder)?;
        let mut all: T = self.read_json(name)?;
        change(&mut all)?;
        let path = self.folder.join(name);
        let text =
            serde_json::to_vec_pretty(&all).map_err(|error| KeysError::damaged(&path, error.to_string()))?;
        file::write(&path, &text)
    }
}

#[cfg(test)]
mod tests;
