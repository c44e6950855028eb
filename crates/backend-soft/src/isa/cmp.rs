//! Comparisons and selections.

use ptx::ast::ScalarType::{self, *};
use ptx::ast::{Instruction, Operand};

use super::rounding::Float;
use super::{Result, Spelling, is_half};
use crate::exec::{Combine, Compute, Condition, Op, Pred as Predicate, bin, compare, logic, select, un};
use crate::lower::{Lower, wrong};

const ORDERS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
    "num", "nan",
];

macro_rules! integer_order {
    ($op:expr, $order:expr, $t:ty) => {
        match $order {
            "eq" => compare(|a: $t, b: $t| a == b),
            "ne" => compare(|a: $t, b: $t| a != b),
            "lt" | "lo" => compare(|a: $t, b: $t| a < b),
            "le" | "ls" => compare(|a: $t, b: $t| a <= b),
            "gt" | "hi" => compare(|a: $t, b: $t| a > b),
            "ge" | "hs" => compare(|a: $t, b: $t| a >= b),
            _ => return Err($op.unsupported()),
        }
    };
}

/// Orders on floating-point values: those with a `u` hold also when either is not a number.
macro_rules! float_order {
    ($op:expr, $order:expr, $t:ty, |$v:ident| $value:expr; $make:ident) => {
        float_order!(@ $op, $order, $t, |$v| $value; $make;
            "eq": |a, b| a == b, "ne": |a, b| a < b || a > b, "lt": |a, b| a < b, "le": |a, b| a <= b,
            "gt": |a, b| a > b, "ge": |a, b| a >= b,
            "equ": |a, b| !(a < b || a > b), "neu": |a, b| a != b, "ltu": |a, b| !(a >= b), "leu": |a, b| !(a > b),
            "gtu": |a, b| !(a <= b), "geu": |a, b| !(a < b),
            "num": |a, b| a == a && b == b, "nan": |a, b| a != a || b != b)
    };
    (@ $op:expr, $order:expr, $t:ty, |$v:ident| $value:expr; $make:ident;
        $($name:literal: |$a:ident, $b:ident| $holds:expr),*) => {
        match $order {
            $($name => $make(|$a: $t, $b: $t| {
                let $a = { let $v = $a; $value };
                let $b = { let $v = $b; $value };
                $holds
            }),)*
            _ => return Err($op.unsupported()),
        }
    };
}

// Values that are not a number make these comparisons different from the simpler ones.
#[allow(
    clippy::eq_op,
    clippy::neg_cmp_op_on_partial_ord,
    clippy::nonminimal_bool,
    clippy::double_comparisons
)]
fn comparison(op: &Spelling<'_>, order: &str, ty: ScalarType) -> Result<Compute> {
    Ok(match ty {
        B16 | U16 => integer_order!(op, order, u16),
        S16 => integer_order!(op, order, i16),
        B32 | U32 => integer_order!(op, order, u32),
        S32 => integer_order!(op, order, i32),
        B64 | U64 => integer_order!(op, order, u64),
        S64 => integer_order!(op, order, i64),
        F32 if op.has("ftz") => float_order!(op, order, f32, |v| v.flush(); compare),
        F32 => float_order!(op, order, f32, |v| v; compare),
        F64 => float_order!(op, order, f64, |v| v; compare),
        F16 => float_order!(op, order, crate::exec::Half, |v| v.float(); compare),
        Bf16 => float_order!(op, order, crate::exec::Bfloat, |v| v.float(); compare),
        _ => return Err(op.unsupported()),
    })
}

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    match op.name {
        "selp" => return selp(cx, op),
        "slct" => return slct(cx, op),
        "testp" => return testp(cx, op),
        _ => {}
    }
    // The order comes first; a combination with a predicate may follow.
    let order = op.mods.first().copied().filter(|m| ORDERS.contains(m)).ok_or_else(|| op.unsupported())?;
    let rest = &op.mods[1..];
    let combine = match rest.iter().find(|m| **m != "ftz") {
        None => Combine::None,
        Some(&"and") => Combine::And,
        Some(&"or") => Combine::Or,
        Some(&"xor") => Combine::Xor,
        Some(_) => return Err(op.unsupported()),
    };
    match (op.name, &op.types[..]) {
        ("setp", [ty]) if matches!(ty, F16x2 | Bf16x2) => setp_halves(cx, op, order, combine, *ty),
        ("setp", [ty]) => {
            let (p, q) = results(cx, cx.operand(op.instruction, 0)?)?;
            let handler = comparison(op, order, *ty)?;
            setp(cx, op.instruction, handler, *ty, combine, [p, q])
        }
        ("set", [d, ty]) => set(cx, op, order, combine, *d, *ty),
        _ => Err(op.unsupported()),
    }
}

