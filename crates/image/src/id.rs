//! Newtypes for everything that has a number or a name.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use blake3::hazmat::{Mode, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an id of {digits} lower-case hex digits")]
pub struct ParseIdError {
    text: String,
    digits: usize,
}

fn parse_hex<const N: usize>(text: &str) -> Result<[u8; N], ParseIdError> {
    let fail = || ParseIdError { text: text.chars().take(80).collect(), digits: 2 * N };
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return Err(fail());
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high).ok_or_else(fail)? << 4 | digit(*low).ok_or_else(fail)?;
    }
    Ok(bytes)
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex(text).map(Self)
            }
        }

        /// Hex digits in readable formats, bytes in others.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    self.0.serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
                } else {
                    <[u8; $len]>::deserialize(deserializer).map(Self)
                }
            }
        }
    };
}

hex_id! {
    /// The identity of a chunk: the BLAKE3 hash of its plain bytes.
    ChunkId, 32
}
hex_id! {
    /// An image, for ever: 16 random bytes.
    ImageId, 16
}
hex_id! {
    /// A job through all its lives, which every image of it has in common: 16 random bytes.
    Lineage, 16
}
hex_id! {
    /// A pack file: 16 random bytes.
    PackId, 16
}
hex_id! {
    /// A store: 16 random bytes.
    StoreId, 16
}

impl ImageId {
    /// Its first digits, as lists show it and commands take it.
    #[must_use]
    pub fn short(&self) -> String {
        self.0.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl ChunkId {
    /// The identity of `plain`.
    #[must_use]
    pub fn of(plain: &[u8]) -> Self {
        Self(*blake3::hash(plain).as_bytes())
    }

    /// The identity of a whole chunk of [`CHUNK_SIZE`](crate::CHUNK_SIZE), made of the chaining values of its eighths: each of them is a subtree of the
    /// hash's tree.
    #[must_use]
    pub fn of_eighths(values: &[[u8; 32]; 8]) -> Self {
        let merge = |left, right| merge_subtrees_non_root(left, right, Mode::Hash);
        let [a, b, c, d, e, f, g, h] = values;
        let (left, right) = (merge(&merge(a, b), &merge(c, d)), merge(&merge(e, f), &merge(g, h)));
        Self(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
    }
}

/// A session of a job: one application process and its GPU server. Given by the supervisor, stable across restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A device as the application numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceOrdinal(pub u32);

impl fmt::Display for DeviceOrdinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A machine architecture, by ELF's `e_machine`; 0 where it does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Machine(pub u16);

impl Machine {
    /// Independent of the machine.
    pub const ANY: Self = Self(0);
    /// `EM_X86_64`.
    pub const X86_64: Self = Self(62);
    /// `EM_AARCH64`.
    pub const AARCH64: Self = Self(183);
    /// What this program was compiled for.
    pub const HOST: Self = if cfg!(target_arch = "x86_64") {
        Self::X86_64
    } else if cfg!(target_arch = "aarch64") {
        Self::AARCH64
    } else {
        panic!("Dormouse runs on x86-64 and aarch64")
    };
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ANY => f.write_str("any machine"),
            Self::X86_64 => f.write_str("x86-64"),
            Self::AARCH64 => f.write_str("aarch64"),
            Self(other) => write!(f, "ELF machine {other}"),
        }
    }
}

/// A path or file name as the kernel has it: bytes, in no encoding.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RawPath(pub Vec<u8>);

impl RawPath {
    /// The path, for system calls.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl<P: AsRef<OsStr> + ?Sized> From<&P> for RawPath {
    fn from(path: &P) -> Self {
        Self(path.as_ref().as_bytes().to_vec())
    }
}

impl fmt::Display for RawPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.escape_ascii(), f)
    }
}

impl fmt::Debug for RawPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for RawPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_lower_case_hex_of_exact_length() {
        let id = PackId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xab, 0xcd, 0xef, 13, 14, 255]);
        assert_eq!(id.to_string(), "00010203040506070809abcdef0d0eff");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in [
            "",
            "00",
            "00010203040506070809ABCDEF0D0EFF",
            "00010203040506070809abcdef0d0eff0",
            "00010203040506070809abcdef0d0éf",
        ] {
            let error = bad.parse::<PackId>().unwrap_err();
            assert!(error.to_string().contains("32 lower-case hex digits"), "{error}");
        }
    }

    #[test]
    fn eighths_make_a_chunks_identity() {
        use blake3::hazmat::HasherExt;
        let chunk: Vec<u8> = (0..crate::CHUNK_SIZE).map(|at| (at * 31 / 1000) as u8).collect();
        let eighth = chunk.len() / 8;
        let value = |number: usize| {
            let first = number * eighth;
            let mut hasher = blake3::Hasher::new();
            hasher.set_input_offset(first as u64).update(&chunk[first..first + eighth]).finalize_non_root()
        };
        assert_eq!(ChunkId::of_eighths(&std::array::from_fn(value)), ChunkId::of(&chunk));
    }

    #[test]
    fn paths_keep_bytes_that_are_not_text() {
        let path = RawPath(b"/tmp/caf\xe9".to_vec());
        assert_eq!(RawPath::from(path.as_path()), path);
        assert_eq!(path.to_string(), "/tmp/caf\\xe9");
    }
}
