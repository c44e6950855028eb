//! `.nv.info` sections: attributes of a module or a kernel.
//!
//! Each is a format byte, an attribute byte and a 16-bit value, which for format 4 is the length of the data that
//! follow.

use crate::bytes::Bytes;

/// `EIFMT_SVAL`: data follow.
const SIZED: u8 = 4;

/// `EIATTR_KPARAM_INFO`
pub(crate) const KPARAM_INFO: u8 = 0x17;

/// `EIATTR_KPARAM_INFO` for parameters beyond the fields of the other.
pub(crate) const KPARAM_INFO_V2: u8 = 0x45;

/// `EIATTR_CBANK_PARAM_SIZE`
pub(crate) const CBANK_PARAM_SIZE: u8 = 0x19;

/// `EIATTR_REGCOUNT`, of a module: the number of a kernel's symbol, and how many registers each of its threads has.
const REGCOUNT: u8 = 0x2f;

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    pub id: u8,
    /// The value, where no data follow.
    pub value: u16,
    pub data: &'a [u8],
}

/// The attributes of a section; `None` in place of the first that is cut off.
pub(crate) fn attributes(section: &[u8]) -> impl Iterator<Item = Option<Attribute<'_>>> {
    let bytes = Bytes(section);
    let mut offset = 0;
    std::iter::from_fn(move || {
        if offset >= section.len() as u64 {
            return None;
        }
        let attribute = attribute(bytes, offset);
        offset = attribute.map_or(u64::MAX, |attribute| offset + 4 + attribute.data.len() as u64);
        Some(attribute)
    })
}

fn attribute(bytes: Bytes<'_>, offset: u64) -> Option<Attribute<'_>> {
    let (format, id, value) = (bytes.u8(offset)?, bytes.u8(offset + 1)?, bytes.u16(offset + 2)?);
    let length = if format == SIZED { value.into() } else { 0 };
    Some(Attribute { id, value, data: bytes.get(offset + 4, length)? })
}

/// A kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelParam {
    pub ordinal: u16,
    pub offset: u16,
    pub size: u32,
}

impl KernelParam {
    /// The parameter that an attribute describes, if it is one; `Some(None)` when its data are too short.
    pub fn of(attribute: &Attribute<'_>) -> Option<Option<Self>> {
        let data = Bytes(attribute.data);
        let size = match attribute.id {
            KPARAM_INFO => data.u32(8).map(|packed| packed >> 18),
            KPARAM_INFO_V2 => data.u16(8).map(u32::from),
            _ => return None,
        };
        Some(size.and_then(|size| Some(Self { ordinal: data.u16(4)?, offset: data.u16(6)?, size })))
    }
}

/// The kernel that an attribute tells the registers of, by the number of its symbol, and how many those are; none where it tells something else.
pub(crate) fn registers(attribute: &Attribute<'_>) -> Option<(usize, u32)> {
    if attribute.id != REGCOUNT {
        return None;
    }
    let data = Bytes(attribute.data);
    Some((data.u32(0)? as usize, data.u32(4)?))
}
