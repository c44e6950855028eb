//! A store's secret in its `config`: an age file for the recipients, and a proof that nothing around it was changed.

use std::io::{Read, Write};

use age::{DecryptError, Decryptor, Encryptor};
use image::{Encryption, StoreConfig};
use zeroize::Zeroizing;

use super::{Identities, Key, Recipient, Secret};

/// What the key of the proof is for.
const PROOF: &str = "dormouse 2026 store config";
/// Length of the secret.
const SECRET: usize = 32;

/// Why a config does not open.
#[derive(Debug)]
pub(crate) enum Unopened {
    /// There is no key.
    NoKey,
    /// None of the keys fits.
    WrongKey,
    /// It is not as it was made.
    Changed,
}

/// Puts the secret into a config, for `recipients`.
///
/// # Errors
/// A sentence, where there is no recipient.
pub(crate) fn seal_config(
    config: &mut StoreConfig,
    secret: &Secret,
    recipients: &[Recipient],
) -> Result<(), String> {
    let keys = recipients.iter().map(|recipient| &recipient.0 as &dyn age::Recipient);
    let encryptor = Encryptor::with_recipients(keys).map_err(|error| error.to_string())?;
    let mut wrapped = Vec::new();
    let written = encryptor.wrap_output(&mut wrapped).and_then(|mut writer| {
        writer.write_all(&secret.0)?;
        writer.finish().map(drop)
    });
    written.map_err(|error| error.to_string())?;
    let recipients = recipients.iter().map(Recipient::to_string).collect();
    config.encryption = Some(Encryption { recipients, wrapped, proof: [0; 32] });
    let proof = proof(config, secret);
    if let Some(encryption) = &mut config.encryption {
        encryption.proof = *proof.as_bytes();
    }
    Ok(())
}

/// The secret of an encrypted store.
pub(crate) fn unseal_config(
    config: &StoreConfig,
    encryption: &Encryption,
    key: &Key,
) -> Result<Secret, Unopened> {
    let secret = match key {
        Key::None => return Err(Unopened::NoKey),
        Key::Secret(secret) => secret.clone(),
        Key::Identities(identities) => unwrap(&encryption.wrapped, identities)?,
    };
    // `blake3::Hash` compares in constant time.
    if proof(config, &secret) == encryption.proof {
        return Ok(secret);
    }
    Err(if matches!(key, Key::Secret(_)) { Unopened::WrongKey } else { Unopened::Changed })
}

fn unwrap(wrapped: &[u8], identities: &Identities) -> Result<Secret, Unopened> {
    let failed = |error| match error {
        DecryptError::NoMatchingKeys => Unopened::WrongKey,
        _ => Unopened::Changed,
    };
    let keys = identities.parsed();
    let keys = keys.iter().map(|key| key as &dyn age::Identity);
    let reader = Decryptor::new_buffered(wrapped).and_then(|decryptor| decryptor.decrypt(keys));
    let mut secret = Zeroizing::new([0; SECRET]);
    let mut reader = reader.map_err(failed)?;
    let read = reader.read_exact(&mut *secret).and_then(|()| reader.read(&mut [0]));
    // Exactly so many bytes, and authenticated to the end.
    if matches!(read, Ok(0)) { Ok(Secret(*secret)) } else { Err(Unopened::Changed) }
}

fn proof(config: &StoreConfig, secret: &Secret) -> blake3::Hash {
    blake3::keyed_hash(&secret.key_for(PROOF, b""), &config.vouched())
}