/// The one or two results of a comparison.
fn results(cx: &Lower<'_>, operand: &Operand) -> Result<(Predicate, Predicate)> {
    match operand {
        Operand::Pair(pair) => Ok((cx.pred_dst(&pair.0)?, cx.pred_dst(&pair.1)?)),
        one => Ok((cx.pred_dst(one)?, Predicate::SINK)),
    }
}

fn setp(
    cx: &mut Lower<'_>,
    instruction: &Instruction,
    handler: Compute,
    ty: ScalarType,
    combine: Combine,
    p: [Predicate; 2],
) -> Result<()> {
    let mut inst = cx.inst(Op::Compute(handler));
    inst.s[0] = cx.src(cx.operand(instruction, 1)?, ty)?;
    inst.s[1] = cx.src(cx.operand(instruction, 2)?, ty)?;
    inst.imm = combine as u64;
    inst.p = p;
    match (combine, instruction.operands.len()) {
        (Combine::None, 3) => {}
        (Combine::None, _) => return Err(wrong(instruction)),
        _ => inst.c[0] = cx.condition(cx.operand(instruction, 3)?)?,
    }
    cx.push(inst);
    Ok(())
}

/// Packed operands: the first result is that of the low halves, the second that of the high halves.
fn setp_halves(
    cx: &mut Lower<'_>,
    op: &Spelling<'_>,
    order: &str,
    combine: Combine,
    ty: ScalarType,
) -> Result<()> {
    let (p, q) = results(cx, cx.operand(op.instruction, 0)?)?;
    let handler = comparison(op, order, if ty == F16x2 { F16 } else { Bf16 })?;
    let a = cx.src(cx.operand(op.instruction, 1)?, B32)?;
    let b = cx.src(cx.operand(op.instruction, 2)?, B32)?;
    let c = match combine {
        Combine::None => Condition::ALWAYS,
        _ => cx.condition(cx.operand(op.instruction, 3)?)?,
    };
    let (high_a, high_b) = (cx.scratch(1), cx.scratch(1));
    cx.copy(high_a, a, un(|a: u32| a >> 16));
    cx.copy(high_b, b, un(|a: u32| a >> 16));
    // The low halves' result must not be lost to the second comparison's condition, nor the other way round.
    for (s, p) in [([a, b], p), ([high_a, high_b], q)] {
        let mut inst = cx.inst(Op::Compute(handler));
        (inst.s[0], inst.s[1]) = (s[0], s[1]);
        inst.imm = combine as u64;
        inst.p = [p, Predicate::SINK];
        inst.c[0] = c;
        cx.push(inst);
    }
    Ok(())
}

/// `set`: a comparison, then a choice between two constants.
// Values that are not a number make these comparisons different from the simpler ones.
#[allow(
    clippy::eq_op,
    clippy::neg_cmp_op_on_partial_ord,
    clippy::nonminimal_bool,
    clippy::double_comparisons
)]
fn set(
    cx: &mut Lower<'_>,
    op: &Spelling<'_>,
    order: &str,
    combine: Combine,
    d: ScalarType,
    ty: ScalarType,
) -> Result<()> {
    if let (F16x2, F16x2, Combine::None) = (d, ty, combine) {
        macro_rules! both {
            ($f:expr) => {{
                bin(|a: crate::exec::HalfPair, b: crate::exec::HalfPair| {
                    let half = |shift: u32| {
                        let part = |v: u32| crate::exec::Half((v >> shift) as u16).float();
                        if $f(part(a.0), part(b.0)) { 0x3c00u32 << shift } else { 0 }
                    };
                    half(0) | half(16)
                })
            }};
        }
        let handler: Compute = match order {
            "eq" => both!(|a: f64, b: f64| a == b),
            "ne" => both!(|a: f64, b: f64| a != b),
            "lt" => both!(|a: f64, b: f64| a < b),
            "le" => both!(|a: f64, b: f64| a <= b),
            "gt" => both!(|a: f64, b: f64| a > b),
            "ge" => both!(|a: f64, b: f64| a >= b),
            "neu" => both!(|a: f64, b: f64| a != b),
            "nan" => both!(|a: f64, b: f64| a != a || b != b),
            _ => return Err(op.unsupported()),
        };
        return cx.compute(op.instruction, handler, B32, &[B32; 2]);
    }
    let yes = match d {
        U32 | S32 => u64::from(u32::MAX),
        U16 | S16 => 0xffff,
        F32 => u64::from(1f32.to_bits()),
        F16 => 0x3c00,
        Bf16 => 0x3f80,
        _ => return Err(op.unsupported()),
    };
    let handler = comparison(op, order, ty)?;
    setp(cx, op.instruction, handler, ty, combine, [Predicate::SCRATCH, Predicate::SINK])?;
    let mut inst = cx.inst(Op::Compute(select(|a: u32, b: u32, c| if c { a } else { b })));
    inst.s[0] = cx.constant(yes, 1);
    inst.s[1] = cx.constant(0, 1);
    inst.c[0] = Condition { pred: Predicate::SCRATCH, negated: false };
    inst.d[0] = cx.dst(cx.operand(op.instruction, 0)?, d)?.0;
    cx.push(inst);
    Ok(())
}

