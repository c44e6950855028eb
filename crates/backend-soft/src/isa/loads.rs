//! Loads, stores, fences, prefetches, asynchronous copies into shared memory.

use std::sync::atomic::{Ordering, fence};

use ptx::ast::ScalarType::{self, *};
use ptx::ast::{Address, Operand};

use super::{Result, Spelling};
use crate::exec::{
    Access, GENERIC, GLOBAL, Inst, LOCAL, Lanes, Op, PARAM, SHARED, Space, begin, close_group, load,
    load_words, store, wait_all, wait_group,
};
use crate::lower::{Lower, rows, wrong};

/// Modifiers that choose caching, ordering or scope. On the host every access is as strong as an acquire or release, and
/// handlers are not reordered, so only fences remain of them.
const HINTS: &[&str] = &[
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "nc",
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "weak",
    "mmio",
    "sc",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "gl",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::cache_hint",
];

pub(super) fn is_hint(modifier: &str) -> bool {
    HINTS.contains(&modifier)
}

/// The state space that a modifier names.
pub(super) fn space(modifier: &str) -> Option<Space> {
    Some(match modifier {
        "global" | "const" => GLOBAL,
        "shared" | "shared::cta" | "shared::cluster" => SHARED,
        "local" => LOCAL,
        "param" | "param::entry" | "param::func" => PARAM,
        _ => return None,
    })
}

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    match op.name {
        "ld" | "ldu" | "st" => access(cx, op),
        "cp" => copy(cx, op),
        "membar" | "fence" => {
            if op.mods.iter().all(|m| is_hint(m) || matches!(*m, "proxy" | "alias" | "async")) {
                cx.emit(Op::Compute(full_fence));
                Ok(())
            } else {
                Err(op.unsupported())
            }
        }
        // Hints about caches.
        _ => Ok(()),
    }
}

/// # Safety
/// As [`Compute`](crate::exec::Compute).
unsafe fn full_fence(_: &mut Lanes<'_>, _: &Inst, _: u32) {
    fence(Ordering::SeqCst);
}

/// The handler for one of the five spaces.
macro_rules! in_space {
    ($space:expr, $make:ident::<$($t:ty),*>($f:expr)) => {
        match $space {
            GLOBAL => $make::<GLOBAL, $($t,)* _>($f),
            SHARED => $make::<SHARED, $($t,)* _>($f),
            LOCAL => $make::<LOCAL, $($t,)* _>($f),
            PARAM => $make::<PARAM, $($t,)* _>($f),
            _ => $make::<GENERIC, $($t,)* _>($f),
        }
    };
}
pub(super) use in_space;

fn word_handler(space: Space) -> Access {
    match space {
        GLOBAL => load_words::<GLOBAL>(),
        SHARED => load_words::<SHARED>(),
        LOCAL => load_words::<LOCAL>(),
        PARAM => load_words::<PARAM>(),
        _ => load_words::<GENERIC>(),
    }
}

fn load_handler(space: Space, ty: ScalarType, wide: bool) -> Access {
    match (ty, wide) {
        (S8, false) => in_space!(space, load::<i8, i32>(|a: i8| i32::from(a))),
        (S8, true) => in_space!(space, load::<i8, i64>(|a: i8| i64::from(a))),
        (S16, false) => in_space!(space, load::<i16, i32>(|a: i16| i32::from(a))),
        (S16, true) => in_space!(space, load::<i16, i64>(|a: i16| i64::from(a))),
        (S32, true) => in_space!(space, load::<i32, i64>(|a: i32| i64::from(a))),
        _ => match (ty.size(), wide) {
            (1, false) => in_space!(space, load::<u8, u32>(|a: u8| u32::from(a))),
            (1, true) => in_space!(space, load::<u8, u64>(|a: u8| u64::from(a))),
            (2, false) => in_space!(space, load::<u16, u32>(|a: u16| u32::from(a))),
            (2, true) => in_space!(space, load::<u16, u64>(|a: u16| u64::from(a))),
            (4, false) => in_space!(space, load::<u32, u32>(|a: u32| a)),
            (4, true) => in_space!(space, load::<u32, u64>(|a: u32| u64::from(a))),
            _ => in_space!(space, load::<u64, u64>(|a: u64| a)),
        },
    }
}

fn store_handler(space: Space, size: u64, wide: bool) -> Access {
    match (size, wide) {
        (1, false) => in_space!(space, store::<u32, u8>(|a: u32| a as u8)),
        (1, true) => in_space!(space, store::<u64, u8>(|a: u64| a as u8)),
        (2, false) => in_space!(space, store::<u32, u16>(|a: u32| a as u16)),
        (2, true) => in_space!(space, store::<u64, u16>(|a: u64| a as u16)),
        (4, false) => in_space!(space, store::<u32, u32>(|a: u32| a)),
        (4, true) => in_space!(space, store::<u64, u32>(|a: u64| a as u32)),
        _ => in_space!(space, store::<u64, u64>(|a: u64| a)),
    }
}

