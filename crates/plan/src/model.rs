//! The paper's two models, from a profile to a plan.

use crate::cost::{Rates, Sizes, check_sum};
use crate::path::{Gap, NoPath, Points};
use crate::planfile::{Checkpoint, Objective, Part, PartPlan, Plan};
use crate::profile::Profile;
use crate::units::{Mtbf, Nanos};
use crate::{Error, expected, follow, incremental, offset, path};
use serde::{Deserialize, Serialize};

/// Which of the paper's models.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// (2-3): processor and device together, at kernel boundaries.
    #[default]
    Sync,
    /// (2-4): each at its own times; what the processor does while it were idle anyway costs nothing.
    Async,
}

/// How often a checkpoint must be, if the rule of half the MTBF is not wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mtbfs {
    /// Of the device.
    pub gpu: Mtbf,
    /// Of the processor.
    pub cpu: Mtbf,
}

/// What a plan is asked to do.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// Which model.
    pub model: Model,
    /// How often parts fail.
    pub mtbf: Mtbfs,
    /// The interval, instead of half the MTBF.
    pub interval: Option<Nanos>,
    /// Exactly so many checkpoints: of the job, or of the device.
    pub count: Option<u32>,
    /// Exactly so many checkpoints of the processor.
    pub cpu_count: Option<u32>,
    /// How far a checkpoint may move from its ideal time.
    pub offset: Option<Nanos>,
    /// What checkpoints cost.
    pub rates: Rates,
    /// What is to be least.
    pub objective: Wanted,
}

/// What is to be least.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// The checkpoints' costs, as in the paper.
    Cost,
    /// The same, where a checkpoint writes what has changed since the one before.
    IncrementalCost,
    /// The expected time of the whole run.
    RunTime(expected::Failures),
}

impl Part {
    /// The parts of a model.
    #[must_use]
    pub fn of(model: Model) -> &'static [Self] {
        match model {
            Model::Sync => &[Self::Job],
            Model::Async => &[Self::Device, Self::Cpu],
        }
    }

    /// The mean time between failures that bring this part back to its checkpoint.
    #[must_use]
    pub fn mtbf(self, mtbf: Mtbfs) -> Mtbf {
        match self {
            Self::Job => mtbf.cpu.in_series(mtbf.gpu),
            Self::Device => mtbf.gpu,
            Self::Cpu => mtbf.cpu,
        }
    }

    /// T_CG, T_G or T_C.
    ///
    /// # Errors
    /// [`Error::Interval`] for one that is not below the MTBF, or zero.
    pub fn interval(self, mtbf: Mtbfs, given: Option<Nanos>) -> Result<Nanos, Error> {
        let whole = self.mtbf(mtbf).nanos();
        let half = match self {
            Self::Job => mtbf.cpu.half_in_series(mtbf.gpu),
            Self::Device => mtbf.gpu.half(),
            Self::Cpu => mtbf.cpu.half(),
        };
        let interval = given.unwrap_or(half);
        if interval.0 == 0 || interval >= whole {
            return Err(Error::Interval { interval, mtbf: whole });
        }
        Ok(interval)
    }

    /// Where this part can be checkpointed, and at what cost.
    ///
    /// # Errors
    /// [`Error::Overflow`].
    pub fn points(self, profile: &Profile, rates: &Rates) -> Result<Points, Error> {
        let len = self.len(profile);
        let mut points =
            Points { at: Vec::with_capacity(len), cost: Vec::with_capacity(len), end: profile.end().0 };
        let mut failed = None;
        self.each(profile, |at, sizes, idle| {
            points.at.push(at);
            let cost = rates.cost(sizes).unwrap_or_else(|error| {
                failed.get_or_insert(error);
                0
            });
            points.cost.push(if self == Self::Cpu { rates.beyond(cost, idle) } else { cost });
        });
        failed.map_or(Ok(()), Err)?;
        check_sum(&points.cost)?;
        Ok(points)
    }

    fn len(self, profile: &Profile) -> usize {
        let len = if self == Self::Cpu { profile.cpu().len() } else { profile.device().len() };
        usize::try_from(len).unwrap_or(0)
    }

    /// Each place where this part can be checkpointed: its time, sizes, and how long the processor is idle there.
    pub(crate) fn each(self, profile: &Profile, mut see: impl FnMut(u64, Sizes, Nanos)) {
        match self {
            Self::Job => profile.each_boundary(|at, boundary, cpu| {
                see(at, Sizes { cpu, gpu: boundary.live }, boundary.idle);
            }),
            Self::Device => {
                profile.device().each(|at, step| see(at, Sizes { cpu: 0, gpu: step.live }, step.idle));
            }
            Self::Cpu => profile.cpu().each(|at, step| see(at, Sizes { cpu: step.bytes, gpu: 0 }, step.idle)),
        }
    }

    /// A gap in which this part cannot be checkpointed, in words.
    fn too_long(self, profile: &Profile, gap: Gap, interval: Nanos) -> Error {
        let what = match (self, gap.before.checked_sub(1)) {
            (Self::Cpu, Some(number)) => format!("CPU interval {number} lasts"),
            (_, Some(number)) => {
                let (mut count, mut kernel) = (0, 0);
                profile.device().each(|_, step| {
                    kernel = if count == number { step.kernel } else { kernel };
                    count += 1;
                });
                let name = profile.kernels().get(kernel as usize).map_or("", String::as_str);
                format!("kernel {number} ({name:?}) runs")
            }
            (Self::Cpu, None) => "the program runs without a CPU interval".to_owned(),
            (_, None) => "the program runs before its first kernel".to_owned(),
        };
        let (from, to) = (Nanos(gap.from), Nanos(gap.to));
        Error::TooLong { what, from, to, interval, lasts: Nanos(gap.to - gap.from) }
    }
}

