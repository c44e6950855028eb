//! Variables and their initialisers.

use std::fmt::{self, Display, Formatter};

use crate::ast::{Initializer, Relocation, ScalarType, Variable};

use super::{Attributes, Link};

impl Display for Variable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} {}", Link(self.linkage), self.space.name(), Attributes(&self.attributes))?;
        if let Some(align) = self.align {
            write!(f, ".align {align} ")?;
        }
        if self.vector > 1 {
            write!(f, ".v{} ", self.vector)?;
        }
        write!(f, "{} {}{}", self.ty, self.name, Dims(&self.dims))?;
        if let Some(init) = &self.init {
            f.write_str(" = ")?;
            match self.ty.is_opaque() {
                true => opaque(f, init)?,
                false => elements(f, self, init)?,
            }
        }
        f.write_str(";")
    }
}

pub(super) struct Dims<'a>(pub &'a [Option<u64>]);

impl Display for Dims<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|dim| match dim {
            Some(dim) => write!(f, "[{dim}]"),
            None => f.write_str("[]"),
        })
    }
}

fn opaque(f: &mut Formatter<'_>, init: &Initializer) -> fmt::Result {
    f.write_str("{")?;
    for (index, (field, value)) in init.opaque.iter().enumerate() {
        write!(f, "{}{field} = {value}", if index == 0 { "" } else { ", " })?;
    }
    f.write_str("}")
}

/// All elements in one flat list, as C's brace elision allows.
fn elements(f: &mut Formatter<'_>, variable: &Variable, init: &Initializer) -> fmt::Result {
    let size = variable.ty.size();
    let mut relocations = init.relocations.iter().peekable();
    let scalar = variable.dims.is_empty() && variable.vector == 1;
    f.write_str(if scalar { "" } else { "{" })?;
    for (index, element) in init.data.chunks(size as usize).enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        match relocations.next_if(|relocation| relocation.offset == index as u64 * size) {
            Some(relocation) => relocation.fmt(f)?,
            None => number(f, variable.ty, element)?,
        }
    }
    f.write_str(if scalar { "" } else { "}" })
}

fn number(f: &mut Formatter<'_>, ty: ScalarType, element: &[u8]) -> fmt::Result {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    let bits = u64::from_le_bytes(bytes);
    match ty {
        ScalarType::F32 => write!(f, "0f{bits:08X}"),
        ScalarType::F64 => write!(f, "0d{bits:016X}"),
        ScalarType::S8 => write!(f, "{}", bits as i8),
        ScalarType::S16 => write!(f, "{}", bits as i16),
        ScalarType::S32 => write!(f, "{}", bits as i32),
        ScalarType::S64 => write!(f, "{}", bits as i64),
        _ => write!(f, "{bits}"),
    }
}

impl Display for Relocation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(mask) = self.mask {
            write!(f, "{mask:#X}(")?;
        }
        match self.generic {
            true => write!(f, "generic({})", self.symbol)?,
            false => self.symbol.fmt(f)?,
        }
        if self.addend != 0 {
            write!(f, "{:+}", self.addend)?;
        }
        f.write_str(if self.mask.is_some() { ")" } else { "" })
    }
}
