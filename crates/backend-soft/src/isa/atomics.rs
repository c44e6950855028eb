//! Atomic operations on memory.

use ptx::ast::Operand;
use ptx::ast::ScalarType::{self, B16, B32, B64, Bf16x2, F16x2, F32, F64, S32, S64, U32, U64};

use super::loads::{in_space, is_hint, space};
use super::rounding::Float;
use super::{Result, Spelling, half};
use crate::exec::{Access, GENERIC, GLOBAL, LOCAL, Op, PARAM, SHARED, Space, atomic};
use crate::exec::{Bfloat, Half};
use crate::lower::{Lower, wrong};

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let i = op.instruction;
    let operations = ["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"];
    let known = |m: &&str| space(m).is_some() || is_hint(m) || operations.contains(m) || *m == "noftz";
    if !op.mods.iter().all(known) {
        return Err(op.unsupported());
    }
    let ty = op.ty()?;
    let operation =
        op.mods.iter().copied().find(|m| operations.contains(m)).ok_or_else(|| op.unsupported())?;
    let (d, rest) = match (op.name, &i.operands[..]) {
        ("atom", [d, rest @ ..]) => (d, rest),
        (_, rest) => (&Operand::Sink, rest),
    };
    let [Operand::Address(address), values @ ..] = rest else { return Err(wrong(i)) };
    if values.len() != if operation == "cas" { 2 } else { 1 } {
        return Err(wrong(i));
    }
    let mut inst = cx.inst(Op::Yield);
    let space = cx.address(&mut inst, address, op.mods.iter().find_map(|m| space(m)))?;
    inst.op = Op::Access(handler(operation, ty, space).ok_or_else(|| op.unsupported())?);
    // A second operand that is not there reads as zero, of either width.
    inst.s[2] = cx.constant(0, 2);
    for (index, value) in values.iter().enumerate() {
        inst.s[index + 1] = cx.src(value, ty)?;
    }
    inst.d[0] = cx.dst(d, ty)?.0;
    cx.push(inst);
    Ok(())
}

fn handler(operation: &str, ty: ScalarType, space: Space) -> Option<Access> {
    Some(match (operation, ty) {
        ("add", U32 | S32) => in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| a.wrapping_add(b))),
        ("add", U64 | S64) => in_space!(space, atomic::<u64>(|a: u64, b: u64, _: u64| a.wrapping_add(b))),
        ("add", F32) => in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| add32(a, b))),
        ("add", F64) => in_space!(
            space,
            atomic::<u64>(|a: u64, b: u64, _: u64| { (f64::from_bits(a) + f64::from_bits(b)).to_bits() })
        ),
        ("add", ScalarType::F16) => in_space!(space, atomic::<u16>(|a: u16, b: u16, _: u16| add_f16(a, b))),
        ("add", ScalarType::Bf16) => in_space!(space, atomic::<u16>(|a: u16, b: u16, _: u16| add_bf16(a, b))),
        ("add", F16x2) => {
            in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| { super::integer::pairs(a, b, add_f16) }))
        }
        ("add", Bf16x2) => in_space!(
            space,
            atomic::<u32>(|a: u32, b: u32, _: u32| { super::integer::pairs(a, b, add_bf16) })
        ),
        ("min", U32) => in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| a.min(b))),
        ("max", U32) => in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| a.max(b))),
        ("min", S32) => {
            in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| (a as i32).min(b as i32) as u32))
        }
        ("max", S32) => {
            in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| (a as i32).max(b as i32) as u32))
        }
        ("min", U64) => in_space!(space, atomic::<u64>(|a: u64, b: u64, _: u64| a.min(b))),
        ("max", U64) => in_space!(space, atomic::<u64>(|a: u64, b: u64, _: u64| a.max(b))),
        ("min", S64) => {
            in_space!(space, atomic::<u64>(|a: u64, b: u64, _: u64| (a as i64).min(b as i64) as u64))
        }
        ("max", S64) => {
            in_space!(space, atomic::<u64>(|a: u64, b: u64, _: u64| (a as i64).max(b as i64) as u64))
        }
        ("inc", U32) => {
            in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| if a >= b { 0 } else { a + 1 }))
        }
        ("dec", U32) => in_space!(
            space,
            atomic::<u32>(|a: u32, b: u32, _: u32| { if a == 0 || a > b { b } else { a - 1 } })
        ),
        ("and", B32) => in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| a & b)),
        ("or", B32) => in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| a | b)),
        ("xor", B32) => in_space!(space, atomic::<u32>(|a: u32, b: u32, _: u32| a ^ b)),
        ("exch", B32) => in_space!(space, atomic::<u32>(|_: u32, b: u32, _: u32| b)),
        ("cas", B32) => in_space!(space, atomic::<u32>(|a: u32, b: u32, c: u32| if a == b { c } else { a })),
        ("and", B64) => in_space!(space, atomic::<u64>(|a: u64, b: u64, _: u64| a & b)),
        ("or", B64) => in_space!(space, atomic::<u64>(|a: u64, b: u64, _: u64| a | b)),
        ("xor", B64) => in_space!(space, atomic::<u64>(|a: u64, b: u64, _: u64| a ^ b)),
        ("exch", B64) => in_space!(space, atomic::<u64>(|_: u64, b: u64, _: u64| b)),
        ("cas", B64) => in_space!(space, atomic::<u64>(|a: u64, b: u64, c: u64| if a == b { c } else { a })),
        ("exch", B16) => in_space!(space, atomic::<u16>(|_: u16, b: u16, _: u16| b)),
        ("cas", B16) => in_space!(space, atomic::<u16>(|a: u16, b: u16, c: u16| if a == b { c } else { a })),
        _ => return None,
    })
}

/// Single precision. (PTX: in global memory subnormals are flushed by hardware that does so, in shared memory never.)
#[inline(always)]
fn add32(a: u32, b: u32) -> u32 {
    (f32::from_bits(a) + f32::from_bits(b)).canonical().to_bits()
}

fn add_f16(a: u16, b: u16) -> u16 {
    half::f16(Half(a).float() + Half(b).float()).0
}

fn add_bf16(a: u16, b: u16) -> u16 {
    half::bf16(Bfloat(a).float() + Bfloat(b).float()).0
}
