//! Model (2-3), and each half of (2-4), as a shortest path.
//!
//! The nodes are the program's start, its boundaries in order, and its end. There is an edge from each node to every later one
//! that is at most the interval away, and it costs what a checkpoint at its end costs; one at the program's end costs nothing.
//! A plan is a path from start to end: condition (3) of the models is what edges there are, condition (4) is what a path is.
//!
//! An edge's cost depends on its end alone, so the cheapest way to a node is its cost and the least of a window that only
//! moves on: all nodes in linear time ([`cheapest`]).
//!
//! # Exactly M
//!
//! Let `f(m)` be the least cost of a path with `m` checkpoints. **`f` is convex.** Take paths `P` with `a` edges and `Q` with `b > a` edges, and any `y` with
//! `0 < y < b − a`. At the start `P[0] ≤ Q[y]`; at the end `P[a] > Q[a + y]`, since `Q` is not yet at the end there. So there is an
//! `r` with `P[r] ≤ Q[r + y]` and `Q[r + y + 1] < P[r + 1]`: an edge of `Q` within an edge of `P`. Change from `P` to `Q` there, and from
//! `Q` to `P`: the two new edges lie within that edge of `P`, so they are short enough, and the two new paths go through the same nodes as the old
//! ones, so they cost the same together. They have `b − y` and `a + y` edges. With `a + y = m` between two counts `m − 1`, `m + 1`: `2 f(m) ≤ f(m − 1) + f(m + 1)`.
//!
//! (It is the Monge property of the weights, for which Aggarwal, Schieber and Tokuyama have shown the same.) So a price for each checkpoint, which may be
//! negative, leads to every count: `f` is whole-numbered, so whole prices suffice, and where several counts cost the same at the right price, the change-over of the proof makes
//! a path with the count wanted out of the one with the fewest and the one with the most ([`exactly`]). Each price is one linear sweep, and their number is that of the
//! digits of a cost at worst.

use crate::window::SlidingMin;

/// Where checkpoints can be, and what each costs. Times ascend; the program starts at 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Points {
    /// When.
    pub at: Vec<u64>,
    /// At what cost, in the unit of the [`Rates`](crate::cost::Rates).
    pub cost: Vec<u128>,
    /// When the program ends.
    pub end: u64,
}

/// Two nodes with nothing between them, further apart than the interval. Counted from the start of the program, which is node 0: gap `i` is before boundary `i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The number of the boundary, or of boundaries, after it.
    pub before: usize,
    /// Where it begins.
    pub from: u64,
    /// Where it ends.
    pub to: u64,
}

/// Why no path has so many checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The fewest.
    pub least: u32,
    /// The most.
    pub most: u32,
}

/// The start has no index among the points.
const START: u32 = u32::MAX;

impl Points {
    /// The longest gap between neighbours.
    #[must_use]
    pub fn longest_gap(&self) -> Gap {
        let mut longest = Gap { before: 0, from: 0, to: 0 };
        let mut from = 0;
        for (before, to) in self.at.iter().copied().chain([self.end]).enumerate() {
            if to - from > longest.to - longest.from {
                longest = Gap { before, from, to };
            }
            from = to;
        }
        longest
    }

    /// The fewest checkpoints that leave no gap above the interval; every gap between neighbours must be within it.
    #[must_use]
    pub fn fewest(&self, interval: u64) -> u32 {
        let (mut count, mut last, mut here) = (0, 0, 0);
        for at in self.at.iter().copied().chain([self.end]) {
            if at - last > interval {
                count += 1;
                last = here;
            }
            here = at;
        }
        count
    }
}

/// What wins among paths of the same cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Prefer {
    Fewest,
    Most,
}

/// The cheapest path when each checkpoint costs `price` more, and the shortest or longest of them.
struct Sweep {
    /// With the price.
    cost: i128,
    count: u32,
    /// The node before each point, and before the end.
    before: Vec<u32>,
}

impl Sweep {
    fn new() -> Self {
        Self { cost: 0, count: 0, before: Vec::new() }
    }

