//! What a plan is worth: failures, drawn from a seed, over a profile.
//!
//! Work goes on from 0 to the profile's end and stops for what each checkpoint costs. Device and processor fail each in its own time. In the synchronous model any
//! failure brings the job back to its last complete checkpoint; in the asynchronous one, to that of the part that failed, as the paper has it. A restart takes
//! a time of its own, in which things may fail, too.

use crate::Error;
use crate::cost::Rates;
use crate::expected::{Failures, Law, daly};
use crate::model::{Model, Mtbfs, Wanted, Wishes, plan};
use crate::path::Points;
use crate::planfile::{Part, PartPlan, Plan};
use crate::profile::Profile;
use serde::Serialize;

/// So many times the profile's length: who is not done by then is given up.
const PATIENCE: f64 = 100.0;

/// How many ways of placing checkpoints are compared.
pub const WAYS: u32 = 7;

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// How often device and processor fail.
    pub mtbf: Mtbfs,
    /// By which law, and how long a restart takes.
    pub failures: Failures,
    /// Runs of each way.
    pub runs: u32,
    /// Where the draws begin.
    pub seed: u64,
}

/// How one way of placing checkpoints did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// `none`, `equidistant`, `daly`, `sync`, `async`, `sync-run-time`, `async-run-time`.
    pub way: &'static str,
    /// Checkpoints of a run without failures.
    pub checkpoints: usize,
    /// A run without failures, in seconds.
    pub undisturbed_s: f64,
    /// Mean of the runs that were done in time, in seconds.
    pub mean_s: Option<f64>,
    /// Its standard error.
    pub error_s: Option<f64>,
    /// Runs that were not done in a hundred times the program's time.
    pub given_up: u32,
}

/// Checkpoints of one part, in order: when, and at what cost, in seconds.
type Line = Vec<(f64, f64)>;

/// Runs them all: without checkpoints, as many equidistant ones as the synchronous plan has, Daly's interval, both models' plans as wished, and those
/// of the least expected run time: [`WAYS`] in all, and `ran` is told of each run.
///
/// # Errors
/// As [`plan`].
pub fn compare(
    profile: &Profile,
    wishes: &Wishes,
    setting: &Setting,
    ran: &mut dyn FnMut(),
) -> Result<Vec<Outcome>, Error> {
    let points = Part::Job.points(profile, &wishes.rates)?;
    let soonest = Wishes {
        objective: Wanted::RunTime(setting.failures),
        count: None,
        cpu_count: None,
        offset: None,
        ..wishes.clone()
    };
    let planned =
        |wishes: &Wishes, model| plan(profile, &Wishes { model, ..wishes.clone() }).map(|plan| lines(&plan));
    let together = planned(wishes, Model::Sync)?;
    let count = together.iter().map(Vec::len).sum::<usize>();
    let mean_cost = points.cost.iter().map(|cost| wishes.rates.seconds(*cost)).sum::<f64>()
        / points.cost.len().max(1) as f64;
    let mtbf = Part::Job.mtbf(wishes.mtbf).nanos().seconds();
    let every = daly(mean_cost, mtbf).max(1e-9);
    let ways: [(&'static str, Vec<Line>); WAYS as usize] = [
        ("none", vec![Vec::new()]),
        ("equidistant", vec![equidistant(&points, &wishes.rates, count)]),
        ("daly", vec![equidistant(&points, &wishes.rates, (profile.end().seconds() / every) as usize)]),
        ("sync", together),
        ("async", planned(wishes, Model::Async)?),
        ("sync-run-time", planned(&soonest, Model::Sync)?),
        ("async-run-time", planned(&soonest, Model::Async)?),
    ];
    let end = profile.end().seconds();
    Ok(ways.iter().map(|(way, lines)| outcome(way, lines, end, setting, ran)).collect())
}

/// What each part of a plan does, and when.
fn lines(plan: &Plan) -> Vec<Line> {
    let line =
        |part: &PartPlan| part.checkpoints.iter().map(|each| (each.at_ns.seconds(), each.cost_s)).collect();
    plan.parts.iter().map(line).collect()
}

/// At the first boundary after each ideal time.
fn equidistant(points: &Points, rates: &Rates, count: usize) -> Line {
    let count = count.min(points.at.len());
    let ideal = |number: usize| (number as u128 * u128::from(points.end) / (count as u128 + 1)) as u64;
    let mut chosen: Vec<usize> =
        (1..=count).map(|number| points.at.partition_point(|at| *at < ideal(number))).collect();
    chosen.dedup();
    let there = chosen.into_iter().filter(|point| *point < points.at.len());
    there.map(|point| (points.at[point] as f64 / 1e9, rates.seconds(points.cost[point]))).collect()
}

fn outcome(way: &'static str, lines: &[Line], end: f64, setting: &Setting, ran: &mut dyn FnMut()) -> Outcome {
    let laws = [setting.mtbf.gpu, setting.mtbf.cpu].map(|mtbf| setting.failures.law(mtbf));
    let times: Vec<Option<f64>> = (0..u64::from(setting.runs))
        .map(|run| {
            let seed = setting.seed.wrapping_add(run << 32);
            let time = run_once(lines, end, &laws, setting.failures.restart().seconds(), seed);
            ran();
            time
        })
        .collect();
    let done: Vec<f64> = times.iter().flatten().copied().collect();
    let n = done.len() as f64;
    let mean = (!done.is_empty()).then(|| done.iter().sum::<f64>() / n);
    let spread =
        mean.map(|mean| done.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0));
    Outcome {
        way,
        checkpoints: lines.iter().map(Vec::len).sum(),
        undisturbed_s: end + lines.iter().flatten().map(|(_, cost)| cost).sum::<f64>(),
        mean_s: mean,
        error_s: spread.map(|spread| (spread / n).sqrt()),
        given_up: times.iter().filter(|time| time.is_none()).count() as u32,
    }
}

/// The time of one run. Lines are of the job, or of device and processor; laws of device and processor.
fn run_once(lines: &[Line], end: f64, laws: &[Law; 2], restart: f64, seed: u64) -> Option<f64> {
    let mut random = Random(seed);
    let mut fails = laws.map(|law| law.draw(random.uniform()));
    let (mut now, mut work) = (0.0, 0.0);
    while work < end {
        // The nearest checkpoint that is ahead, and what it and others at the same place cost.
        let ahead = lines.iter().filter_map(|line| line.get(line.partition_point(|(at, _)| *at <= work)));
        let next = ahead.clone().map(|(at, _)| *at).fold(end, f64::min);
        let cost: f64 = ahead.filter(|(at, _)| *at == next).map(|(_, cost)| cost).sum();
        let mut done = now + next - work + cost;
        let part = usize::from(fails[1] < fails[0]);
        if done <= fails[part] {
            (now, work) = (done, next);
            continue;
        }
        let line = &lines[part.min(lines.len() - 1)];
        let saved = line[..line.partition_point(|(at, _)| *at <= work)].last();
        work = saved.map_or(0.0, |(at, _)| *at);
        let mut failed = part;
        loop {
            now = fails[failed];
            fails[failed] = now + laws[failed].draw(random.uniform());
            done = now + restart;
            failed = usize::from(fails[1] < fails[0]);
            // Restarts may never succeed.
            if done > PATIENCE * end {
                return None;
            }
            if fails[failed] >= done {
                break;
            }
        }
        now = done;
    }
    Some(now)
}

/// Sebastiano Vigna's SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    /// Above 0, up to 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 + 1.0 / (1_u64 << 54) as f64
    }
}
