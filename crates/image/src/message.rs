//! Messages: the encoding inside every sealed body. Fields `id: u16, length: u32, payload` in ascending order.
//!
//! [`Writer`] and [`Fields`] mirror each other: a struct is written and read by the same sequence of calls, so that one value has one
//! encoding and a decoder is a straight line.

use crate::FormatError;

/// A field from here up may be skipped by a reader that does not know it.
const MAY_SKIP: u16 = 0x8000;
/// Bytes before a field's payload.
const FIELD_HEADER: usize = 6;

/// Builds a message.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, id: u16, value: u8) {
        self.bytes(id, &[value]);
    }

    pub(crate) fn u32(&mut self, id: u16, value: u32) {
        self.bytes(id, &value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, id: u16, value: u64) {
        self.bytes(id, &value.to_le_bytes());
    }

    pub(crate) fn bool(&mut self, id: u16, value: bool) {
        self.u8(id, u8::from(value));
    }

    pub(crate) fn bytes(&mut self, id: u16, payload: &[u8]) {
        self.field(id, |out| out.extend_from_slice(payload));
    }

    pub(crate) fn message(&mut self, id: u16, write: impl FnOnce(&mut Self)) {
        self.field(id, |out| {
            let mut inner = Self(std::mem::take(out));
            write(&mut inner);
            *out = inner.0;
        });
    }

    /// A field whose payload `write` appends.
    ///
    /// A payload of 4 GiB or more gets a length that no reader accepts: the body is over its limit by then, and
    /// [`crate::sealed::seal`] refuses it.
    pub(crate) fn field(&mut self, id: u16, write: impl FnOnce(&mut Vec<u8>)) {
        self.0.extend_from_slice(&id.to_le_bytes());
        let at = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        write(&mut self.0);
        let length = u32::try_from(self.0.len() - at - 4).unwrap_or(u32::MAX);
        if let Some(place) = self.0.get_mut(at..at + 4) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a message field by field.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    message: &'static str,
    rest: &'a [u8],
    /// Offset of `rest` in the file.
    at: u64,
    /// The last field taken.
    last: u16,
}

/// One field's payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'a> {
    /// The message that the field is in.
    message: &'static str,
    /// Offset of the payload in the file.
    pub(crate) at: u64,
    pub(crate) payload: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Reads `bytes`, which lie at offset `at` of the file and are called `message` in errors.
    pub(crate) fn new(message: &'static str, bytes: &'a [u8], at: u64) -> Self {
        Self { message, rest: bytes, at, last: 0 }
    }

    fn invalid(&self, what: &'static str) -> FormatError {
        FormatError::Invalid { message: self.message, at: self.at, what }
    }

    /// Splits off the next field.
    fn take(&mut self) -> Result<Option<Field<'a>>, FormatError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let short = |need: u64, have: usize| FormatError::Truncated {
            what: self.message,
            at: self.at,
            need,
            have: have as u64,
        };
        let Some((header, rest)) = self.rest.split_first_chunk::<FIELD_HEADER>() else {
            return Err(short(FIELD_HEADER as u64, self.rest.len()));
        };
        let [_, _, l0, l1, l2, l3] = *header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let Some((payload, rest)) = usize::try_from(length).ok().and_then(|n| rest.split_at_checked(n))
        else {
            return Err(short(FIELD_HEADER as u64 + u64::from(length), self.rest.len()));
        };
        let field = Field { message: self.message, at: self.at + FIELD_HEADER as u64, payload };
        self.at = field.at + u64::from(length);
        self.rest = rest;
        Ok(Some(field))
    }

    fn peek_id(&self) -> Option<u16> {
        self.rest.first_chunk().map(|id| u16::from_le_bytes(*id))
    }

    /// Passes fields before `id`, where that is allowed.
    fn advance(&mut self, id: u16) -> Result<(), FormatError> {
        while let Some(next) = self.peek_id() {
            if next < self.last {
                return Err(self.invalid("fields are out of order"));
            }
            if next >= id {
                return Ok(());
            }
            if next == self.last {
                return Err(self.invalid("a field that may occur once is repeated"));
            }
            if next < MAY_SKIP {
                return Err(FormatError::UnknownField { message: self.message, id: next, at: self.at });
            }
            self.take()?;
            // Skipped fields may repeat: this reader cannot know.
            self.last = next.saturating_sub(1);
        }
        Ok(())
    }

    /// The field `id`, if it is there.
    pub(crate) fn maybe(&mut self, id: u16) -> Result<Option<Field<'a>>, FormatError> {
        self.advance(id)?;
        if self.peek_id() != Some(id) {
            return Ok(None);
        }
        self.last = id;
        self.take()
    }

    /// The field `id`, which must be there.
    pub(crate) fn need(&mut self, id: u16, what: &'static str) -> Result<Field<'a>, FormatError> {
        self.maybe(id)?.ok_or(FormatError::Invalid { message: self.message, at: self.at, what })
    }

    /// Every field `id`, each read by `read`.
    pub(crate) fn many<T>(
        &mut self,
        id: u16,
        read: impl Fn(Field<'a>) -> Result<T, FormatError>,
    ) -> Result<Vec<T>, FormatError> {
        let mut all = Vec::new();
        self.advance(id)?;
        while self.peek_id() == Some(id) {
            if let Some(field) = self.take()? {
                all.push(read(field)?);
            }
        }
        // A following field of a lower id is out of order; a following one of this id cannot be.
        self.last = id;
        Ok(all)
    }

    /// Ends the message: whatever is left must be allowed to be skipped.
    pub(crate) fn end(mut self) -> Result<(), FormatError> {
        self.advance(u16::MAX)?;
        while self.take()?.is_some() {}
        Ok(())
    }
}

impl<'a> Field<'a> {
    /// This field's payload as a message.
    pub(crate) fn message(&self, name: &'static str) -> Fields<'a> {
        Fields::new(name, self.payload, self.at)
    }

    pub(crate) fn invalid(&self, what: &'static str) -> FormatError {
        FormatError::Invalid { message: self.message, at: self.at, what }
    }

    pub(crate) fn array<const N: usize>(&self) -> Result<[u8; N], FormatError> {
        self.payload.try_into().map_err(|_| self.invalid("a field has the wrong width"))
    }

    pub(crate) fn u8(&self) -> Result<u8, FormatError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bool(&self) -> Result<bool, FormatError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.invalid("a bool is neither 0 nor 1")),
        }
    }

    /// Bytes, at most `limit` of them.
    pub(crate) fn bytes(&self, limit: usize) -> Result<Vec<u8>, FormatError> {
        if self.payload.len() > limit {
            let (len, limit) = (self.payload.len() as u64, limit as u64);
            return Err(FormatError::TooLong { what: self.message, at: self.at, len, limit });
        }
        Ok(self.payload.to_vec())
    }

    /// UTF-8, at most `limit` bytes of it.
    pub(crate) fn text(&self, limit: usize) -> Result<String, FormatError> {
        String::from_utf8(self.bytes(limit)?).map_err(|_| self.invalid("a text is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_fields(extra: &[(u16, &[u8])]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(1, 7);
        writer.bytes(3, b"x");
        for (id, payload) in extra {
            writer.bytes(*id, payload);
        }
        writer.finish()
    }

    fn read(bytes: &[u8]) -> Result<(u32, Vec<Vec<u8>>), FormatError> {
        let mut fields = Fields::new("test", bytes, 64);
        let one = fields.need(1, "one is missing")?.u32()?;
        let three = fields.many(3, |field| field.bytes(4))?;
        fields.end()?;
        Ok((one, three))
    }

    #[test]
    fn a_message_reads_back() {
        assert_eq!(read(&two_fields(&[])).unwrap(), (7, vec![b"x".to_vec()]));
        assert_eq!(read(&two_fields(&[(3, b"")])).unwrap().1.len(), 2);
    }

    #[test]
    fn unknown_fields_are_skipped_or_refused_by_number() {
        assert!(read(&two_fields(&[(0x8001, b"later"), (0x8001, b"later"), (0xffff, b"")])).is_ok());
        let error = read(&two_fields(&[(4, b"later")])).unwrap_err();
        assert!(matches!(error, FormatError::UnknownField { id: 4, at: 81, .. }), "{error}");
    }

    #[test]
    fn order_repetition_width_and_ends_are_checked() {
        let message = |fields: &[(u16, &[u8])]| {
            let mut writer = Writer::default();
            fields.iter().for_each(|(id, payload)| writer.bytes(*id, payload));
            read(&writer.finish()).unwrap_err().to_string()
        };
        assert!(message(&[(3, b"x")]).contains("one is missing"));
        assert!(message(&[(1, &[0; 4]), (1, &[0; 4])]).contains("repeated"));
        assert!(message(&[(1, &[0; 4]), (3, b""), (1, &[0; 4])]).contains("out of order"));
        assert!(message(&[(1, &[0; 3])]).contains("wrong width"));
        assert!(message(&[(1, &[0; 4]), (3, b"12345")]).contains("limit is 4"));
        let whole = two_fields(&[(0x8000, b"z")]);
        for end in 1..whole.len() {
            let whole_fields = [10, 17].contains(&end);
            assert_eq!(read(&whole[..end]).is_ok(), whole_fields, "cut at {end}");
        }
    }
}
