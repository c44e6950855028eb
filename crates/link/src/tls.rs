//! TLS as it is used here: version 1.3 alone, both sides with a certificate of their own, known by the key in it.

use crate::fingerprint::Fingerprint;
use crate::keys::{Denied, Identity, Moment};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::ring::{self, cipher_suite};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert, ServerConfig,
};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureAlgorithm, SignatureScheme,
    version,
};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

/// What is spoken inside, so that no other service's connection is taken for one of ours.
const ALPN: &[u8] = b"dormouse/1";
/// Every key of ours is an Ed25519 key.
static ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ED25519],
    mapping: &[(SignatureScheme::ED25519, &[webpki::ring::ED25519])],
};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        // The fastest first, where processors have AES: 128 bits are enough.
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        signature_verification_algorithms: ALGORITHMS,
        ..ring::default_provider()
    })
}

/// The key in a certificate that signed it, if it may be used so at this time.
fn verify(
    certificate: &CertificateDer<'_>,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
    usage: KeyUsage,
) -> Result<Fingerprint, CertificateError> {
    if !chain.is_empty() {
        return Err(CertificateError::BadEncoding);
    }
    let parsed = ParsedCertificate::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let fingerprint = Fingerprint::of(&parsed.subject_public_key_info());
    let anchor = anchor_from_trusted_cert(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let end = EndEntityCert::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let anchors = [anchor];
    match end.verify_for_usage(ALGORITHMS.all, &anchors, &[], now, usage, None, None) {
        Ok(_) => Ok(fingerprint),
        Err(webpki::Error::CertExpired { time, not_after }) => {
            Err(CertificateError::ExpiredContext { time, not_after })
        }
        Err(webpki::Error::CertNotValidYet { time, not_before }) => {
            Err(CertificateError::NotValidYetContext { time, not_before })
        }
        Err(_) => Err(CertificateError::BadSignature),
    }
}

/// The key of a certificate of ours, and when it expires.
pub(crate) fn examine(certificate: &CertificateDer<'_>) -> Option<(Fingerprint, SystemTime)> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    // Whoever verifies it at the end of time is told when it ended.
    let last = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    match verify(certificate, &[], last, KeyUsage::client_auth()) {
        Err(CertificateError::ExpiredContext { not_after, .. }) => {
            Some((Fingerprint::of(&parsed.subject_public_key_info()), moment(not_after).0))
        }
        _ => None,
    }
}

fn moment(time: UnixTime) -> Moment {
    Moment(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}

/// The key that a peer has shown and proved to have.
pub(crate) fn peer(certificates: Option<&[CertificateDer<'_>]>) -> Option<Fingerprint> {
    let parsed = ParsedCertificate::try_from(certificates?.first()?).ok()?;
    Some(Fingerprint::of(&parsed.subject_public_key_info()))
}

/// Who has the server's keys, and knows whom it lets in: another process than the one that talks with clients.
pub(crate) trait Authority: fmt::Debug + Send + Sync {
    /// Proves, in a handshake of which this is to be signed, that the server has this key.
    fn sign(&self, key: Fingerprint, message: &[u8]) -> Option<Vec<u8>>;
    /// Whether this key is let in; `None` when nobody answers.
    fn knows(&self, key: Fingerprint) -> Option<Result<(), Denied>>;
}

/// The server's side, of which these are the certificates, the newest first.
pub(crate) fn server(
    certificates: Vec<CertificateDer<'static>>,
    authority: &Arc<dyn Authority>,
) -> Result<Arc<ServerConfig>, Error> {
    let shown = |certificate: CertificateDer<'static>| {
        let (key, _) = examine(&certificate)?;
        let signing = Arc::new(DistantKey { key, authority: authority.clone() });
        Some((key.server_name(), Arc::new(CertifiedKey::new(vec![certificate], signing))))
    };
    let keys = OwnKeys(certificates.into_iter().filter_map(shown).collect());
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(Arc::new(KnownClients(authority.clone())))
        .with_cert_resolver(Arc::new(keys));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Nothing is resumed, and nothing is sent the other way once a connection carries data.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// A key of which only the name is here.
#[derive(Clone, Debug)]
struct DistantKey {
    key: Fingerprint,
    authority: Arc<dyn Authority>,
}

impl SigningKey for DistantKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SignatureScheme::ED25519).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for DistantKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature = self.authority.sign(self.key, message);
        signature.ok_or_else(|| Error::General("nothing was signed".to_owned()))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

/// What a server signs in a handshake: spaces, a context, and the hash of what was said.
const PROOF: &[u8] = b"TLS 1.3, server CertificateVerify\0";
const SPACES: usize = 64;

/// Signs a server's part of a handshake with a key, and nothing else.
pub(crate) fn sign_handshake(key: &CertifiedKey, message: &[u8]) -> Option<Vec<u8>> {
    let (spaces, rest) = message.split_at_checked(SPACES)?;
    let hash = rest.strip_prefix(PROOF)?;
    if spaces.iter().any(|byte| *byte != b' ') || ![32, 48].contains(&hash.len()) {
        return None;
    }
    key.key.choose_scheme(&[SignatureScheme::ED25519])?.sign(message).ok()
}

/// A server's keys by the names that clients ask for them by.
#[derive(Debug)]
struct OwnKeys(Vec<(String, Arc<CertifiedKey>)>);

impl ResolvesServerCert for OwnKeys {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = self.0.iter().find(|(name, _)| Some(name.as_str()) == hello.server_name());
        // One who asks for no key of ours is shown the newest, and tells its user.
        asked.or(self.0.first()).map(|(_, key)| key.clone())
    }
}

/// Lets those in whom the list has. Whom it turns away learns why by the alert that rustls makes of the error; see [`crate::dial()`].
#[derive(Debug)]
struct KnownClients(Arc<dyn Authority>);

impl ClientCertVerifier for KnownClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let key = verify(certificate, chain, now, KeyUsage::client_auth())?;
        match self.0.knows(key) {
            Some(Ok(())) => Ok(ClientCertVerified::assertion()),
            Some(Err(Denied::Unknown)) => Err(CertificateError::UnknownIssuer.into()),
            Some(Err(Denied::Revoked)) => Err(CertificateError::Revoked.into()),
            Some(Err(Denied::Expired)) => Err(CertificateError::ApplicationVerificationFailure.into()),
            None => Err(Error::General("nobody says who is known".to_owned())),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}

/// Whoever speaks it is not of ours.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2 is not spoken".to_owned()))
}

