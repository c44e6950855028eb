//! Logic, shifts, bit fields.

use ptx::ast::ScalarType::*;
use ptx::ast::{Immediate, Operand};

use super::{Result, Spelling};
use crate::exec::{Compute, Op, bin, logic, quad, ter, un};
use crate::lower::{Lower, wrong};

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let ty = op.ty()?;
    if ty == Pred {
        return predicates(cx, op);
    }
    let i = op.instruction;
    op.only(match op.name {
        "shf" => &["l", "r", "wrap", "clamp"],
        "bfind" => &["shiftamt"],
        "bmsk" | "szext" => &["wrap", "clamp"],
        "prmt" => &["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"],
        "lop3" => &["lut"],
        _ => &[],
    })?;
    let shift = op.has("shiftamt");
    let handler: Compute = match (op.name, ty) {
        ("and", B16) => bin(|a: u16, b: u16| a & b),
        ("and", B32) => bin(|a: u32, b: u32| a & b),
        ("and", B64) => bin(|a: u64, b: u64| a & b),
        ("or", B16) => bin(|a: u16, b: u16| a | b),
        ("or", B32) => bin(|a: u32, b: u32| a | b),
        ("or", B64) => bin(|a: u64, b: u64| a | b),
        ("xor", B16) => bin(|a: u16, b: u16| a ^ b),
        ("xor", B32) => bin(|a: u32, b: u32| a ^ b),
        ("xor", B64) => bin(|a: u64, b: u64| a ^ b),
        ("not", B16) => un(|a: u16| !a),
        ("not", B32) => un(|a: u32| !a),
        ("not", B64) => un(|a: u64| !a),
        ("cnot", B16) => un(|a: u16| u16::from(a == 0)),
        ("cnot", B32) => un(|a: u32| u32::from(a == 0)),
        ("cnot", B64) => un(|a: u64| u64::from(a == 0)),
        ("shl", B16) => bin(|a: u16, b: u32| if b < 16 { a << b } else { 0 }),
        ("shl", B32) => bin(|a: u32, b: u32| if b < 32 { a << b } else { 0 }),
        ("shl", B64) => bin(|a: u64, b: u32| if b < 64 { a << b } else { 0 }),
        ("shr", B16 | U16) => bin(|a: u16, b: u32| if b < 16 { a >> b } else { 0 }),
        ("shr", B32 | U32) => bin(|a: u32, b: u32| if b < 32 { a >> b } else { 0 }),
        ("shr", B64 | U64) => bin(|a: u64, b: u32| if b < 64 { a >> b } else { 0 }),
        ("shr", S16) => bin(|a: i16, b: u32| a >> b.min(15)),
        ("shr", S32) => bin(|a: i32, b: u32| a >> b.min(31)),
        ("shr", S64) => bin(|a: i64, b: u32| a >> b.min(63)),
        ("shf", B32) => match (op.has("l"), op.has("wrap")) {
            (true, true) => ter(|a: u32, b: u32, c: u32| (funnel(a, b) << (c & 31) >> 32) as u32),
            (true, false) => ter(|a: u32, b: u32, c: u32| (funnel(a, b) << c.min(32) >> 32) as u32),
            (false, true) => ter(|a: u32, b: u32, c: u32| (funnel(a, b) >> (c & 31)) as u32),
            (false, false) => ter(|a: u32, b: u32, c: u32| (funnel(a, b) >> c.min(32)) as u32),
        },
        ("popc", B32) => un(|a: u32| a.count_ones()),
        ("popc", B64) => un(|a: u64| a.count_ones()),
        ("clz", B32) => un(|a: u32| a.leading_zeros()),
        ("clz", B64) => un(|a: u64| a.leading_zeros()),
        ("bfind", U32) if shift => un(|a: u32| if a == 0 { !0 } else { a.leading_zeros() }),
        ("bfind", U64) if shift => un(|a: u64| if a == 0 { !0 } else { a.leading_zeros() }),
        ("bfind", S32) if shift => {
            un(|a: i32| if a ^ a >> 31 == 0 { !0 } else { (a ^ a >> 31).leading_zeros() })
        }
        ("bfind", S64) if shift => {
            un(|a: i64| if a ^ a >> 63 == 0 { !0 } else { (a ^ a >> 63).leading_zeros() })
        }
        ("bfind", U32) => un(|a: u32| 31u32.wrapping_sub(a.leading_zeros())),
        ("bfind", U64) => un(|a: u64| 63u32.wrapping_sub(a.leading_zeros())),
        ("bfind", S32) => un(|a: i32| 31u32.wrapping_sub((a ^ a >> 31).leading_zeros())),
        ("bfind", S64) => un(|a: i64| 63u32.wrapping_sub((a ^ a >> 63).leading_zeros())),
        ("brev", B32) => un(|a: u32| a.reverse_bits()),
        ("brev", B64) => un(|a: u64| a.reverse_bits()),
        ("bfe", U32) => ter(|a: u32, b: u32, c: u32| extract(a.into(), b, c, 32) as u32),
        ("bfe", U64) => ter(|a: u64, b: u32, c: u32| extract(a, b, c, 64)),
        ("bfe", S32) => ter(|a: i32, b: u32, c: u32| extract_signed(a.into(), b, c, 31) as i32),
        ("bfe", S64) => ter(|a: i64, b: u32, c: u32| extract_signed(a, b, c, 63)),
        ("bfi", B32) => quad(|a: u32, b: u32, c: u32, d: u32| insert(a.into(), b.into(), c, d) as u32),
        ("bfi", B64) => quad(|a: u64, b: u64, c: u32, d: u32| insert(a, b, c, d)),
        ("bmsk", B32) if op.has("clamp") => bin(|a: u32, b: u32| (field(b.min(32)) << a.min(32)) as u32),
        ("bmsk", B32) => bin(|a: u32, b: u32| (field(b & 31) << (a & 31)) as u32),
        ("szext", U32) if op.has("clamp") => bin(|a: u32, b: u32| a & field(b.min(32)) as u32),
        ("szext", U32) => bin(|a: u32, b: u32| a & field(b & 31) as u32),
        ("szext", S32) if op.has("clamp") => {
            bin(|a: i32, b: u32| extract_signed(a.into(), 0, b.min(32), 31) as i32)
        }
        ("szext", S32) => bin(|a: i32, b: u32| extract_signed(a.into(), 0, b & 31, 31) as i32),
        ("fns", B32) => ter(nth_set),
        ("lop3", B32) => quad(table_logic),
        ("prmt", B32) => return permute(cx, op),
        _ => return Err(op.unsupported()),
    };
    match op.name {
        "and" | "or" | "xor" => cx.compute(i, handler, ty, &[ty; 2]),
        "not" | "cnot" | "brev" => cx.compute(i, handler, ty, &[ty]),
        "shl" | "shr" => cx.compute(i, handler, ty, &[ty, U32]),
        "popc" | "clz" | "bfind" => cx.compute(i, handler, U32, &[ty]),
        "bfe" => cx.compute(i, handler, ty, &[ty, U32, U32]),
        "bfi" => cx.compute(i, handler, ty, &[ty, ty, U32, U32]),
        "bmsk" | "szext" => cx.compute(i, handler, ty, &[ty, U32]),
        "lop3" => cx.compute(i, handler, ty, &[ty, ty, ty, U32]),
        _ => cx.compute(i, handler, ty, &[ty; 3]),
    }
}

