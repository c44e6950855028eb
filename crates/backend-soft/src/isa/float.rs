//! Single and double precision arithmetic, exact to the last bit.

use ptx::ast::ScalarType::{self, *};

use super::rounding::{self as r, DOWN, Float, UP, ZERO};
use super::{Result, Spelling, transcendental};
use crate::exec::{Compute, bin, ter, un, wide};
use crate::lower::Lower;

/// A handler for one operation in the wanted direction, with or without flushing. `nearest` is what Rust computes, `directed`
/// a function generic over the direction.
macro_rules! rounded {
    ($mode:expr, $ftz:expr; $make:ident, $ty:ty, |$($arg:ident),*| $nearest:expr, $directed:ident($($given:ident),*)) => {
        match ($mode, $ftz) {
            ("rz", false) => $make(|$($arg: $ty),*| r::$directed::<ZERO>($($given),*).canonical()),
            ("rm", false) => $make(|$($arg: $ty),*| r::$directed::<DOWN>($($given),*).canonical()),
            ("rp", false) => $make(|$($arg: $ty),*| r::$directed::<UP>($($given),*).canonical()),
            ("rz", true) => $make(|$($arg: $ty),*| {
                $(let $arg = $arg.flush();)*
                r::$directed::<ZERO>($($given),*).canonical().flush()
            }),
            ("rm", true) => $make(|$($arg: $ty),*| {
                $(let $arg = $arg.flush();)*
                r::$directed::<DOWN>($($given),*).canonical().flush()
            }),
            ("rp", true) => $make(|$($arg: $ty),*| {
                $(let $arg = $arg.flush();)*
                r::$directed::<UP>($($given),*).canonical().flush()
            }),
            (_, false) => $make(|$($arg: $ty),*| $nearest.canonical()),
            (_, true) => $make(|$($arg: $ty),*| {
                $(let $arg = $arg.flush();)*
                $nearest.canonical().flush()
            }),
        }
    };
}

fn mode<'a>(op: &Spelling<'a>) -> &'a str {
    op.mods.iter().copied().find(|m| matches!(*m, "rn" | "rz" | "rm" | "rp")).unwrap_or("rn")
}

pub(super) fn arithmetic(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let ty = op.ty()?;
    let known: &[&str] = match (op.name, ty) {
        ("div", F32) => &["rn", "rz", "rm", "rp", "ftz", "approx", "full"],
        ("neg" | "abs", F32) => &["ftz"],
        ("neg" | "abs", _) => &[],
        (_, F32) => &["rn", "rz", "rm", "rp", "ftz", "sat"],
        _ => &["rn", "rz", "rm", "rp"],
    };
    op.only(known)?;
    let (mode, ftz) = (mode(op), op.has("ftz"));
    if matches!(op.name, "fma" | "mad") && ty == F64 && mode != "rn" && !wide() {
        return Err(op.unsupported());
    }
    let (handler, sources): (Compute, usize) = match (op.name, ty) {
        ("add", F32) => (rounded!(mode, ftz; bin, f32, |a, b| (a + b), add32(a, b)), 2),
        ("add", F64) => (rounded!(mode, ftz; bin, f64, |a, b| (a + b), add64(a, b)), 2),
        ("sub", F32) => (rounded!(mode, ftz; bin, f32, |a, b| (a - b), sub32(a, b)), 2),
        ("sub", F64) => (rounded!(mode, ftz; bin, f64, |a, b| (a - b), sub64(a, b)), 2),
        ("mul", F32) => (rounded!(mode, ftz; bin, f32, |a, b| (a * b), mul32(a, b)), 2),
        ("mul", F64) => (rounded!(mode, ftz; bin, f64, |a, b| (a * b), mul64(a, b)), 2),
        ("div", F32) => (rounded!(mode, ftz; bin, f32, |a, b| (a / b), div32(a, b)), 2),
        ("div", F64) => (rounded!(mode, ftz; bin, f64, |a, b| (a / b), div64(a, b)), 2),
        ("fma" | "mad", F32) => (rounded!(mode, ftz; ter, f32, |a, b, c| a.mul_add(b, c), fma32(a, b, c)), 3),
        ("fma" | "mad", F64) => (rounded!(mode, ftz; ter, f64, |a, b, c| a.mul_add(b, c), fma64(a, b, c)), 3),
        ("neg", F32) if ftz => (un(|a: f32| (-a.flush()).canonical()), 1),
        ("neg", F32) => (un(|a: f32| (-a).canonical()), 1),
        ("neg", F64) => (un(|a: u64| a ^ 1 << 63), 1),
        ("abs", F32) if ftz => (un(|a: f32| a.flush().abs().canonical()), 1),
        ("abs", F32) => (un(|a: f32| a.abs().canonical()), 1),
        ("abs", F64) => (un(|a: u64| a & !(1 << 63)), 1),
        _ => return Err(op.unsupported()),
    };
    cx.compute(op.instruction, handler, ty, &[ty; 3][..sources])?;
    saturate(cx, op, ty)
}

/// `.sat` is a second instruction on the result.
fn saturate(cx: &mut Lower<'_>, op: &Spelling<'_>, ty: ScalarType) -> Result<()> {
    if op.has("sat") {
        let (slot, _) = cx.dst(cx.operand(op.instruction, 0)?, ty)?;
        cx.copy(slot, slot, un(|a: f32| a.saturate()));
    }
    Ok(())
}

/// `rcp`, `sqrt`, `copysign`.
pub(super) fn special(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    if op.has("approx") {
        return transcendental::lower(cx, op);
    }
    let ty = op.ty()?;
    op.only(match (op.name, ty) {
        ("copysign", _) => &[],
        (_, F32) => &["rn", "rz", "rm", "rp", "ftz"],
        _ => &["rn", "rz", "rm", "rp"],
    })?;
    let (mode, ftz) = (mode(op), op.has("ftz"));
    let (handler, sources): (Compute, usize) = match (op.name, ty) {
        ("rcp", F32) => (rounded!(mode, ftz; un, f32, |a| (1.0 / a), rcp32(a)), 1),
        ("rcp", F64) => (rounded!(mode, ftz; un, f64, |a| (1.0 / a), rcp64(a)), 1),
        ("sqrt", F32) => (rounded!(mode, ftz; un, f32, |a| a.sqrt(), sqrt32(a, a)), 1),
        ("sqrt", F64) => (rounded!(mode, ftz; un, f64, |a| a.sqrt(), sqrt64(a, a)), 1),
        // The sign of the first, the magnitude of the second.
        ("copysign", F32) => (bin(|a: f32, b: f32| b.copysign(a)), 2),
        ("copysign", F64) => (bin(|a: f64, b: f64| b.copysign(a)), 2),
        _ => return Err(op.unsupported()),
    };
    cx.compute(op.instruction, handler, ty, &[ty; 2][..sources])
}
