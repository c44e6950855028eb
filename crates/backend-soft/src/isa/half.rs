//! Half precision and bfloat16.
//!
//! Sums, products and quotients are computed in double precision, which holds them exactly or, for quotients, with more than
//! twice the bits: rounding twice is then rounding once. A fused product-sum is first rounded to odd.

use ptx::ast::ScalarType::{self, *};

use super::narrow::{BFLOAT, Direction, HALF};
use super::rounding::{Float, NEAREST, add_to_odd};
use super::{Result, Spelling};
use crate::exec::{Bfloat, Compute, Half, bin, ter, un};
use crate::lower::Lower;

impl Half {
    /// Its value.
    pub fn float(self) -> f64 {
        HALF.value(self.0)
    }
}

impl Bfloat {
    /// Its value.
    pub fn float(self) -> f64 {
        f64::from(f32::from_bits(u32::from(self.0) << 16))
    }
}

/// The nearest half-precision value.
pub fn f16(value: f64) -> Half {
    Half(HALF.round(value, Direction::Even))
}

/// The nearest bfloat16 value.
pub fn bf16(value: f64) -> Bfloat {
    Bfloat(BFLOAT.round(value, Direction::Even))
}

/// A handler for an operation on doubles, for each of the four types.
macro_rules! by_type {
    ($op:expr, $ty:expr; $make:ident, |$($arg:ident),*| $value:expr) => {
        match $ty {
            F16 => $make(|$($arg: crate::exec::Half),*| {
                $(let $arg = $arg.float();)*
                f16($value)
            }),
            Bf16 => $make(|$($arg: crate::exec::Bfloat),*| {
                $(let $arg = $arg.float();)*
                bf16($value)
            }),
            F16x2 => $make(|$($arg: crate::exec::HalfPair),*| {
                let half = |shift: u32| {
                    $(let $arg = crate::exec::Half(($arg.0 >> shift) as u16).float();)*
                    u32::from(f16($value).0) << shift
                };
                crate::exec::HalfPair(half(0) | half(16))
            }),
            Bf16x2 => $make(|$($arg: crate::exec::BfloatPair),*| {
                let half = |shift: u32| {
                    $(let $arg = crate::exec::Bfloat(($arg.0 >> shift) as u16).float();)*
                    u32::from(bf16($value).0) << shift
                };
                crate::exec::BfloatPair(half(0) | half(16))
            }),
            _ => return Err($op.unsupported()),
        }
    };
}

pub(super) fn arithmetic(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let ty = op.ty()?;
    op.only(match op.name {
        "fma" => &["rn", "sat", "relu"],
        "neg" | "abs" => &[],
        _ => &["rn", "sat"],
    })?;
    let (handler, sources): (Compute, usize) = match (op.name, ty) {
        ("add", _) => (by_type!(op, ty; bin, |a, b| a + b), 2),
        ("sub", _) => (by_type!(op, ty; bin, |a, b| a - b), 2),
        ("mul", _) => (by_type!(op, ty; bin, |a, b| a * b), 2),
        ("fma", _) if op.has("relu") => {
            (by_type!(op, ty; ter, |a, b, c| relu(add_to_odd::<NEAREST>(a * b, c))), 3)
        }
        ("fma", _) => (by_type!(op, ty; ter, |a, b, c| add_to_odd::<NEAREST>(a * b, c)), 3),
        ("neg", F16 | Bf16) => (un(|a: u16| a ^ 0x8000), 1),
        ("neg", _) => (un(|a: u32| a ^ 0x8000_8000), 1),
        ("abs", F16 | Bf16) => (un(|a: u16| a & 0x7fff), 1),
        ("abs", _) => (un(|a: u32| a & 0x7fff_7fff), 1),
        _ => return Err(op.unsupported()),
    };
    cx.compute(op.instruction, handler, ty, &[ty; 3][..sources])?;
    if op.has("sat") {
        let (slot, _) = cx.dst(cx.operand(op.instruction, 0)?, ty)?;
        let handler = by_type!(op, ty; un, |a| a.saturate());
        cx.copy(slot, slot, handler);
    }
    Ok(())
}

/// Negative values and -0 become 0; what is not a number stays so.
#[inline(always)]
pub(super) fn relu(value: f64) -> f64 {
    if value <= 0.0 { 0.0 } else { value }
}

/// `min` and `max`.
pub(super) fn minmax(cx: &mut Lower<'_>, op: &Spelling<'_>, ty: ScalarType) -> Result<()> {
    op.only(&["NaN", "ftz"])?;
    let handler: Compute = match (op.name, op.has("NaN")) {
        ("min", false) => by_type!(op, ty; bin, |a, b| super::minmax::min64(a, b)),
        ("max", false) => by_type!(op, ty; bin, |a, b| super::minmax::max64(a, b)),
        ("min", true) => {
            by_type!(op, ty; bin, |a, b| super::minmax::either_nan(a, b, super::minmax::min64(a, b)))
        }
        _ => by_type!(op, ty; bin, |a, b| super::minmax::either_nan(a, b, super::minmax::max64(a, b))),
    };
    cx.compute(op.instruction, handler, ty, &[ty; 2])
}
