//! A machine's own key, and the certificate that it shows.

use super::KeysError;
use crate::fingerprint::Fingerprint;
use crate::tls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// How far two machines' clocks may be apart.
const SKEW: Duration = Duration::from_secs(300);
/// The last second that a certificate can name.
const LAST_SECOND: u64 = 253_402_300_799;

/// An Ed25519 key and a certificate signed by itself: only the key says who it is, the certificate bounds how long.
pub struct Identity {
    certificate: CertificateDer<'static>,
    /// In PKCS #8.
    private_key: Zeroizing<Vec<u8>>,
    fingerprint: Fingerprint,
    expires: SystemTime,
}

impl Identity {
    /// A new key.
    ///
    /// # Errors
    /// [`KeysError::NotMade`].
    pub fn new(expires: SystemTime) -> Result<Self, KeysError> {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(KeysError::not_made)?;
        Self::signed(&pair, expires)
    }

    /// The same key with a certificate that ends at this time, or when it did if that is sooner.
    ///
    /// # Errors
    /// [`KeysError::NotMade`].
    pub fn until(&self, expires: SystemTime) -> Result<Self, KeysError> {
        let key = PrivatePkcs8KeyDer::from(&self.private_key[..]);
        let pair = rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&key, &rcgen::PKCS_ED25519)
            .map_err(KeysError::not_made)?;
        Self::signed(&pair, expires.min(self.expires))
    }

    fn signed(pair: &rcgen::KeyPair, expires: SystemTime) -> Result<Self, KeysError> {
        let mut about = rcgen::CertificateParams::default();
        about.distinguished_name = rcgen::DistinguishedName::new();
        about.distinguished_name.push(rcgen::DnType::CommonName, "dormouse");
        about.not_before = date(SystemTime::now() - SKEW).min(date(expires));
        about.not_after = date(expires);
        about.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        about.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = about.self_signed(pair).map_err(KeysError::not_made)?;
        Self::of(certificate.into(), Zeroizing::new(pair.serialize_der()))
            .map_err(|problem| KeysError::NotMade(problem.to_owned()))
    }

    /// As [`Identity::to_pem`] writes it.
    pub(super) fn from_pem(pem: &str, path: &Path) -> Result<Self, KeysError> {
        let damaged = |problem| KeysError::damaged(path, problem);
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes());
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes());
        let certificate = certificate.map_err(|_| damaged("there is no certificate in it"))?;
        let key = key.map_err(|_| damaged("there is no private key in it"))?;
        let key = Zeroizing::new(key.secret_pkcs8_der().to_vec());
        Self::of(certificate, key).map_err(damaged)
    }

    fn of(
        certificate: CertificateDer<'static>,
        private_key: Zeroizing<Vec<u8>>,
    ) -> Result<Self, &'static str> {
        let (fingerprint, expires) = tls::examine(&certificate).ok_or("its certificate is damaged")?;
        let identity = Self { certificate, private_key, fingerprint, expires };
        let certified = identity.certified().ok_or("its private key is damaged")?;
        certified.keys_match().map_err(|_| "its certificate is of another key")?;
        Ok(identity)
    }

    /// As a file holds it.
    pub(super) fn to_pem(&self) -> Zeroizing<String> {
        let mut pem = Zeroizing::new(String::with_capacity(4096));
        let sections: [(&str, &[u8]); 2] =
            [("PRIVATE KEY", &self.private_key), ("CERTIFICATE", &self.certificate)];
        for (label, der) in sections {
            use base64::Engine;
            let encoded = Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(der));
            pem.push_str(&format!("-----BEGIN {label}-----\n"));
            let mut rest = encoded.as_str();
            while !rest.is_empty() {
                let (line, more) = rest.split_at(rest.len().min(64));
                pem.push_str(line);
                pem.push('\n');
                rest = more;
            }
            pem.push_str(&format!("-----END {label}-----\n"));
        }
        pem
    }

    /// As TLS takes it.
    pub(crate) fn certified(&self) -> Option<Arc<CertifiedKey>> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(&self.private_key[..]));
        let key = rustls::crypto::ring::sign::any_eddsa_type(match &key {
            PrivateKeyDer::Pkcs8(key) => key,
            _ => return None,
        });
        Some(Arc::new(CertifiedKey::new(vec![self.certificate.clone()], key.ok()?)))
    }

    /// What others are shown.
    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// What others know it by.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// When nobody takes its certificate any more.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.expires
    }

    /// Whether that has come.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.expires <= SystemTime::now()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// To the second, as certificates have it.
fn date(time: SystemTime) -> OffsetDateTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().min(LAST_SECOND);
    let seconds = i64::try_from(since).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
