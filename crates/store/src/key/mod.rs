//! What opens an encrypted store: its secret, which all files' keys come from; recipients, for whom that secret is kept in the store's `config`;
//! and identities, the recipients' private keys.
//!
//! Nothing here shows what is secret: `Debug` leaves it out, and the memory of the values here is wiped when they are given up. Only
//! [`serde::Serialize`] writes it, for the sockets between a job's supervisor and its servers; the buffers of those messages, and what was read of
//! key files and decrypted, are not wiped.

mod identity;
mod wrap;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::OpenError;
pub use identity::{Identities, KeyError};
pub(crate) use wrap::{Unopened, seal_config, unseal_config};

/// What an encrypted store's files are encrypted with.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop, Serialize, Deserialize)]
pub struct Secret([u8; 32]);

impl Secret {
    /// One that nobody else has.
    ///
    /// # Errors
    /// As `getrandom(2)`.
    pub fn random() -> std::io::Result<Self> {
        crate::store::random().map(Self)
    }

    /// The key for one purpose, told from all others by `context`, of whatever `of` names.
    pub(crate) fn key_for(&self, context: &str, of: &[u8]) -> zeroize::Zeroizing<[u8; 32]> {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&self.0).update(of);
        zeroize::Zeroizing::new(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a store is opened with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Key {
    /// Nothing: only stores that are not encrypted.
    #[default]
    None,
    /// The keys of people.
    Identities(Identities),
    /// The store's secret itself, which another process has got by a key.
    Secret(Secret),
}

impl Key {
    /// Whether it is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// The files it comes from.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        match self {
            Self::Identities(identities) => identities.files(),
            Self::None | Self::Secret(_) => &[],
        }
    }

    /// Whether it does not keep who has it out of a store that is made in `dir` for `recipients`: without one the maker has its secret.
    ///
    /// # Errors
    /// [`OpenError::KeptOut`].
    pub(crate) fn check_fits(&self, recipients: &[Recipient], dir: PathBuf) -> Result<(), OpenError> {
        let Self::Identities(identities) = self else { return Ok(()) };
        let own = |key: age::x25519::Identity| recipients.contains(&Recipient(key.to_public()));
        if recipients.is_empty() || identities.parsed().into_iter().any(own) {
            return Ok(());
        }
        Err(OpenError::KeptOut { dir, recipients: recipients.iter().map(Recipient::to_string).collect() })
    }
}

/// For whom a store is encrypted: an age public key, `age1…`.
#[derive(Clone, PartialEq, Eq)]
pub struct Recipient(age::x25519::Recipient);

impl FromStr for Recipient {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |problem| KeyError::NotARecipient { text: shown(text), problem };
        if text.starts_with("AGE-SECRET-KEY-") {
            return Err(wrong("it is a private key: give the public one, which `age-keygen -y FILE` prints"));
        }
        text.parse().map(Self).map_err(wrong)
    }
}

/// A recipient as it was given, but for a private key given in its place.
fn shown(text: &str) -> String {
    if text.starts_with("AGE-SECRET-KEY-") { "AGE-SECRET-KEY-…".to_owned() } else { format!("{text:?}") }
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Recipient {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Recipient {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_shown() {
        let secret = Secret([0xab; 32]);
        let shown = format!("{:?} {:?}", secret, Key::Secret(secret.clone()));
        assert!(!shown.contains("171") && !shown.to_lowercase().contains("ab, "), "{shown}");
        // A private key that is given in a public one's place is not shown either.
        let private = "AGE-SECRET-KEY-1QQQQQQQQQQ";
        let error = private.parse::<Recipient>().unwrap_err().to_string();
        assert!(!error.contains("QQQQ") && error.contains("age-keygen -y"), "{error}");
    }

    #[test]
    fn a_key_is_another_for_each_purpose_and_each_thing() {
        let secret = Secret([1; 32]);
        let keys = [
            secret.key_for("one", b"a"),
            secret.key_for("one", b"b"),
            secret.key_for("two", b"a"),
            Secret([2; 32]).key_for("one", b"a"),
        ];
        for (number, key) in keys.iter().enumerate() {
            assert!(keys[..number].iter().all(|other| other != key));
        }
    }

    #[test]
    fn keys_travel() {
        let json = serde_json::to_string(&Key::Secret(Secret([3; 32]))).unwrap();
        assert_eq!(serde_json::from_str::<Key>(&json).unwrap(), Key::Secret(Secret([3; 32])));
    }
}
