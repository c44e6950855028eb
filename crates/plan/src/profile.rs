//! What a run of a program had, boundary by boundary.

use crate::Error;
use crate::runs::{Builder, Runs, Step};
use crate::units::Nanos;
use serde::Serialize;
use std::collections::HashMap;

/// More boundaries than this no profile has: a plan takes some 40 bytes of memory for each.
pub const MAX_STEPS: u64 = 1 << 27;
/// Kernels of different names.
pub const MAX_KERNELS: usize = 1 << 16;
/// Bytes of a kernel's name.
pub const MAX_NAME: usize = 4096;

/// The moment before a kernel starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Boundary {
    /// Time since the boundary before it, or since the program's start.
    pub after: Nanos,
    /// The kernel that starts: its number in [`Profile::kernels`].
    pub kernel: u32,
    /// Bytes of device memory allocated.
    pub allocated: u64,
    /// Bytes of it that will be read before they are overwritten.
    pub live: u64,
    /// Where it was sampled: bytes changed since the boundary at which it was sampled before.
    pub changed: Option<u64>,
    /// How long the processor waits here, idle.
    pub idle: Nanos,
}

impl Step for Boundary {
    fn after(&self) -> u64 {
        self.after.0
    }
}

/// An interval between two calls of the program: the processor's half can be checkpointed at its start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CpuInterval {
    /// Time since the one before it, or since the program's start.
    pub after: Nanos,
    /// Bytes that a checkpoint of the processor's half has.
    pub bytes: u64,
    /// How long the processor is idle here.
    pub idle: Nanos,
}

impl Step for CpuInterval {
    fn after(&self) -> u64 {
        self.after.0
    }
}

/// A profile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    kernels: Vec<String>,
    device: Runs<Boundary>,
    cpu: Runs<CpuInterval>,
    end: Nanos,
}

impl Profile {
    /// Checks what a file may have wrong.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::MoreLiveThanAllocated`] or [`Error::Overflow`].
    pub fn new(
        kernels: Vec<String>,
        device: Runs<Boundary>,
        cpu: Runs<CpuInterval>,
        end: Nanos,
    ) -> Result<Self, Error> {
        if device.len() > MAX_STEPS || cpu.len() > MAX_STEPS {
            return Err(Error::damaged(format!("the profile has more than {MAX_STEPS} boundaries")));
        }
        if device.span() > end.0 || cpu.span() > end.0 {
            return Err(Error::damaged(format!("the profile ends at {end}, before its last boundary")));
        }
        if kernels.len() > MAX_KERNELS || kernels.iter().any(|name| name.len() > MAX_NAME) {
            return Err(Error::damaged("the profile has too many kernels, or too long names"));
        }
        let mut bad = None;
        check_each(device.nodes(), &mut |step: &Boundary| {
            if step.kernel as usize >= kernels.len() {
                bad = Some(Error::damaged(format!("the profile names no kernel {}", step.kernel)));
            } else if step.live > step.allocated {
                bad = Some(Error::MoreLiveThanAllocated {
                    number: 0,
                    live: step.live,
                    allocated: step.allocated,
                });
            }
        });
        match bad {
            Some(Error::MoreLiveThanAllocated { live, allocated, .. }) => {
                let (mut count, mut first) = (0, None);
                device.each(|_, step| {
                    first = first.or((step.live > step.allocated).then_some(count));
                    count += 1;
                });
                Err(Error::MoreLiveThanAllocated { number: first.unwrap_or(count), live, allocated })
            }
            Some(bad) => Err(bad),
            None => Ok(Self { kernels, device, cpu, end }),
        }
    }

    /// Names of kernels.
    #[must_use]
    pub fn kernels(&self) -> &[String] {
        &self.kernels
    }

    /// Boundaries, as loops.
    #[must_use]
    pub fn device(&self) -> &Runs<Boundary> {
        &self.device
    }

    /// The processor's intervals, as loops.
    #[must_use]
    pub fn cpu(&self) -> &Runs<CpuInterval> {
        &self.cpu
    }

    /// When the program ended.
    #[must_use]
    pub fn end(&self) -> Nanos {
        self.end
    }

    /// Each boundary with its time and what the processor's half has there: that of the last interval that began by then.
    pub fn each_boundary(&self, mut see: impl FnMut(u64, &Boundary, u64)) {
        let mut cpu = Vec::with_capacity(usize::try_from(self.cpu.len()).unwrap_or(0));
        self.cpu.each(|at, interval| cpu.push((at, interval.bytes)));
        let (mut next, mut bytes) = (0, 0);
        self.device.each(|at, boundary| {
            while let Some((_, more)) = cpu.get(next).filter(|(begun, _)| *begun <= at) {
                (bytes, next) = (*more, next + 1);
            }
            see(at, boundary, bytes);
        });
    }

