//! Opcodes.

use std::fmt;

use super::{Name, ScalarType};

/// An opcode as spelled, e.g. `ld.global.nc.v4.f32`: a mnemonic followed by dotted modifiers.
///
/// All uses of one spelling in a module share their text, so a consumer may decode each spelling once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(Name);

impl Opcode {
    /// The opcode with that spelling.
    pub fn new(spelling: impl Into<Name>) -> Self {
        Self(spelling.into())
    }

    /// The whole spelling.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// What comes before the first dot: `ld` of `ld.global.nc.v4.f32`.
    pub fn mnemonic(&self) -> &str {
        self.as_str().split('.').next().unwrap_or_default()
    }

    /// The modifiers in order, without their dots: `global`, `nc`, `v4`, `f32`. One written with `::` is one
    /// modifier (`shared::cluster`, `L2::128B`).
    pub fn modifiers(&self) -> impl Iterator<Item = &str> + Clone {
        self.as_str().split('.').skip(1)
    }

    /// Whether this modifier (without dot) is present.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers().any(|m| m == modifier)
    }

    /// The modifiers that are types, in order.
    pub fn types(&self) -> impl Iterator<Item = ScalarType> + Clone {
        self.modifiers().filter_map(ScalarType::from_name)
    }

    /// How many elements a `.v2`, `.v4` or `.v8` access moves; 1 without such a modifier.
    pub fn vector_width(&self) -> usize {
        self.modifiers()
            .find_map(|m| match m {
                "v2" => Some(2),
                "v4" => Some(4),
                "v8" => Some(8),
                _ => None,
            })
            .unwrap_or(1)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
