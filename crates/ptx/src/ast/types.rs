//! Names, ids and scalar types.

use std::{borrow::Borrow, fmt, ops::Deref, sync::Arc};

/// An identifier, shared by all its uses.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The identifier's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $id:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $id(pub u32);

        impl $id {
            /// The id as an index into its table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A register: index into [`Body::registers`](super::Body::registers).
    RegId
    /// A label: index into [`Body::labels`](super::Body::labels).
    LabelId
    /// A variable declared in a body: index into [`Body::locals`](super::Body::locals).
    LocalId
    /// A formal parameter: index into [`Function::params`](super::Function::params).
    ParamId
    /// A formal return parameter: index into [`Function::returns`](super::Function::returns).
    ReturnId
    /// A `.branchtargets` table: index into [`Body::branch_tables`](super::Body::branch_tables).
    BranchTableId
    /// A `.calltargets` table: index into [`Body::call_tables`](super::Body::call_tables).
    CallTableId
    /// A `.callprototype`: index into [`Body::prototypes`](super::Body::prototypes).
    PrototypeId
}

macro_rules! scalar_types {
    ($($variant:ident $text:literal $size:literal)*) => {
        /// A fundamental type of PTX, or one of the packed types that instructions name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum ScalarType { $($variant),* }

        impl ScalarType {
            /// Every type.
            pub const ALL: &[ScalarType] = &[$(Self::$variant),*];

            /// The type's spelling, without its dot.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The type with that spelling (without the dot).
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)* _ => None }
            }

            /// Size in bytes; a predicate counts as one byte, an opaque reference as a 64-bit handle.
            pub fn size(self) -> u64 {
                match self { $(Self::$variant => $size),* }
            }
        }
    };
}

scalar_types! {
    S8 "s8" 1  S16 "s16" 2  S32 "s32" 4  S64 "s64" 8
    U8 "u8" 1  U16 "u16" 2  U32 "u32" 4  U64 "u64" 8
    B8 "b8" 1  B16 "b16" 2  B32 "b32" 4  B64 "b64" 8  B128 "b128" 16
    F16 "f16" 2  F16x2 "f16x2" 4  Bf16 "bf16" 2  Bf16x2 "bf16x2" 4
    F32 "f32" 4  F32x2 "f32x2" 8  F64 "f64" 8  Tf32 "tf32" 4
    S16x2 "s16x2" 4  U16x2 "u16x2" 4
    E4m3 "e4m3" 1  E5m2 "e5m2" 1  E4m3x2 "e4m3x2" 2  E5m2x2 "e5m2x2" 2  E4m3x4 "e4m3x4" 4  E5m2x4 "e5m2x4" 4
    E2m3x2 "e2m3x2" 2  E3m2x2 "e3m2x2" 2  E2m1x2 "e2m1x2" 1  E2m3x4 "e2m3x4" 4  E3m2x4 "e3m2x4" 4
    E2m1x4 "e2m1x4" 2  Ue8m0x2 "ue8m0x2" 2
    Pred "pred" 1
    Texref "texref" 8  Samplerref "samplerref" 8  Surfref "surfref" 8
}

impl ScalarType {
    /// Whether the type is `.texref`, `.samplerref` or `.surfref`.
    pub fn is_opaque(self) -> bool {
        matches!(self, Self::Texref | Self::Samplerref | Self::Surfref)
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".{}", self.name())
    }
}