fn predicates(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&[])?;
    let handler: Compute = match op.name {
        "and" => logic(|a: u32, b: u32| a & b),
        "or" => logic(|a: u32, b: u32| a | b),
        "xor" => logic(|a: u32, b: u32| a ^ b),
        "not" => logic(|a: u32, _: u32| !a),
        _ => return Err(op.unsupported()),
    };
    let mut inst = cx.inst(Op::Compute(handler));
    inst.p[0] = cx.pred_dst(cx.operand(op.instruction, 0)?)?;
    for index in 0..op.instruction.operands.len().saturating_sub(1).min(2) {
        inst.c[index] = cx.condition(&op.instruction.operands[index + 1])?;
    }
    cx.push(inst);
    Ok(())
}

/// `prmt`: bytes of two words, chosen by a word of selectors or by the mode.
fn permute(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let handler: Compute = match op.mods.first().copied() {
        None => ter(|a: u32, b: u32, c: u32| pick(a, b, std::array::from_fn(|n| c >> (4 * n) & 15))),
        Some("f4e") => ter(|a: u32, b: u32, c: u32| pick(a, b, std::array::from_fn(|n| (c & 3) + n as u32))),
        Some("b4e") => ter(|a: u32, b: u32, c: u32| {
            pick(a, b, std::array::from_fn(|n| (c & 3).wrapping_sub(n as u32) & 7))
        }),
        Some("rc8") => ter(|a: u32, b: u32, c: u32| pick(a, b, [c & 3; 4])),
        Some("ecl") => {
            ter(|a: u32, b: u32, c: u32| pick(a, b, std::array::from_fn(|n| (c & 3).max(n as u32))))
        }
        Some("ecr") => {
            ter(|a: u32, b: u32, c: u32| pick(a, b, std::array::from_fn(|n| (c & 3).min(n as u32))))
        }
        Some(_) => ter(|a: u32, b: u32, c: u32| {
            let low = (c & 1) * 2;
            pick(a, b, [low, low + 1, low, low + 1])
        }),
    };
    if op.instruction.operands.len() != 4 {
        return Err(wrong(op.instruction));
    }
    cx.compute(op.instruction, handler, B32, &[B32; 3])
}

