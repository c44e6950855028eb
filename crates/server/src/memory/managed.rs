//! Which managed memory has shadow pages.

use super::arena::SMALL_MAX;
use serde::{Deserialize, Serialize};

/// How a job's managed memory is had: the value of `--managed`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Managed {
    /// Regions that are large enough to move on the device, with shadow pages; smaller ones, through which processor and device talk, coherent.
    #[default]
    Auto,
    /// All of it in the host's memory, where both sides reach it at any moment.
    Coherent,
    /// All of it on the device, with shadow pages.
    Shadow,
    /// The same; and the processor waits for the end of work before it touches what that may reach.
    Exclusive,
}

impl Managed {
    /// All there are, with what each is, for whoever chooses.
    pub const ALL: [(Self, &str, &str); 4] = [
        (Self::Auto, "auto", "Regions of up to 1 MiB as with coherent, larger ones as with shadow"),
        (Self::Coherent, "coherent", "On the host, where both sides reach it at any moment"),
        (Self::Shadow, "shadow", "On the device, with shadow pages for the processor that are kept in step"),
        (
            Self::Exclusive,
            "exclusive",
            "As with shadow, and a thread that touches it waits for the kernels that may reach it, for atomics of both sides",
        ),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Whether a region of so many bytes is to have shadow pages.
    #[must_use]
    pub fn has_shadows(self, bytes: u64) -> bool {
        match self {
            Self::Auto => bytes > SMALL_MAX,
            Self::Coherent => false,
            Self::Shadow | Self::Exclusive => true,
        }
    }

    /// Whether regions that go to and fro may become coherent for a while.
    pub(super) fn may_cohere(self) -> bool {
        matches!(self, Self::Auto | Self::Coherent)
    }

    /// Who may touch at a time what has shadow pages.
    pub(super) fn access(self) -> shadow::Access {
        if self == Self::Exclusive { shadow::Access::Exclusive } else { shadow::Access::Concurrent }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_name() {
        for (managed, name, _) in Managed::ALL {
            assert_eq!(managed.name(), name);
            assert_eq!(serde_json::to_value(managed).unwrap(), name);
        }
    }

    #[test]
    fn what_has_a_piece_of_its_own_has_shadows_unless_told_otherwise() {
        let largest =
            |managed: Managed| [1, SMALL_MAX, SMALL_MAX + 1].map(|bytes| managed.has_shadows(bytes));
        assert_eq!(largest(Managed::default()), [false, false, true]);
        assert_eq!(largest(Managed::Coherent), [false; 3]);
        assert_eq!(largest(Managed::Shadow), [true; 3]);
        assert_eq!(largest(Managed::Exclusive), [true; 3]);
    }
}
