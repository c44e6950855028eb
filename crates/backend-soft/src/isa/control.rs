//! Branches, calls, barriers, and what ends a thread.

use ptx::ast::Operand;
use ptx::ast::ScalarType::*;

use super::{Result, Spelling};
use crate::exec::{Barrier, BarrierKind, Op, Together};
use crate::lower::{Lower, wrong};

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let i = op.instruction;
    match (op.name, &i.operands[..]) {
        ("bra", [Operand::Label(label)]) => {
            op.only(&["uni"])?;
            cx.emit(Op::Branch(label.0));
        }
        ("brx", [index, Operand::BranchTable(table)]) => {
            op.only(&["idx", "uni"])?;
            let mut inst = cx.inst(Op::BranchIndexed(table.0));
            inst.s[0] = cx.src(index, U32)?;
            cx.push(inst);
        }
        ("call", [Operand::Call(call)]) => {
            op.only(&["uni"])?;
            cx.call(i, call)?;
        }
        ("ret", []) => {
            op.only(&["uni"])?;
            cx.ret()?;
        }
        ("exit", []) => cx.emit(Op::Exit),
        ("trap" | "brkpt", []) => cx.emit(Op::Trap),
        ("nanosleep", _) => cx.emit(Op::Yield),
        // Hints to profilers, to the next kernel's start, and to the register allocator.
        ("pmevent" | "griddepcontrol" | "setmaxnreg", _) => {}
        ("bar" | "barrier", _) => return barrier(cx, op),
        _ => return Err(wrong(i)),
    }
    Ok(())
}

fn barrier(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let i = op.instruction;
    if op.has("warp") {
        op.only(&["warp", "sync"])?;
        let mut inst = cx.inst(Op::Together(Together::Sync));
        inst.s[3] = cx.src(cx.operand(i, 0)?, B32)?;
        cx.push(inst);
        return Ok(());
    }
    op.only(&["cta", "sync", "arrive", "red", "popc", "and", "or", "aligned"])?;
    let kind = if op.has("arrive") {
        BarrierKind::Arrive
    } else if op.has("popc") {
        BarrierKind::Popc
    } else if op.has("and") {
        BarrierKind::And
    } else if op.has("or") {
        BarrierKind::Or
    } else if op.has("sync") {
        BarrierKind::Sync
    } else {
        return Err(op.unsupported());
    };
    let reduces = matches!(kind, BarrierKind::Popc | BarrierKind::And | BarrierKind::Or);
    // A reduction has a result in front and a predicate at the end.
    let counts = match (&i.operands[..], reduces) {
        ([_, middle @ .., _], true) => middle,
        (all, false) => all,
        _ => return Err(wrong(i)),
    };
    let [number, count @ ..] = counts else { return Err(wrong(i)) };
    let mut inst = cx.inst(Op::Barrier(Barrier { counted: !count.is_empty(), kind }));
    inst.s[0] = cx.src(number, U32)?;
    match count {
        [] => {}
        [count] => inst.s[1] = cx.src(count, U32)?,
        _ => return Err(wrong(i)),
    }
    if let (true, [result, .., predicate]) = (reduces, &i.operands[..]) {
        inst.c[0] = cx.condition(predicate)?;
        match kind {
            BarrierKind::Popc => inst.d[0] = cx.dst(result, U32)?.0,
            _ => inst.p[0] = cx.pred_dst(result)?,
        }
    }
    cx.push(inst);
    Ok(())
}