#[inline(always)]
fn pick(a: u32, b: u32, selectors: [u32; 4]) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut out = 0;
    for (index, selector) in selectors.into_iter().enumerate() {
        let byte = (bytes >> (8 * (selector & 7))) as u8;
        // The selector's top bit asks for the byte's sign, repeated.
        let byte = if selector & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        out |= u32::from(byte) << (8 * index);
    }
    out
}

#[inline(always)]
fn funnel(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A mask of the low `length` bits (at most 32).
#[inline(always)]
fn field(length: u32) -> u64 {
    (1u64 << length) - 1
}

#[inline(always)]
fn extract(a: u64, position: u32, length: u32, bits: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let shifted = if position < bits { a >> position } else { 0 };
    if length < 64 { shifted & ((1 << length) - 1) } else { shifted }
}

/// Bits beyond the word repeat the field's sign, which is the word's where the field reaches beyond it.
#[inline(always)]
fn extract_signed(a: i64, position: u32, length: u32, top: u32) -> i64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let last = (position + length - 1).min(top);
    let sign = a >> last & 1;
    if position > top {
        return -sign;
    }
    a << (63 - last) >> (63 - last) >> position
}

#[inline(always)]
fn insert(a: u64, b: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if position >= 64 {
        return b;
    }
    let mask = if length < 64 { (1u64 << length) - 1 } else { !0 } << position;
    b & !mask | a << position & mask
}

/// `fns`: the n-th set bit from a base, upwards or downwards.
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let base = base & 31;
    let mut left = offset.unsigned_abs();
    if left == 0 {
        return if mask >> base & 1 != 0 { base } else { !0 };
    }
    let mut at = base as i32;
    while (0..32).contains(&at) {
        if mask >> at & 1 != 0 {
            left -= 1;
            if left == 0 {
                return at as u32;
            }
        }
        at += offset.signum();
    }
    !0
}

/// `lop3`: each bit of the table is the result for one combination of inputs.
#[inline(always)]
fn table_logic(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let mut out = 0;
    for row in 0..8 {
        let (x, y, z) = (row & 4 != 0, row & 2 != 0, row & 1 != 0);
        let term = if x { a } else { !a } & if y { b } else { !b } & if z { c } else { !c };
        out |= term & 0u32.wrapping_sub(table >> row & 1);
    }
    out
}

/// A constant integer operand.
pub(super) fn constant(operand: &Operand) -> Option<i64> {
    match operand {
        Operand::Imm(Immediate::Int(value)) => Some(*value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_the_manual() {
        assert_eq!(extract(0xabcd_1234, 8, 8, 32), 0x12);
        assert_eq!(extract(0xabcd_1234, 40, 8, 32), 0);
        assert_eq!(extract(u64::MAX, 0, 200, 64), u64::MAX);
        assert_eq!(extract_signed(0x80, 4, 4, 31), -8);
        assert_eq!(extract_signed(i64::from(i32::MIN), 28, 16, 31), -8);
        assert_eq!(extract_signed(i64::from(i32::MIN), 40, 1, 31), -1);
        assert_eq!(insert(0xff, 0, 4, 4) as u32, 0xf0);
        assert_eq!(insert(0xff, 7, 100, 4), 7);
    }

    #[test]
    fn tables_and_permutations() {
        assert_eq!(table_logic(0xf0, 0xcc, 0xaa, 0xe8) & 0xff, 0xe8);
        assert_eq!(pick(0x0302_0100, 0x0706_0504, [7, 0, 5, 2]), 0x0205_0007);
        assert_eq!(pick(0x80, 0, [8, 0, 0, 0]) & 0xff, 0xff);
        assert_eq!(nth_set(0b1010_0100, 0, 2), 5);
        assert_eq!(nth_set(0b1010_0100, 6, -1), 5);
        assert_eq!(nth_set(0, 3, 0), !0);
    }
}
