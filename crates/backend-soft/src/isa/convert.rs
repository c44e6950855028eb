//! Conversions.
//!
//! Between floating-point types every value goes through double precision, which holds all of them exactly, and is rounded
//! once; integers become floating point by one rounding, and floating point an integer by rounding to an integral value first.

use ptx::ast::Operand;
use ptx::ast::ScalarType::{self, *};

use super::narrow::{BFLOAT, Direction, E4M3, E5M2, HALF};
use super::rounding::{self as r, DOWN, Float, UP, ZERO};
use super::{Result, Spelling, half, is_float};
use crate::exec::{Compute, Slot, bin, un};
use crate::lower::{Lower, wrong};

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&["rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi", "ftz", "sat", "satfinite", "relu"])?;
    let [d, s] = op.types[..] else { return Err(op.unsupported()) };
    if op.instruction.operands.len() == 3 {
        return pack(cx, op, d, s);
    }
    let [to, from] = &op.instruction.operands[..] else { return Err(wrong(op.instruction)) };
    if let Some(handler) = common(op, d, s) {
        return cx.compute(op.instruction, handler, register(d), &[s]);
    }
    let (float_d, float_s) = (is_floating(d), is_floating(s));
    let source = cx.src(from, s)?;
    match (float_d, float_s) {
        (false, false) => {
            let wide = cx.scratch(2);
            cx.copy(wide, source, widen(op, s)?);
            convert(cx, to, d, wide, narrow_integer(op, d, is_signed(s))?)
        }
        (true, false) => {
            let value = cx.scratch(2);
            cx.copy(value, source, widen(op, s)?);
            convert(cx, to, d, value, from_integer(op, d, is_signed(s))?)?;
            saturate(cx, op, to, d)
        }
        (false, true) => {
            let value = double(cx, op, source, s)?;
            cx.copy(value, value, integral(op)?);
            let zero_for_nan = s != F64 && !matches!(d, S64 | U64);
            convert(cx, to, d, value, to_integer(op, d, zero_for_nan)?)
        }
        (true, true) => {
            let value = double(cx, op, source, s)?;
            if op.mods.iter().any(|m| matches!(*m, "rni" | "rzi" | "rmi" | "rpi")) {
                cx.copy(value, value, integral(op)?);
            }
            if op.has("relu") {
                cx.copy(value, value, un(half::relu));
            }
            convert(cx, to, d, value, from_double(op, d)?)?;
            saturate(cx, op, to, d)
        }
    }
}

fn is_signed(ty: ScalarType) -> bool {
    matches!(ty, S8 | S16 | S32 | S64)
}

fn is_floating(ty: ScalarType) -> bool {
    is_float(ty) || matches!(ty, F16 | Bf16 | Tf32)
}

/// The type of the register lane that a result is written as: shorter integers are extended to 32 bits.
fn register(ty: ScalarType) -> ScalarType {
    match ty {
        S8 | S16 => S32,
        U8 | U16 | B8 | B16 => U32,
        other => other,
    }
}

fn convert(cx: &mut Lower<'_>, to: &Operand, d: ScalarType, from: Slot, handler: Compute) -> Result<()> {
    let (slot, after) = cx.dst(to, register(d))?;
    cx.copy(slot, from, handler);
    cx.finish_dst(after);
    Ok(())
}

fn saturate(cx: &mut Lower<'_>, op: &Spelling<'_>, to: &Operand, d: ScalarType) -> Result<()> {
    if op.has("sat") {
        let (slot, _) = cx.dst(to, d)?;
        let handler = match d {
            F32 => un(|a: f32| a.saturate()),
            F64 => un(|a: f64| a.saturate()),
            F16 => un(|a: crate::exec::Half| half::f16(a.float().saturate())),
            _ => return Err(op.unsupported()),
        };
        cx.copy(slot, slot, handler);
    }
    Ok(())
}

