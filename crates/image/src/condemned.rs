//! What is to go from a store when some drafts have ended.

use std::io::Read;

use crate::message::{Field, Writer};
use crate::sealed::{self, Kind};
use crate::{FormatError, ImageId, Machine, PackId, limits};

/// The content of a store's `index/condemned`: packs that no image needed when somebody removed images.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Condemned {
    /// Packs, by whom they are kept for.
    pub groups: Vec<CondemnedPacks>,
}

/// Packs that stay until the drafts that were being written then have ended: these may count on them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CondemnedPacks {
    /// Those drafts.
    pub drafts: Vec<ImageId>,
    /// Packs that an index names. No other draft uses what is in them.
    pub named: Vec<PackId>,
    /// Packs that no index names: of these drafts, or of nobody.
    pub unnamed: Vec<PackId>,
}

impl Condemned {
    /// What is condemned, as a file.
    ///
    /// # Errors
    /// [`FormatError::TooLong`] where a reader would refuse it.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Writer::default();
        for group in &self.groups {
            body.message(1, |out| {
                out.bytes(1, group.drafts.iter().map(|id| id.0).collect::<Vec<_>>().as_flattened());
                for (field, packs) in [(2, &group.named), (3, &group.unnamed)] {
                    out.bytes(field, packs.iter().map(|id| id.0).collect::<Vec<_>>().as_flattened());
                }
            });
        }
        sealed::seal(Kind::Condemned, Machine::ANY, body)
    }

    /// Reads such a file.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn read(from: impl Read) -> Result<Self, FormatError> {
        let sealed = sealed::open(Kind::Condemned, from)?;
        let mut fields = sealed.fields();
        let groups = fields.many(1, |group| {
            let mut fields = group.message("condemned packs");
            let drafts =
                ids(&fields.need(1, "no drafts are waited for")?)?.into_iter().map(ImageId).collect();
            let named = ids(&fields.need(2, "packs are missing")?)?.into_iter().map(PackId).collect();
            let unnamed = ids(&fields.need(3, "packs are missing")?)?.into_iter().map(PackId).collect();
            fields.end()?;
            Ok(CondemnedPacks { drafts, named, unnamed })
        })?;
        fields.end()?;
        Ok(Self { groups })
    }
}

fn ids(field: &Field<'_>) -> Result<Vec<[u8; 16]>, FormatError> {
    let bytes = field.bytes(usize::try_from(limits::CONDEMNED_BODY).unwrap_or(usize::MAX))?;
    match bytes.as_chunks() {
        (ids, []) => Ok(ids.to_vec()),
        _ => Err(field.invalid("an id has 16 bytes")),
    }
}
