//! One launch of a marked kernel, and the memory by which it is stopped.

use super::record::{HalfWayRecord, Launched};
use crate::failure::{Failure, Result};
use crate::lock;
use crate::objects::{Function, Marker, Stream, Twin};
use backend::{Backend, Fill, Launch, Range};
use cpt::{Group, context};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use wire::{CuError, LaunchValue};

/// The most threads of a block, and bytes of shared memory, that any device has.
const THREADS_MOST: u64 = 1024;
const SHARED_MOST: u32 = 1 << 20;
/// The most memory for threads that are done: of kernels with more threads a checkpoint waits for the end.
const DONE_MOST: u64 = 64 << 20;

/// How much there is of a launch.
#[derive(Clone, Copy)]
pub(super) struct Size {
    blocks: u64,
    threads: u64,
    /// Bytes of a frame.
    pub(super) frame: u64,
}

impl Size {
    /// That of a launch of a kernel; none where no device has such.
    pub(super) fn of(kernel: &cpt::Kernel, launched: &Launched) -> Option<Self> {
        let shared = launched.shared;
        let product = |of: [u32; 3]| of.into_iter().try_fold(1u64, |all, one| all.checked_mul(one.into()));
        let (blocks, threads) = (product(launched.grid)?, product(launched.block)?);
        blocks.checked_mul(THREADS_MOST)?;
        let fits = blocks > 0 && (1..=THREADS_MOST).contains(&threads) && shared <= SHARED_MOST;
        fits.then(|| Self { blocks, threads, frame: kernel.frame.bytes(threads, shared.into()) })
    }

    pub(super) fn blocks(self) -> u64 {
        self.blocks
    }

    pub(super) fn threads(self) -> u64 {
        self.threads
    }

    /// Bytes of what says which threads are done.
    fn done(self) -> u64 {
        self.blocks * context::words(self.threads) * 4
    }

    /// Whether that is more than there is room for.
    pub(super) fn is_too_large(self) -> bool {
        self.done() > DONE_MOST
    }

    /// Bytes of the kernel's context, and of that behind it.
    pub(super) fn control(self) -> u64 {
        context::BYTES.saturating_add(self.done())
    }

    /// Whether threads can stop that have room for so many blocks: others go on to their end, but those of a grid with barriers of its own wait for one another.
    pub(super) fn can_stop(self, twin: &Twin, capacity: u64) -> bool {
        twin.kernel.group < Group::Grid || capacity >= self.blocks
    }

    /// Bytes that say which frame each block has.
    fn slots(self) -> u64 {
        (self.blocks * 4).next_multiple_of(16)
    }

    /// Bytes of that, and behind it of so many frames.
    pub(super) fn stopped(self, capacity: u32) -> Option<u64> {
        u64::from(capacity).checked_mul(self.frame)?.checked_add(self.slots())
    }
}

/// A launch of a marked kernel.
pub(in crate::session) struct Flight {
    pub(super) stream: Arc<Stream>,
    /// By which it is told to stop.
    pub(super) beside: Arc<Stream>,
    pub(super) function: Arc<Function>,
    pub(super) launched: Launched,
    /// With which it is launched, the first time or again; an image has those alone that it takes.
    pub(super) attributes: Vec<(u32, LaunchValue)>,
    pub(super) size: Size,
    /// For how many blocks there are to be frames, if there is memory for that.
    pub(super) frames: u32,
    /// The context of the kernel, and behind that which threads are done.
    pub(super) control: Range,
    /// Not held while anything is waited for but by whoever launches it again.
    pub(super) stage: Mutex<Stage>,
}

/// How far a flight is.
pub(super) struct Stage {
    /// Blocks that have stopped, and their frames: of the launch in hand, or of the last one.
    pub(super) stopped: Range,
    /// For how many blocks there is room in that.
    pub(super) capacity: u32,
    /// What the launch in hand goes on from.
    pub(super) from: Option<Range>,
    pub(super) state: State,
}

/// Where a flight is.
pub(super) enum State {
    /// It is about to be given to the device.
    Waiting,
    /// The device has it.
    Running(Run),
    /// It was stopped.
    Stopped,
}

/// What the device has of a kernel.
pub(super) struct Run {
    /// Before it: from here on it can be told to stop.
    ready: Marker,
    /// Behind it.
    end: Marker,
    /// When it was given to it.
    begun: Instant,
    /// Whether it was told to stop.
    asked: bool,
}

/// What became of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// The device has it, or is about to.
    Runs,
    /// It has stopped half-way.
    Stopped,
    /// All its threads are done.
    Done,
}