/// The conversions that programs spend their time in, as one instruction.
fn common(op: &Spelling<'_>, d: ScalarType, s: ScalarType) -> Option<Compute> {
    Some(match (d, s, &op.mods[..]) {
        (U32 | S32, U16, []) => un(|a: u16| u32::from(a)),
        (U16 | S16, U32 | S32, []) => un(|a: u32| a & 0xffff),
        (U64 | S64, U32, []) => un(|a: u32| u64::from(a)),
        (U64 | S64, S32, []) => un(|a: i32| i64::from(a)),
        (U32 | S32, U64 | S64, []) => un(|a: u64| a as u32),
        (F32, S32, ["rn"]) => un(|a: i32| a as f32),
        (F32, U32, ["rn"]) => un(|a: u32| a as f32),
        (F64, S32, ["rn"]) => un(|a: i32| f64::from(a)),
        (F64, U32, ["rn"]) => un(|a: u32| f64::from(a)),
        (F64, F32, []) => un(|a: f32| f64::from(a)),
        (F32, F64, ["rn"]) => un(|a: f64| (a as f32).canonical()),
        (S32, F32, ["rzi"]) => un(|a: f32| a as i32),
        (U32, F32, ["rzi"]) => un(|a: f32| a as u32),
        (F32, F32, ["rzi"]) => un(|a: f32| a.trunc().canonical()),
        (F32, F32, ["rmi"]) => un(|a: f32| a.floor().canonical()),
        (F32, F32, ["rni"]) => un(|a: f32| a.round_ties_even().canonical()),
        (F32, F32, ["sat"]) => un(|a: f32| a.saturate()),
        _ => return None,
    })
}

/// Any integer, extended to 64 bits.
fn widen(op: &Spelling<'_>, s: ScalarType) -> Result<Compute> {
    Ok(match s {
        S8 => un(|a: i8| i64::from(a)),
        S16 => un(|a: i16| i64::from(a)),
        S32 => un(|a: i32| i64::from(a)),
        U8 | B8 => un(|a: u8| u64::from(a)),
        U16 | B16 => un(|a: u16| u64::from(a)),
        U32 | B32 => un(|a: u32| u64::from(a)),
        S64 | U64 | B64 => un(|a: u64| a),
        _ => return Err(op.unsupported()),
    })
}

fn narrow_integer(op: &Spelling<'_>, d: ScalarType, signed: bool) -> Result<Compute> {
    if !op.has("sat") {
        return Ok(match d {
            S8 => un(|a: u64| i32::from(a as i8)),
            U8 | B8 => un(|a: u64| u32::from(a as u8)),
            S16 => un(|a: u64| i32::from(a as i16)),
            U16 | B16 => un(|a: u64| u32::from(a as u16)),
            S32 | U32 | B32 => un(|a: u64| a as u32),
            S64 | U64 | B64 => un(|a: u64| a),
            _ => return Err(op.unsupported()),
        });
    }
    Ok(match (d, signed) {
        (S8, true) => un(|a: i64| a.clamp(-0x80, 0x7f) as i32),
        (S8, false) => un(|a: u64| a.min(0x7f) as i32),
        (U8, true) => un(|a: i64| a.clamp(0, 0xff) as u32),
        (U8, false) => un(|a: u64| a.min(0xff) as u32),
        (S16, true) => un(|a: i64| a.clamp(-0x8000, 0x7fff) as i32),
        (S16, false) => un(|a: u64| a.min(0x7fff) as i32),
        (U16, true) => un(|a: i64| a.clamp(0, 0xffff) as u32),
        (U16, false) => un(|a: u64| a.min(0xffff) as u32),
        (S32, true) => un(|a: i64| a.clamp(i32::MIN.into(), i32::MAX.into()) as i32),
        (S32, false) => un(|a: u64| a.min(0x7fff_ffff) as i32),
        (U32, true) => un(|a: i64| a.clamp(0, u32::MAX.into()) as u32),
        (U32, false) => un(|a: u64| a.min(u32::MAX.into()) as u32),
        (S64, false) => un(|a: u64| a.min(i64::MAX as u64)),
        (U64, true) => un(|a: i64| a.max(0) as u64),
        (S64, true) | (U64, false) => un(|a: u64| a),
        _ => return Err(op.unsupported()),
    })
}

fn direction(op: &Spelling<'_>) -> Direction {
    let named = op.mods.iter().find_map(|m| match *m {
        "rz" => Some(Direction::Zero),
        "rm" => Some(Direction::Down),
        "rp" => Some(Direction::Up),
        "rna" => Some(Direction::Away),
        _ => None,
    });
    named.unwrap_or(Direction::Even)
}

