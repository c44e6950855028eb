//! Why a removal frees nothing.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::ReadError;

/// Why nothing else was freed, although the images are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What sort of reason it is.
    pub why: KeptWhy,
    /// The reason, with what to do.
    pub message: String,
}

/// Sorts of reasons to free nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptWhy {
    /// Others use the store; when they have ended the next removal frees it.
    InUse,
    /// What images need cannot be told, since something is damaged or cannot be read. It stays so until somebody sees to it.
    Unreadable,
    /// Nor can it where a newer program has written it.
    Newer,
    /// The store cannot be changed.
    Medium,
}

impl KeptWhy {
    /// Of what cannot be read.
    pub(crate) fn of(error: &ReadError) -> Self {
        if error.is_newer() { Self::Newer } else { Self::Unreadable }
    }

    pub(crate) fn says(self, message: impl Into<String>) -> Kept {
        Kept { why: self, message: message.into() }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// For scripts it is the text: the sort is their exit code.
impl Serialize for Kept {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.message)
    }
}
