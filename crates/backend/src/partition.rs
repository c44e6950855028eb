//! The chapter of [`Backend`](crate::Backend) on green contexts: sets of multiprocessors, and streams whose kernels run on one.

use crate::{RawContext, RawStream, Result};
use wire::{SmCount, SmSplit, SmStep};

/// A backend's set of multiprocessors with the device library's own state for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RawGreen(pub u64);

/// What a device does with sets of its multiprocessors. Where the device library is too old for it, all answer `NOT_SUPPORTED`.
pub trait Partitions {
    /// How many multiprocessors a set has.
    fn sm_count(&self, device: usize, of: &[SmStep]) -> Result<SmCount>;
    /// As `cuDevSmResourceSplitByCount`: the groups, and what is left.
    fn sm_split(&self, device: usize, of: &[SmStep], split: SmSplit) -> Result<(Vec<SmCount>, SmCount)>;
    /// As `cuGreenCtxCreate`; the device's primary context is there, and stays there longer.
    fn green_create(&self, device: usize, of: &[SmStep]) -> Result<RawGreen>;
    /// As `cuGreenCtxDestroy`; its streams are destroyed.
    fn green_destroy(&self, green: RawGreen) -> Result<()>;
    /// As `cuGreenCtxStreamCreate`: a non-blocking stream of the primary context `ctx` like any other, but for where its kernels run.
    fn green_stream_create(&self, ctx: RawContext, green: RawGreen, priority: i32) -> Result<RawStream>;
}
