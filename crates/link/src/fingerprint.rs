//! What a machine is known by: the hash of its public key.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Before the hash, so that another could follow one day.
const PREFIX: &str = "SHA256:";

/// The SHA-256 of a public key (the certificate's SubjectPublicKeyInfo). Not a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fingerprint([u8; 32]);

/// A text that is no fingerprint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no key's fingerprint; one looks like SHA256:… and is what `dormouse keys show` prints on the other machine"
)]
pub struct NotAFingerprint;

impl Fingerprint {
    /// Of a public key.
    #[must_use]
    pub fn of(public_key: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, public_key).as_ref());
        Self(hash)
    }

    /// A name that a client can ask for this key by (TLS's server name), which is a DNS name in form only.
    pub(crate) fn server_name(&self) -> String {
        let mut name = String::new();
        for byte in &self.0[..16] {
            name.push_str(&format!("{byte:02x}"));
        }
        name + ".dormouse"
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = NotAFingerprint;

    fn from_str(text: &str) -> Result<Self, NotAFingerprint> {
        let encoded = text.strip_prefix(PREFIX).ok_or(NotAFingerprint)?;
        let mut hash = [0; 32];
        match URL_SAFE_NO_PAD.decode_slice(encoded, &mut hash) {
            Ok(32) => Ok(Self(hash)),
            _ => Err(NotAFingerprint),
        }
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = NotAFingerprint;

    fn try_from(text: String) -> Result<Self, NotAFingerprint> {
        text.parse()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fingerprints_are_read_back(key: Vec<u8>) {
            let fingerprint = Fingerprint::of(&key);
            prop_assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
            prop_assert!(fingerprint.server_name().len() < 64);
        }

        #[test]
        fn anything_else_is_none(text in "(SHA256:)?\\PC{0,60}") {
            if let Ok(fingerprint) = text.parse::<Fingerprint>() {
                prop_assert_eq!(fingerprint.to_string(), text);
            }
        }
    }
}