    /// What there is to know at a glance.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut kernels: Vec<KernelSummary> = self
            .kernels
            .iter()
            .map(|name| KernelSummary { name: name.clone(), launches: 0, ms: 0.0 })
            .collect();
        let mut nanos = vec![0_u64; kernels.len()];
        let mut running: Option<(usize, u64)> = None;
        let mut end_of = |running: Option<(usize, u64)>, at: u64| {
            if let Some((kernel, since)) = running {
                nanos[kernel] += at - since;
            }
        };
        let mut summary = Summary {
            version: crate::format::VERSION,
            ms: self.end.millis(),
            boundaries: self.device.len(),
            cpu_intervals: self.cpu.len(),
            live_least: (!self.device.is_empty()).then_some(u64::MAX),
            ..Summary::default()
        };
        self.device.each(|at, step| {
            end_of(running.replace((step.kernel as usize, at)), at);
            kernels[step.kernel as usize].launches += 1;
            summary.allocated_most = summary.allocated_most.max(step.allocated);
            summary.live_most = summary.live_most.max(step.live);
            summary.live_least = summary.live_least.map(|least| least.min(step.live));
            summary.sampled += u64::from(step.changed.is_some());
            summary.changed = summary.changed.saturating_add(step.changed.unwrap_or(0));
        });
        end_of(running, self.end.0);
        let mut idle = 0_u64;
        self.cpu.each(|_, interval| {
            idle = idle.saturating_add(interval.idle.0);
            summary.cpu_bytes_most = summary.cpu_bytes_most.max(interval.bytes);
        });
        summary.cpu_idle_ms = Nanos(idle).millis();
        kernels.iter_mut().zip(&nanos).for_each(|(kernel, nanos)| kernel.ms = Nanos(*nanos).millis());
        kernels.sort_by(|a, b| b.ms.total_cmp(&a.ms).then_with(|| a.name.cmp(&b.name)));
        Summary { kernels, ..summary }
    }
}

fn check_each<S>(nodes: &[crate::runs::Node<S>], see: &mut impl FnMut(&S)) {
    for node in nodes {
        match node {
            crate::runs::Node::Step(step) => see(step),
            crate::runs::Node::Loop { body, .. } => check_each(body, see),
        }
    }
}

/// A profile at a glance.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Of the format.
    pub version: u16,
    /// How long the program ran.
    pub ms: f64,
    /// Kernel boundaries.
    pub boundaries: u64,
    /// Intervals of the processor.
    pub cpu_intervals: u64,
    /// Most bytes allocated.
    pub allocated_most: u64,
    /// Least bytes live at a boundary.
    pub live_least: Option<u64>,
    /// Most bytes live.
    pub live_most: u64,
    /// Boundaries at which changes were sampled.
    pub sampled: u64,
    /// Bytes changed, all samples together.
    pub changed: u64,
    /// Most bytes of the processor's half.
    pub cpu_bytes_most: u64,
    /// How long the processor was idle.
    pub cpu_idle_ms: f64,
    /// Kernels, that with most time first.
    pub kernels: Vec<KernelSummary>,
}

/// One kernel of a profile.
#[derive(Clone, Debug, Serialize)]
pub struct KernelSummary {
    /// Its name.
    pub name: String,
    /// How often it was launched.
    pub launches: u64,
    /// From its boundaries to the next, together.
    pub ms: f64,
}

/// Makes a profile of a run as it goes on.
#[derive(Debug, Default)]
pub struct Recorder {
    kernels: Vec<String>,
    ids: HashMap<String, u32>,
    device: Builder<Boundary>,
    cpu: Builder<CpuInterval>,
    boundaries: u64,
    intervals: u64,
    last_boundary: u64,
    last_interval: u64,
}

impl Recorder {
    /// The number of a kernel's name.
    ///
    /// # Errors
    /// [`Error::Overflow`] for too many or too long names.
    pub fn kernel(&mut self, name: &str) -> Result<u32, Error> {
        if let Some(id) = self.ids.get(name) {
            return Ok(*id);
        }
        if self.kernels.len() == MAX_KERNELS || name.len() > MAX_NAME {
            return Err(Error::Overflow { what: "kernel names" });
        }
        let id = self.kernels.len() as u32;
        self.kernels.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        Ok(id)
    }

    /// The next boundary, at a time since the program's start; its `after` is found here.
    ///
    /// # Errors
    /// [`Error::TimeGoesBack`], [`Error::MoreLiveThanAllocated`].
    pub fn boundary(&mut self, at: Nanos, boundary: Boundary) -> Result<(), Error> {
        let number = self.boundaries;
        let after = after("boundary", number, self.last_boundary, at)?;
        if boundary.live > boundary.allocated {
            let Boundary { live, allocated, .. } = boundary;
            return Err(Error::MoreLiveThanAllocated { number, live, allocated });
        }
        self.device.push(Boundary { after, ..boundary });
        (self.boundaries, self.last_boundary) = (number + 1, at.0);
        Ok(())
    }

    /// The processor's next interval.
    ///
    /// # Errors
    /// [`Error::TimeGoesBack`].
    pub fn interval(&mut self, at: Nanos, interval: CpuInterval) -> Result<(), Error> {
        let after = after("CPU interval", self.intervals, self.last_interval, at)?;
        self.cpu.push(CpuInterval { after, ..interval });
        (self.intervals, self.last_interval) = (self.intervals + 1, at.0);
        Ok(())
    }

    /// The whole.
    ///
    /// # Errors
    /// As [`Profile::new`].
    pub fn finish(self, end: Nanos) -> Result<Profile, Error> {
        let overflow = || Error::Overflow { what: "times" };
        let device = self.device.finish().ok_or_else(overflow)?;
        let cpu = self.cpu.finish().ok_or_else(overflow)?;
        Profile::new(self.kernels, device, cpu, end)
    }
}

fn after(what: &'static str, number: u64, last: u64, at: Nanos) -> Result<Nanos, Error> {
    let back = || Error::TimeGoesBack { what, number, at, back: Nanos(last - at.0) };
    at.0.checked_sub(last).map(Nanos).ok_or_else(back)
}
