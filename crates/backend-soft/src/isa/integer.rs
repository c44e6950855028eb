//! Integer arithmetic.

use ptx::ast::ScalarType::{self, *};

use super::{Result, Spelling};
use crate::exec::{Compute, bin, ter, un};
use crate::lower::Lower;

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    match op.name {
        "dp4a" | "dp2a" => return dot(cx, op),
        "mul" | "mad" => return products(cx, op),
        "mul24" | "mad24" => return products24(cx, op),
        _ => {}
    }
    op.only(&["sat"])?;
    let (ty, sat) = (op.ty()?, op.has("sat"));
    if sat && !(ty == S32 && matches!(op.name, "add" | "sub")) {
        return Err(op.unsupported());
    }
    let (handler, sources): (Compute, usize) = match (op.name, ty) {
        ("add", S32) if sat => (bin(|a: i32, b: i32| a.saturating_add(b)), 2),
        ("sub", S32) if sat => (bin(|a: i32, b: i32| a.saturating_sub(b)), 2),
        ("add", S16 | U16) => (bin(|a: u16, b: u16| a.wrapping_add(b)), 2),
        ("add", S32 | U32) => (bin(|a: u32, b: u32| a.wrapping_add(b)), 2),
        ("add", S64 | U64) => (bin(|a: u64, b: u64| a.wrapping_add(b)), 2),
        ("add", S16x2 | U16x2) => (bin(|a: u32, b: u32| pairs(a, b, |a, b| a.wrapping_add(b))), 2),
        ("sub", S16 | U16) => (bin(|a: u16, b: u16| a.wrapping_sub(b)), 2),
        ("sub", S32 | U32) => (bin(|a: u32, b: u32| a.wrapping_sub(b)), 2),
        ("sub", S64 | U64) => (bin(|a: u64, b: u64| a.wrapping_sub(b)), 2),
        ("neg", S16) => (un(|a: i16| a.wrapping_neg()), 1),
        ("neg", S32) => (un(|a: i32| a.wrapping_neg()), 1),
        ("neg", S64) => (un(|a: i64| a.wrapping_neg()), 1),
        ("abs", S16) => (un(|a: i16| a.wrapping_abs()), 1),
        ("abs", S32) => (un(|a: i32| a.wrapping_abs()), 1),
        ("abs", S64) => (un(|a: i64| a.wrapping_abs()), 1),
        // Division by zero gives all ones, and so does its remainder, as in the code that ptxas makes of them.
        ("div", U16) => (bin(|a: u16, b: u16| a.checked_div(b).unwrap_or(!0)), 2),
        ("div", U32) => (bin(|a: u32, b: u32| a.checked_div(b).unwrap_or(!0)), 2),
        ("div", U64) => (bin(|a: u64, b: u64| a.checked_div(b).unwrap_or(!0)), 2),
        ("div", S16) => (bin(|a: i16, b: i16| if b == 0 { -1 } else { a.wrapping_div(b) }), 2),
        ("div", S32) => (bin(|a: i32, b: i32| if b == 0 { -1 } else { a.wrapping_div(b) }), 2),
        ("div", S64) => (bin(|a: i64, b: i64| if b == 0 { -1 } else { a.wrapping_div(b) }), 2),
        ("rem", U16) => (bin(|a: u16, b: u16| a.checked_rem(b).unwrap_or(!0)), 2),
        ("rem", U32) => (bin(|a: u32, b: u32| a.checked_rem(b).unwrap_or(!0)), 2),
        ("rem", U64) => (bin(|a: u64, b: u64| a.checked_rem(b).unwrap_or(!0)), 2),
        ("rem", S16) => (bin(|a: i16, b: i16| if b == 0 { -1 } else { a.wrapping_rem(b) }), 2),
        ("rem", S32) => (bin(|a: i32, b: i32| if b == 0 { -1 } else { a.wrapping_rem(b) }), 2),
        ("rem", S64) => (bin(|a: i64, b: i64| if b == 0 { -1 } else { a.wrapping_rem(b) }), 2),
        ("sad", U16) => (ter(|a: u16, b: u16, c: u16| c.wrapping_add(a.abs_diff(b))), 3),
        ("sad", U32) => (ter(|a: u32, b: u32, c: u32| c.wrapping_add(a.abs_diff(b))), 3),
        ("sad", U64) => (ter(|a: u64, b: u64, c: u64| c.wrapping_add(a.abs_diff(b))), 3),
        ("sad", S16) => (ter(|a: i16, b: i16, c: u16| c.wrapping_add(a.abs_diff(b))), 3),
        ("sad", S32) => (ter(|a: i32, b: i32, c: u32| c.wrapping_add(a.abs_diff(b))), 3),
        ("sad", S64) => (ter(|a: i64, b: i64, c: u64| c.wrapping_add(a.abs_diff(b))), 3),
        _ => return Err(op.unsupported()),
    };
    cx.compute(op.instruction, handler, ty, &[ty; 3][..sources])
}