fn access(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let known = |m: &&str| space(m).is_some() || is_hint(m) || matches!(*m, "v2" | "v4");
    if !op.mods.iter().all(known) || op.types.iter().any(|ty| ty.size() > 8) {
        return Err(op.unsupported());
    }
    // `.volatile` may be followed by a hint that is spelled like a type; the access's type is the last.
    let ty = *op.types.last().ok_or_else(|| op.unsupported())?;
    let named = op.mods.iter().find_map(|m| space(m));
    let width = op.instruction.opcode.vector_width();
    let (value, address) = match (op.name, &op.instruction.operands[..]) {
        ("st", [Operand::Address(address), value, ..]) => (value, address),
        ("ld" | "ldu", [value, Operand::Address(address), ..]) => (value, address),
        _ => return Err(wrong(op.instruction)),
    };
    let elements = match value {
        Operand::Vector(elements) => elements.as_slice(),
        one => std::slice::from_ref(one),
    };
    if elements.len() != width || width > 4 {
        return Err(op.unsupported());
    }
    let mut inst = cx.inst(Op::Yield);
    let space = cx.address(&mut inst, address, named)?;
    inst.width = width as u8;
    // All elements' registers have the same size; of a vector load's results some may be unwanted.
    let wide = rows(ty) == 2 || elements.iter().any(|element| cx.is_wide(element));
    let reg_ty = match (wide, ty.size()) {
        (true, _) => B64,
        (false, _) => B32,
    };
    if op.name == "st" {
        inst.op = Op::Access(store_handler(space, ty.size(), wide));
        for (index, element) in elements.iter().enumerate() {
            // A constant is of the access's type, and in the low bytes of its slot.
            inst.d[index] = match element {
                Operand::Imm(_) => cx.constant_operand(element, ty, rows(reg_ty))?,
                _ => cx.src(element, reg_ty)?,
            };
        }
    } else {
        let word = ty.size() == 4 && !wide;
        inst.op = Op::Access(if word { word_handler(space) } else { load_handler(space, ty, wide) });
        for (index, element) in elements.iter().enumerate() {
            inst.d[index] = cx.dst(element, reg_ty)?.0;
        }
    }
    cx.push(inst);
    Ok(())
}

/// `cp.async`: it loads at once, and [stores](crate::exec::begin) when it is waited for.
fn copy(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    match op.mods[..] {
        ["async", "commit_group"] => {
            cx.emit(Op::Compute(close_group));
            return Ok(());
        }
        ["async", "wait_group"] => {
            let left = op.instruction.operands.first().and_then(super::bits::constant);
            let mut inst = cx.inst(Op::Compute(wait_group));
            inst.imm = left.and_then(|left| left.try_into().ok()).ok_or_else(|| wrong(op.instruction))?;
            cx.push(inst);
            return Ok(());
        }
        ["async", "wait_all"] => {
            cx.emit(Op::Compute(wait_all));
            return Ok(());
        }
        ["async", "mbarrier", "arrive", ..] => return super::mbarrier::arrive_after_copies(cx, op),
        ["async", "ca" | "cg", "shared" | "shared::cta", "global", ..] => {}
        _ => return Err(op.unsupported()),
    }
    let size = match &op.instruction.operands[..] {
        [Operand::Address(_), Operand::Address(_), size, ..] => super::bits::constant(size),
        _ => return Err(wrong(op.instruction)),
    };
    let (width, ty, store): (u8, _, Access) = match size {
        Some(4) => (1, U32, begin::<4>),
        Some(8) => (1, U64, begin::<8>),
        Some(16) => (2, U64, begin::<16>),
        _ => return Err(op.unsupported()),
    };
    let [Operand::Address(to), Operand::Address(from), _, rest @ ..] = &op.instruction.operands[..] else {
        return Err(wrong(op.instruction));
    };
    let values: Vec<_> = (0..width).map(|_| cx.scratch(2)).collect();
    let mut load = memory(cx, from, GLOBAL, width)?;
    load.op = Op::Access(load_handler(GLOBAL, ty, true));
    let mut end = memory(cx, to, SHARED, width)?;
    end.op = Op::Access(store);
    for (index, value) in values.iter().enumerate() {
        (load.d[index], end.d[index]) = (*value, *value);
    }
    cx.push(load);
    match rest {
        [] => {}
        // With a source size: bytes beyond it are zero.
        [bytes] if !cx.is_pred(bytes) => {
            let bytes = cx.src(bytes, U32)?;
            for (index, value) in values.iter().enumerate() {
                let mut cut = cx.inst(Op::Compute(crate::exec::ter(|a: u64, bytes: u32, start: u32| {
                    match bytes.saturating_sub(start) {
                        0 => 0,
                        kept @ 1..8 => a & ((1 << (8 * kept)) - 1),
                        _ => a,
                    }
                })));
                (cut.s[0], cut.s[1], cut.d[0]) = (*value, bytes, *value);
                cut.s[2] = cx.constant(8 * index as u64, 1);
                cx.push(cut);
            }
        }
        _ => return Err(op.unsupported()),
    }
    cx.push(end);
    Ok(())
}

fn memory(cx: &mut Lower<'_>, address: &Address, space: Space, width: u8) -> Result<Inst> {
    let mut inst = cx.inst(Op::Yield);
    cx.address(&mut inst, address, Some(space))?;
    inst.width = width;
    Ok(inst)
}
