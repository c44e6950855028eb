//! Instructions that the lanes of a member mask execute together: each group waits until all live members have arrived.

use super::warp::{Group, Wait, Warp};
use super::{Condition, Inst, LANES, Lanes, Op, Reduce, Shuffle, Together, Vote};

/// What the lanes brought: index 0 to 2 are the sources.
#[derive(Default)]
struct Gathered {
    values: [[u64; LANES]; 3],
    preds: u32,
    lanes: u32,
}

/// What each lane gets.
#[derive(Default)]
struct Outcome {
    values: [u64; LANES],
    preds: u32,
}

impl Warp {
    /// Group `here` arrives. Lanes that name different members are different groups from here on.
    pub fn gather(&mut self, here: Group, lanes: &mut Lanes<'_>, inst: &Inst) {
        // SAFETY: the lanes are in the frame of the instruction's function; the last source is the member mask.
        let members = unsafe { lanes.all::<u32>(inst.s[3]) };
        let mut rest = here.mask;
        while rest != 0 {
            let named = members[rest.trailing_zeros() as usize];
            let same =
                (0..LANES).filter(|&lane| members[lane] == named).fold(0, |mask, lane| mask | 1u32 << lane);
            let mask = same & rest;
            rest &= !mask;
            self.groups.push(Group { mask, wait: Wait::Together(named), ..here });
        }
        self.meet(lanes);
    }

    /// Lets those go on whose members are all here. Whether there were any.
    pub fn meet(&mut self, lanes: &mut Lanes<'_>) -> bool {
        let mut met = false;
        for first in 0..self.groups.len() {
            let Wait::Together(members) = self.groups[first].wait else { continue };
            let op = self.together(lanes, &self.groups[first]);
            let party: Vec<usize> = (first..self.groups.len())
                .filter(|&other| self.groups[other].wait == Wait::Together(members))
                .filter(|&other| self.together(lanes, &self.groups[other]) == op)
                .collect();
            let arrived = party.iter().fold(0, |mask, &group| mask | self.groups[group].mask);
            if members & self.live & !arrived == 0 {
                self.perform(lanes, op, &party);
                met = true;
            }
        }
        met
    }

    fn inst<'a>(&self, lanes: &Lanes<'a>, group: &Group) -> &'a Inst {
        &lanes.launch.image.functions[self.frames[group.frame].function].code[group.pc as usize]
    }

    fn together(&self, lanes: &Lanes<'_>, group: &Group) -> Together {
        match self.inst(lanes, group).op {
            Op::Together(op) => op,
            _ => Together::Sync,
        }
    }

    fn perform(&mut self, lanes: &mut Lanes<'_>, op: Together, party: &[usize]) {
        let mut gathered = Gathered::default();
        for &index in party {
            let group = self.groups[index];
            let inst = self.inst(lanes, &group);
            self.enter(lanes, &group);
            gathered.take(lanes, inst, op, group.mask);
        }
        let outcome = gathered.outcome(op);
        for &index in party {
            let group = self.groups[index];
            let inst = self.inst(lanes, &group);
            self.enter(lanes, &group);
            // SAFETY: the frame of the instruction's function; lowering gave the destinations of these instructions 32 bits.
            unsafe {
                if op != Together::Sync {
                    lanes.set(inst.d[0], &outcome.values.map(|value| value as u32), group.mask);
                    lanes.set_pred(inst.p[0], outcome.preds, group.mask);
                }
            }
            self.groups[index].pc += 1;
            self.groups[index].wait = Wait::Ready;
        }
    }

    pub(super) fn enter(&mut self, lanes: &mut Lanes<'_>, group: &Group) {
        let frame = &mut self.frames[group.frame];
        let function = &lanes.launch.image.functions[frame.function];
        // SAFETY: the callers use the lanes before they touch the frames again.
        unsafe { lanes.enter(frame, function) };
    }
}