/// Makes the plan.
///
/// # Errors
/// Whatever is wrong with the wishes, or cannot be had with this profile.
pub fn plan(profile: &Profile, wishes: &Wishes) -> Result<Plan, Error> {
    let parts = Part::of(wishes.model).iter().map(|part| plan_part(profile, wishes, *part));
    let objective = match wishes.objective {
        Wanted::Cost => Objective::Cost,
        Wanted::IncrementalCost => Objective::IncrementalCost,
        Wanted::RunTime(_) => Objective::RunTime,
    };
    Ok(Plan {
        model: wishes.model,
        objective,
        end_ns: profile.end(),
        parts: parts.collect::<Result<_, _>>()?,
    })
}

fn plan_part(profile: &Profile, wishes: &Wishes, part: Part) -> Result<PartPlan, Error> {
    let interval = part.interval(wishes.mtbf, wishes.interval)?;
    let points = part.points(profile, &wishes.rates)?;
    let count = if part == Part::Cpu { wishes.cpu_count } else { wishes.count };
    let costs_of = |chosen: &[u32]| chosen.iter().map(|point| points.cost[*point as usize]).collect();
    let in_words = |failed| explain(profile, part, failed, interval);
    let (chosen, costs): (Vec<u32>, Vec<u128>) = match wishes.objective {
        Wanted::Cost => {
            let chosen = choose(&points, interval, count, wishes.offset).map_err(in_words)?;
            let costs = costs_of(&chosen);
            (chosen, costs)
        }
        _ if count.is_some() || wishes.offset.is_some() => {
            let message = "a count and an offset go with the paper's objective only, not with incremental checkpoints or the least run time";
            return Err(Error::Together(message));
        }
        Wanted::IncrementalCost => {
            incremental::cheapest(profile, part, &wishes.rates, interval.0).map_err(in_words)?
        }
        Wanted::RunTime(failures) => {
            let seconds: Vec<f64> = points.cost.iter().map(|cost| wishes.rates.seconds(*cost)).collect();
            let law = failures.law(part.mtbf(wishes.mtbf));
            let chosen = expected::cheapest(&points.at, &seconds, points.end, &law);
            let costs = costs_of(&chosen);
            (chosen, costs)
        }
    };
    let bounded = !matches!(wishes.objective, Wanted::RunTime(_));
    Ok(describe(profile, &wishes.rates, part, bounded.then_some(interval), &chosen, &costs))
}

