//! A store as a process is told of it: where it is, and what opens it.

use serde::{Deserialize, Serialize};

use crate::key::{Key, Recipient};
use crate::media::Dir;
use crate::{Location, OpenError, Store};

/// Where a store is, and what opens it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The place.
    pub at: Location,
    /// What opens an encrypted store.
    #[serde(default, skip_serializing_if = "Key::is_none")]
    pub key: Key,
    /// For whom the store must be encrypted, and is when it is made. If there is none, it may be encrypted or not, and is not when it is
    /// made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<Recipient>,
}

impl From<Location> for Access {
    /// Without a key.
    fn from(at: Location) -> Self {
        Self { at, key: Key::None, recipients: Vec::new() }
    }
}

impl Access {
    /// Opens the store. Nothing is written.
    ///
    /// # Errors
    /// As [`Store::open_with`].
    pub fn open(&self) -> Result<Store, OpenError> {
        Store::open_with(self.at.media(true)?, &self.key, &self.recipients)
    }

    /// [`Access::open`] without patience, for who only wants to know.
    ///
    /// # Errors
    /// As [`Access::open`].
    pub fn open_at_once(&self) -> Result<Store, OpenError> {
        Store::open_with(self.at.media(false)?, &self.key, &self.recipients)
    }

    /// Whether there is no more in the folder than who makes a store has made by then.
    #[must_use]
    pub fn is_being_made(&self) -> bool {
        self.at.as_folder().is_some_and(|dir| Store::is_being_made(&Dir::new(dir)))
    }

    /// Whether a store that is made for these recipients could be opened with this key afterwards.
    ///
    /// # Errors
    /// [`OpenError::KeptOut`].
    pub fn check_new(&self) -> Result<(), OpenError> {
        self.key.check_fits(&self.recipients, self.at.to_path())
    }

    /// Whether no store that holds a job's memory may be made here: who has a key and names no recipients means a store that is there, and a
    /// new one would not be encrypted.
    #[must_use]
    pub fn must_be_there(&self) -> bool {
        !self.key.is_none() && self.recipients.is_empty()
    }

    /// [`Access::open_or_create`] for a job's memory: what is not there is not made where it [must be][Access::must_be_there].
    ///
    /// # Errors
    /// As [`Access::open_or_create`], and [`OpenError::Gone`].
    pub fn open_for_job(&self) -> Result<Store, OpenError> {
        if !self.must_be_there() {
            return self.open_or_create();
        }
        self.open().map_err(|error| match error {
            OpenError::NotAStore { dir } => OpenError::Gone { dir },
            error => error,
        })
    }

    /// Opens the store; where there is none, creates one first. A bucket must be there.
    ///
    /// # Errors
    /// As [`Store::open_or_create_with`].
    pub fn open_or_create(&self) -> Result<Store, OpenError> {
        match &self.at {
            // Before there is a folder.
            Location::Folder(dir) if !dir.exists() => {
                self.check_new()?;
                Store::open_or_create_folder(dir, &self.key, &self.recipients)
            }
            Location::Folder(dir) => Store::open_or_create_folder(dir, &self.key, &self.recipients),
            bucket @ Location::Bucket { .. } => {
                Store::open_or_create_with(bucket.media(true)?, &self.key, &self.recipients)
            }
        }
    }
}
