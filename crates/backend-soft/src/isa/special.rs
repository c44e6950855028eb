//! Special registers, and addresses that are known only while a kernel runs.

use std::time::{SystemTime, UNIX_EPOCH};

use ptx::ast::{Axis, SpecialRegister as Reg};

use crate::exec::{Elem, Inst, LANES, Lanes};
use crate::memory::{RESERVED_SHARED, Workspace};

/// A value that fits the width of any special register's reader.
pub trait Word: Elem {
    /// The low bits.
    fn low(value: u64) -> Self;
}
impl Word for u32 {
    fn low(value: u64) -> Self {
        value as u32
    }
}
impl Word for u64 {
    fn low(value: u64) -> Self {
        value
    }
}

/// `read`'s selector for a special register; `None` when the device has none.
pub fn code(register: Reg) -> Option<u64> {
    let axis = |first: u64, axis: Axis| match axis {
        Axis::X => first,
        Axis::Y => first + 1,
        Axis::Z => first + 2,
        Axis::W => ZERO,
    };
    Some(match register {
        Reg::Tid(a) => axis(TID, a),
        Reg::Ntid(a) => axis(NTID, a),
        Reg::Ctaid(a) => axis(CTAID, a),
        Reg::Nctaid(a) => axis(NCTAID, a),
        // Every block is a cluster of its own.
        Reg::ClusterId(a) => axis(CTAID, a),
        Reg::NclusterId(a) => axis(NCTAID, a),
        Reg::ClusterCtaid(_) | Reg::ClusterCtaRank | Reg::IsExplicitCluster => ZERO,
        Reg::ClusterNctaid(Axis::W) => ZERO,
        Reg::ClusterNctaid(_) | Reg::ClusterNctaRank => ONE,
        Reg::LaneId => LANEID,
        Reg::WarpId => WARPID,
        Reg::NwarpId => NWARPID,
        Reg::SmId => SMID,
        Reg::NsmId => NSMID,
        Reg::GridId => GRIDID,
        Reg::LaneMaskEq => MASK_EQ,
        Reg::LaneMaskLe => MASK_LE,
        Reg::LaneMaskLt => MASK_LT,
        Reg::LaneMaskGe => MASK_GE,
        Reg::LaneMaskGt => MASK_GT,
        Reg::Clock | Reg::Clock64 => CLOCK,
        Reg::ClockHi => CLOCK_HI,
        Reg::GlobalTimer | Reg::GlobalTimerLo => TIMER,
        Reg::GlobalTimerHi => TIMER_HI,
        Reg::TotalSmemSize => OWN_SHARED_SIZE,
        Reg::AggrSmemSize => SHARED_SIZE,
        Reg::DynamicSmemSize => DYNAMIC_SIZE,
        // Where the driver tells the address of a cooperative grid's workspace.
        Reg::EnvReg(1) => WORKSPACE_HI,
        Reg::EnvReg(2) => WORKSPACE,
        Reg::EnvReg(_) | Reg::CurrentGraphExec => ZERO,
        Reg::ReservedSmemOffsetEnd | Reg::ReservedSmemOffsetCap => RESERVED_SIZE,
        Reg::ReservedSmemOffsetBegin | Reg::ReservedSmemOffset(_) => ZERO,
        Reg::Pm(_) | Reg::Pm64(_) => return None,
    })
}

const ZERO: u64 = 0;
const ONE: u64 = 1;
const TID: u64 = 2;
const NTID: u64 = 5;
const CTAID: u64 = 8;
const NCTAID: u64 = 11;
const LANEID: u64 = 14;
const WARPID: u64 = 15;
const NWARPID: u64 = 16;
const SMID: u64 = 17;
const NSMID: u64 = 18;
const GRIDID: u64 = 19;
const MASK_EQ: u64 = 20;
const MASK_LE: u64 = 21;
const MASK_LT: u64 = 22;
const MASK_GE: u64 = 23;
const MASK_GT: u64 = 24;
const CLOCK: u64 = 25;
const CLOCK_HI: u64 = 26;
const TIMER: u64 = 27;
const TIMER_HI: u64 = 28;
const SHARED_SIZE: u64 = 29;
const DYNAMIC_SIZE: u64 = 30;
const OWN_SHARED_SIZE: u64 = 31;
const RESERVED_SIZE: u64 = 32;
const WORKSPACE: u64 = 33;
const WORKSPACE_HI: u64 = 34;

