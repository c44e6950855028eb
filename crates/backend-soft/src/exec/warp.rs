//! A warp: groups of lanes that are at the same instruction, and which of them goes next.
//!
//! The deepest frame's lowest instruction goes first, so that lanes that took different ways meet again where the ways do.
//! That alone would let a group that waits for another (a spin lock) wait for ever: after some backward branches every group
//! gets its turn for a while.

use super::{Fault, FaultKind, Frame, Function, Lanes, Op};

/// Backward branches a group may take while others could run, before they get their turn.
const PATIENCE: u32 = 256;
/// Turns that are then given in order of age.
const FAIR_TURNS: u32 = 64;

/// What a group waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Nothing.
    Ready,
    /// The block's barrier with that number.
    Barrier(u32),
    /// Other lanes of the warp: the member mask.
    Together(u32),
}

/// Lanes of one frame at one instruction.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Index of the frame.
    pub frame: usize,
    /// Index of the instruction.
    pub pc: u32,
    /// The lanes.
    pub mask: u32,
    /// What they wait for.
    pub wait: Wait,
    /// When it last ran.
    pub turn: u64,
}

/// Why a warp stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WarpState {
    /// It has used its slice.
    Ready,
    /// All its lanes wait for other warps.
    Parked,
    /// All its lanes have ended.
    Done,
}

/// The state of 32 threads.
#[derive(Debug, Default)]
pub struct Warp {
    /// Lanes that have not ended.
    pub live: u32,
    /// Where they are.
    pub groups: Vec<Group>,
    /// Their frames; the first is the kernel's.
    pub frames: Vec<Frame>,
    /// Frames that nobody is in.
    pub free_frames: Vec<usize>,
    /// Local memory, lane after lane.
    pub local: Vec<u64>,
    /// Bytes of each lane's.
    pub lane_bytes: u64,
    fair: u32,
    clock: u64,
}

impl Warp {
    /// Runs until the slice (in instructions) is used up or no lane can go on.
    pub fn run(&mut self, lanes: &mut Lanes<'_>, slice: &mut i64) -> Result<WarpState, Fault> {
        // SAFETY: until the end of this call the vector changes only in `ensure_local`, after which this is done again.
        unsafe { lanes.spaces.set_local(&mut self.local, self.lane_bytes) };
        while *slice > 0 {
            self.merge();
            match self.pick() {
                Some(group) => self.execute(group, lanes, slice)?,
                None if self.live == 0 => return Ok(WarpState::Done),
                None if self.meet(lanes) => {}
                None => return Ok(WarpState::Parked),
            }
        }
        Ok(WarpState::Ready)
    }

