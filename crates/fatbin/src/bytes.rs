//! Little-endian integers at offsets of a slice that may be too short.

/// Longest symbol or section name: strings may overlap, so their lengths have to be bounded one by one.
const MAX_STRING: usize = 1 << 16;

/// Reads at offsets; `None` beyond the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// `length` bytes at `offset`.
    pub fn get(self, offset: u64, length: u64) -> Option<&'a [u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        self.0.get(start..end)
    }

    fn array<const N: usize>(self, offset: u64) -> Option<[u8; N]> {
        self.get(offset, N as u64)?.try_into().ok()
    }

    pub fn u8(self, offset: u64) -> Option<u8> {
        self.array::<1>(offset).map(|[byte]| byte)
    }

    pub fn u16(self, offset: u64) -> Option<u16> {
        self.array(offset).map(u16::from_le_bytes)
    }

    pub fn u32(self, offset: u64) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    pub fn u64(self, offset: u64) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    /// The string at `offset`, without the NUL that ends it; `None` also when it is absurdly long.
    pub fn c_string(self, offset: u64) -> Option<&'a [u8]> {
        let rest = self.0.get(usize::try_from(offset).ok()?..)?;
        let rest = &rest[..rest.len().min(MAX_STRING)];
        rest.iter().position(|byte| *byte == 0).map(|length| &rest[..length])
    }
}