/// What went wrong, before it is in words.
pub(crate) enum Failed {
    Gap(Gap),
    Error(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

fn explain(profile: &Profile, part: Part, failed: Failed, interval: Nanos) -> Error {
    match failed {
        Failed::Gap(gap) => part.too_long(profile, gap, interval),
        Failed::Error(error) => error,
    }
}

fn choose(
    points: &Points,
    interval: Nanos,
    count: Option<u32>,
    offset: Option<Nanos>,
) -> Result<Vec<u32>, Failed> {
    if let Some(Nanos(offset)) = offset {
        let gap = points.longest_gap();
        if gap.to - gap.from > interval.0 {
            return Err(Failed::Gap(gap));
        }
        let count = count.map_or_else(|| offset::count(points, interval.0, offset), Ok)?;
        return Ok(offset::cheapest(points, interval.0, offset, count)?);
    }
    let Some(count) = count else { return path::cheapest(points, interval.0).map_err(Failed::Gap) };
    path::exactly(points, interval.0, count).map_err(|none| match none {
        NoPath::Gap(gap) => Failed::Gap(gap),
        NoPath::Bounds(bounds) => {
            Failed::Error(Error::Count { asked: count, least: bounds.least, most: bounds.most, interval })
        }
    })
}

/// Names of kernels, one after another, in 64 bits: what a boundary is recognised by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NamesHash(pub u64);

impl NamesHash {
    /// One name (FNV-1a).
    #[must_use]
    pub fn of_name(name: &str) -> u64 {
        name.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// With one more kernel.
    #[must_use]
    pub fn then(self, name: u64) -> Self {
        Self((self.0.rotate_left(5) ^ name).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Says what checkpoints are recognised by, and the boundaries a little before them.
fn mark(profile: &Profile, names: &[u64], checkpoints: &mut [Checkpoint]) {
    let mut ahead: Vec<Option<(u32, u64)>> = vec![None; checkpoints.len()];
    let (mut number, mut next) = (0, 0);
    profile.device().each(|at, _| {
        while checkpoints.get(next).is_some_and(|each| each.at_ns.0 < at.saturating_add(follow::AHEAD.0)) {
            next += 1;
        }
        if let Some(ahead) = ahead.get_mut(next) {
            *ahead = Some((number, at));
        }
        number += 1;
    });
    let mut after = None;
    for (ahead, checkpoint) in ahead.iter_mut().zip(checkpoints.iter()) {
        *ahead = ahead.filter(|(ahead, _)| after.is_none_or(|after| *ahead > after));
        after = Some(checkpoint.boundary);
    }
    let numbers =
        checkpoints.iter().map(|each| each.boundary).chain(ahead.iter().flatten().map(|(number, _)| *number));
    let numbers: Vec<u32> = numbers.collect();
    let marks =
        follow::marks(&numbers, |see| profile.device().each(|_, step| see(names[step.kernel as usize])));
    for (checkpoint, ahead) in checkpoints.iter_mut().zip(ahead) {
        checkpoint.mark = marks.get(&checkpoint.boundary).copied();
        checkpoint.ahead = ahead.and_then(|(number, _)| marks.get(&number).copied());
        checkpoint.ahead_ns = ahead.map(|(_, at)| Nanos(at));
    }
}

/// What the points chosen are.
fn describe(
    profile: &Profile,
    rates: &Rates,
    part: Part,
    interval: Option<Nanos>,
    chosen: &[u32],
    costs: &[u128],
) -> PartPlan {
    let mut checkpoints = Vec::with_capacity(chosen.len());
    let (mut number, mut last) = (0_u32, 0);
    part.each(profile, |at, sizes, _| {
        if chosen.get(checkpoints.len()) == Some(&number) {
            let latest =
                interval.map_or(profile.end().0, |interval| (last + interval.0).min(profile.end().0));
            checkpoints.push(Checkpoint {
                boundary: number,
                kernel: None,
                names_hash: None,
                mark: None,
                ahead: None,
                ahead_ns: None,
                at_ns: Nanos(at),
                latest_ns: Nanos(latest),
                cpu_bytes: sizes.cpu,
                gpu_bytes: sizes.gpu,
                cost_s: rates.seconds(costs[checkpoints.len()]),
            });
            last = at;
        }
        number += 1;
    });
    if part != Part::Cpu {
        let names: Vec<u64> = profile.kernels().iter().map(|name| NamesHash::of_name(name)).collect();
        let (mut hash, mut number, mut next) = (NamesHash::default(), 0, checkpoints.iter_mut().peekable());
        profile.device().each(|_, step| {
            if let Some(checkpoint) = next.next_if(|checkpoint| checkpoint.boundary == number) {
                checkpoint.kernel = profile.kernels().get(step.kernel as usize).cloned();
                checkpoint.names_hash = Some(format!("{:016x}", hash.0));
            }
            hash = hash.then(names[step.kernel as usize]);
            number += 1;
        });
        mark(profile, &names, &mut checkpoints);
    }
    let times = checkpoints.iter().map(|checkpoint| checkpoint.at_ns.0).chain([profile.end().0]);
    let gaps = times.scan(0, |last, at| Some(at - std::mem::replace(last, at)));
    PartPlan {
        part,
        interval_ns: interval,
        longest_gap_ns: Nanos(gaps.max().unwrap_or(0)),
        bytes: checkpoints
            .iter()
            .map(|each| each.cpu_bytes.saturating_add(each.gpu_bytes))
            .fold(0, u64::saturating_add),
        cost_s: rates.seconds(costs.iter().sum()),
        checkpoints,
    }
}