/// Applies an operation to both halves of packed 16-bit values.
#[inline(always)]
pub(super) fn pairs(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

fn products(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&["lo", "hi", "wide", "sat"])?;
    let ty = op.ty()?;
    let mad = op.name == "mad";
    let part = op.mods.iter().copied().find(|m| *m != "sat").unwrap_or("lo");
    if op.has("sat") {
        let saturating = mad && part == "hi" && ty == S32;
        let handler =
            ter(|a: i32, b: i32, c: i32| (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c));
        return if saturating {
            cx.compute(op.instruction, handler, ty, &[ty; 3])
        } else {
            Err(op.unsupported())
        };
    }
    if part == "wide" {
        let (mul, add, wide): (Compute, Compute, ScalarType) = match ty {
            S16 => (
                bin(|a: i16, b: i16| i32::from(a) * i32::from(b)),
                ter(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)),
                S32,
            ),
            U16 => (
                bin(|a: u16, b: u16| u32::from(a) * u32::from(b)),
                ter(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)),
                U32,
            ),
            S32 => (
                bin(|a: i32, b: i32| i64::from(a) * i64::from(b)),
                ter(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c)),
                S64,
            ),
            U32 => (
                bin(|a: u32, b: u32| u64::from(a) * u64::from(b)),
                ter(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)),
                U64,
            ),
            _ => return Err(op.unsupported()),
        };
        return match mad {
            true => cx.compute(op.instruction, add, wide, &[ty, ty, wide]),
            false => cx.compute(op.instruction, mul, wide, &[ty, ty]),
        };
    }
    let (mul, add): (Compute, Compute) = match (part, ty) {
        ("lo", S16 | U16) => (
            bin(|a: u16, b: u16| a.wrapping_mul(b)),
            ter(|a: u16, b: u16, c: u16| a.wrapping_mul(b).wrapping_add(c)),
        ),
        ("lo", S32 | U32) => (
            bin(|a: u32, b: u32| a.wrapping_mul(b)),
            ter(|a: u32, b: u32, c: u32| a.wrapping_mul(b).wrapping_add(c)),
        ),
        ("lo", S64 | U64) => (
            bin(|a: u64, b: u64| a.wrapping_mul(b)),
            ter(|a: u64, b: u64, c: u64| a.wrapping_mul(b).wrapping_add(c)),
        ),
        ("hi", S16) => (bin(high_s16), ter(|a: i16, b: i16, c: i16| high_s16(a, b).wrapping_add(c))),
        ("hi", U16) => (bin(high_u16), ter(|a: u16, b: u16, c: u16| high_u16(a, b).wrapping_add(c))),
        ("hi", S32) => (bin(high_s32), ter(|a: i32, b: i32, c: i32| high_s32(a, b).wrapping_add(c))),
        ("hi", U32) => (bin(high_u32), ter(|a: u32, b: u32, c: u32| high_u32(a, b).wrapping_add(c))),
        ("hi", S64) => (bin(high_s64), ter(|a: i64, b: i64, c: i64| high_s64(a, b).wrapping_add(c))),
        ("hi", U64) => (bin(high_u64), ter(|a: u64, b: u64, c: u64| high_u64(a, b).wrapping_add(c))),
        _ => return Err(op.unsupported()),
    };
    match mad {
        true => cx.compute(op.instruction, add, ty, &[ty; 3]),
        false => cx.compute(op.instruction, mul, ty, &[ty; 2]),
    }
}

