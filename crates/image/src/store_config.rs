//! A store's own file.

use std::io::Read;

use crate::message::Writer;
use crate::sealed::{self, Kind};
use crate::{FormatError, Machine, StoreId};

/// The content of a store's `config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreConfig {
    /// The store.
    pub id: StoreId,
    /// When it was created, in ns since 1970 UTC.
    pub created_ns: u64,
}

impl StoreConfig {
    /// The config as a file.
    ///
    /// # Errors
    /// None today; a [`FormatError`] where a reader would refuse it.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Writer::default();
        body.bytes(1, &self.id.0);
        body.u64(2, self.created_ns);
        sealed::seal(Kind::Config, Machine::ANY, body)
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
        fields.end()?;
        Ok(Self { id, created_ns })
    }
}
