//! Arithmetic with the carry flag.

use ptx::ast::ScalarType::*;

use super::integer::{high_u32, high_u64};
use super::{Result, Spelling};
use crate::exec::{Compute, Op, carry};
use crate::lower::{Lower, wrong};

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&["cc", "lo", "hi"])?;
    let ty = op.ty()?;
    let wide = match ty {
        U32 | S32 => false,
        U64 | S64 => true,
        _ => return Err(op.unsupported()),
    };
    let signed = matches!(ty, S32 | S64);
    if op.has("hi") && signed {
        // The high half of a signed product: no compiler chains it, and the flag has no use.
        return Err(op.unsupported());
    }
    // In a subtraction the flag is the borrow.
    let handler: Compute = match (op.name, op.has("hi"), wide) {
        ("add", _, false) => carry(|a: u32, b: u32, _: u32, _| a.overflowing_add(b)),
        ("add", _, true) => carry(|a: u64, b: u64, _: u64, _| a.overflowing_add(b)),
        ("addc", _, false) => carry(|a: u32, b: u32, _: u32, flag| add32(a, b, flag)),
        ("addc", _, true) => carry(|a: u64, b: u64, _: u64, flag| add64(a, b, flag)),
        ("sub", _, false) => carry(|a: u32, b: u32, _: u32, _| a.overflowing_sub(b)),
        ("sub", _, true) => carry(|a: u64, b: u64, _: u64, _| a.overflowing_sub(b)),
        ("subc", _, false) => carry(|a: u32, b: u32, _: u32, flag| {
            let (value, first) = a.overflowing_sub(b);
            let (value, second) = value.overflowing_sub(u32::from(flag));
            (value, first | second)
        }),
        ("subc", _, true) => carry(|a: u64, b: u64, _: u64, flag| {
            let (value, first) = a.overflowing_sub(b);
            let (value, second) = value.overflowing_sub(u64::from(flag));
            (value, first | second)
        }),
        ("mad", false, false) => carry(|a: u32, b: u32, c: u32, _| a.wrapping_mul(b).overflowing_add(c)),
        ("mad", false, true) => carry(|a: u64, b: u64, c: u64, _| a.wrapping_mul(b).overflowing_add(c)),
        ("mad", true, false) => carry(|a: u32, b: u32, c: u32, _| high_u32(a, b).overflowing_add(c)),
        ("mad", true, true) => carry(|a: u64, b: u64, c: u64, _| high_u64(a, b).overflowing_add(c)),
        ("madc", false, false) => carry(|a: u32, b: u32, c: u32, flag| add32(a.wrapping_mul(b), c, flag)),
        ("madc", false, true) => carry(|a: u64, b: u64, c: u64, flag| add64(a.wrapping_mul(b), c, flag)),
        ("madc", true, false) => carry(|a: u32, b: u32, c: u32, flag| add32(high_u32(a, b), c, flag)),
        ("madc", true, true) => carry(|a: u64, b: u64, c: u64, flag| add64(high_u64(a, b), c, flag)),
        _ => return Err(op.unsupported()),
    };
    let [d, sources @ ..] = op.instruction.operands.as_slice() else { return Err(wrong(op.instruction)) };
    let wanted = if op.name.starts_with("mad") { 3 } else { 2 };
    if sources.len() != wanted {
        return Err(wrong(op.instruction));
    }
    let mut inst = cx.inst(Op::Compute(handler));
    // A third source that is not there reads as zero, of either width.
    inst.s[2] = cx.constant(0, if wide { 2 } else { 1 });
    for (slot, source) in sources.iter().enumerate() {
        inst.s[slot] = cx.src(source, ty)?;
    }
    inst.d[0] = cx.dst(d, ty)?.0;
    inst.imm = op.has("cc").into();
    cx.push(inst);
    Ok(())
}

#[inline(always)]
fn add32(a: u32, b: u32, flag: bool) -> (u32, bool) {
    let (value, first) = a.overflowing_add(b);
    let (value, second) = value.overflowing_add(u32::from(flag));
    (value, first | second)
}

#[inline(always)]
fn add64(a: u64, b: u64, flag: bool) -> (u64, bool) {
    let (value, first) = a.overflowing_add(b);
    let (value, second) = value.overflowing_add(u64::from(flag));
    (value, first | second)
}
