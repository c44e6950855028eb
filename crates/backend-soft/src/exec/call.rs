//! Frames, calls and returns.

use super::warp::{Group, Wait, Warp};
use super::{Builtin, Callee, Fault, FaultKind, Function, Inst, LANES, Lanes, Pred, Row};
use crate::printf;

/// Most local memory a thread can have, bytes.
const MAX_LOCAL: u64 = 512 << 10;
/// Alignment of a frame's local memory.
const FRAME_ALIGN: u64 = 16;

/// An activation of a function by some lanes of a warp.
#[derive(Debug, Default)]
pub struct Frame {
    /// Index of the function.
    pub function: usize,
    /// Registers.
    pub rows: Vec<Row>,
    /// Predicates.
    pub preds: Vec<u32>,
    /// Start of its local memory.
    pub local_base: u64,
    /// The frame that called, and the instruction that did.
    caller: Option<(usize, u32)>,
    /// Frames above.
    pub depth: u32,
    /// Lanes that have not returned.
    live: u32,
}

impl Frame {
    fn reset(&mut self, index: usize, function: &Function, live: u32) {
        self.function = index;
        self.rows.clear();
        self.rows.resize(function.rows, Row::ZERO);
        self.preds.clear();
        self.preds.resize(function.preds, 0);
        self.preds[usize::from(Pred::TRUE.0)] = !0;
        self.local_base = 0;
        self.caller = None;
        self.depth = 0;
        self.live = live;
    }
}

impl Warp {
    /// Puts all live lanes at the start of a kernel.
    pub fn start(&mut self, index: usize, function: &Function) -> Result<(), Fault> {
        self.free_frames.clear();
        self.free_frames.extend(1..self.frames.len());
        if self.frames.is_empty() {
            self.frames.push(Frame::default());
        }
        self.frames[0].reset(index, function, self.live);
        self.groups.clear();
        self.groups.push(Group { frame: 0, pc: 0, mask: self.live, wait: Wait::Ready, turn: 0 });
        self.local.fill(0);
        self.ensure_local(function.local_bytes)
    }

    /// Makes each lane's local memory at least this long.
    fn ensure_local(&mut self, bytes: u64) -> Result<(), Fault> {
        if bytes > MAX_LOCAL {
            return Err(Fault::new(FaultKind::StackOverflow, bytes));
        }
        if bytes <= self.lane_bytes {
            return Ok(());
        }
        let grown = bytes.max(self.lane_bytes * 2).next_multiple_of(FRAME_ALIGN).min(MAX_LOCAL);
        let (old_words, new_words) = ((self.lane_bytes / 8) as usize, (grown / 8) as usize);
        let mut local = vec![0; new_words * LANES];
        for lane in 0..LANES {
            local[lane * new_words..][..old_words]
                .copy_from_slice(&self.local[lane * old_words..][..old_words]);
        }
        self.local = local;
        self.lane_bytes = grown;
        Ok(())
    }

