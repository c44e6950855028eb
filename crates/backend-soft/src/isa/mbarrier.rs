//! Barriers that live in shared memory.
//!
//! What PTX calls opaque: the phase in the top bit, then bytes still expected, arrivals of a phase, arrivals still to come.

use ptx::ast::ScalarType::{B32, B64, U32};
use ptx::ast::{Address, Operand};

use super::{Result, Spelling, loads};
use crate::exec::{Access, Inst, Op, SHARED, atomic, bin, compare, load, wait_all};
use crate::lower::{Lower, wrong};

const COUNT_BITS: u32 = 20;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const BYTES_SHIFT: u32 = 2 * COUNT_BITS;
const BYTES: u64 = (1 << 23) - 1;
const PHASE: u64 = 1 << 63;

fn new(count: u64) -> u64 {
    (count & COUNT) << COUNT_BITS | count & COUNT
}

/// The barrier with other numbers; the phase ends when nothing is left to come.
fn with(barrier: u64, pending: u64, bytes: u64) -> u64 {
    let expected = barrier >> COUNT_BITS & COUNT;
    let (phase, pending, bytes) = match (pending & COUNT, bytes & BYTES) {
        (0, 0) => (barrier & PHASE ^ PHASE, expected, 0),
        (pending, bytes) => (barrier & PHASE, pending, bytes),
    };
    phase | bytes << BYTES_SHIFT | expected << COUNT_BITS | pending
}

fn pending(barrier: u64) -> u64 {
    barrier & COUNT
}

fn bytes(barrier: u64) -> u64 {
    barrier >> BYTES_SHIFT & BYTES
}

fn arrive(barrier: u64, count: u64) -> u64 {
    with(barrier, pending(barrier).wrapping_sub(count), bytes(barrier))
}

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let i = op.instruction;
    let known = [
        "init",
        "inval",
        "arrive",
        "expect_tx",
        "complete_tx",
        "test_wait",
        "try_wait",
        "parity",
        "noComplete",
    ];
    let ordering = |m: &str| loads::is_hint(m) || matches!(m, "shared" | "shared::cta" | "shared::cluster");
    if !op.mods.iter().all(|m| known.contains(m) || ordering(m) || *m == "pending_count") {
        return Err(op.unsupported());
    }
    match (op.mods.first().copied(), &i.operands[..]) {
        (Some("init"), [Operand::Address(at), count]) => update(
            cx,
            op,
            atomic::<SHARED, u64, _>(|_: u64, count: u64, _: u64| new(count)),
            at,
            Some(count),
            None,
        ),
        (Some("inval"), [Operand::Address(_)]) => Ok(()),
        (Some("expect_tx"), [Operand::Address(at), count]) => update(
            cx,
            op,
            atomic::<SHARED, u64, _>(|b: u64, n: u64, _: u64| with(b, pending(b), bytes(b) + n)),
            at,
            Some(count),
            None,
        ),
        (Some("complete_tx"), [Operand::Address(at), count]) => update(
            cx,
            op,
            atomic::<SHARED, u64, _>(|b: u64, n: u64, _: u64| with(b, pending(b), bytes(b).wrapping_sub(n))),
            at,
            Some(count),
            None,
        ),
        (Some("arrive"), [state, Operand::Address(at), count @ ..]) => {
            let handler: Access = if op.has("expect_tx") {
                atomic::<SHARED, u64, _>(|b: u64, n: u64, _: u64| {
                    with(b, pending(b).wrapping_sub(1), bytes(b) + n)
                })
            } else {
                atomic::<SHARED, u64, _>(|b: u64, count: u64, _: u64| arrive(b, count))
            };
            update(cx, op, handler, at, count.first(), Some(state))
        }
        (Some("test_wait" | "try_wait"), [done, Operand::Address(at), which, ..]) => {
            wait(cx, op, done, at, which)
        }
        (Some("pending_count"), [count, state]) => {
            let mut inst = cx.inst(Op::Compute(bin(|state: u64, _: u64| pending(state) as u32)));
            inst.s[0] = cx.src(state, B64)?;
            inst.s[1] = cx.constant(0, 2);
            inst.d[0] = cx.dst(count, B32)?.0;
            cx.push(inst);
            Ok(())
        }
        _ => Err(wrong(i)),
    }
}

/// `cp.async.mbarrier.arrive`: the copies are waited for at once. Without `.noinc` it also raises the count, so nothing changes.
pub(super) fn arrive_after_copies(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let [Operand::Address(at)] = &op.instruction.operands[..] else { return Err(wrong(op.instruction)) };
    cx.emit(Op::Compute(wait_all));
    if !op.has("noinc") {
        return Ok(());
    }
    update(cx, op, atomic::<SHARED, u64, _>(|b: u64, count: u64, _: u64| arrive(b, count)), at, None, None)
}

/// Appends a change of the barrier by a number (1 where none is given); the old value is the state.
fn update(
    cx: &mut Lower<'_>,
    op: &Spelling<'_>,
    handler: Access,
    at: &Address,
    number: Option<&Operand>,
    state: Option<&Operand>,
) -> Result<()> {
    let mut inst = address(cx, op, at)?;
    inst.op = Op::Access(handler);
    inst.s[1] = match number {
        None => cx.constant(1, 2),
        Some(number) => {
            let narrow = cx.src(number, U32)?;
            let wide = cx.scratch(2);
            cx.copy(wide, narrow, crate::exec::un(|a: u32| u64::from(a)));
            wide
        }
    };
    inst.s[2] = cx.constant(0, 2);
    inst.d[0] = cx.dst(state.unwrap_or(&Operand::Sink), B64)?.0;
    cx.push(inst);
    Ok(())
}

fn address(cx: &mut Lower<'_>, op: &Spelling<'_>, at: &Address) -> Result<Inst> {
    let mut inst = cx.inst(Op::Yield);
    // Without a state space the address is generic; a cluster is one block here.
    let named = op.mods.iter().any(|m| m.starts_with("shared"));
    match cx.address(&mut inst, at, Some(SHARED))? {
        SHARED if named => Ok(inst),
        _ => Err(op.unsupported()),
    }
}

/// Whether the phase that the state (or the parity) names is over.
fn wait(cx: &mut Lower<'_>, op: &Spelling<'_>, done: &Operand, at: &Address, which: &Operand) -> Result<()> {
    let parity = op.has("parity");
    let now = cx.scratch(2);
    let mut look = address(cx, op, at)?;
    look.op = Op::Access(load::<SHARED, u64, u64, _>(|a: u64| a));
    look.d[0] = now;
    cx.push(look);
    let handler = match parity {
        true => compare(|now: u64, parity: u32| u64::from(parity & 1) != now >> 63),
        false => compare(|now: u64, state: u64| (now ^ state) & PHASE != 0),
    };
    let mut inst = cx.inst(Op::Compute(handler));
    inst.s[0] = now;
    inst.s[1] = cx.src(which, if parity { B32 } else { B64 })?;
    inst.p[0] = cx.pred_dst(done)?;
    cx.push(inst);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_when_all_have_arrived_and_all_bytes_are_there() {
        let barrier = new(3);
        let two = arrive(arrive(barrier, 1), 1);
        assert_eq!((two & PHASE, pending(two)), (0, 1));
        assert_eq!(arrive(two, 1), new(3) | PHASE);
        let waiting = with(two, 0, 16);
        assert_eq!((waiting & PHASE, bytes(waiting)), (0, 16));
        assert_eq!(with(waiting, pending(waiting), 0), new(3) | PHASE);
        assert_eq!(arrive(new(1) | PHASE, 1), new(1), "and the next phase is the first again");
    }
}