/// An integer's magnitude rounded to a number of bits; exact in double precision for up to 53.
#[inline]
fn round_integer(negative: bool, magnitude: u64, bits: u32, direction: Direction) -> f64 {
    let drop = (64 - magnitude.leading_zeros()).saturating_sub(bits);
    let value = if drop == 0 {
        magnitude as f64
    } else {
        let half = 1u64 << (drop - 1);
        let rest = magnitude & ((half << 1) - 1);
        let cut = if rest == 0 { 0 } else { 2 + u32::from(rest > half) - u32::from(rest < half) };
        let kept = magnitude >> drop;
        let grown = kept + u64::from(direction.grows(negative, kept & 1 != 0, cut));
        grown as f64 * 2f64.powi(drop as i32)
    };
    if negative { -value } else { value }
}

/// Rounded to odd, so that a second rounding is the only one that counts.
#[inline]
fn integer_to_odd(negative: bool, magnitude: u64) -> f64 {
    let drop = (64 - magnitude.leading_zeros()).saturating_sub(53);
    let odd = magnitude >> drop << drop | u64::from(magnitude & ((1 << drop) - 1) != 0) << drop;
    if negative { -(odd as f64) } else { odd as f64 }
}

/// A closure from an integer of 64 bits, signed or not.
macro_rules! of_integer {
    ($signed:expr, |$negative:ident, $magnitude:ident| $value:expr) => {
        if $signed {
            un(|a: i64| {
                let ($negative, $magnitude) = (a < 0, a.unsigned_abs());
                $value
            })
        } else {
            un(|a: u64| {
                let ($negative, $magnitude) = (false, a);
                $value
            })
        }
    };
}

fn from_integer(op: &Spelling<'_>, d: ScalarType, signed: bool) -> Result<Compute> {
    Ok(match (d, direction(op)) {
        (F32, Direction::Even) => of_integer!(signed, |n, m| round_integer(n, m, 24, Direction::Even) as f32),
        (F32, Direction::Zero) => of_integer!(signed, |n, m| round_integer(n, m, 24, Direction::Zero) as f32),
        (F32, Direction::Down) => of_integer!(signed, |n, m| round_integer(n, m, 24, Direction::Down) as f32),
        (F32, Direction::Up) => of_integer!(signed, |n, m| round_integer(n, m, 24, Direction::Up) as f32),
        (F64, Direction::Even) => of_integer!(signed, |n, m| round_integer(n, m, 53, Direction::Even)),
        (F64, Direction::Zero) => of_integer!(signed, |n, m| round_integer(n, m, 53, Direction::Zero)),
        (F64, Direction::Down) => of_integer!(signed, |n, m| round_integer(n, m, 53, Direction::Down)),
        (F64, Direction::Up) => of_integer!(signed, |n, m| round_integer(n, m, 53, Direction::Up)),
        (F16, Direction::Even) => of_integer!(signed, |n, m| half::f16(integer_to_odd(n, m))),
        (F16, Direction::Zero) => {
            of_integer!(signed, |n, m| crate::exec::Half(HALF.round(integer_to_odd(n, m), Direction::Zero)))
        }
        (F16, Direction::Down) => {
            of_integer!(signed, |n, m| crate::exec::Half(HALF.round(integer_to_odd(n, m), Direction::Down)))
        }
        (F16, Direction::Up) => {
            of_integer!(signed, |n, m| crate::exec::Half(HALF.round(integer_to_odd(n, m), Direction::Up)))
        }
        (Bf16, Direction::Even) => of_integer!(signed, |n, m| half::bf16(integer_to_odd(n, m))),
        (Bf16, Direction::Zero) => {
            of_integer!(signed, |n, m| crate::exec::Bfloat(
                BFLOAT.round(integer_to_odd(n, m), Direction::Zero)
            ))
        }
        _ => return Err(op.unsupported()),
    })
}

/// A scratch slot with the source's value in double precision.
fn double(cx: &mut Lower<'_>, op: &Spelling<'_>, source: Slot, s: ScalarType) -> Result<Slot> {
    let handler: Compute = match s {
        F32 if op.has("ftz") => un(|a: f32| f64::from(a.flush().canonical())),
        F32 | Tf32 => un(|a: f32| f64::from(a)),
        F64 => un(|a: f64| a),
        F16 => un(|a: crate::exec::Half| a.float()),
        Bf16 => un(|a: crate::exec::Bfloat| a.float()),
        _ => return Err(op.unsupported()),
    };
    let value = cx.scratch(2);
    cx.copy(value, source, handler);
    Ok(value)
}