    /// Lanes `mask` of group `at` execute the call at its pc; the group's other lanes have gone to the next instruction.
    pub fn call(&mut self, lanes: &mut Lanes<'_>, at: Group, inst: &Inst, site: u32) -> Result<(), Fault> {
        let image = &lanes.launch.image;
        let site = &image.functions[self.frames[at.frame].function].calls[site as usize];
        let next = |mask| Group { mask, pc: at.pc + 1, ..at };
        let mut rest = at.mask;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let (index, mask) = match site.callee {
                Callee::Builtin(builtin) => {
                    self.builtin(lanes, builtin, site, rest)?;
                    self.groups.push(next(rest));
                    return Ok(());
                }
                Callee::Direct(index) => (index, rest),
                Callee::Indirect(slot) => {
                    // SAFETY: the lanes are still in the frame of the call's function.
                    let targets = unsafe { lanes.all::<u64>(slot) };
                    let index = image.at(targets[lane]).filter(|&index| {
                        let callee = &image.functions[index];
                        sizes(&callee.params).eq(sizes(&site.args))
                            && sizes(&callee.returns).eq(sizes(&site.returns))
                    });
                    let fault = || lanes.fault(Fault::new(FaultKind::InvalidPc, targets[lane]), lane);
                    let same = (0..LANES).filter(|&other| targets[other] == targets[lane]);
                    (index.ok_or_else(fault)?, same.fold(0, |mask, lane| mask | 1 << lane) & rest)
                }
            };
            rest &= !mask;
            self.push_frame(lanes, at, index, mask, inst)?;
        }
        Ok(())
    }

    fn push_frame(
        &mut self,
        lanes: &mut Lanes<'_>,
        at: Group,
        index: usize,
        mask: u32,
        inst: &Inst,
    ) -> Result<(), Fault> {
        let image = &lanes.launch.image;
        let callee = &image.functions[index];
        let (caller_base, depth) = (self.frames[at.frame].local_base, self.frames[at.frame].depth);
        let caller = &image.functions[self.frames[at.frame].function];
        let super::Op::Call(site) = inst.op else { return Ok(()) };
        let base = (caller_base + caller.local_bytes).next_multiple_of(FRAME_ALIGN);
        self.ensure_local(base + callee.local_bytes)?;
        // SAFETY: the vector is next touched by `ensure_local`, after which this is done again.
        unsafe { lanes.spaces.set_local(&mut self.local, self.lane_bytes) };
        for (from, to) in caller.calls[site as usize].args.iter().zip(&callee.params) {
            lanes.spaces.copy_local(base + to.offset, caller_base + from.offset, to.size, mask)?;
        }
        let frame = self.free_frames.pop().unwrap_or_else(|| {
            self.frames.push(Frame::default());
            self.frames.len() - 1
        });
        self.frames[frame].reset(index, callee, mask);
        let new = &mut self.frames[frame];
        (new.local_base, new.caller, new.depth) = (base, Some((at.frame, at.pc)), depth + 1);
        self.groups.push(Group { frame, pc: 0, mask, wait: Wait::Ready, turn: at.turn });
        Ok(())
    }

    /// Lanes `mask` of `frame` return: to the caller, or out of the kernel.
    pub fn ret(&mut self, lanes: &mut Lanes<'_>, frame: usize, mask: u32, turn: u64) -> Result<(), Fault> {
        let Some((caller_frame, pc)) = self.frames[frame].caller else {
            self.exit(frame, mask);
            return Ok(());
        };
        let image = &lanes.launch.image;
        let (callee, base) = (&image.functions[self.frames[frame].function], self.frames[frame].local_base);
        let caller = &image.functions[self.frames[caller_frame].function];
        if let super::Op::Call(site) = caller.code[pc as usize].op {
            let caller_base = self.frames[caller_frame].local_base;
            for (to, from) in caller.calls[site as usize].returns.iter().zip(&callee.returns) {
                lanes.spaces.copy_local(caller_base + to.offset, base + from.offset, from.size, mask)?;
            }
        }
        self.leave(frame, mask);
        self.groups.push(Group { frame: caller_frame, pc: pc + 1, mask, wait: Wait::Ready, turn });
        Ok(())
    }

    /// Lanes `mask`, which are in `frame`, end.
    pub fn exit(&mut self, frame: usize, mask: u32) {
        self.live &= !mask;
        let mut at = Some(frame);
        while let Some(frame) = at {
            at = self.frames[frame].caller.map(|(caller, _)| caller);
            self.leave(frame, mask);
        }
    }

    fn leave(&mut self, frame: usize, mask: u32) {
        self.frames[frame].live &= !mask;
        if self.frames[frame].live == 0 && frame != 0 {
            self.free_frames.push(frame);
        }
    }

    fn builtin(
        &mut self,
        lanes: &mut Lanes<'_>,
        builtin: Builtin,
        site: &super::CallSite,
        mask: u32,
    ) -> Result<(), Fault> {
        let base = lanes.local_base + crate::memory::LOCAL_WINDOW;
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let mut argument = |index: usize| match site.args.get(index) {
                Some(place) => lanes.spaces.read_value(lane, base + place.offset, place.size.min(8)),
                None => Ok(0),
            };
            match builtin {
                Builtin::Vprintf => {
                    let (format, list) = (argument(0)?, argument(1)?);
                    let (text, count) = printf::vprintf(&mut lanes.spaces, lane, format, list)
                        .map_err(|fault| lanes.fault(fault, lane))?;
                    lanes.launch.output.write(text);
                    if let Some(place) = site.returns.first() {
                        lanes.spaces.write_local(lane, lanes.local_base + place.offset, count.into(), 4)?;
                    }
                }
                Builtin::SetConditional => {
                    let (handle, value) = (argument(0)?, argument(1)?);
                    let fault = || lanes.fault(Fault::new(FaultKind::IllegalAddress, handle), lane);
                    lanes.launch.conditions.get(handle).ok_or_else(fault)?.set(value as u32);
                }
                Builtin::AssertFail => {
                    let (message, file, line, function) =
                        (argument(0)?, argument(1)?, argument(2)?, argument(3)?);
                    let mut text = |address| {
                        let bytes = lanes.spaces.read_string(lane, address, printf::MAX_STRING);
                        bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                    };
                    let (message, file, function) = (text(message)?, text(file)?, text(function)?);
                    let [block, thread] =
                        [lanes.block, std::array::from_fn(|axis| lanes.threads[axis].0[lane])]
                            .map(|at: [u32; 3]| format!("[{},{},{}]", at[0], at[1], at[2]));
                    let said = format!(
                        "{file}:{line}: {function}: block: {block}, thread: {thread} Assertion `{message}` failed."
                    );
                    printf::complain(&said);
                    return Err(lanes.fault(Fault::new(FaultKind::Assert(message), 0), lane));
                }
            }
        }
        Ok(())
    }
}

fn sizes(places: &[super::Place]) -> impl Iterator<Item = u64> + '_ {
    places.iter().map(|place| place.size)
}