    /// Every gap between neighbours must be within the interval.
    fn run(&mut self, points: &Points, interval: u64, price: i128, prefer: Prefer) {
        let step = if prefer == Prefer::Fewest { 1_i64 } else { -1 };
        let mut window = SlidingMin::new();
        window.push(0, (0_i128, 0_i64), START);
        self.before.clear();
        self.before.reserve_exact(points.at.len() + 1);
        for (index, (&at, &cost)) in (0_u32..).zip(points.at.iter().zip(&points.cost)) {
            let ((way, steps), from) = window.least(at.saturating_sub(interval)).unwrap_or(((0, 0), START));
            self.before.push(from);
            window.push(at, (way + cost as i128 + price, steps + step), index);
        }
        let ((way, steps), from) =
            window.least(points.end.saturating_sub(interval)).unwrap_or(((0, 0), START));
        self.before.push(from);
        (self.cost, self.count) = (way, steps.unsigned_abs() as u32);
    }

    /// The path's points, in order.
    fn path(&self) -> Vec<u32> {
        let mut path = Vec::with_capacity(self.count as usize);
        let mut here = self.before.last().copied().unwrap_or(START);
        while here != START {
            path.push(here);
            here = self.before[here as usize];
        }
        path.reverse();
        path
    }
}

/// The cheapest points that leave no gap above the interval; of several such choices the one with the fewest.
///
/// # Errors
/// The longest gap between neighbours, when that is above the interval.
pub fn cheapest(points: &Points, interval: u64) -> Result<Vec<u32>, Gap> {
    within(points, interval)?;
    let mut sweep = Sweep::new();
    sweep.run(points, interval, 0, Prefer::Fewest);
    Ok(sweep.path())
}

fn within(points: &Points, interval: u64) -> Result<(), Gap> {
    let gap = points.longest_gap();
    if gap.to - gap.from > interval { Err(gap) } else { Ok(()) }
}

/// Why there is no path with a given number of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPath {
    /// None of any number.
    Gap(Gap),
    /// None of this number.
    Bounds(Bounds),
}

/// The cheapest `count` points that leave no gap above the interval.
///
/// # Errors
/// The longest gap, or the counts that there can be.
pub fn exactly(points: &Points, interval: u64, count: u32) -> Result<Vec<u32>, NoPath> {
    Ok(priced(points, interval, count)?.0)
}

/// Such a path and the price at which no path is cheaper.
fn priced(points: &Points, interval: u64, count: u32) -> Result<(Vec<u32>, i128), NoPath> {
    within(points, interval).map_err(NoPath::Gap)?;
    let least = points.fewest(interval);
    let most = points.at.len() as u32;
    if !(least..=most).contains(&count) {
        return Err(NoPath::Bounds(Bounds { least, most }));
    }
    let mut sweep = Sweep::new();
    let price = price_of(points, interval, count, &mut sweep);
    sweep.run(points, interval, price, Prefer::Fewest);
    let fewest = sweep.path();
    if fewest.len() == count as usize {
        return Ok((fewest, price));
    }
    sweep.run(points, interval, price, Prefer::Most);
    let most = sweep.path();
    drop(sweep);
    Ok((change_over(&fewest, &most, count as usize), price))
}

