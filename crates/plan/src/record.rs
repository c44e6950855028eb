//! A profile of a program that runs: what it does comes in as it happens, times are rounded so that loops are told once, and what was live is found out.

use crate::Error;
use crate::live::Tracker;
use crate::profile::{Boundary, CpuInterval, MAX_STEPS, Profile, Recorder};
use crate::units::Nanos;
use std::collections::{HashMap, VecDeque};

/// So many boundaries may wait until it is known what was live at them; what nobody has read by then counts as read.
const HORIZON: usize = 1 << 17;
/// Times are as far from what they were as this, or as a 1024th of the program's time so far: loops are told once for that.
const ROUNDING: u64 = 1_000_000;
/// Intervals of the processor are not shorter: what it does between two launches is one with what it does before.
const SHORTEST: u64 = 1_000_000;
/// Changes are sampled no more often than that, in nanoseconds.
const SAMPLING: u64 = 100_000_000;

/// What is known of a boundary at once.
#[derive(Debug, Clone, Copy)]
struct Pending {
    at: u64,
    kernel: u32,
    allocated: u64,
    idle: u64,
    changed: Option<u64>,
}

/// Makes a profile.
#[derive(Debug, Default)]
pub struct Recording {
    /// The program's memory: whoever records tells it of each access.
    pub memory: Tracker,
    recorder: Recorder,
    pending: VecDeque<Pending>,
    boundaries: Clock<(u32, u32)>,
    intervals: Clock<()>,
    last_kernel: u32,
    idles: HashMap<u32, u64>,
    interval: Option<Interval>,
    host_bytes: u64,
    /// When changes were sampled, and how many boundaries there were.
    sampled: (u64, u64),
    /// When there was no room for more.
    full: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Interval {
    at: u64,
    idle: u64,
}

impl Recording {
    /// A kernel, or a graph, is about to be given to the device, at a time since the program's start.
    ///
    /// # Errors
    /// [`Error::Overflow`] for too many or too long names.
    pub fn boundary(&mut self, at: Nanos, kernel: &str) -> Result<(), Error> {
        if self.full.is_some() {
            return Ok(());
        }
        if self.memory.boundaries() >= MAX_STEPS {
            self.full = Some(at.0);
            return Ok(());
        }
        let kernel = self.recorder.kernel(kernel)?;
        let due = at.0.saturating_sub(self.sampled.0) >= SAMPLING;
        let changed = due.then(|| self.memory.changed_since(self.sampled.1));
        self.memory.boundary();
        if due {
            self.sampled = (at.0, self.memory.boundaries());
        }
        let allocated = self.memory.allocated();
        self.pending.push_back(Pending { at: at.0, kernel, allocated, idle: 0, changed });
        if self.pending.len() >= 2 * HORIZON {
            let live = self.memory.give_out(HORIZON);
            self.tell(&live)?;
        }
        Ok(())
    }

    /// The processor has waited for the device, from one time to another.
    ///
    /// # Errors
    /// As [`Recorder::interval`].
    pub fn waited(&mut self, from: Nanos, to: Nanos) -> Result<(), Error> {
        let idle = to.0.saturating_sub(from.0);
        if let Some(last) = self.pending.back_mut() {
            last.idle = last.idle.saturating_add(idle);
        }
        match &mut self.interval {
            Some(interval) if from.0.saturating_sub(interval.at) < SHORTEST => {
                interval.idle = interval.idle.saturating_add(idle);
            }
            interval => {
                let last = interval.replace(Interval { at: from.0, idle });
                last.map_or(Ok(()), |last| self.tell_interval(last))?;
            }
        }
        Ok(())
    }

    /// What the processor's half of a checkpoint has.
    pub fn host_bytes(&mut self, bytes: u64) {
        self.host_bytes = steady(self.host_bytes, bytes);
    }

    /// The whole, and when there was no room for more of it.
    ///
    /// # Errors
    /// As [`Profile::new`].
    pub fn finish(mut self, end: Nanos) -> Result<(Profile, Option<Nanos>), Error> {
        let last = self.interval.take();
        last.map_or(Ok(()), |last| self.tell_interval(last))?;
        let live = std::mem::take(&mut self.memory).end();
        self.tell(&live)?;
        let full = self.full;
        let last = self.boundaries.told.max(self.intervals.told);
        let end = Nanos(full.unwrap_or(end.0).max(last));
        Ok((self.recorder.finish(end)?, full.map(Nanos)))
    }

    fn tell(&mut self, live: &[u64]) -> Result<(), Error> {
        for live in live {
            let Some(Pending { at, kernel, allocated, idle, changed }) = self.pending.pop_front() else {
                break;
            };
            let told = self.boundaries.tell((self.last_kernel, kernel), at);
            self.last_kernel = kernel;
            let before = self.idles.entry(kernel).or_default();
            *before = steady(*before, idle);
            let idle = Nanos(*before);
            let live = (*live).min(allocated);
            let boundary = Boundary { after: Nanos(0), kernel, allocated, live, changed, idle };
            self.recorder.boundary(Nanos(told), boundary)?;
        }
        Ok(())
    }

    fn tell_interval(&mut self, Interval { at, idle }: Interval) -> Result<(), Error> {
        let told = self.intervals.tell((), at);
        let interval = CpuInterval { after: Nanos(0), bytes: self.host_bytes, idle: Nanos(idle) };
        self.recorder.interval(Nanos(told), interval)
    }
}

/// The number as it was, unless it has moved by more than a sixteenth.
fn steady(before: u64, now: u64) -> u64 {
    if before.abs_diff(now) <= before.max(now) / 16 { before } else { now }
}

/// Times that are told as they were told before, as long as they do not go too far from what they are.
#[derive(Debug)]
struct Clock<K> {
    /// The last time, and what was told of it.
    at: u64,
    told: u64,
    gaps: HashMap<K, Gap>,
}

impl<K> Default for Clock<K> {
    fn default() -> Self {
        Self { at: 0, told: 0, gaps: HashMap::new() }
    }
}

/// What lies between two things of a kind.
#[derive(Debug, Default)]
struct Gap {
    told: u64,
    sum: u64,
    count: u64,
}

impl<K: std::hash::Hash + Eq> Clock<K> {
    fn tell(&mut self, kind: K, at: u64) -> u64 {
        let gap = self.gaps.entry(kind).or_default();
        let took = at.saturating_sub(self.at);
        (gap.sum, gap.count) = (gap.sum.saturating_add(took), gap.count + 1);
        let guess = self.told.saturating_add(gap.told);
        // Of the first of a kind nothing has been told yet.
        if gap.count > 1 && guess.abs_diff(at) <= ROUNDING.max(at / 1024) {
            self.told = guess;
        } else {
            gap.told = if gap.count == 1 { at.saturating_sub(self.told) } else { gap.sum / gap.count };
            self.told = self.told.max(at);
            (gap.sum, gap.count) = (gap.told, 1);
        }
        self.at = at;
        self.told
    }
}
