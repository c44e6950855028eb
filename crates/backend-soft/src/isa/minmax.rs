//! Minimum and maximum.

use ptx::ast::ScalarType::*;

use super::integer::pairs;
use super::rounding::Float;
use super::{Result, Spelling, half, is_half};
use crate::exec::{Compute, bin};
use crate::lower::Lower;

/// The smaller; the one that is a number, if only one is; -0 is smaller than 0.
#[inline(always)]
pub(super) fn min64(a: f64, b: f64) -> f64 {
    if a < b || a == b && a.is_sign_negative() || b.is_nan() { a } else { b }
}

/// The larger, likewise.
#[inline(always)]
pub(super) fn max64(a: f64, b: f64) -> f64 {
    if a > b || a == b && a.is_sign_positive() || b.is_nan() { a } else { b }
}

#[inline(always)]
fn min32(a: f32, b: f32) -> f32 {
    if a < b || a == b && a.is_sign_negative() || b.is_nan() { a } else { b }
}

#[inline(always)]
fn max32(a: f32, b: f32) -> f32 {
    if a > b || a == b && a.is_sign_positive() || b.is_nan() { a } else { b }
}

/// `.NaN`: not a number if either is not.
#[inline(always)]
pub(super) fn either_nan(a: f64, b: f64, value: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { value }
}

#[inline(always)]
fn either_nan32(a: f32, b: f32, value: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { value }
}

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let ty = op.ty()?;
    if is_half(ty) {
        return half::minmax(cx, op, ty);
    }
    let handler: Compute = match ty {
        F32 => {
            op.only(&["ftz", "NaN"])?;
            match (op.name, op.has("ftz"), op.has("NaN")) {
                ("min", false, false) => bin(|a: f32, b: f32| min32(a, b).canonical()),
                ("max", false, false) => bin(|a: f32, b: f32| max32(a, b).canonical()),
                ("min", true, false) => bin(|a: f32, b: f32| min32(a.flush(), b.flush()).canonical()),
                ("max", true, false) => bin(|a: f32, b: f32| max32(a.flush(), b.flush()).canonical()),
                ("min", false, true) => bin(|a: f32, b: f32| either_nan32(a, b, min32(a, b)).canonical()),
                ("max", false, true) => bin(|a: f32, b: f32| either_nan32(a, b, max32(a, b)).canonical()),
                ("min", true, true) => {
                    bin(|a: f32, b: f32| either_nan32(a, b, min32(a.flush(), b.flush())).canonical())
                }
                _ => bin(|a: f32, b: f32| either_nan32(a, b, max32(a.flush(), b.flush())).canonical()),
            }
        }
        F64 => {
            op.only(&[])?;
            if op.name == "min" { bin(min64) } else { bin(max64) }
        }
        _ => {
            op.only(if matches!(ty, S32 | S16x2) { &["relu"] } else { &[] })?;
            match (op.name, ty, op.has("relu")) {
                ("min", S16, _) => bin(|a: i16, b: i16| a.min(b)),
                ("max", S16, _) => bin(|a: i16, b: i16| a.max(b)),
                ("min", U16, _) => bin(|a: u16, b: u16| a.min(b)),
                ("max", U16, _) => bin(|a: u16, b: u16| a.max(b)),
                ("min", S32, false) => bin(|a: i32, b: i32| a.min(b)),
                ("max", S32, false) => bin(|a: i32, b: i32| a.max(b)),
                ("min", S32, true) => bin(|a: i32, b: i32| a.min(b).max(0)),
                ("max", S32, true) => bin(|a: i32, b: i32| a.max(b).max(0)),
                ("min", U32, _) => bin(|a: u32, b: u32| a.min(b)),
                ("max", U32, _) => bin(|a: u32, b: u32| a.max(b)),
                ("min", S64, _) => bin(|a: i64, b: i64| a.min(b)),
                ("max", S64, _) => bin(|a: i64, b: i64| a.max(b)),
                ("min", U64, _) => bin(|a: u64, b: u64| a.min(b)),
                ("max", U64, _) => bin(|a: u64, b: u64| a.max(b)),
                ("min", U16x2, _) => bin(|a: u32, b: u32| pairs(a, b, u16::min)),
                ("max", U16x2, _) => bin(|a: u32, b: u32| pairs(a, b, u16::max)),
                ("min", S16x2, false) => {
                    bin(|a: u32, b: u32| pairs(a, b, |a, b| (a as i16).min(b as i16) as u16))
                }
                ("max", S16x2, false) => {
                    bin(|a: u32, b: u32| pairs(a, b, |a, b| (a as i16).max(b as i16) as u16))
                }
                ("min", S16x2, true) => {
                    bin(|a: u32, b: u32| pairs(a, b, |a, b| (a as i16).min(b as i16).max(0) as u16))
                }
                ("max", S16x2, true) => {
                    bin(|a: u32, b: u32| pairs(a, b, |a, b| (a as i16).max(b as i16).max(0) as u16))
                }
                _ => return Err(op.unsupported()),
            }
        }
    };
    cx.compute(op.instruction, handler, ty, &[ty; 2])
}
