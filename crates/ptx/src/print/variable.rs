//! Variables and their initialisers.

use std::{
    fmt::{self, Display, Formatter},
    iter::Peekable,
};

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

fn elements(f: &mut Formatter<'_>, variable: &Variable, init: &Initializer) -> fmt::Result {
    let mut rows: Vec<u64> = variable.dims.iter().map(|dim| dim.unwrap_or(0)).collect();
    if variable.vector > 1 {
        rows.push(variable.vector.into());
    }
    let mut relocations = init.relocations.iter().peekable();
    level(f, variable.ty, &rows, &init.data, &mut relocations, 0)
}

/// The elements in `data`, the first of which is at `offset`, in the braces of an array of these dimensions.
fn level<'a>(
    f: &mut Formatter<'_>,
    ty: ScalarType,
    dims: &[u64],
    data: &[u8],
    relocations: &mut Peekable<impl Iterator<Item = &'a Relocation>>,
    offset: u64,
) -> fmt::Result {
    let Some((_, dims)) = dims.split_first() else {
        return match relocations.next_if(|relocation| relocation.offset == offset) {
            Some(relocation) => relocation.fmt(f),
            None => number(f, ty, data),
        };
    };
    let stride = dims.iter().fold(ty.size(), |size, dim| size.saturating_mul(*dim)).max(1);
    f.write_str("{")?;
    for (index, row) in data.chunks(usize::try_from(stride).unwrap_or(usize::MAX)).enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        level(f, ty, dims, row, relocations, offset + index as u64 * stride)?;
    }
    f.write_str("}")
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
            write!(f, "+{}", self.addend)?;
        }
        f.write_str(if self.mask.is_some() { ")" } else { "" })
    }
}