/// Bytes that are looked at first of what says which threads are done.
const LOOKED_FIRST: u64 = 64 << 10;

/// Up to so many bytes one copy is quicker than zeros and a copy.
const COPIED_MOST: u64 = 16 << 10;

impl Flight {
    pub(super) fn stage(&self) -> MutexGuard<'_, Stage> {
        lock(&self.stage)
    }

    pub(super) fn name(&self) -> Cow<'_, str> {
        cpt::in_source(&self.function.name)
    }

    /// Whether it is known to be done; asks little, and waits for nobody.
    pub(super) fn is_over(&self) -> bool {
        let Ok(stage) = self.stage.try_lock() else { return false };
        matches!(&stage.state, State::Running(run) if !run.asked && run.end.is_complete())
    }

    /// When the device was given it, if it can be told to stop.
    pub(super) fn stoppable_since(&self) -> Option<Instant> {
        let mut stage = self.stage();
        Some(self.to_stop(&mut stage)?.begun)
    }

    /// Whether the device has it, and it was told to stop.
    pub(super) fn is_asked(&self) -> bool {
        matches!(&self.stage().state, State::Running(run) if run.asked)
    }

    /// What is to be told to stop: the device has come to it, it is not over (its memory may be another one's then), and has not been told.
    fn to_stop<'a>(&self, stage: &'a mut Stage) -> Option<&'a mut Run> {
        let can_stop = self.size.can_stop(self.function.twin.as_ref()?, stage.capacity.into());
        match &mut stage.state {
            State::Running(run)
                if can_stop && !run.asked && run.ready.is_complete() && !run.end.is_complete() =>
            {
                Some(run)
            }
            _ => None,
        }
    }

    /// The memory that it has.
    pub(super) fn memory(&self) -> Vec<Range> {
        let stage = self.stage();
        [Some(self.control), Some(stage.stopped), stage.from].into_iter().flatten().collect()
    }

    fn backend(&self) -> &dyn Backend {
        self.stream.backend()
    }

    /// Zeros in the stream.
    fn clear(&self, range: Range) -> Result<()> {
        let fill =
            Fill { dst: range.base, pitch: 0, element: 4, value: 0, width: range.bytes / 4, height: 1 };
        Ok(self.backend().fill(self.stream.ctx.raw, self.stream.arg(), &fill)?)
    }

    /// Puts bytes into the kernel's context, in a stream.
    fn tell(&self, stream: &Stream, offset: u64, bytes: &[u8]) -> Result<()> {
        let (to, from) = (self.control.base + offset, bytes.as_ptr() as u64);
        Ok(self.backend().copy(stream.ctx.raw, stream.arg(), to, from, bytes.len() as u64)?)
    }

    fn twin(&self) -> Result<&Twin> {
        self.function.twin.as_ref().ok_or_else(|| CuError::INVALID_HANDLE.into())
    }

    /// Tells the kernel to stop, if it can be.
    pub(super) fn ask(&self) -> Result<()> {
        let mut stage = self.stage();
        if let Some(run) = self.to_stop(&mut stage) {
            self.tell(&self.beside, context::STOP, &1u32.to_le_bytes())?;
            run.asked = true;
        }
        Ok(())
    }

    /// Gives the kernel to its stream, the first time or again.
    pub(super) fn submit(&self, stage: &mut Stage) -> Result<()> {
        let twin = self.twin()?;
        let slots = self.size.slots();
        let from = stage.from.map_or(0, |from| from.base);
        let head = context::Head {
            capacity: stage.capacity,
            done: self.control.base + context::BYTES,
            from,
            into: stage.stopped.base,
            frames_from: from + slots,
            frames_into: stage.stopped.base + slots,
        };
        let mut begun = head.to_bytes().to_vec();
        if stage.from.is_none() && self.control.bytes <= COPIED_MOST {
            begun.resize(self.control.bytes as usize, 0);
        } else if stage.from.is_none() {
            self.clear(self.control)?;
        }
        // Not when it is told to stop: that takes a kernel, which would wait for the end of one that has the whole device.
        self.clear(stage.stopped)?;
        self.tell(&self.stream, 0, &begun)?;
        let ctx = &self.stream.ctx;
        let (ready, end) = (ctx.mark(self.stream.arg())?, ctx.marker()?);
        let Launched { grid, block, shared, .. } = self.launched;
        let mut params = self.launched.params.clone();
        params.resize(twin.kernel.context as usize, 0);
        params.extend(self.control.base.to_le_bytes());
        let launch = Launch {
            function: twin.raw,
            grid,
            block,
            shared,
            stream: self.stream.arg(),
            attributes: &self.attributes,
            params: &params,
        };
        let launched = self.backend().launch(ctx.raw, &launch);
        launched.map_err(|code| Failure::new(code, format!("launch of {}", self.name())))?;
        // The device has it: whatever comes now, it is not launched again. What its end cannot be told from has to be there.
        if let Err(error) = end.record(self.stream.arg()) {
            tracing::warn!("{} is waited for: its end is not marked: {error}", self.name());
            let _ = self.backend().stream_synchronize(ctx.raw, self.stream.arg());
        }
        stage.state = State::Running(Run { ready, end, begun: Instant::now(), asked: false });
        Ok(())
    }

    /// What has become of it. When it has stopped, what it went on from is there to be freed.
    ///
    /// # Errors
    /// When that is not known.
    pub(super) fn fate(&self) -> Result<Fate> {
        let mut stage = self.stage();
        match &stage.state {
            State::Waiting => return Ok(Fate::Runs),
            State::Stopped => return Ok(Fate::Stopped),
            State::Running(run) if !run.end.is_complete() => return Ok(Fate::Runs),
            State::Running(run) if !run.asked => return Ok(Fate::Done),
            State::Running(_) => {}
        }
        match self.is_done() {
            // Nothing goes on in a context that has failed.
            Err(code) if code.is_sticky() => return Ok(Fate::Done),
            Ok(true) => return Ok(Fate::Done),
            is_done => is_done?,
        };
        stage.state = State::Stopped;
        Ok(Fate::Stopped)
    }

    /// Whether all its threads are done; it is not running. Devices begin with the first blocks, so those that are not done are found among the last, mostly.
    fn is_done(&self) -> backend::Result<bool> {
        let each = context::words(self.size.threads);
        let mut words = Vec::new();
        for (first, count) in from_the_last(self.size.blocks, LOOKED_FIRST / (4 * each)) {
            words.resize((count * each) as usize, 0u32);
            let from = self.control.base + context::BYTES + first * each * 4;
            let (ctx, beside) = (self.beside.ctx.raw, self.beside.arg());
            self.backend().copy(ctx, beside, words.as_mut_ptr() as u64, from, words.len() as u64 * 4)?;
            self.backend().stream_synchronize(ctx, beside)?;
            let done: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
            if done != count * self.size.threads {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What an image has of it.
    pub(super) fn record(&self) -> Option<HalfWayRecord> {
        let (module, stage) = (&self.function.module, self.stage());
        Some(HalfWayRecord {
            stream: self.stream.record.key,
            owner: module.record.owner,
            ctx: module.record.ctx,
            kernel: self.function.name.clone(),
            code: module.rewritten.as_ref()?.hash,
            launched: self.launched.clone(),
            control: self.control,
            stopped: stage.stopped,
            capacity: stage.capacity,
        })
    }
}

/// Pieces of so many blocks, the last ones first: where each begins, and how many it has; the first that is looked at no more than `most`, or one, each other at most twice as many as the one before.
fn from_the_last(blocks: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let (mut left, mut most) = (blocks, most.max(1));
    std::iter::from_fn(move || {
        let count = left.min(most);
        (left, most) = (left - count, most.saturating_mul(2));
        (count > 0).then_some((left, count))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::objects::Rewritten;

    #[test]
    fn of_grids_without_end_is_not_known_which_threads_are_done() {
        let marked = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry run()\n{\n.pragma \"cpt\";\nret;\n}\n";
        let code = Rewritten::of(marked.as_bytes(), false).unwrap();
        let size = |grid| {
            let launched = Launched { callee: 0, grid, block: [1024, 1, 1], shared: 0, params: vec![] };
            Size::of(code.kernel("run").unwrap(), &launched)
        };
        assert!(!size([1 << 19, 1, 1]).unwrap().is_too_large());
        assert!(size([1 << 19, 2, 1]).unwrap().is_too_large());
        assert!(size([0, 1, 1]).is_none() && size([u32::MAX; 3]).is_none(), "no device has such");
    }

    #[test]
    fn every_block_is_in_one_piece() {
        let pieces = |blocks, most| from_the_last(blocks, most).collect::<Vec<_>>();
        assert_eq!(pieces(10, 2), [(8, 2), (4, 4), (0, 4)]);
        assert_eq!(pieces(3, 0), [(2, 1), (0, 2)]);
        assert_eq!(pieces(5, 64), [(0, 5)]);
        for blocks in 0..200 {
            let mut end = blocks;
            for (first, count) in pieces(blocks, 3) {
                assert_eq!(first + count, end);
                end = first;
            }
            assert_eq!(end, 0);
        }
    }
}