/// To an integral value, in place.
fn integral(op: &Spelling<'_>) -> Result<Compute> {
    let how = op.mods.iter().find(|m| matches!(**m, "rni" | "rzi" | "rmi" | "rpi"));
    Ok(match how.copied() {
        Some("rni") => un(|a: f64| a.round_ties_even()),
        Some("rzi") => un(|a: f64| a.trunc()),
        Some("rmi") => un(|a: f64| a.floor()),
        Some("rpi") => un(|a: f64| a.ceil()),
        _ => return Err(op.unsupported()),
    })
}

/// Values out of range become the nearest integer of the type; what is not a number becomes 0, or the type's top bit.
fn to_integer(op: &Spelling<'_>, d: ScalarType, zero_for_nan: bool) -> Result<Compute> {
    Ok(match (d, zero_for_nan) {
        (S8, true) => un(|a: f64| i32::from(a as i8)),
        (S16, true) => un(|a: f64| i32::from(a as i16)),
        (S32, true) => un(|a: f64| a as i32),
        (U8, true) => un(|a: f64| u32::from(a as u8)),
        (U16, true) => un(|a: f64| u32::from(a as u16)),
        (U32, true) => un(|a: f64| a as u32),
        (S8, false) => un(|a: f64| if a.is_nan() { -0x80 } else { i32::from(a as i8) }),
        (S16, false) => un(|a: f64| if a.is_nan() { -0x8000 } else { i32::from(a as i16) }),
        (S32, false) => un(|a: f64| if a.is_nan() { i32::MIN } else { a as i32 }),
        (U8, false) => un(|a: f64| if a.is_nan() { 0x80 } else { u32::from(a as u8) }),
        (U16, false) => un(|a: f64| if a.is_nan() { 0x8000 } else { u32::from(a as u16) }),
        (U32, false) => un(|a: f64| if a.is_nan() { 0x8000_0000 } else { a as u32 }),
        (S64, _) => un(|a: f64| if a.is_nan() { i64::MIN } else { a as i64 }),
        (U64, _) => un(|a: f64| if a.is_nan() { 1 << 63 } else { a as u64 }),
        _ => return Err(op.unsupported()),
    })
}

fn from_double(op: &Spelling<'_>, d: ScalarType) -> Result<Compute> {
    let ftz = op.has("ftz");
    Ok(match (d, direction(op)) {
        (F32, Direction::Even) if ftz => un(|a: f64| (a as f32).canonical().flush()),
        (F32, Direction::Zero) if ftz => un(|a: f64| r::narrow32::<ZERO>(a).canonical().flush()),
        (F32, Direction::Down) if ftz => un(|a: f64| r::narrow32::<DOWN>(a).canonical().flush()),
        (F32, Direction::Up) if ftz => un(|a: f64| r::narrow32::<UP>(a).canonical().flush()),
        (F32, Direction::Even) => un(|a: f64| (a as f32).canonical()),
        (F32, Direction::Zero) => un(|a: f64| r::narrow32::<ZERO>(a).canonical()),
        (F32, Direction::Down) => un(|a: f64| r::narrow32::<DOWN>(a).canonical()),
        (F32, Direction::Up) => un(|a: f64| r::narrow32::<UP>(a).canonical()),
        (F64, _) => un(|a: f64| a),
        (F16, Direction::Even) => un(|a: f64| half::f16(a)),
        (F16, Direction::Zero) => un(|a: f64| crate::exec::Half(HALF.round(a, Direction::Zero))),
        (F16, Direction::Down) => un(|a: f64| crate::exec::Half(HALF.round(a, Direction::Down))),
        (F16, Direction::Up) => un(|a: f64| crate::exec::Half(HALF.round(a, Direction::Up))),
        (Bf16, Direction::Even) => un(|a: f64| half::bf16(a)),
        (Bf16, Direction::Zero) => un(|a: f64| crate::exec::Bfloat(BFLOAT.round(a, Direction::Zero))),
        (Bf16, Direction::Down) => un(|a: f64| crate::exec::Bfloat(BFLOAT.round(a, Direction::Down))),
        (Bf16, Direction::Up) => un(|a: f64| crate::exec::Bfloat(BFLOAT.round(a, Direction::Up))),
        (Tf32, Direction::Away) => un(|a: f64| if a.is_nan() { a as f32 } else { tensor(a as f32, 0x1000) }),
        (Tf32, Direction::Even) => un(|a: f64| {
            let value = a as f32;
            tensor(value, 0x0fff + (value.to_bits() >> 13 & 1))
        }),
        (Tf32, Direction::Zero) => un(|a: f64| tensor(a as f32, 0)),
        _ => return Err(op.unsupported()),
    })
}

