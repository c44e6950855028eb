//! The least expected run time, when failures are exponential or Weibull.
//!
//! A segment of work `w` with a checkpoint of cost `c` at its end is tried until it succeeds: with `S` the law's survival function,
//! `F = 1 − S` and `x = w + c` it takes `E(x) = (∫₀ˣ S + F(x) R) / S(x)`, where `R` is what a restart takes until one succeeds. For the exponential law that is Daly's
//! `M e^(R/M) (e^(x/M) − 1)`. Ages count from the last checkpoint or restart: right for the exponential law, which has no memory; for
//! others, as if every checkpoint made the machine new.
//!
//! A plan is a path again, and an edge costs `E(t[j] − t[i] + c[j])`: of two nodes, not one. **Of what boundaries are worth looking at.** If a later boundary's
//! checkpoint is complete no later than an earlier one's (`t + c` not greater), the earlier one is never needed. Among the others
//! `t + c` ascends, and with a convex `E` (shape 1 or more) the weights are Monge: once a later predecessor is better than an earlier one, it stays
//! so, and a queue of predecessors with the node from which each is best finds all in `O(n log n)`. Below shape 1 `E` is not convex; then all pairs are looked
//! at, of the cheapest boundary in each of [`BUCKETS`] equal stretches where there are more: the one place where a plan is not exact.

use crate::Error;
use crate::units::{Mtbf, Nanos};
use std::collections::VecDeque;

/// Most boundaries of which all pairs are looked at.
pub const BUCKETS: usize = 2048;

/// How things fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failures {
    shape: f64,
    restart: Nanos,
}

impl Failures {
    /// Weibull with this shape; 1 is the exponential law. A restart takes so long when nothing fails meanwhile.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a shape outside 0.1 to 20.
    pub fn weibull(shape: f64, restart: Nanos) -> Result<Self, Error> {
        if !(0.1..=20.0).contains(&shape) {
            let must = "from 0.1 to 20; 1 is the exponential law";
            return Err(Error::Parameter { what: "the Weibull shape", value: shape.to_string(), must });
        }
        Ok(Self { shape, restart })
    }

    /// The law of a part that fails so often.
    #[must_use]
    pub fn law(&self, mtbf: Mtbf) -> Law {
        let mean = mtbf.nanos().seconds();
        let scale = mean / gamma(1.0 + 1.0 / self.shape);
        let mut law = Law { shape: self.shape, scale, restart: 0.0 };
        // A restart that fails is tried again.
        law.restart = law.segment(self.restart.seconds());
        law
    }

    /// What a restart takes when nothing fails meanwhile.
    #[must_use]
    pub fn restart(&self) -> Nanos {
        self.restart
    }
}

/// A law of failures; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Law {
    shape: f64,
    scale: f64,
    restart: f64,
}

impl Law {
    /// What a segment of this length is expected to take, failures included.
    #[must_use]
    pub fn segment(&self, length: f64) -> f64 {
        if length <= 0.0 {
            // Even where a restart never succeeds.
            return 0.0;
        }
        if self.shape == 1.0 {
            return (self.scale + self.restart) * (length / self.scale).exp_m1();
        }
        let power = (length / self.scale).powf(self.shape);
        if power > 700.0 {
            return f64::INFINITY;
        }
        // ∫₀ˣ S and F, both divided by S, without the difference of nearly equal numbers.
        let lived = self.scale / self.shape * lower_gamma_times_exp(1.0 / self.shape, power);
        lived + power.exp_m1() * self.restart
    }

    /// What a run with these checkpoints (when, and at what cost) is expected to take.
    #[must_use]
    pub fn run(&self, checkpoints: impl IntoIterator<Item = (f64, f64)>, end: f64) -> f64 {
        let ends = checkpoints.into_iter().chain([(end, 0.0)]);
        ends.scan(0.0, |last, (at, cost)| Some(self.segment(at - std::mem::replace(last, at) + cost))).sum()
    }

    /// The time from which one of two failures on is as likely as its mean: a draw, of a uniform number above 0 and up to 1.
    #[must_use]
    pub fn draw(&self, uniform: f64) -> f64 {
        self.scale * (-uniform.ln()).powf(1.0 / self.shape)
    }
}

/// Young's interval between checkpoints of this cost.
#[must_use]
pub fn young(cost: f64, mtbf: f64) -> f64 {
    (2.0 * cost * mtbf).sqrt()
}

/// Daly's, of higher order: without the checkpoint's own time.
#[must_use]
pub fn daly(cost: f64, mtbf: f64) -> f64 {
    if cost >= 2.0 * mtbf {
        return mtbf;
    }
    let ratio = cost / (2.0 * mtbf);
    young(cost, mtbf) * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost
}

