//! Moves, packing, and addresses of other state spaces.

use ptx::ast::Operand;
use ptx::ast::ScalarType::{self, *};

use super::{Result, Spelling, cmp};
use crate::exec::{Compute, Op, bin, compare, quad, un};
use crate::lower::{Lower, wrong};
use crate::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    match op.name {
        "mov" => mov(cx, op),
        "cvta" => cvta(cx, op),
        _ => isspacep(cx, op),
    }
}

fn mov(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&[])?;
    let ty = op.ty()?;
    let [d, s] = &op.instruction.operands[..] else { return Err(wrong(op.instruction)) };
    match (d, s) {
        _ if ty == Pred => cmp::mov_pred(cx, d, s),
        (Operand::Vector(parts), _) => unpack(cx, op, ty, parts, s),
        (_, Operand::Vector(parts)) => pack(cx, op, ty, d, parts),
        _ => {
            let handler: Compute = if ty.size() == 8 { un(|a: u64| a) } else { un(|a: u32| a) };
            cx.compute(op.instruction, handler, ty, &[ty])
        }
    }
}

fn pack(cx: &mut Lower<'_>, op: &Spelling<'_>, ty: ScalarType, d: &Operand, parts: &[Operand]) -> Result<()> {
    let (handler, part): (Compute, ScalarType) = match (ty.size(), parts.len()) {
        (8, 2) => (bin(|a: u32, b: u32| u64::from(b) << 32 | u64::from(a)), B32),
        (8, 4) => (
            quad(|a: u16, b: u16, c: u16, d: u16| {
                u64::from(d) << 48 | u64::from(c) << 32 | u64::from(b) << 16 | u64::from(a)
            }),
            B16,
        ),
        (4, 2) => (bin(|a: u16, b: u16| u32::from(b) << 16 | u32::from(a)), B16),
        (4, 4) => (quad(|a: u8, b: u8, c: u8, d: u8| u32::from_le_bytes([a, b, c, d])), B8),
        (2, 2) => (bin(|a: u8, b: u8| u16::from_le_bytes([a, b])), B8),
        _ => return Err(op.unsupported()),
    };
    let mut inst = cx.inst(Op::Compute(handler));
    for (index, operand) in parts.iter().enumerate() {
        inst.s[index] = cx.src(operand, part)?;
    }
    inst.d[0] = cx.dst(d, ty)?.0;
    cx.push(inst);
    Ok(())
}

fn unpack(
    cx: &mut Lower<'_>,
    op: &Spelling<'_>,
    ty: ScalarType,
    parts: &[Operand],
    s: &Operand,
) -> Result<()> {
    let (handler, part): (Compute, ScalarType) = match (ty.size(), parts.len()) {
        (8, 2) => (bin(|a: u64, by: u32| (a >> by) as u32), B32),
        (8, 4) => (bin(|a: u64, by: u32| (a >> by) as u16), B16),
        (4, 2) => (bin(|a: u32, by: u32| (a >> by) as u16), B16),
        (4, 4) | (2, 2) => (bin(|a: u32, by: u32| (a >> by) as u8), B8),
        _ => return Err(op.unsupported()),
    };
    let from = cx.src(s, ty)?;
    let shift = ty.size() * 8 / parts.len() as u64;
    for (operand, index) in parts.iter().zip(0..) {
        if *operand != Operand::Sink {
            let mut inst = cx.inst(Op::Compute(handler));
            inst.s[0] = from;
            inst.s[1] = cx.constant(shift * index, 1);
            inst.d[0] = cx.dst(operand, part)?.0;
            cx.push(inst);
        }
    }
    Ok(())
}

/// Start of a state space's window of generic addresses.
fn window(cx: &Lower<'_>, space: &str) -> Option<u64> {
    match space {
        "global" | "const" => Some(0),
        "shared" | "shared::cta" | "shared::cluster" => Some(SHARED_WINDOW),
        "local" => Some(LOCAL_WINDOW),
        "param" | "param::entry" if cx.is_kernel() => Some(PARAM_WINDOW),
        "param" | "param::func" => Some(LOCAL_WINDOW),
        _ => None,
    }
}

fn cvta(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let ty = op.ty()?;
    let (to, space) = match op.mods[..] {
        ["to", space] => (true, space),
        [space] => (false, space),
        _ => return Err(op.unsupported()),
    };
    let window = window(cx, space).filter(|_| ty.size() == 8).ok_or_else(|| op.unsupported())?;
    let [d, s] = &op.instruction.operands[..] else { return Err(wrong(op.instruction)) };
    let mut inst = cx.inst(Op::Compute(bin(|a: u64, b: u64| a.wrapping_add(b))));
    inst.s[0] = cx.src(s, ty)?;
    inst.s[1] = cx.constant(if to { window.wrapping_neg() } else { window }, 2);
    inst.d[0] = cx.dst(d, ty)?.0;
    cx.push(inst);
    Ok(())
}

fn isspacep(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let [space] = op.mods[..] else { return Err(op.unsupported()) };
    let handler: Compute = match (space, window(cx, space)) {
        // Constants lie in global memory here: nothing tells them apart, and no program can write through the answer.
        ("const", _) => compare(|_: u64, _: u64| false),
        ("global", _) => compare(|a: u64, _: u64| a.wrapping_sub(SHARED_WINDOW) >= 3 * WINDOW_BYTES),
        (_, Some(_)) => compare(|a: u64, start: u64| a.wrapping_sub(start) < WINDOW_BYTES),
        _ => return Err(op.unsupported()),
    };
    let [p, a] = &op.instruction.operands[..] else { return Err(wrong(op.instruction)) };
    let start = window(cx, space).unwrap_or(0);
    let mut inst = cx.inst(Op::Compute(handler));
    inst.s[0] = cx.src(a, U64)?;
    inst.s[1] = cx.constant(start, 2);
    inst.p[0] = cx.pred_dst(p)?;
    cx.push(inst);
    Ok(())
}
