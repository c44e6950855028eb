//! Operations on packed bytes and halves.

use ptx::ast::ScalarType::{S32, U32};

use super::{Result, Spelling};
use crate::exec::{Compute, ter};
use crate::lower::{Lower, wrong};

/// The sum (with `.add`) or the packed results of an operation on the parts of two words.
#[inline(always)]
fn parts<const BITS: u32, const ADD: bool>(a: u32, b: u32, c: u32, f: impl Fn(i32, i32) -> i32) -> u32 {
    let mask = (1u32 << BITS) - 1;
    let mut out = if ADD { c } else { 0 };
    for part in 0..32 / BITS {
        let value = f((a >> (part * BITS) & mask) as i32, (b >> (part * BITS) & mask) as i32);
        if ADD {
            out = out.wrapping_add(value as u32);
        } else {
            out |= (value as u32 & mask) << (part * BITS);
        }
    }
    out
}

macro_rules! packed {
    ($four:expr, $add:expr, $f:expr) => {
        match ($four, $add) {
            (true, true) => ter(|a: u32, b: u32, c: u32| parts::<8, true>(a, b, c, $f)),
            (true, false) => ter(|a: u32, b: u32, c: u32| parts::<8, false>(a, b, c, $f)),
            (false, true) => ter(|a: u32, b: u32, c: u32| parts::<16, true>(a, b, c, $f)),
            (false, false) => ter(|a: u32, b: u32, c: u32| parts::<16, false>(a, b, c, $f)),
        }
    };
}

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    op.only(&["add"])?;
    // Only unsigned parts, which is all that compilers make of the byte intrinsics; operands without selectors.
    let ([U32, U32, U32], [_, _, _, _]) = (&op.types[..], &op.instruction.operands[..]) else {
        return Err(if op.types.contains(&S32) { op.unsupported() } else { wrong(op.instruction) });
    };
    let (name, four) = match op.name.split_at(op.name.len() - 1) {
        (name, "4") => (name, true),
        (name, _) => (name, false),
    };
    let handler: Compute = match name {
        "vabsdiff" => packed!(four, op.has("add"), |a: i32, b: i32| (a - b).abs()),
        "vadd" => packed!(four, op.has("add"), |a: i32, b: i32| a + b),
        "vsub" => packed!(four, op.has("add"), |a: i32, b: i32| a - b),
        "vmin" => packed!(four, op.has("add"), |a: i32, b: i32| a.min(b)),
        "vmax" => packed!(four, op.has("add"), |a: i32, b: i32| a.max(b)),
        "vavrg" => packed!(four, op.has("add"), |a: i32, b: i32| (a + b + 1) >> 1),
        _ => return Err(op.unsupported()),
    };
    cx.compute(op.instruction, handler, U32, &[U32; 3])
}
