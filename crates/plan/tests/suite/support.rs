//! Small problems, and ways to solve them that cannot be wrong.

use plan::path::Points;

/// Sebastiano Vigna's SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Up to nine boundaries, in times and sizes so small that ties, zeros and equal times abound.
pub fn points(random: &mut Random) -> Points {
    let len = random.below(10) as usize;
    let span = 1 + random.below(25);
    let mut at: Vec<u64> = (0..len).map(|_| random.below(span)).collect();
    at.sort_unstable();
    let dearest = 1 + random.below(9);
    let cost = (0..len).map(|_| u128::from(random.below(dearest))).collect();
    let end = at.last().copied().unwrap_or(0) + random.below(4);
    Points { at, cost, end }
}

/// Condition (3).
pub fn allowed(points: &Points, interval: u64, path: &[u32]) -> bool {
    let times = path.iter().map(|point| points.at[*point as usize]).chain([points.end]);
    path.is_sorted_by(|a, b| a < b)
        && times.scan(0, |last, at| Some(at - std::mem::replace(last, at))).all(|gap| gap <= interval)
}

pub fn cost(points: &Points, path: &[u32]) -> u128 {
    path.iter().map(|point| points.cost[*point as usize]).sum()
}

/// Every choice there is.
pub fn choices(points: &Points) -> impl Iterator<Item = Vec<u32>> {
    let len = points.at.len() as u32;
    (0..1_u32 << len).map(move |mask| (0..len).filter(|point| mask >> point & 1 == 1).collect())
}

/// The paper's figure 10: every choice in turn, most of which the *filter* turns away before any condition is looked at.
pub fn implicit_enumeration(points: &Points, interval: u64, count: Option<u32>) -> Option<u128> {
    let mut filter: Option<u128> = None;
    let mut choice = vec![false; points.at.len()];
    loop {
        let path: Vec<u32> =
            (0..).zip(&choice).filter(|(_, chosen)| **chosen).map(|(point, _)| point).collect();
        let value = cost(points, &path);
        if filter.is_none_or(|best| value <= best) {
            let count_fits = count.is_none_or(|count| path.len() == count as usize);
            if count_fits && allowed(points, interval, &path) {
                filter = Some(value);
            }
        }
        // The next 0-1 vector.
        match choice.iter().position(|chosen| !chosen) {
            Some(first) => {
                choice[..first].fill(false);
                choice[first] = true;
            }
            None => return filter,
        }
    }
}

/// Layer by layer, one for each count: O(n M) with a plain look at every edge. `f(0)`, `f(1)`, …
pub fn cost_of_each_count(points: &Points, interval: u64) -> Vec<Option<u128>> {
    let len = points.at.len();
    let reaches_end = |at: u64| points.end - at <= interval;
    let mut layer: Vec<Option<u128>> =
        (0..len).map(|point| (points.at[point] <= interval).then_some(points.cost[point])).collect();
    let mut costs = vec![reaches_end(0).then_some(0)];
    for _ in 0..len {
        let ends = (0..len).filter(|point| reaches_end(points.at[*point]));
        costs.push(ends.filter_map(|point| layer[point]).min());
        let way = |point: usize| {
            let from = (0..point).filter(|from| points.at[point] - points.at[*from] <= interval);
            from.filter_map(|from| layer[from]).min().map(|way| way + points.cost[point])
        };
        layer = (0..len).map(way).collect();
    }
    costs
}

/// The paper's two bandwidths, of a machine of today.
pub fn bandwidth_rates() -> plan::cost::Rates {
    let bandwidth = |bytes| plan::units::Bandwidth::per_second(bytes).unwrap();
    plan::cost::Rates::of_bandwidths(bandwidth(2_000_000_000), bandwidth(25_000_000_000)).unwrap()
}

/// Both models with failures every so many seconds, half the MTBF as interval, nothing else asked for.
pub fn wishes(gpu: f64, cpu: f64) -> plan::model::Wishes {
    let mtbf = |seconds| plan::units::Mtbf::of_seconds(seconds).unwrap();
    plan::model::Wishes {
        model: plan::model::Model::Sync,
        mtbf: plan::model::Mtbfs { gpu: mtbf(gpu), cpu: mtbf(cpu) },
        interval: None,
        count: None,
        cpu_count: None,
        offset: None,
        rates: bandwidth_rates(),
        objective: plan::model::Wanted::Cost,
    }
}