/// The points with the least expected run time.
#[must_use]
pub fn cheapest(at: &[u64], cost: &[f64], end: u64, law: &Law) -> Vec<u32> {
    let end = Nanos(end).seconds();
    let mut nodes = worthwhile(at, cost, end);
    let convex = law.shape >= 1.0;
    if !convex && nodes.len() > BUCKETS {
        nodes = one_of_each_stretch(&nodes, end);
    }
    // The start is node 0, the end the last.
    let nodes: Vec<Node> = [Node { at: 0.0, done: 0.0, point: u32::MAX }]
        .into_iter()
        .chain(nodes)
        .chain([Node { at: end, done: end, point: u32::MAX }])
        .collect();
    let before = if convex { monge(&nodes, law) } else { every_pair(&nodes, law) };
    let mut path = Vec::new();
    let mut here = before[nodes.len() - 1];
    while here != 0 {
        path.push(nodes[here].point);
        here = before[here];
    }
    path.reverse();
    path
}

#[derive(Clone, Copy)]
struct Node {
    at: f64,
    /// When its checkpoint is complete, had none been before.
    done: f64,
    point: u32,
}

/// Those that no later one beats.
fn worthwhile(at: &[u64], cost: &[f64], end: f64) -> Vec<Node> {
    let mut least = end;
    let mut nodes: Vec<Node> = Vec::new();
    for (point, (at, cost)) in at.iter().zip(cost).enumerate().rev() {
        let (at, point) = (Nanos(*at).seconds(), point as u32);
        if at + cost < least {
            least = at + cost;
            nodes.push(Node { at, done: least, point });
        }
    }
    nodes.reverse();
    nodes
}

fn one_of_each_stretch(nodes: &[Node], end: f64) -> Vec<Node> {
    let stretch = |node: &Node| (node.at / end * BUCKETS as f64) as usize;
    let groups = nodes.chunk_by(|a, b| stretch(a) == stretch(b));
    groups
        .filter_map(|group| group.iter().min_by(|a, b| (a.done - a.at).total_cmp(&(b.done - b.at))).copied())
        .collect()
}

/// The node before each.
fn monge(nodes: &[Node], law: &Law) -> Vec<usize> {
    let mut ways = vec![0.0; nodes.len()];
    let mut before = vec![0; nodes.len()];
    // Predecessors, and the node from which each is the best.
    let mut queue: VecDeque<(usize, usize)> = VecDeque::from([(0, 1)]);
    for here in 1..nodes.len() {
        while queue.get(1).is_some_and(|(_, first)| *first <= here) {
            queue.pop_front();
        }
        let from = queue.front().map_or(0, |(from, _)| *from);
        before[here] = from;
        ways[here] = ways[from] + law.segment(nodes[here].done - nodes[from].at);
        let way = |from: usize, to: usize| ways[from] + law.segment(nodes[to].done - nodes[from].at);
        let better = |from: usize, to: usize| way(here, to) <= way(from, to);
        while queue.back().is_some_and(|(from, first)| *first > here && better(*from, *first)) {
            queue.pop_back();
        }
        let Some((from, first)) = queue.back().copied() else {
            queue.push_back((here, here + 1));
            continue;
        };
        let (mut low, mut high) = (first.max(here) + 1, nodes.len());
        while low < high {
            let middle = low.midpoint(high);
            if better(from, middle) { high = middle } else { low = middle + 1 }
        }
        if low < nodes.len() {
            queue.push_back((here, low));
        }
    }
    before
}

fn every_pair(nodes: &[Node], law: &Law) -> Vec<usize> {
    let mut ways = vec![0.0; nodes.len()];
    let mut before = vec![0; nodes.len()];
    for here in 1..nodes.len() {
        let way = |from: usize| ways[from] + law.segment(nodes[here].done - nodes[from].at);
        let best = (0..here).map(|from| (way(from), from)).min_by(|a, b| a.0.total_cmp(&b.0));
        (ways[here], before[here]) = best.unwrap_or((0.0, 0));
    }
    before
}

/// Lanczos' approximation, to 15 digits for what is asked here (1.05 to 11).
fn gamma(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let series =
        (1..).zip(COEFFICIENTS).fold(0.999_999_999_999_809_9, |sum, (i, c)| sum + c / (x + f64::from(i)));
    let base = x + 7.5;
    (2.0 * std::f64::consts::PI).sqrt() * base.powf(x + 0.5) * (-base).exp() * series
}

/// `γ(a, z) eᶻ`, by its series, whose terms are all positive.
fn lower_gamma_times_exp(a: f64, z: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
    while term > sum * 1e-16 && sum.is_finite() {
        n += 1.0;
        term *= z / n;
        sum += term;
    }
    z.powf(a) * sum
}
