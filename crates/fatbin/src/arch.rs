//! Architectures, and which code runs on which.

use std::fmt;

use crate::fatbinary::{Entry, EntryKind};

/// An architecture that code is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Compute capability, major times ten plus minor.
    pub sm: u32,
    /// What the code may rely on beyond that.
    pub variant: Variant,
}

/// How specific code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// Forward compatible: `sm_90`.
    Base,
    /// Compatible within the family: `sm_100f`.
    Family,
    /// For this very architecture: `sm_90a`.
    Specific,
}

impl Arch {
    /// Whether PTX for this architecture can be compiled for compute capability `device`.
    pub fn ptx_runs_on(self, device: u32) -> bool {
        match self.variant {
            Variant::Base => self.sm <= device,
            Variant::Family => self.cubin_runs_on(device),
            Variant::Specific => self.sm == device,
        }
    }

    /// Whether machine code for this architecture runs on compute capability `device`.
    pub fn cubin_runs_on(self, device: u32) -> bool {
        match self.variant {
            Variant::Base | Variant::Family => self.sm / 10 == device / 10 && self.sm <= device,
            Variant::Specific => self.sm == device,
        }
    }

    fn suffix(self) -> &'static str {
        match self.variant {
            Variant::Base => "",
            Variant::Family => "f",
            Variant::Specific => "a",
        }
    }
}

/// The code that a fatbinary holds, for messages: `SASS for sm_80 and sm_90a, PTX for compute_90`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Architectures {
    /// Of machine code, increasing, each once.
    pub sass: Vec<Arch>,
    /// Of PTX, increasing, each once.
    pub ptx: Vec<Arch>,
}

impl Architectures {
    pub(crate) fn of(entries: &[Entry<'_>]) -> Self {
        let of_kind = |kind: EntryKind| {
            let mut archs: Vec<_> = entries.iter().filter(|e| e.kind == kind).map(|e| e.arch).collect();
            archs.sort();
            archs.dedup();
            archs
        };
        Self { sass: of_kind(EntryKind::Elf), ptx: of_kind(EntryKind::Ptx) }
    }
}

impl fmt::Display for Architectures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |archs: &[Arch], prefix: &str| {
            let names: Vec<_> =
                archs.iter().map(|arch| format!("{prefix}{}{}", arch.sm, arch.suffix())).collect();
            match names.split_last() {
                Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
                _ => names.concat(),
            }
        };
        match (self.sass.is_empty(), self.ptx.is_empty()) {
            (true, true) => f.write_str("no device code"),
            (false, true) => write!(f, "SASS for {}, no PTX", list(&self.sass, "sm_")),
            (true, false) => write!(f, "PTX for {}, no SASS", list(&self.ptx, "compute_")),
            (false, false) => {
                write!(f, "SASS for {}, PTX for {}", list(&self.sass, "sm_"), list(&self.ptx, "compute_"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility() {
        let arch = |sm, variant| Arch { sm, variant };
        assert!(arch(80, Variant::Base).cubin_runs_on(86));
        assert!(!arch(86, Variant::Base).cubin_runs_on(80));
        assert!(!arch(80, Variant::Base).cubin_runs_on(90));
        assert!(arch(80, Variant::Base).ptx_runs_on(90));
        assert!(arch(90, Variant::Specific).ptx_runs_on(90));
        assert!(!arch(90, Variant::Specific).ptx_runs_on(100));
        assert!(arch(100, Variant::Family).cubin_runs_on(103));
        assert!(!arch(100, Variant::Family).ptx_runs_on(120));
    }
}
