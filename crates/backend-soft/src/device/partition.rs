//! Sets of multiprocessors. They are numbers here: a kernel of any stream runs on whatever cores are free.

use backend::{Backend, Partitions, RawContext, RawGreen, RawStream, Result};
use wire::{CuError, SM_REMAINDER, SmCount, SmSplit, SmStep};

use super::backend::SoftBackend;
use super::facts::MULTIPROCESSORS;

/// As on devices of compute capability 9.0.
const DEVICE: SmCount = SmCount { count: MULTIPROCESSORS, minimum: 8, alignment: 8 };
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`, and what sizes are multiples of with it.
const IGNORE_COSCHEDULING: u32 = 1;
const FINE: u32 = 2;
/// That, and `CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE`.
const FLAGS: u32 = 3;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// Groups alike, and what is left.
fn split(of: SmCount, split: SmSplit) -> Result<(Vec<SmCount>, SmCount)> {
    let SmSplit { groups, minimum, flags } = split;
    if flags & !FLAGS != 0 || groups == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let (least, alignment) =
        if flags & IGNORE_COSCHEDULING != 0 { (FINE, FINE) } else { (of.minimum, of.alignment) };
    let count = minimum.max(least).next_multiple_of(alignment);
    let groups = groups.min(of.count / count);
    if groups == 0 {
        return Err(CuError::INVALID_RESOURCE_CONFIGURATION);
    }
    let part = |count| SmCount { count, minimum: least, alignment };
    Ok((vec![part(count); groups as usize], part(of.count - groups * count)))
}

/// What a set has.
fn count(of: &[SmStep]) -> Result<SmCount> {
    of.iter().try_fold(DEVICE, |all, step| {
        let (groups, rest) = split(all, step.split)?;
        let parts = step.taken.iter().map(|part| match *part {
            SM_REMAINDER => Some(rest),
            part => groups.get(part as usize).copied(),
        });
        let parts = parts.collect::<Option<Vec<_>>>().filter(|parts| !parts.is_empty());
        let parts = parts.ok_or(CuError::INVALID_RESOURCE_CONFIGURATION)?;
        Ok(SmCount { count: parts.iter().map(|part| part.count).sum(), ..parts[0] })
    })
}

impl SoftBackend {
    fn check_device(&self, device: usize) -> Result<()> {
        self.devices().get(device).map(|_| ()).ok_or(CuError::INVALID_DEVICE)
    }
}

impl Partitions for SoftBackend {
    fn sm_count(&self, device: usize, of: &[SmStep]) -> Result<SmCount> {
        self.check_device(device)?;
        count(of)
    }

    fn sm_split(&self, device: usize, of: &[SmStep], how: SmSplit) -> Result<(Vec<SmCount>, SmCount)> {
        self.check_device(device)?;
        split(count(of)?, how)
    }

    fn green_create(&self, device: usize, of: &[SmStep]) -> Result<RawGreen> {
        self.check_device(device)?;
        match count(of)? {
            SmCount { count: 0, .. } => Err(CuError::INVALID_RESOURCE_CONFIGURATION),
            set => Ok(RawGreen(set.count.into())),
        }
    }

    fn green_destroy(&self, _: RawGreen) -> Result<()> {
        Ok(())
    }

    fn green_stream_create(&self, ctx: RawContext, _: RawGreen, priority: i32) -> Result<RawStream> {
        self.stream_create(ctx, NON_BLOCKING, priority)
    }
}