impl Gathered {
    fn take(&mut self, lanes: &Lanes<'_>, inst: &Inst, op: Together, mask: u32) {
        let wide = matches!(op, Together::MatchAny { wide: true } | Together::MatchAll { wide: true });
        for source in 0..3 {
            // SAFETY: the frame of the instruction's function; only the first source can have 64 bits, and then `wide` tells.
            let values = unsafe {
                if wide && source == 0 {
                    lanes.all::<u64>(inst.s[source])
                } else {
                    lanes.all::<u32>(inst.s[source]).map(u64::from)
                }
            };
            for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                self.values[source][lane] = values[lane];
            }
        }
        // SAFETY: as above.
        self.preds |= unsafe { lanes.test(condition(inst)) } & mask;
        self.lanes |= mask;
    }

    fn outcome(&self, op: Together) -> Outcome {
        let mut out = Outcome::default();
        let present = || (0..LANES).filter(|lane| self.lanes >> lane & 1 != 0);
        let [a, b, c] = &self.values;
        let all = |yes: bool| if yes { !0 } else { 0 };
        match op {
            Together::Sync => {}
            Together::Shuffle(how) => {
                for lane in present() {
                    let (from, inside) = shuffle(how, lane, b[lane] as u32, c[lane] as u32);
                    out.values[lane] = a[from];
                    out.preds |= u32::from(inside) << lane;
                }
            }
            Together::Vote(vote) => {
                let yes = self.preds;
                out.preds = match vote {
                    Vote::All => all(yes == self.lanes),
                    Vote::Any => all(yes != 0),
                    Vote::Uni => all(yes == 0 || yes == self.lanes),
                    Vote::Ballot => 0,
                };
                out.values = [u64::from(yes); LANES];
            }
            Together::MatchAny { .. } => {
                for lane in present() {
                    out.values[lane] = present()
                        .filter(|&other| a[other] == a[lane])
                        .fold(0, |mask, other| mask | 1 << other);
                }
            }
            Together::MatchAll { .. } => {
                let first = a[self.lanes.trailing_zeros() as usize];
                let same = present().all(|lane| a[lane] == first);
                out.values = [if same { u64::from(self.lanes) } else { 0 }; LANES];
                out.preds = all(same);
            }
            Together::Reduce(reduce) => {
                let mut values = present().map(|lane| a[lane] as u32);
                let first = values.next().unwrap_or(0);
                out.values = [u64::from(values.fold(first, |x, y| combine(reduce, x, y))); LANES];
            }
            Together::Elect => {
                let leader = self.lanes.trailing_zeros();
                out.values = [u64::from(leader); LANES];
                out.preds = 1u32.checked_shl(leader).unwrap_or(0);
            }
        }
        out
    }
}

fn condition(inst: &Inst) -> Condition {
    inst.c[0]
}

fn combine(reduce: Reduce, x: u32, y: u32) -> u32 {
    let signed = |f: fn(i32, i32) -> i32| f(x as i32, y as i32) as u32;
    match reduce {
        Reduce::Add => x.wrapping_add(y),
        Reduce::MinSigned => signed(std::cmp::min),
        Reduce::MaxSigned => signed(std::cmp::max),
        Reduce::MinUnsigned => x.min(y),
        Reduce::MaxUnsigned => x.max(y),
        Reduce::And => x & y,
        Reduce::Or => x | y,
        Reduce::Xor => x ^ y,
    }
}

/// The lane that `lane` reads, and whether that lies in its segment (PTX ISA, `shfl.sync`).
fn shuffle(how: Shuffle, lane: usize, b: u32, c: u32) -> (usize, bool) {
    let (lane, distance) = (lane as i32, (b & 31) as i32);
    let (clamp, segment) = ((c & 31) as i32, (c >> 8 & 31) as i32);
    let (first, last) = (lane & segment, lane & segment | clamp & !segment);
    let (from, inside) = match how {
        Shuffle::Up => (lane - distance, lane - distance >= last),
        Shuffle::Down => (lane + distance, lane + distance <= last),
        Shuffle::Bfly => (lane ^ distance, lane ^ distance <= last),
        Shuffle::Idx => {
            let from = first | distance & !segment;
            (from, from <= last)
        }
    };
    if inside { (from as usize & 31, true) } else { (lane as usize, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_in_their_segment() {
        // __shfl_down_sync(m, v, 4, 8): c = (32 - 8) << 8 | 31.
        let c = 24 << 8 | 31;
        assert_eq!(shuffle(Shuffle::Down, 1, 4, c), (5, true));
        assert_eq!(shuffle(Shuffle::Down, 5, 4, c), (5, false));
        // __shfl_up_sync(m, v, 1, 8): c = 24 << 8.
        assert_eq!(shuffle(Shuffle::Up, 8, 1, 24 << 8), (8, false));
        assert_eq!(shuffle(Shuffle::Up, 9, 1, 24 << 8), (8, true));
        assert_eq!(shuffle(Shuffle::Idx, 13, 2, c), (10, true));
        assert_eq!(shuffle(Shuffle::Bfly, 30, 16, 31), (14, true));
    }
}