#[inline(always)]
fn high_s16(a: i16, b: i16) -> i16 {
    ((i32::from(a) * i32::from(b)) >> 16) as i16
}
#[inline(always)]
fn high_u16(a: u16, b: u16) -> u16 {
    ((u32::from(a) * u32::from(b)) >> 16) as u16
}
#[inline(always)]
fn high_s32(a: i32, b: i32) -> i32 {
    ((i64::from(a) * i64::from(b)) >> 32) as i32
}
#[inline(always)]
pub(super) fn high_u32(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}
#[inline(always)]
fn high_s64(a: i64, b: i64) -> i64 {
    ((i128::from(a) * i128::from(b)) >> 64) as i64
}
#[inline(always)]
pub(super) fn high_u64(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// Products of the low 24 bits: the low or high 32 of the 48.
fn products24(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&["lo", "hi"])?;
    let ty = op.ty()?;
    let (mul, add): (Compute, Compute) = match (op.has("hi"), ty) {
        (false, S32) => (
            bin(|a: i32, b: i32| signed24(a, b) as i32),
            ter(|a: i32, b: i32, c: i32| (signed24(a, b) as i32).wrapping_add(c)),
        ),
        (false, U32) => (
            bin(|a: u32, b: u32| unsigned24(a, b) as u32),
            ter(|a: u32, b: u32, c: u32| (unsigned24(a, b) as u32).wrapping_add(c)),
        ),
        (true, S32) => (
            bin(|a: i32, b: i32| (signed24(a, b) >> 16) as i32),
            ter(|a: i32, b: i32, c: i32| ((signed24(a, b) >> 16) as i32).wrapping_add(c)),
        ),
        (true, U32) => (
            bin(|a: u32, b: u32| (unsigned24(a, b) >> 16) as u32),
            ter(|a: u32, b: u32, c: u32| ((unsigned24(a, b) >> 16) as u32).wrapping_add(c)),
        ),
        _ => return Err(op.unsupported()),
    };
    match op.name {
        "mad24" => cx.compute(op.instruction, add, ty, &[ty; 3]),
        _ => cx.compute(op.instruction, mul, ty, &[ty; 2]),
    }
}

#[inline(always)]
fn signed24(a: i32, b: i32) -> i64 {
    i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)
}

#[inline(always)]
fn unsigned24(a: u32, b: u32) -> u64 {
    u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)
}

/// `dp4a` and `dp2a`: sums of products of bytes (with bytes, or with halves).
fn dot(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(if op.name == "dp2a" { &["lo", "hi"] } else { &[] })?;
    let [a, b] = op.types[..] else { return Err(op.unsupported()) };
    let handler: Compute = match (op.name, a, b, op.has("hi")) {
        ("dp4a", U32, U32, _) => ter(|a: u32, b: u32, c: u32| dot4(a, b, c, byte, byte)),
        ("dp4a", S32, S32, _) => ter(|a: u32, b: u32, c: u32| dot4(a, b, c, signed_byte, signed_byte)),
        ("dp4a", U32, S32, _) => ter(|a: u32, b: u32, c: u32| dot4(a, b, c, byte, signed_byte)),
        ("dp4a", S32, U32, _) => ter(|a: u32, b: u32, c: u32| dot4(a, b, c, signed_byte, byte)),
        ("dp2a", U32, U32, false) => ter(|a: u32, b: u32, c: u32| dot2(a, b, c, half, byte)),
        ("dp2a", S32, S32, false) => ter(|a: u32, b: u32, c: u32| dot2(a, b, c, signed_half, signed_byte)),
        ("dp2a", U32, S32, false) => ter(|a: u32, b: u32, c: u32| dot2(a, b, c, half, signed_byte)),
        ("dp2a", S32, U32, false) => ter(|a: u32, b: u32, c: u32| dot2(a, b, c, signed_half, byte)),
        ("dp2a", U32, U32, true) => ter(|a: u32, b: u32, c: u32| dot2(a, b >> 16, c, half, byte)),
        ("dp2a", S32, S32, true) => {
            ter(|a: u32, b: u32, c: u32| dot2(a, b >> 16, c, signed_half, signed_byte))
        }
        ("dp2a", U32, S32, true) => ter(|a: u32, b: u32, c: u32| dot2(a, b >> 16, c, half, signed_byte)),
        ("dp2a", S32, U32, true) => ter(|a: u32, b: u32, c: u32| dot2(a, b >> 16, c, signed_half, byte)),
        _ => return Err(op.unsupported()),
    };
    cx.compute(op.instruction, handler, B32, &[B32; 3])
}

fn byte(word: u32, index: u32) -> i32 {
    i32::from((word >> (8 * index)) as u8)
}
fn signed_byte(word: u32, index: u32) -> i32 {
    i32::from((word >> (8 * index)) as i8)
}
fn half(word: u32, index: u32) -> i32 {
    i32::from((word >> (16 * index)) as u16)
}
fn signed_half(word: u32, index: u32) -> i32 {
    i32::from((word >> (16 * index)) as i16)
}

type Part = fn(u32, u32) -> i32;

#[inline(always)]
fn dot4(a: u32, b: u32, c: u32, left: Part, right: Part) -> u32 {
    (0..4).fold(c, |sum, index| sum.wrapping_add((left(a, index) * right(b, index)) as u32))
}

#[inline(always)]
fn dot2(a: u32, b: u32, c: u32, left: Part, right: Part) -> u32 {
    (0..2).fold(c, |sum, index| sum.wrapping_add((left(a, index) * right(b, index)) as u32))
}
