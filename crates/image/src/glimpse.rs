//! What a manifest that cannot be read still says of itself.

use std::io::Read;

use crate::message::Fields;
use crate::sealed::{HEADER_LEN, Kind};
use crate::{FormatError, limits};

/// Which job's manifest a damaged file, or one of a newer version, seems to be. Nothing of it is checked: it is good for a warning, and
/// for refusing to pass the image over in silence, and for nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glimpse {
    /// The job's name.
    pub job: String,
    /// When it was cut, in ns since 1970 UTC.
    pub created_ns: u64,
}

/// More than the fields in question take.
const ENOUGH: u64 = 2 * limits::TEXT as u64;

impl Glimpse {
    /// Looks at the first fields of a manifest, whatever is wrong with the rest; `None` where they are not legible.
    pub fn read(from: impl Read) -> Option<Self> {
        let mut bytes = Vec::new();
        from.take(ENOUGH).read_to_end(&mut bytes).ok()?;
        Self::of(bytes.get(HEADER_LEN..)?).ok()
    }

    fn of(body: &[u8]) -> Result<Self, FormatError> {
        let mut fields = Fields::new(Kind::Manifest.name(), body, HEADER_LEN as u64);
        fields.need(1, "it has no image id")?.array::<16>()?;
        let job = fields.need(2, "it has no job")?.text(limits::TEXT)?;
        let created_ns = fields.need(3, "it has no time")?.u64()?;
        Ok(Self { job, created_ns })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Manifest;

    #[test]
    fn the_beginning_of_a_damaged_manifest_is_legible() {
        let whole = Manifest { created_ns: 7, ..Manifest::new("train") }.to_bytes().unwrap();
        let expected = Glimpse { job: "train".to_owned(), created_ns: 7 };
        for length in [whole.len(), whole.len() - 1, whole.len() / 2] {
            assert!(Manifest::read(&whole[..length]).is_ok() == (length == whole.len()));
            assert_eq!(Glimpse::read(&whole[..length]), Some(expected.clone()), "{length}");
        }
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        flipped[9] = 77;
        assert_eq!(Glimpse::read(&flipped[..]), Some(expected));
        for length in 0..HEADER_LEN + 40 {
            assert_eq!(Glimpse::read(&whole[..length]), None, "{length}");
        }
        assert_eq!(Glimpse::read(&[0xff; 4096][..]), None);
    }
}
