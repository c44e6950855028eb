//! Barriers of a block: threads park, and go on when enough have arrived.

use super::warp::{Group, Wait, Warp};
use super::{Barrier, BarrierKind, Inst, LANES, Lanes, Op};

/// Barriers of a block.
pub const BARRIERS: usize = 16;

/// A block's barriers.
#[derive(Debug, Default)]
pub struct Barriers {
    /// Threads that arrived without waiting, and will not be counted twice.
    arrived: [u32; BARRIERS],
}

impl Warp {
    /// Group `here` arrives at a barrier: it parks, or goes on where the barrier is only told.
    pub fn arrive(&mut self, here: Group, lanes: &mut Lanes<'_>, inst: &Inst, barrier: Barrier) {
        // SAFETY: the lanes are in the frame of the instruction's function.
        let numbers = unsafe { lanes.all::<u32>(inst.s[0]) };
        let number = numbers[here.mask.trailing_zeros() as usize] % BARRIERS as u32;
        if barrier.kind == BarrierKind::Arrive {
            let threads = if here.mask == self.live { LANES as u32 } else { here.mask.count_ones() };
            lanes.barriers.arrived[number as usize] += threads;
            self.groups.push(Group { pc: here.pc + 1, ..here });
        } else {
            self.groups.push(Group { wait: Wait::Barrier(number), ..here });
        }
    }

    fn parked_at(&self, number: u32) -> u32 {
        let parked = self.groups.iter().filter(|group| group.wait == Wait::Barrier(number));
        parked.fold(0, |mask, group| mask | group.mask)
    }
}

/// What is known of a barrier at which somebody waits.
struct Waiting {
    barrier: Barrier,
    expected: u32,
}

/// Releases every barrier at which enough threads have arrived. Whether there was one.
pub fn release(warps: &mut [Warp], lanes: &mut Lanes<'_>) -> bool {
    let mut numbers = 0u32;
    for warp in warps.iter() {
        for group in &warp.groups {
            if let Wait::Barrier(number) = group.wait {
                numbers |= 1 << number;
            }
        }
    }
    let mut released = false;
    for number in (0..BARRIERS as u32).filter(|number| numbers >> number & 1 != 0) {
        let Some(waiting) = first_waiting(warps, lanes, number) else { continue };
        let complete = if waiting.barrier.counted {
            let threads: u32 = warps.iter().map(|warp| arrived(warp, number)).sum();
            threads + lanes.barriers.arrived[number as usize] >= waiting.expected
        } else {
            warps.iter().all(|warp| warp.parked_at(number) == warp.live)
        };
        if complete {
            lanes.barriers.arrived[number as usize] = 0;
            let outcome = reduce(warps, lanes, number, waiting.barrier.kind);
            warps.iter_mut().for_each(|warp| go_on(warp, lanes, number, outcome));
            released = true;
        }
    }
    released
}

/// Threads of a warp as a barrier counts them: a whole warp counts as 32, whatever has ended or never was.
fn arrived(warp: &Warp, number: u32) -> u32 {
    match warp.parked_at(number) {
        0 => 0,
        parked if parked == warp.live => LANES as u32,
        parked => parked.count_ones(),
    }
}

fn inst<'a>(warp: &Warp, lanes: &Lanes<'a>, group: &Group) -> (&'a Inst, Barrier) {
    let inst = &lanes.launch.image.functions[warp.frames[group.frame].function].code[group.pc as usize];
    match inst.op {
        Op::Barrier(barrier) => (inst, barrier),
        _ => (inst, Barrier { counted: false, kind: BarrierKind::Sync }),
    }
}

fn first_waiting(warps: &mut [Warp], lanes: &mut Lanes<'_>, number: u32) -> Option<Waiting> {
    for warp in warps {
        let waiting = warp.groups.iter().find(|group| group.wait == Wait::Barrier(number)).copied();
        if let Some(group) = waiting {
            let (inst, barrier) = inst(warp, lanes, &group);
            warp.enter(lanes, &group);
            // SAFETY: the frame of the instruction's function; where no count is given the slot is a constant.
            let counts = unsafe { lanes.all::<u32>(inst.s[1]) };
            return Some(Waiting { barrier, expected: counts[group.mask.trailing_zeros() as usize] });
        }
    }
    None
}

/// The result of the waiting threads' predicates: a count, or 0 and not 0.
fn reduce(warps: &mut [Warp], lanes: &mut Lanes<'_>, number: u32, kind: BarrierKind) -> u32 {
    let (mut yes, mut threads) = (0, 0);
    for warp in warps {
        for index in 0..warp.groups.len() {
            let group = warp.groups[index];
            if group.wait == Wait::Barrier(number) {
                let (inst, _) = inst(warp, lanes, &group);
                warp.enter(lanes, &group);
                // SAFETY: the frame of the instruction's function.
                yes += (unsafe { lanes.test(inst.c[0]) } & group.mask).count_ones();
                threads += group.mask.count_ones();
            }
        }
    }
    match kind {
        BarrierKind::Popc => yes,
        BarrierKind::And => u32::from(yes == threads),
        BarrierKind::Or => u32::from(yes > 0),
        BarrierKind::Sync | BarrierKind::Arrive => 0,
    }
}

fn go_on(warp: &mut Warp, lanes: &mut Lanes<'_>, number: u32, outcome: u32) {
    for index in 0..warp.groups.len() {
        let group = warp.groups[index];
        if group.wait != Wait::Barrier(number) {
            continue;
        }
        let (inst, barrier) = inst(warp, lanes, &group);
        warp.enter(lanes, &group);
        // SAFETY: the frame of the instruction's function, which has these destinations.
        unsafe {
            match barrier.kind {
                BarrierKind::Popc => lanes.set(inst.d[0], &[outcome; LANES], group.mask),
                BarrierKind::And | BarrierKind::Or => {
                    lanes.set_pred(inst.p[0], if outcome != 0 { !0 } else { 0 }, group.mask);
                }
                BarrierKind::Sync | BarrierKind::Arrive => {}
            }
        }
        warp.groups[index].pc += 1;
        warp.groups[index].wait = Wait::Ready;
    }
}
