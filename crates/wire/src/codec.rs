//! Little-endian, fixed-width, no padding; lists and bytes carry a `u32` count first.

use thiserror::Error;

/// The longest list a message may carry; longer ones are refused before anything is allocated.
pub const MAX_LIST: usize = 1 << 20;

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends before its fields do.
    #[error("message ends {missing} bytes early")]
    Truncated {
        /// Bytes that the next field still needs.
        missing: usize,
    },
    /// Bytes are left after the last field.
    #[error("message has {0} bytes after its last field")]
    Trailing(usize),
    /// A field holds a value that means nothing.
    #[error("{what} cannot be {value:#x}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// What it held.
        value: u64,
    },
    /// A list or string is longer than its bound.
    #[error("list of {0} elements is too long")]
    TooLong(usize),
    /// Text is not UTF-8.
    #[error("text is not UTF-8")]
    NotUtf8,
}

/// Appends fields to a buffer that the caller can reuse.
pub struct Encoder<'a>(&'a mut Vec<u8>);

impl<'a> Encoder<'a> {
    /// Appends to `buffer`.
    #[inline]
    pub fn new(buffer: &'a mut Vec<u8>) -> Self {
        Self(buffer)
    }

    /// Appends raw bytes.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Takes fields off the front of untrusted bytes.
pub struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    /// Reads from `bytes`.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes `len` raw bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        match self.0.split_at_checked(len) {
            Some((head, tail)) => {
                self.0 = tail;
                Ok(head)
            }
            None => Err(DecodeError::Truncated { missing: len - self.0.len() }),
        }
    }

    /// Bytes not yet taken.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`] otherwise.
    #[inline]
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.0.len())) }
    }
}

/// A field of a message.
pub trait Wire: Sized {
    /// Appends the field.
    fn encode(&self, to: &mut Encoder<'_>);
    /// Takes the field.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are not one.
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError>;
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Wire for $ty {
            #[inline]
            fn encode(&self, to: &mut Encoder<'_>) {
                to.put(&self.to_le_bytes());
            }
            #[inline]
            fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                let mut bytes = [0; size_of::<$ty>()];
                bytes.copy_from_slice(from.take(size_of::<$ty>())?);
                Ok(<$ty>::from_le_bytes(bytes))
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64, i32, i64, f32);

impl Wire for bool {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        u8::from(*self).encode(to);
    }
    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::Invalid { what: "flag", value: other.into() }),
        }
    }
}

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        self.iter().for_each(|each| each.encode(to));
    }
    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut list = [T::default(); N];
        for each in &mut list {
            *each = T::decode(from)?;
        }
        Ok(list)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        self.0.encode(to);
        self.1.encode(to);
    }
    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok((A::decode(from)?, B::decode(from)?))
    }
}

impl<T: Wire> Wire for Option<T> {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        self.is_some().encode(to);
        if let Some(value) = self {
            value.encode(to);
        }
    }
    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::decode(from)? { Some(T::decode(from)?) } else { None })
    }
}

impl<T: Wire> Wire for Vec<T> {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        count(self.len(), to);
        self.iter().for_each(|each| each.encode(to));
    }
    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let len = u32::decode(from)? as usize;
        // Every element takes at least one byte, so a count beyond what is left is a lie.
        if len > MAX_LIST || len > from.remaining() {
            return Err(DecodeError::TooLong(len));
        }
        if len == 0 {
            // Most lists are.
            return Ok(Self::new());
        }
        (0..len).map(|_| T::decode(from)).collect()
    }
}

/// A run of bytes, copied as one.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bytes(pub Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Wire for Bytes {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        count(self.0.len(), to);
        to.put(&self.0);
    }
    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let len = u32::decode(from)? as usize;
        Ok(Self(from.take(len)?.to_vec()))
    }
}

impl Wire for String {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        count(self.len(), to);
        to.put(self.as_bytes());
    }
    #[inline]
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let len = u32::decode(from)? as usize;
        let bytes = from.take(len)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| DecodeError::NotUtf8)
    }
}

/// Lists longer than a `u32` cannot be met: what holds them (a ring) is smaller.
fn count(len: usize, to: &mut Encoder<'_>) {
    u32::try_from(len).unwrap_or(u32::MAX).encode(to);
}
