//! What the lanes of a warp do together.

use ptx::ast::Operand;
use ptx::ast::ScalarType::*;

use super::{Result, Spelling};
use crate::exec::{Inst, LANES, Lanes, Op, Reduce, Shuffle, Together, Vote};
use crate::lower::{Lower, wrong};

pub(super) fn lower(cx: &mut Lower<'_>, op: &Spelling<'_>) -> Result<()> {
    let i = op.instruction;
    if op.name == "activemask" {
        op.only(&[])?;
        let mut inst = cx.inst(Op::Compute(active_mask));
        inst.d[0] = cx.dst(cx.operand(i, 0)?, B32)?.0;
        cx.push(inst);
        return Ok(());
    }
    let ty = op.types.first().copied();
    let together = match (op.name, ty) {
        ("shfl", Some(B32)) => {
            op.only(&["sync", "up", "down", "bfly", "idx"])?;
            Together::Shuffle(match op.mods.iter().find(|m| **m != "sync") {
                Some(&"up") => Shuffle::Up,
                Some(&"down") => Shuffle::Down,
                Some(&"bfly") => Shuffle::Bfly,
                Some(&"idx") => Shuffle::Idx,
                _ => return Err(op.unsupported()),
            })
        }
        ("vote", Some(Pred | B32)) => {
            op.only(&["sync", "all", "any", "uni", "ballot"])?;
            Together::Vote(match op.mods.iter().find(|m| **m != "sync") {
                Some(&"all") => Vote::All,
                Some(&"any") => Vote::Any,
                Some(&"uni") => Vote::Uni,
                Some(&"ballot") => Vote::Ballot,
                _ => return Err(op.unsupported()),
            })
        }
        ("match", Some(ty @ (B32 | B64))) => {
            op.only(&["sync", "any", "all"])?;
            let wide = ty == B64;
            if op.has("any") { Together::MatchAny { wide } } else { Together::MatchAll { wide } }
        }
        ("redux", Some(ty)) => {
            op.only(&["sync", "add", "min", "max", "and", "or", "xor"])?;
            Together::Reduce(match (op.mods.iter().find(|m| **m != "sync").copied(), ty) {
                (Some("add"), U32 | S32) => Reduce::Add,
                (Some("min"), S32) => Reduce::MinSigned,
                (Some("max"), S32) => Reduce::MaxSigned,
                (Some("min"), U32) => Reduce::MinUnsigned,
                (Some("max"), U32) => Reduce::MaxUnsigned,
                (Some("and"), B32) => Reduce::And,
                (Some("or"), B32) => Reduce::Or,
                (Some("xor"), B32) => Reduce::Xor,
                _ => return Err(op.unsupported()),
            })
        }
        ("elect", None) => {
            op.only(&["sync"])?;
            Together::Elect
        }
        _ => return Err(op.unsupported()),
    };
    if !op.has("sync") {
        return Err(op.unsupported());
    }
    let [result, sources @ .., members] = &i.operands[..] else { return Err(wrong(i)) };
    let (value, flag) = match result {
        Operand::Pair(pair) => (&pair.0, Some(&pair.1)),
        one => (one, None),
    };
    let mut inst = cx.inst(Op::Together(together));
    inst.s[3] = cx.src(members, B32)?;
    match (together, sources) {
        (Together::Vote(_), [predicate]) => inst.c[0] = cx.condition(predicate)?,
        (Together::Shuffle(_), [a, b, c]) => {
            inst.s[0] = cx.src(a, B32)?;
            inst.s[1] = cx.src(b, B32)?;
            inst.s[2] = cx.src(c, B32)?;
        }
        (Together::MatchAny { wide } | Together::MatchAll { wide }, [a]) => {
            inst.s[0] = cx.src(a, if wide { B64 } else { B32 })?;
        }
        (Together::Reduce(_), [a]) => inst.s[0] = cx.src(a, B32)?,
        (Together::Elect, []) => {}
        _ => return Err(wrong(i)),
    }
    // Each of these has a value, a predicate, or both; what is not wanted goes where nobody reads it.
    let is_flag = matches!(together, Together::Vote(Vote::All | Vote::Any | Vote::Uni));
    inst.d[0] = cx.dst(if is_flag { &Operand::Sink } else { value }, B32)?.0;
    if let Some(flag) = if is_flag { Some(value) } else { flag } {
        inst.p[0] = cx.pred_dst(flag)?;
    }
    cx.push(inst);
    Ok(())
}

/// # Safety
/// As [`Compute`](crate::exec::Compute).
unsafe fn active_mask(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) {
    // SAFETY: this function's contract; the destination has 32 bits.
    unsafe { lanes.set(inst.d[0], &[mask; LANES], mask) }
}
