//! A store's own file.

use std::io::Read;

use crate::message::{Field, Writer};
use crate::sealed::{self, Kind};
use crate::{FormatError, Machine, StoreId, limits};

/// The content of a store's `config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// The store.
    pub id: StoreId,
    /// When it was created, in ns since 1970 UTC.
    pub created_ns: u64,
    /// What opens it, if everything else in it is encrypted.
    pub encryption: Option<Encryption>,
}

/// How the secret of an encrypted store is kept: only for those who can open it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encryption {
    /// Whose keys open it: age recipients, which are no secrets.
    pub recipients: Vec<String>,
    /// The store's secret as an age file, for these recipients.
    pub wrapped: Vec<u8>,
    /// A keyed hash of [`StoreConfig::vouched`] by which who has the secret knows that nothing here was changed.
    pub proof: [u8; 32],
}

impl StoreConfig {
    /// The config as a file.
    ///
    /// # Errors
    /// [`FormatError::TooLong`] where there are too many recipients.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        sealed::seal(Kind::Config, Machine::ANY, self.body(true))
    }

    /// What the proof is made over: the body without the proof.
    #[must_use]
    pub fn vouched(&self) -> Vec<u8> {
        self.body(false).finish()
    }

    fn body(&self, with_proof: bool) -> Writer {
        let mut body = Writer::default();
        body.bytes(1, &self.id.0);
        body.u64(2, self.created_ns);
        if let Some(Encryption { recipients, wrapped, proof }) = &self.encryption {
            body.message(3, |encryption| {
                recipients.iter().for_each(|recipient| encryption.bytes(1, recipient.as_bytes()));
                encryption.bytes(2, wrapped);
                if with_proof {
                    encryption.bytes(3, proof);
                }
            });
        }
        body
    }

    /// Reads a config.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn read(from: impl Read) -> Result<Self, FormatError> {
        let sealed = sealed::open(Kind::Config, from)?;
        let mut fields = sealed.fields();
        let id = StoreId(fields.need(1, "it has no id")?.array()?);
        let created_ns = fields.need(2, "it has no time")?.u64()?;
        let encryption = fields.maybe(3)?.map(|field| Encryption::read(&field)).transpose()?;
        fields.end()?;
        Ok(Self { id, created_ns, encryption })
    }
}

impl Encryption {
    fn read(field: &Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("a store's encryption");
        let recipients = fields.many(1, |recipient| recipient.text(limits::TEXT))?;
        if recipients.is_empty() {
            return Err(field.invalid("an encrypted store has no recipient"));
        }
        let wrapped = fields.need(2, "an encrypted store has no secret")?.bytes(limits::TEXT)?;
        let proof = fields.need(3, "an encrypted store has no proof")?.array()?;
        fields.end()?;
        Ok(Self { recipients, wrapped, proof })
    }
}