/// Reads the special register that `inst.imm` selects.
///
/// # Safety
/// As [`Compute`](crate::exec::Compute); the destination has type `T`.
pub unsafe fn read<T: Word>(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) {
    let launch = lanes.launch;
    let axis = |first: u64| (inst.imm - first) as usize;
    let same = |value: u64| [value; LANES];
    let each = |f: fn(u32) -> u32| std::array::from_fn(|lane| u64::from(f(lane as u32)));
    let workspace = || launch.workspace.as_ref().map_or(0, Workspace::address);
    let block_number = || {
        let [x, y, z] = lanes.block.map(u64::from);
        x + u64::from(launch.grid[0]) * (y + u64::from(launch.grid[1]) * z)
    };
    let values: [u64; LANES] = match inst.imm {
        ONE => same(1),
        TID..NTID => lanes.threads[axis(TID)].0.map(u64::from),
        NTID..CTAID => same(launch.block[axis(NTID)].into()),
        CTAID..NCTAID => same(lanes.block[axis(CTAID)].into()),
        NCTAID..LANEID => same(launch.grid[axis(NCTAID)].into()),
        LANEID => each(|lane| lane),
        WARPID => same(lanes.warp.into()),
        NWARPID => same(launch.threads().div_ceil(LANES as u32).into()),
        SMID => same(block_number() % u64::from(launch.multiprocessors)),
        NSMID => same(launch.multiprocessors.into()),
        GRIDID => same(launch.id),
        MASK_EQ => each(|lane| 1 << lane),
        MASK_LE => each(|lane| !0 >> (31 - lane)),
        MASK_LT => each(|lane| (1 << lane) - 1),
        MASK_GE => each(|lane| !0 << lane),
        MASK_GT => each(|lane| !1 << lane),
        CLOCK => same(clock()),
        CLOCK_HI => same(clock() >> 32),
        TIMER => same(nanoseconds()),
        TIMER_HI => same(nanoseconds() >> 32),
        SHARED_SIZE => same(launch.shared_bytes),
        OWN_SHARED_SIZE => same(launch.shared_bytes - RESERVED_SHARED),
        RESERVED_SIZE => same(RESERVED_SHARED),
        WORKSPACE => same(workspace()),
        WORKSPACE_HI => same(workspace() >> 32),
        DYNAMIC_SIZE => same(launch.dynamic_shared.into()),
        _ => same(0),
    };
    // SAFETY: this function's contract.
    unsafe { lanes.set(inst.d[0], &values.map(T::low), mask) }
}

fn clock() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

fn nanoseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Address, in local space, of the frame's memory at offset `inst.imm`.
///
/// # Safety
/// As [`Compute`](crate::exec::Compute); the destination has type `T`.
pub unsafe fn frame_address<T: Word>(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) {
    let address = T::low(lanes.local_base.wrapping_add(inst.imm));
    // SAFETY: this function's contract.
    unsafe { lanes.set(inst.d[0], &[address; LANES], mask) }
}

/// Address, in shared space, of dynamic shared memory plus `inst.imm`.
///
/// # Safety
/// As [`Compute`](crate::exec::Compute); the destination has type `T`.
pub unsafe fn dynamic_shared<T: Word>(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) {
    let start = lanes.launch.shared_bytes - u64::from(lanes.launch.dynamic_shared);
    let address = T::low(start.wrapping_add(inst.imm));
    // SAFETY: this function's contract.
    unsafe { lanes.set(inst.d[0], &[address; LANES], mask) }
}
