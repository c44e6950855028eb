//! Flags about when a program is checkpointed: by itself, and by a plan.

use super::values::{seconds, size, writing_memory};
use super::{Compress, Json};
use checkpoint::When;
use checkpoint::admin::CheckpointOptions;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Checkpoints that nobody asks for.
#[derive(Args, Debug, Default)]
#[command(group = ArgGroup::new("when").args(["every", "plan", "mtbf_gpu"]).multiple(true))]
pub struct Regularly {
    /// Take a checkpoint each time so long has passed, such as `10m` or `1h30m`, and let the job run on; one that fails is
    /// warned of
    #[arg(long, value_name = "TIME", value_parser = period, conflicts_with_all = ["plan", "mtbf_gpu"])]
    pub every: Option<Duration>,
    /// Take checkpoints where a plan of `dormouse plan` says, recognised by the kernels that the program launches; one that is not there
    /// after twice the plan's longest interval is taken anyway. At a restart with the same plan it goes on where the image was taken
    #[arg(long, value_name = "FILE", conflicts_with = "mtbf_gpu")]
    pub plan: Option<PathBuf>,
    /// Without a plan: mean time between failures of the device, such as `40h`. Checkpoints are half the mean time between failures of device and processor
    /// together apart, each where little device memory is allocated
    #[arg(long, value_name = "TIME", value_parser = mtbf, requires = "mtbf_cpu")]
    pub mtbf_gpu: Option<plan::units::Mtbf>,
    /// The same of the processor
    #[arg(long, value_name = "TIME", value_parser = mtbf, requires = "mtbf_gpu")]
    pub mtbf_cpu: Option<plan::units::Mtbf>,
    /// With --mtbf-gpu: each checkpoint may be so much early or late for a boundary with less memory [default: an eighth of the interval]
    #[arg(long, value_name = "TIME", value_parser = nanos, requires = "mtbf_gpu")]
    pub offset: Option<plan::units::Nanos>,
    /// With --every, --plan or --mtbf-gpu: after each of these checkpoints remove all of the job's that came about so but the N newest; what `dormouse
    /// checkpoint` has taken stays
    #[arg(long, value_name = "N", requires = "when", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_last: Option<u32>,
    /// How those checkpoints are compressed, as with `dormouse checkpoint`
    #[arg(long, value_enum, default_value_t, requires = "when")]
    pub compress: Compress,
    /// Most memory that writing one of them takes, as with `dormouse checkpoint`
    #[arg(long, value_name = "SIZE", requires = "when", value_parser = writing_memory)]
    pub memory_limit: Option<u64>,
    /// Most threads that hash and compress for one of them, as with `dormouse checkpoint`
    #[arg(long, value_name = "N", requires = "when")]
    pub threads: Option<NonZeroUsize>,
    /// For each of them read all device memory, as with `dormouse checkpoint`
    #[arg(long, requires = "when")]
    pub paranoid: bool,
    /// Where the program comes to points that suit it (`dormouse.h`): how long a checkpoint waits for one before it is taken anyway, in seconds; also one
    /// of `dormouse checkpoint`, if that is not told otherwise. Not with --plan and --mtbf-gpu, which have points of their own
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub point_wait: f64,
}

/// `--profile`
#[derive(Args, Debug)]
pub struct Record {
    /// Write a profile of the program for `dormouse plan`, when it has ended. That of the job's Nth process that uses CUDA is FILE.N, from the second on. If Dormouse's
    /// GPU server is killed there is none
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

impl Regularly {
    /// How long a checkpoint waits for a point that suits the program.
    pub fn point_wait(&self) -> Duration {
        Duration::from_secs_f64(self.point_wait)
    }