/// A price at which the shortest of the cheapest paths has at most `count` checkpoints and the longest at least as many.
fn price_of(points: &Points, interval: u64, count: u32, sweep: &mut Sweep) -> i128 {
    #[derive(Clone, Copy)]
    struct Side {
        price: i128,
        count: u32,
        cost: i128,
    }
    let total: i128 = points.cost.iter().map(|cost| *cost as i128).sum();
    // At a price above all costs together every checkpoint is one too many; below the opposite, every one is welcome.
    let (dear, welcome) = (total + 1, -total - 1);
    let most = points.at.len() as u32;
    if count == most {
        return welcome;
    }
    let mut at = |price: i128| {
        sweep.run(points, interval, price, Prefer::Fewest);
        Side { price, count: sweep.count, cost: sweep.cost - price * i128::from(sweep.count) }
    };
    let free = at(0);
    let (mut low, mut high) = (Side { price: welcome, count: most, cost: total }, free);
    // A price is most often about as high as a cost: farther and farther from 0, until it is on the other side.
    let mut step = points.cost.iter().max().map_or(1, |cost| *cost as i128 / 64 + 1);
    while high.count > count {
        low = high;
        high = at(step.min(dear));
        step = step.saturating_mul(8);
    }
    while high.count < count && low.price == welcome && -step > welcome {
        let side = at(-step);
        if side.count > count {
            low = side;
        } else {
            high = side;
        }
        step = step.saturating_mul(8);
    }
    let mut turn = 0;
    while high.count != count && high.price - low.price > 1 {
        // In turn: as if counts changed evenly with prices; the price at which both sides cost the same, which leads to the next corner between
        // them; and the middle, whatever the costs.
        let width = high.price - low.price;
        let between = i128::from(low.count - high.count);
        let price = match turn % 3 {
            0 => low.price + (width / between).saturating_mul(i128::from(low.count - count)),
            1 => (high.cost - low.cost).div_euclid(between),
            _ => low.price + width / 2,
        };
        turn += 1;
        let side = at(price.clamp(low.price + 1, high.price - 1));
        if side.count <= count { high = side } else { low = side }
    }
    high.price
}

/// A path of `count` points out of the beginning of `short` and the end of `long`, both cheapest at the same price: the proof above.
fn change_over(short: &[u32], long: &[u32], count: usize) -> Vec<u32> {
    if long.len() == count {
        return long.to_vec();
    }
    // Nodes with the start as 0: `P[r]`, `Q[s]`.
    let node = |path: &[u32], index: usize| match index.checked_sub(1) {
        None => 0,
        Some(index) => path.get(index).map_or(u64::MAX, |point| u64::from(*point) + 1),
    };
    let skip = long.len() - count;
    let last =
        (0..=short.len()).find(|r| node(short, r + 1) > node(long, r + 1 + skip)).unwrap_or(short.len());
    [&short[..last], &long[last + skip..]].concat()
}

/// Potentials of all nodes, and a price: proof that no path is cheaper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// What any way to each point costs at least, the prices included; of the end last.
    pub potentials: Vec<i128>,
    /// Of each checkpoint.
    pub price: i128,
}

impl Certificate {
    /// For the cheapest path, or the cheapest with a count.
    ///
    /// # Errors
    /// As [`exactly`].
    pub fn of(points: &Points, interval: u64, count: Option<u32>) -> Result<Self, NoPath> {
        within(points, interval).map_err(NoPath::Gap)?;
        let price = count.map_or(Ok(0), |count| priced(points, interval, count).map(|(_, price)| price))?;
        let mut potentials = Vec::with_capacity(points.at.len() + 1);
        let mut window = SlidingMin::new();
        window.push(0, 0_i128, ());
        let ends = points.at.iter().zip(points.cost.iter().map(|cost| *cost as i128 + price));
        for (&at, cost) in ends.chain([(&points.end, 0)]) {
            let way = window.least(at.saturating_sub(interval)).map_or(0, |(way, ())| way) + cost;
            potentials.push(way);
            window.push(at, way, ());
        }
        Ok(Self { potentials, price })
    }

    /// Whether it proves that no choice, or none of the same count if the price is not 0, is cheaper than this one. Looks at every edge.
    #[must_use]
    pub fn proves(&self, points: &Points, interval: u64, path: &[u32]) -> bool {
        let ends = points.at.len();
        let (Some(&bound), true) = (self.potentials.last(), self.potentials.len() == ends + 1) else {
            return false;
        };
        let cost = |end: usize| if end == ends { 0 } else { points.cost[end] as i128 + self.price };
        let at = |end: usize| if end == ends { points.end } else { points.at[end] };
        // No edge is a short cut: so the end's potential is at most what any path costs.
        let no_short_cut = (0..=ends).all(|end| {
            (at(end) > interval || self.potentials[end] <= cost(end))
                && (0..end)
                    .rev()
                    .take_while(|from| at(end) - at(*from) <= interval)
                    .all(|from| self.potentials[end] - self.potentials[from] <= cost(end))
        });
        no_short_cut && bound == path.iter().map(|point| cost(*point as usize)).sum::<i128>()
    }
}
