//! The paper's offset: each checkpoint belongs at an *ideal time*, and may move to a boundary at most Δt away from it.
//!
//! Ideal times are equidistant, start and end of the program included. With a free count they are as few as keep every gap within the
//! interval wherever the checkpoints move: `spacing + 2 Δt ≤ interval`. So each choice that an offset allows is one that bounding
//! the gap allows too, and [`cheapest`](crate::path::cheapest) without an offset is never worse; it is better wherever a boundary with little data
//! lies further from an ideal time than Δt.

use crate::Error;
use crate::path::Points;
use crate::units::Nanos;
use crate::window::SlidingMin;

/// The fewest checkpoints that are far enough from each other's ideal times: their count.
///
/// # Errors
/// [`Error::Offset`] when twice the offset is not below the interval.
pub fn count(points: &Points, interval: u64, offset: u64) -> Result<u32, Error> {
    let spacing =
        offset.checked_mul(2).and_then(|both| interval.checked_sub(both)).filter(|spacing| *spacing > 0);
    let spacing = spacing.ok_or(Error::Offset { offset: Nanos(offset), spacing: Nanos(interval) })?;
    let count = points.end.div_ceil(spacing).saturating_sub(1);
    // More than there are boundaries cannot be placed, whichever they are.
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The cheapest `count` points of which number `k` is within the offset of its ideal time, and that leave no gap above the interval.
///
/// # Errors
/// [`Error::Offset`] when two ideal times are less than two offsets apart, [`Error::NothingNear`] when there is no such choice.
pub fn cheapest(points: &Points, interval: u64, offset: u64, count: u32) -> Result<Vec<u32>, Error> {
    let parts = u128::from(count) + 1;
    let ideal = |number: u32| u128::from(number) * u128::from(points.end);
    let reach = u128::from(offset) * parts;
    if count > 0 && 2 * reach > u128::from(points.end) {
        let spacing = Nanos((u128::from(points.end) / parts) as u64);
        return Err(Error::Offset { offset: Nanos(offset), spacing });
    }
    let nothing = |number: u32| Error::NothingNear {
        number,
        ideal: Nanos((ideal(number) / parts) as u64),
        offset: Nanos(offset),
        interval: Nanos(interval),
    };
    // One layer for each checkpoint: its points, and for each the way to it and the point before.
    struct Layer {
        first: usize,
        ways: Vec<Option<(u128, u32)>>,
    }
    let mut layers: Vec<Layer> = Vec::with_capacity((count as usize).min(points.at.len()));
    for number in 1..=count {
        let near = ideal(number).saturating_sub(reach)..=ideal(number) + reach;
        let first = points.at.partition_point(|at| u128::from(*at) * parts < *near.start());
        let len = points.at[first..].partition_point(|at| u128::from(*at) * parts <= *near.end());
        let mut window = SlidingMin::new();
        let mut feed = first;
        let mut ways = Vec::with_capacity(len);
        if layers.is_empty() {
            window.push(0, 0_u128, u32::MAX);
        } else if let Some(layer) = layers.last() {
            feed = layer.first;
        }
        for point in first..first + len {
            if let Some(layer) = layers.last() {
                while feed < point.min(layer.first + layer.ways.len()) {
                    if let Some((way, _)) = layer.ways[feed - layer.first] {
                        window.push(points.at[feed], way, feed as u32);
                    }
                    feed += 1;
                }
            }
            let way = window.least(points.at[point].saturating_sub(interval));
            ways.push(way.map(|(way, from)| (way + points.cost[point], from)));
        }
        if ways.iter().all(Option::is_none) {
            return Err(nothing(number));
        }
        layers.push(Layer { first, ways });
    }
    let Some(last) = layers.last() else {
        return if points.end <= interval { Ok(Vec::new()) } else { Err(nothing(1)) };
    };
    let enough = |index: usize| points.end - points.at[index] <= interval;
    let reached = (last.first..).zip(&last.ways).filter(|(index, _)| enough(*index));
    let cheapest = reached.filter_map(|(index, way)| way.map(|(way, _)| (way, index))).min();
    let (_, mut here) = cheapest.ok_or_else(|| nothing(count))?;
    let mut path = Vec::with_capacity(layers.len());
    for layer in layers.iter().rev() {
        path.push(here as u32);
        let Some((_, from)) = layer.ways[here - layer.first] else { break };
        here = from as usize;
    }
    path.reverse();
    Ok(path)
}