/// Why a client does not take a server's key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServerProblem {
    /// It knows none of this machine.
    Unknown(Fingerprint),
    /// It knows another.
    Changed(Fingerprint),
    /// The certificate is over.
    Expired(Moment),
    /// The certificate begins later, or one of the clocks is wrong.
    NotYet(Moment),
    /// The certificate is none of ours.
    Foreign,
}

/// The client's side: the key that it shows, and those that it takes of the server, the newest first.
pub(crate) struct ClientSide {
    pub config: Arc<ClientConfig>,
    verifier: Arc<KnownServer>,
}

/// A client's view of one server.
#[derive(Debug)]
struct KnownServer {
    keys: Vec<Fingerprint>,
    problem: Mutex<Option<ServerProblem>>,
}

impl ClientSide {
    pub fn new(identity: &Identity, known: Vec<Fingerprint>) -> Result<Self, Error> {
        let verifier = Arc::new(KnownServer { keys: known, problem: Mutex::new(None) });
        let key = identity.certified().ok_or(Error::General("the own key is damaged".to_owned()))?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), verifier })
    }

    /// What it did not like.
    pub fn problem(&self) -> Option<ServerProblem> {
        *self.verifier.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownServer {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), ServerProblem> {
        let key = verify(certificate, chain, now, KeyUsage::server_auth()).map_err(|error| match error {
            CertificateError::ExpiredContext { not_after, .. } => ServerProblem::Expired(moment(not_after)),
            CertificateError::NotValidYetContext { not_before, .. } => {
                ServerProblem::NotYet(moment(not_before))
            }
            _ => ServerProblem::Foreign,
        })?;
        match &self.keys[..] {
            [] => Err(ServerProblem::Unknown(key)),
            known if known.contains(&key) => Ok(()),
            _ => Err(ServerProblem::Changed(key)),
        }
    }
}

impl ServerCertVerifier for KnownServer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.check(certificate, chain, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(problem) => {
                *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::keys::YEAR;

    #[test]
    fn nothing_but_a_servers_part_of_a_handshake_is_signed() {
        let key = Identity::new(SystemTime::now() + YEAR).unwrap().certified().unwrap();
        let message = |spaces: usize, context: &[u8], hash: usize| {
            [vec![b' '; spaces], context.to_vec(), vec![7; hash]].concat()
        };
        assert_eq!(sign_handshake(&key, &message(64, PROOF, 32)).unwrap().len(), 64);
        assert!(sign_handshake(&key, &message(64, PROOF, 48)).is_some());
        for other in [
            message(64, PROOF, 33),
            message(63, PROOF, 33),
            message(64, PROOF, 0),
            message(64, b"TLS 1.3, client CertificateVerify\0", 32),
            message(0, b"", 32),
            vec![],
        ] {
            assert!(sign_handshake(&key, &other).is_none(), "{other:?}");
        }
    }
}