    /// What the supervisor is to do.
    ///
    /// # Errors
    /// When a plan cannot be read, or not be acted on; when times make no sense.
    pub fn wanted(&self) -> Result<Option<checkpoint::Regularly>, checkpoint::Failure> {
        let when = match (self.every, &self.plan, self.mtbf_gpu.zip(self.mtbf_cpu)) {
            (Some(every), ..) => When::Every(every),
            (None, Some(plan), _) => When::plan(plan)?,
            (None, None, Some((gpu, cpu))) => {
                let every = gpu.half_in_series(cpu);
                let offset = self.offset.map_or(every.0 / 8, |offset| offset.0);
                let [every, offset] = [every.0, offset].map(Duration::from_nanos);
                if every < Duration::from_secs(1) || offset > every {
                    let problem = if offset > every {
                        "--offset is longer than the time from one to the next: say less"
                    } else {
                        "more often than each second: say longer times between failures"
                    };
                    let message =
                        format!("checkpoints each {every:?}, half the mean time between failures: {problem}");
                    return Err(checkpoint::Failure::new(checkpoint::Kind::Usage, message));
                }
                When::Online { every, offset }
            }
            (None, None, None) => return Ok(None),
        };
        let options = CheckpointOptions {
            compress: self.compress.into(),
            memory: self.memory_limit,
            threads: self.threads,
            paranoid: self.paranoid,
            ..CheckpointOptions::default()
        };
        Ok(Some(checkpoint::Regularly { when, keep_last: self.keep_last, options }))
    }
}

/// `dormouse profile`
#[derive(Args, Debug)]
pub struct Profile {
    /// What to do
    #[command(subcommand)]
    pub command: ProfileCommand,
}

/// `dormouse profile …`
#[derive(Subcommand, Debug)]
pub enum ProfileCommand {
    /// Say what a profile holds
    Show(ProfileShow),
}

/// `dormouse profile show`
#[derive(Args, Debug)]
pub struct ProfileShow {
    /// The profile
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse plan`
#[derive(Args, Debug)]
#[command(
    after_help = "Checkpoints are put at kernel boundaries where little device memory is live, as close to each other as failures ask for: half the mean time between failures of processor and device together, or of each with --model async. Times are such as 90s or 1h30m, bandwidths such as 2G for 2 GiB a second.\n\nExample:  dormouse plan train.profile --mtbf-gpu 40h --mtbf-cpu 100h --chart plan.html -o train.plan"
)]
#[command(group = ArgGroup::new("drawn").args(["simulate", "least"]).multiple(true))]
pub struct Plan {
    /// The profile of a run of the program
    #[arg(value_name = "FILE")]
    pub profile: PathBuf,
    /// Mean time between failures of the device
    #[arg(long, value_name = "TIME", value_parser = mtbf)]
    pub mtbf_gpu: plan::units::Mtbf,
    /// Mean time between failures of the processor
    #[arg(long, value_name = "TIME", value_parser = mtbf)]
    pub mtbf_cpu: plan::units::Mtbf,
    /// Processor and device together (`sync`), or each at its own times (`async`)
    #[arg(long, value_enum, default_value_t)]
    pub model: PlanModel,
    /// Longest time between two checkpoints [default: half the mean time between failures]
    #[arg(long, value_name = "TIME", value_parser = nanos)]
    pub interval: Option<plan::units::Nanos>,
    /// Exactly so many checkpoints; with --model async, of the device
    #[arg(long, value_name = "N")]
    pub count: Option<u32>,
    /// With --model async: exactly so many checkpoints of the processor
    #[arg(long, value_name = "N")]
    pub count_cpu: Option<u32>,
    /// Each checkpoint at most so far from where equidistant ones were [default: wherever is cheapest, which is never worse]
    #[arg(long, value_name = "TIME", value_parser = nanos)]
    pub offset: Option<plan::units::Nanos>,
    /// What is to be least: the checkpoints' own cost, or the time that the whole run is expected to take
    #[arg(long, value_enum, default_value_t)]
    pub least: Least,
    /// A checkpoint writes what has changed since the one before it
    #[arg(long, conflicts_with_all = ["count", "count_cpu", "offset"])]
    pub incremental: bool,
    #[command(flatten)]
    pub costs: PlanCosts,
    #[command(flatten)]
    pub failures: PlanFailures,
    /// Draw a picture of it: FILE.svg, or FILE.html with a table below
    #[arg(long, value_name = "FILE", value_parser = chart)]
    pub chart: Option<PathBuf>,
    /// Write the plan, for a later run of the program
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub json: Json,
}

/// What checkpoints cost.
#[derive(Args, Debug)]
pub struct PlanCosts {
    /// How fast checkpoints are written, bytes a second
    #[arg(long, value_name = "SIZE", value_parser = bandwidth, default_value = "2G")]
    pub bandwidth: plan::units::Bandwidth,
    /// How fast device memory comes to the host
    #[arg(long, value_name = "SIZE", value_parser = bandwidth, default_value = "25G")]
    pub link_bandwidth: plan::units::Bandwidth,
    /// Count what a checkpoint was measured to take instead: it holds the program up for so long, for each byte of the device by --link-bandwidth, and
    /// slows it down by --traffic while it is written
    #[arg(long, value_name = "TIME", value_parser = nanos)]
    pub stall: Option<plan::units::Nanos>,
    /// With --stall: by how many percent the program is slower while a checkpoint is written
    #[arg(long, value_name = "PERCENT", default_value_t = 5, requires = "stall", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub traffic: u32,
}

/// How things fail.
#[derive(Args, Debug)]
pub struct PlanFailures {
    /// Shape of the Weibull law by which parts fail; 1 is the exponential law
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0, requires = "drawn")]
    pub weibull_shape: f64,
    /// How long a restart takes
    #[arg(long, value_name = "TIME", value_parser = nanos, default_value = "30s", requires = "drawn")]
    pub restart_time: plan::units::Nanos,
    /// Simulate so many runs with failures, of this plan and of others
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub simulate: Option<u32>,
    /// With --simulate: where its draws begin
    #[arg(long, value_name = "N", default_value_t = 1, requires = "simulate")]
    pub seed: u64,
}

/// Which of the models.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlanModel {
    /// Processor and device together
    #[default]
    Sync,
    /// Each at its own times
    Async,
}

/// What is to be least.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Least {
    /// What checkpoints cost
    #[default]
    Cost,
    /// The expected time of the run
    RunTime,
}

/// A time such as `10m`, a second at least.
fn period(text: &str) -> Result<Duration, String> {
    let period =
        humantime::parse_duration(text).map_err(|error| format!("{error}; give a time such as 10m"))?;
    if period < Duration::from_secs(1) { Err("a second is the least".to_owned()) } else { Ok(period) }
}

/// A time such as `90s`.
fn nanos(text: &str) -> Result<plan::units::Nanos, String> {
    let time =
        humantime::parse_duration(text).map_err(|error| format!("{error}; give a time such as 90s"))?;
    u64::try_from(time.as_nanos())
        .map(plan::units::Nanos)
        .map_err(|_| "longer than five centuries".to_owned())
}

fn mtbf(text: &str) -> Result<plan::units::Mtbf, String> {
    plan::units::Mtbf::of(nanos(text)?).map_err(|error| error.to_string())
}

fn bandwidth(text: &str) -> Result<plan::units::Bandwidth, String> {
    let zero = text.trim_start_matches(['0', '.']).is_empty() && text.starts_with('0');
    let bytes = if zero { 0 } else { size(text)? };
    plan::units::Bandwidth::per_second(bytes).map_err(|error| error.to_string())
}

fn chart(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let drawn = path.extension().is_some_and(|end| end == "svg" || end == "html");
    if drawn { Ok(path) } else { Err("its name must end in .svg or .html".to_owned()) }
}