    /// Joins ready groups that are at the same place.
    fn merge(&mut self) {
        let mut index = 0;
        while index < self.groups.len() {
            let here = self.groups[index];
            let mut other = index + 1;
            while other < self.groups.len() {
                let there = self.groups[other];
                if (there.frame, there.pc, there.wait) == (here.frame, here.pc, Wait::Ready)
                    && here.wait == Wait::Ready
                {
                    self.groups[index].mask |= there.mask;
                    self.groups.swap_remove(other);
                } else {
                    other += 1;
                }
            }
            index += 1;
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let ready = self.groups.iter().enumerate().filter(|(_, group)| group.wait == Wait::Ready);
        let picked = if self.fair > 0 {
            self.fair -= 1;
            ready.min_by_key(|(_, group)| group.turn)?.0
        } else {
            ready.min_by_key(|(_, group)| (std::cmp::Reverse(self.frames[group.frame].depth), group.pc))?.0
        };
        self.clock += 1;
        self.groups[picked].turn = self.clock;
        Some(picked)
    }

    /// Runs a group until it branches apart, waits, ends, meets another or must give way.
    fn execute(&mut self, at: usize, lanes: &mut Lanes<'_>, slice: &mut i64) -> Result<(), Fault> {
        let Group { frame, mut pc, mask, turn, .. } = self.groups[at];
        let function = &lanes.launch.image.functions[self.frames[frame].function];
        // SAFETY: the frame is touched again only after the loop below; the launch keeps the function.
        unsafe { lanes.enter(&mut self.frames[frame], function) };
        let others = || {
            let ready = self.groups.iter().enumerate().filter(|(_, group)| group.wait == Wait::Ready);
            ready.filter(|(index, _)| *index != at).map(|(_, group)| group)
        };
        let meets = others().filter(|group| group.frame == frame && group.pc > pc).map(|group| group.pc);
        let stop = meets.min().unwrap_or(u32::MAX);
        let mut patience = match (others().next(), self.fair) {
            (None, _) => u32::MAX,
            (Some(_), 0) => PATIENCE,
            (Some(_), _) => 1,
        };
        let mut executed = 0i64;
        let inst = loop {
            let inst = &function.code[pc as usize];
            // SAFETY: the instruction is one of the frame's function.
            let m = mask & unsafe { lanes.test(inst.guard) };
            executed += 1;
            match inst.op {
                Op::Compute(run) => {
                    if m != 0 {
                        // SAFETY: as above.
                        unsafe { run(lanes, inst, m) }
                    }
                    pc += 1;
                }
                Op::Access(run) => {
                    if m != 0 {
                        // SAFETY: as above.
                        unsafe { run(lanes, inst, m) }
                            .map_err(|fault| locate(*fault, lanes, function, inst.line))?;
                    }
                    pc += 1;
                }
                Op::Branch(target) if m == mask => {
                    if target <= pc {
                        patience -= 1;
                        if patience == 0 || executed >= *slice {
                            pc = target;
                            break None;
                        }
                    }
                    pc = target;
                }
                _ if m == 0 => pc += 1,
                _ => break Some((inst, m)),
            }
            if pc >= stop {
                break None;
            }
        };
        *slice -= executed;
        if patience == 0 && self.fair == 0 {
            self.fair = FAIR_TURNS;
        }
        self.groups[at].pc = pc;
        match inst {
            None => Ok(()),
            Some((inst, m)) => {
                // Lanes whose guard is false go on; the others are the group `here`.
                if m == mask {
                    self.groups.swap_remove(at);
                } else {
                    self.groups[at].mask = mask & !m;
                    self.groups[at].pc = pc + 1;
                }
                let here = Group { frame, pc, mask: m, wait: Wait::Ready, turn };
                self.control(here, lanes, inst, function, slice)
                    .map_err(|fault| locate(fault, lanes, function, inst.line))
            }
        }
    }

    /// An instruction after which the group `here` is elsewhere, waits, or is gone.
    fn control(
        &mut self,
        here: Group,
        lanes: &mut Lanes<'_>,
        inst: &super::Inst,
        function: &Function,
        slice: &mut i64,
    ) -> Result<(), Fault> {
        match inst.op {
            Op::Compute(_) | Op::Access(_) => {}
            Op::Branch(target) => self.groups.push(Group { pc: target, ..here }),
            Op::BranchIndexed(table) => {
                // SAFETY: the lanes are in the frame of the instruction's function.
                let index = unsafe { lanes.all::<u32>(inst.s[0]) };
                let table = &function.tables[table as usize];
                for lane in (0..super::LANES).filter(|lane| here.mask >> lane & 1 != 0) {
                    let fault = || lanes.fault(Fault::new(FaultKind::InvalidPc, index[lane].into()), lane);
                    let pc = *table.get(index[lane] as usize).ok_or_else(fault)?;
                    self.groups.push(Group { pc, mask: 1 << lane, ..here });
                }
            }
            Op::Call(site) => self.call(lanes, here, inst, site)?,
            Op::Return => self.ret(lanes, here.frame, here.mask, here.turn)?,
            Op::Exit => self.exit(here.frame, here.mask),
            Op::Trap => {
                let lane = here.mask.trailing_zeros() as usize;
                return Err(lanes.fault(Fault::new(FaultKind::Trap, 0), lane));
            }
            Op::Barrier(barrier) => self.arrive(here, lanes, inst, barrier),
            Op::Together(_) => self.gather(here, lanes, inst),
            Op::Yield => {
                self.groups.push(Group { pc: here.pc + 1, ..here });
                self.fair = FAIR_TURNS;
                *slice = 0;
                lanes.gives_way = true;
            }
        }
        Ok(())
    }
}

fn locate(fault: Fault, lanes: &Lanes<'_>, function: &Function, line: u32) -> Fault {
    let place = fault.place.clone().or_else(|| Some((function.name.clone(), line)));
    Fault { block: lanes.block, place, ..fault }
}
