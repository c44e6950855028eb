//! Checkpoints that write what has changed since the one before: their cost depends on two boundaries.
//!
//! With `A` the bytes changed since the start (an upper bound: what is changed twice counts twice), a checkpoint at `j` after one at `i` writes
//! at most `min(A[j] − A[i], live[j])`. The least over `i` of that minimum is the lesser of two leasts, of `way[i] − A[i]` and of `way[i]`, each of a window
//! that only moves on: linear time again. The first checkpoint has no predecessor and writes all.

use crate::Error;
use crate::cost::{Rates, Sizes, check_sum};
use crate::model::Failed;
use crate::planfile::Part;
use crate::profile::Profile;
use crate::window::SlidingMin;

/// What one boundary has.
struct Place {
    at: u64,
    /// Of a checkpoint of everything.
    full: u128,
    /// Of the processor's half, and whatever every checkpoint costs.
    base: u128,
    /// Of all that the device has changed until here.
    changed: u128,
}

/// The cheapest points that leave no gap above the interval, and what each costs.
pub(crate) fn cheapest(
    profile: &Profile,
    part: Part,
    rates: &Rates,
    interval: u64,
) -> Result<(Vec<u32>, Vec<u128>), Failed> {
    let places = places(profile, part, rates)?;
    let end = profile.end().0;
    let gap = part.points(profile, rates)?.longest_gap();
    if gap.to - gap.from > interval {
        return Err(Failed::Gap(gap));
    }
    // Keys: cost, number of checkpoints. The start, of which there is no image, is in the first window only.
    let (mut all, mut since) = (SlidingMin::new(), SlidingMin::new());
    all.push(0, (0_i128, 0_u32), u32::MAX);
    let mut before = Vec::with_capacity(places.len() + 1);
    for (index, place) in (0_u32..).zip(&places) {
        let from = place.at.saturating_sub(interval);
        let full = all.least(from).map(|((way, count), from)| ((way + place.full as i128, count + 1), from));
        let fresh = since.least(from).map(|((way, count), from): ((i128, u32), u32)| {
            ((way + (place.base + place.changed) as i128, count + 1), from)
        });
        let Some((key, from)) = full.into_iter().chain(fresh).min_by_key(|(key, _)| *key) else { break };
        before.push(from);
        all.push(place.at, key, index);
        since.push(place.at, (key.0 - place.changed as i128, key.1), index);
    }
    let mut here = all.least(end.saturating_sub(interval)).map_or(u32::MAX, |(_, from)| from);
    let mut path = Vec::new();
    while here != u32::MAX {
        path.push(here);
        here = before[here as usize];
    }
    path.reverse();
    let cost = |before: Option<u32>, point: u32| {
        let place = &places[point as usize];
        let fresh = before.map(|before| place.base + place.changed - places[before as usize].changed);
        fresh.map_or(place.full, |fresh| fresh.min(place.full))
    };
    let befores = [None].into_iter().chain(path.iter().copied().map(Some));
    let costs = befores.zip(&path).map(|(before, point)| cost(before, *point)).collect();
    Ok((path, costs))
}

fn places(profile: &Profile, part: Part, rates: &Rates) -> Result<Vec<Place>, Error> {
    let mut changes = Vec::new();
    if part != Part::Cpu {
        let mut unsampled = 0_u64;
        profile.device().each(|_, step| {
            unsampled += 1;
            if let Some(changed) = step.changed {
                changes.push((unsampled, changed));
                unsampled = 0;
            }
        });
        let Some((over, changed)) = changes.last().copied() else {
            let message =
                "the profile has no samples of what changed, which incremental checkpoints are planned by";
            return Err(Error::Together(message));
        };
        // What came after the last sample is taken to have changed as fast as before it.
        let more = u128::from(changed) * u128::from(unsampled) / u128::from(over);
        changes.push((unsampled, u64::try_from(more).unwrap_or(u64::MAX)));
    }
    let mut places = Vec::new();
    let mut failed = None;
    let mut samples = changes.into_iter().peekable();
    let (mut whole, mut within) = (0_u128, 0_u64);
    part.each(profile, |at, sizes, idle| {
        let mut cost = |sizes| {
            rates.cost(sizes).unwrap_or_else(|error| {
                failed.get_or_insert(error);
                0
            })
        };
        let mut bytes = whole;
        within += 1;
        if let Some((over, changed)) = samples.peek().copied() {
            bytes += (u128::from(changed) * u128::from(within)).div_ceil(u128::from(over.max(1)));
            if within >= over {
                (whole, within) = (whole + u128::from(changed), 0);
                samples.next();
            }
        }
        let full = cost(sizes);
        let base = cost(Sizes { gpu: 0, ..sizes });
        let changed = rates.device_bytes(bytes).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            0
        });
        let hidden = |cost| if part == Part::Cpu { rates.beyond(cost, idle) } else { cost };
        places.push(Place { at, full: hidden(full), base: hidden(base), changed });
    });
    failed.map_or(Ok(()), Err)?;
    let costs: Vec<u128> = places.iter().map(|place| place.full).collect();
    check_sum(&costs)?;
    Ok(places)
}