/// TF32 is single precision with 13 fraction bits fewer; `add` decides how the cut is rounded.
#[inline(always)]
fn tensor(value: f32, add: u32) -> f32 {
    if value.is_finite() {
        f32::from_bits((value.to_bits() + add) & !0x1fff)
    } else {
        f32::from_bits(value.canonical().to_bits() & !0x1fff)
    }
}

/// Two single-precision values to a packed pair: the first source goes to the high half.
fn pack(cx: &mut Lower<'_>, op: &Spelling<'_>, d: ScalarType, s: ScalarType) -> Result<()> {
    if s != F32 {
        return Err(op.unsupported());
    }
    macro_rules! packed {
        ($format:expr, $direction:expr, $bits:literal, $relu:expr) => {
            bin(|high: f32, low: f32| {
                let one = |value: f32| {
                    let value = if $relu && value <= 0.0 { 0.0 } else { value };
                    u32::from($format.round(f64::from(value), $direction))
                };
                one(high) << $bits | one(low)
            })
        };
    }
    // `.satfinite`: values beyond the range become the largest finite one.
    macro_rules! packed_finite {
        ($format:expr) => {
            bin(|high: f32, low: f32| {
                let limit = $format.value($format.max);
                let one = |value: f32| {
                    let value = f64::from(value);
                    let value = if value.is_nan() { value } else { value.clamp(-limit, limit) };
                    u32::from($format.round(value, Direction::Even))
                };
                one(high) << 8 | one(low)
            })
        };
    }
    let handler: Compute = match (d, direction(op), op.has("relu"), op.has("satfinite")) {
        (F16x2, Direction::Even, false, false) => packed!(HALF, Direction::Even, 16, false),
        (F16x2, Direction::Even, true, false) => packed!(HALF, Direction::Even, 16, true),
        (F16x2, Direction::Zero, false, false) => packed!(HALF, Direction::Zero, 16, false),
        (Bf16x2, Direction::Even, false, false) => packed!(BFLOAT, Direction::Even, 16, false),
        (Bf16x2, Direction::Even, true, false) => packed!(BFLOAT, Direction::Even, 16, true),
        (Bf16x2, Direction::Zero, false, false) => packed!(BFLOAT, Direction::Zero, 16, false),
        (E4m3x2, Direction::Even, false, true) => packed_finite!(E4M3),
        (E5m2x2, Direction::Even, false, true) => packed_finite!(E5M2),
        _ => return Err(op.unsupported()),
    };
    cx.compute(op.instruction, handler, B32, &[F32, F32])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_round_once() {
        let cases = [(1u64 << 24) + 1, (1 << 25) + 3, u64::MAX, (1 << 53) + 1, 0x8000_0080_0000_0001, 12345];
        for value in cases {
            assert_eq!(round_integer(false, value, 24, Direction::Even) as f32, value as f32, "{value:#x}");
            assert_eq!(round_integer(false, value, 53, Direction::Even), value as f64, "{value:#x}");
            let down = round_integer(false, value, 53, Direction::Down);
            let up = round_integer(false, value, 53, Direction::Up);
            assert!(down as u128 <= u128::from(value) && up as u128 >= u128::from(value), "{value:#x}");
            assert_eq!(-round_integer(true, value, 53, Direction::Up), down, "{value:#x}");
        }
        // 2049 lies between two half-precision numbers; one more bit far below decides.
        assert_eq!(half::f16(integer_to_odd(false, 2049)).float(), 2048.0);
        assert_eq!(half::f16(integer_to_odd(false, 2051)).float(), 2052.0);
    }
}
