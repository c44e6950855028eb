//! Whatever a program can load.

use std::borrow::Cow;

use crate::{
    arch::{Arch, Architectures, Variant},
    compression::DecompressError,
    cubin::{Cubin, CubinError},
    elf,
    fatbinary::{self, Fatbinary, FatbinaryError},
    text::{Ptx, PtxError},
};

/// An image of known length.
#[derive(Clone, Debug)]
pub enum Image<'a> {
    /// A fatbinary.
    Fatbinary(Fatbinary<'a>),
    /// A cubin, and its bytes.
    Cubin(Cubin<'a>, &'a [u8]),
    /// PTX, without the NUL that ends it.
    Ptx(&'a [u8]),
}

/// The code of an image for one architecture.
#[derive(Clone, Debug)]
pub enum Code<'a> {
    /// A cubin.
    Cubin(Cow<'a, [u8]>),
    /// PTX, without a NUL at its end.
    Ptx(Cow<'a, [u8]>),
}

/// Bytes that are no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A damaged fatbinary.
    #[error(transparent)]
    Fatbinary(#[from] FatbinaryError),
    /// A damaged cubin.
    #[error(transparent)]
    Cubin(#[from] CubinError),
    /// Nothing, or only a NUL.
    #[error("device code is empty")]
    Empty,
}

/// Code that cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// A damaged payload.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// PTX that has to be linked, and cannot.
    #[error(transparent)]
    Ptx(#[from] PtxError),
}

impl<'a> Image<'a> {
    /// Tells images apart by their first bytes, as [`measure`](crate::measure) does; what is no fatbinary and no
    /// ELF is PTX up to its first NUL. Fatbinaries behind the first one are what it was linked of.
    ///
    /// # Errors
    /// When a fatbinary or cubin is damaged, or there is nothing at all.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        if bytes.starts_with(&fatbinary::MAGIC.to_le_bytes()) {
            return Ok(Self::Fatbinary(Fatbinary::parse_linked(bytes)?));
        }
        if bytes.starts_with(&elf::MAGIC) {
            return Ok(Self::Cubin(Cubin::parse(bytes)?, bytes));
        }
        match bytes.split(|byte| *byte == 0).next() {
            None | Some([]) => Err(ImageError::Empty),
            Some(text) => Ok(Self::Ptx(text)),
        }
    }

    /// The code in it that a device of compute capability `device` runs, as the driver chooses; `None` where there is none.
    ///
    /// # Errors
    /// When it cannot be decompressed, or would have to be linked, and cannot.
    pub fn code_for(&self, device: u32) -> Result<Option<Code<'a>>, CodeError> {
        Ok(match self {
            Self::Fatbinary(fatbinary) => match fatbinary.cubin_for(device) {
                Some(entry) => Some(Code::Cubin(entry.code()?)),
                None => fatbinary.ptx(device)?.as_ref().map(Ptx::text).transpose()?.map(Code::Ptx),
            },
            Self::Cubin(_, bytes) => Some(Code::Cubin(Cow::Borrowed(bytes))),
            Self::Ptx(text) => Some(Code::Ptx(Cow::Borrowed(text))),
        })
    }

    /// What the image has code for. For bare PTX, what its `.target` says.
    pub fn architectures(&self) -> Architectures {
        let none = Architectures { sass: Vec::new(), ptx: Vec::new() };
        match self {
            Self::Fatbinary(fatbinary) => fatbinary.architectures(),
            Self::Cubin(cubin, _) => {
                Architectures { sass: vec![Arch { sm: cubin.sm(), variant: Variant::Base }], ..none }
            }
            Self::Ptx(text) => Architectures { ptx: ptx_target(text).into_iter().collect(), ..none },
        }
    }
}

/// The architecture after the first `.target`, which stands near the top, behind comments.
fn ptx_target(text: &[u8]) -> Option<Arch> {
    const DIRECTIVE: &[u8] = b".target";
    let at = text.windows(DIRECTIVE.len()).position(|window| window == DIRECTIVE)?;
    let target = text[at + DIRECTIVE.len()..].trim_ascii_start().strip_prefix(b"sm_")?;
    let digits = target.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let sm = std::str::from_utf8(&target[..digits]).ok()?.parse().ok()?;
    let variant = match target.get(digits) {
        Some(b'a') => Variant::Specific,
        Some(b'f') => Variant::Family,
        _ => Variant::Base,
    };
    Some(Arch { sm, variant })
}
