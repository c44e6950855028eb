//! Asynchronous copies (`cp.async`): what one stores is stored when its thread waits for it, which is as late as PTX allows. So a kernel that
//! does not wait, and one that is stopped half-way without waiting, is wrong here, too.

use super::access::resolve;
use super::{Fault, Inst, LANES, Lanes, SHARED};

/// A thread's copy that is under way.
#[derive(Debug)]
struct Copy {
    warp: u32,
    lane: u32,
    /// How many groups the thread had closed before it.
    group: u32,
    /// Where it goes: a host address in the block's shared memory.
    to: u64,
    bytes: [u8; 16],
    /// How many of them count.
    size: usize,
}

/// Copies of a block that are under way.
#[derive(Debug, Default)]
pub struct Copies {
    under_way: Vec<Copy>,
    /// How many groups each thread has closed, warp after warp.
    closed: Vec<[u32; LANES]>,
}

impl Copies {
    fn closed(&mut self, warp: u32) -> &mut [u32; LANES] {
        let warp = warp as usize;
        if self.closed.len() <= warp {
            self.closed.resize(warp + 1, [0; LANES]);
        }
        &mut self.closed[warp]
    }

    /// Stores what the copies of some lanes of a warp store, in their order, except those of each lane's latest `left` closed groups and of
    /// the one that is open; without a number of all.
    fn finish(&mut self, warp: u32, mask: u32, left: Option<u32>) {
        let closed = *self.closed(warp);
        self.under_way.retain(|copy| {
            let is_waited_for = copy.warp == warp && mask >> copy.lane & 1 != 0;
            let is_old = |left: u32| copy.group.saturating_add(left) < closed[copy.lane as usize];
            let is_due = is_waited_for && left.is_none_or(is_old);
            if is_due {
                let to = std::ptr::with_exposed_provenance_mut::<u8>(copy.to as usize);
                // SAFETY: `begin` found `size` bytes of the block's shared memory there, which stays as it is until the next block begins, with
                // no copies; only the thread that runs the block reaches it.
                unsafe { std::ptr::copy_nonoverlapping(copy.bytes.as_ptr(), to, copy.size) };
            }
            !is_due
        });
    }
}

/// `cp.async`: the copy of `SIZE` bytes, 4, 8 or 16, which have been loaded as one or two wide values.
///
/// # Safety
/// As [`Access`](super::Access), of an instruction whose [stored](Inst::stored) values are those.
pub unsafe fn begin<const SIZE: usize>(
    lanes: &mut Lanes<'_>,
    inst: &Inst,
    mask: u32,
) -> Result<(), Box<Fault>> {
    let mut at = [0; LANES];
    // SAFETY: this function's contract.
    let words = unsafe {
        resolve::<{ SHARED }>(lanes, inst, mask, SIZE, &mut at)?;
        [0, SIZE / 16].map(|element| lanes.all::<u64>(inst.stored(element)))
    };
    let warp = lanes.warp;
    let closed = *lanes.copies.closed(warp);
    for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0][lane].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1][lane].to_le_bytes());
        let (group, to) = (closed[lane], at[lane]);
        lanes.copies.under_way.push(Copy { warp, lane: lane as u32, group, to, bytes, size: SIZE });
    }
    Ok(())
}

/// `cp.async.commit_group`
///
/// # Safety
/// As [`Compute`](super::Compute).
pub unsafe fn close_group(lanes: &mut Lanes<'_>, _: &Inst, mask: u32) {
    let closed = lanes.copies.closed(lanes.warp);
    for (lane, closed) in closed.iter_mut().enumerate() {
        *closed += mask >> lane & 1;
    }
}

/// `cp.async.wait_group`, of as many groups as [`Inst::imm`] says.
///
/// # Safety
/// As [`Compute`](super::Compute).
pub unsafe fn wait_group(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) {
    lanes.copies.finish(lanes.warp, mask, Some(u32::try_from(inst.imm).unwrap_or(u32::MAX)));
}

/// `cp.async.wait_all`
///
/// # Safety
/// As [`Compute`](super::Compute).
pub unsafe fn wait_all(lanes: &mut Lanes<'_>, _: &Inst, mask: u32) {
    lanes.copies.finish(lanes.warp, mask, None);
}
