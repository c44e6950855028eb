//! What the front has read of files that may change while it runs.

use crate::fingerprint::Fingerprint;
use crate::keys::{Identity, Keys, KeysError, Version};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use std::sync::Arc;

/// What was read of a file, which may change.
#[derive(Debug)]
pub struct Read<T> {
    pub value: T,
    version: Version,
    /// Whether it could not be read lately, which is told once.
    is_stale: bool,
}

impl<T> Read<T> {
    pub fn first(value: T, version: Version) -> Self {
        Self { value, version, is_stale: false }
    }

    /// Reads it again if it has another version.
    pub fn renew(&mut self, version: Version, read: impl FnOnce() -> Result<T, KeysError>) {
        if version == self.version {
            return;
        }
        match read() {
            Ok(value) => *self = Self::first(value, version),
            Err(error) if !self.is_stale => {
                self.is_stale = true;
                tracing::error!("{error}; what was read before is in force");
            }
            Err(_) => {}
        }
    }
}

/// A key of this machine, ready to sign.
#[derive(Debug)]
pub struct Own {
    pub fingerprint: Fingerprint,
    pub certificate: CertificateDer<'static>,
    pub certified: Arc<CertifiedKey>,
}

impl Own {
    /// All of them, the newest first.
    pub fn read(keys: &Keys) -> Result<Vec<Self>, KeysError> {
        let newest = match keys.identity() {
            Ok(identity) => identity,
            // Without TLS there need be none; with it the first reading has failed already.
            Err(KeysError::None { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let all = [Some(newest), keys.previous()?].into_iter().flatten();
        let ready = |identity: Identity| {
            let certified = identity.certified()?;
            let certificate = identity.certificate().clone();
            Some(Self { fingerprint: identity.fingerprint(), certificate, certified })
        };
        Ok(all.filter_map(ready).collect())
    }
}
