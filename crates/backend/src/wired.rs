//! How the trait's own types travel to a device on another machine. A handle is then whatever name the two ends have agreed on.

use crate::{
    Access, BoxSide, Copy3D, CopyBox, Fill, GraphConditional, GraphKernel, Pitched, Range, RawArray,
    RawBlock, RawContext, RawEvent, RawFunction, RawGraph, RawGreen, RawMipmap, RawModule, RawPhysical,
    RawStream, RawTemplate, StreamArg,
};
use wire::{Bytes, DecodeError, Decoder, Encoder, Wire};

macro_rules! handles {
    ($($name:ident),*) => {$(
        impl Wire for $name {
            fn encode(&self, to: &mut Encoder<'_>) {
                self.0.encode(to);
            }
            fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self(Wire::decode(from)?))
            }
        }
    )*};
}
handles!(
    RawContext,
    RawBlock,
    RawPhysical,
    RawModule,
    RawFunction,
    RawStream,
    RawEvent,
    RawGraph,
    RawTemplate,
    RawArray,
    RawMipmap,
    RawGreen
);

macro_rules! structs {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl Wire for $name {
            fn encode(&self, to: &mut Encoder<'_>) {
                $(self.$field.encode(to);)*
            }
            fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self { $($field: Wire::decode(from)?),* })
            }
        }
    )*};
}
structs! {
    Range { base, bytes }
    Pitched { address, pitch, rows }
    Copy3D { dst, src, width, height, depth }
    CopyBox { dst, src, width, height, depth }
    Fill { dst, pitch, element, value, width, height }
    GraphConditional { handle, kind, bodies }
}

impl Wire for Access {
    fn encode(&self, to: &mut Encoder<'_>) {
        (*self as u32).encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let number = u32::decode(from)?;
        Self::from_number(number).ok_or(DecodeError::Invalid { what: "access", value: number.into() })
    }
}

/// The legacy stream has the name 0, which no created stream has.
impl Wire for StreamArg {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Legacy => 0u64.encode(to),
            Self::Created(stream) => stream.encode(to),
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(match u64::decode(from)? {
            0 => Self::Legacy,
            name => Self::Created(RawStream(name)),
        })
    }
}

impl Wire for BoxSide {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Memory(memory) => (0u8, *memory).encode(to),
            Self::Array(array, at) => (1u8, (*array, *at)).encode(to),
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            0 => Ok(Self::Memory(Wire::decode(from)?)),
            1 => Wire::decode(from).map(|(array, at)| Self::Array(array, at)),
            other => Err(DecodeError::Invalid { what: "side of a copy", value: other.into() }),
        }
    }
}

impl Wire for GraphKernel {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.function.encode(to);
        self.grid.encode(to);
        self.block.encode(to);
        self.shared.encode(to);
        self.attributes.encode(to);
        Bytes(self.params.clone()).encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            function: Wire::decode(from)?,
            grid: Wire::decode(from)?,
            block: Wire::decode(from)?,
            shared: Wire::decode(from)?,
            attributes: Wire::decode(from)?,
            params: Bytes::decode(from)?.0,
        })
    }
}