fn selp(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&[])?;
    let ty = op.ty()?;
    if ty == Pred || is_half(ty) {
        return Err(op.unsupported());
    }
    let handler: Compute = match ty.size() {
        8 => select(|a: u64, b: u64, c| if c { a } else { b }),
        _ => select(|a: u32, b: u32, c| if c { a } else { b }),
    };
    let mut inst = cx.inst(Op::Compute(handler));
    inst.s[0] = cx.src(cx.operand(op.instruction, 1)?, ty)?;
    inst.s[1] = cx.src(cx.operand(op.instruction, 2)?, ty)?;
    inst.c[0] = cx.condition(cx.operand(op.instruction, 3)?)?;
    inst.d[0] = cx.dst(cx.operand(op.instruction, 0)?, ty)?.0;
    cx.push(inst);
    Ok(())
}

/// `slct`: by the sign of the last source.
fn slct(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&["ftz"])?;
    let [ty, by] = op.types[..] else { return Err(op.unsupported()) };
    let ftz = op.has("ftz");
    let handler: Compute = match (ty.size(), by) {
        (8, S32) => crate::exec::ter(|a: u64, b: u64, c: i32| if c >= 0 { a } else { b }),
        (_, S32) => crate::exec::ter(|a: u32, b: u32, c: i32| if c >= 0 { a } else { b }),
        (8, F32) if ftz => crate::exec::ter(|a: u64, b: u64, c: f32| if c.flush() >= 0.0 { a } else { b }),
        (_, F32) if ftz => crate::exec::ter(|a: u32, b: u32, c: f32| if c.flush() >= 0.0 { a } else { b }),
        (8, F32) => crate::exec::ter(|a: u64, b: u64, c: f32| if c >= 0.0 { a } else { b }),
        (_, F32) => crate::exec::ter(|a: u32, b: u32, c: f32| if c >= 0.0 { a } else { b }),
        _ => return Err(op.unsupported()),
    };
    cx.compute(op.instruction, handler, ty, &[ty, ty, by])
}

/// `testp`: what kind of number a value is; zero counts as normal.
fn testp(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let ty = op.ty()?;
    let [kind] = op.mods[..] else { return Err(op.unsupported()) };
    let handler: Compute = match (kind, ty) {
        ("finite", F32) => compare(|a: f32, _: f32| a.is_finite()),
        ("infinite", F32) => compare(|a: f32, _: f32| a.is_infinite()),
        ("number", F32) => compare(|a: f32, _: f32| !a.is_nan()),
        ("notanumber", F32) => compare(|a: f32, _: f32| a.is_nan()),
        ("normal", F32) => compare(|a: f32, _: f32| a.is_normal() || a == 0.0),
        ("subnormal", F32) => compare(|a: f32, _: f32| a.is_subnormal()),
        ("finite", F64) => compare(|a: f64, _: f64| a.is_finite()),
        ("infinite", F64) => compare(|a: f64, _: f64| a.is_infinite()),
        ("number", F64) => compare(|a: f64, _: f64| !a.is_nan()),
        ("notanumber", F64) => compare(|a: f64, _: f64| a.is_nan()),
        ("normal", F64) => compare(|a: f64, _: f64| a.is_normal() || a == 0.0),
        ("subnormal", F64) => compare(|a: f64, _: f64| a.is_subnormal()),
        _ => return Err(op.unsupported()),
    };
    let mut inst = cx.inst(Op::Compute(handler));
    inst.p[0] = cx.pred_dst(cx.operand(op.instruction, 0)?)?;
    inst.s[0] = cx.src(cx.operand(op.instruction, 1)?, ty)?;
    inst.s[1] = inst.s[0];
    cx.push(inst);
    Ok(())
}

/// Copies a predicate.
pub(super) fn mov_pred(cx: &mut Lower<'_>, to: &Operand, from: &Operand) -> Result<()> {
    let mut inst = cx.inst(Op::Compute(logic(|a: u32, _: u32| a)));
    inst.p[0] = cx.pred_dst(to)?;
    inst.c[0] = cx.condition(from)?;
    cx.push(inst);
    Ok(())
}
