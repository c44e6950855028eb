//! Indexes: which packs were written for an image, and what each holds.

use std::io::Read;

use crate::message::Writer;
use crate::sealed::{self, Kind};
use crate::{FormatError, ImageId, Machine, PackIndex};

/// The content of one index file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// The image that the packs were written for.
    pub image: ImageId,
    /// The packs.
    pub packs: Vec<PackIndex>,
}

impl Index {
    /// The index as a file.
    ///
    /// # Errors
    /// [`FormatError`] where a reader would refuse it.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Writer::default();
        body.bytes(1, &self.image.0);
        self.packs.iter().for_each(|pack| body.message(2, |out| pack.encode(out)));
        let file = sealed::seal(Kind::Index, Machine::ANY, body)?;
        // Refused now rather than by every reader.
        Self::read(&file[..])?;
        Ok(file)
    }

    /// Reads an index file.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn read(from: impl Read) -> Result<Self, FormatError> {
        let sealed = sealed::open(Kind::Index, from)?;
        let mut fields = sealed.fields();
        let image = ImageId(fields.need(1, "it has no image id")?.array()?);
        let packs = fields.many(2, PackIndex::decode)?;
        fields.end()?;
        Ok(Self { image, packs })
    }
}
