//! `dormouse plan`

use super::profile::{failure, read};
use crate::flags::{self, Least, PlanModel};
use crate::output::{Show, table};
use checkpoint::{Failure, Kind};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use plan::cost::{Measured, Rates};
use plan::expected::Failures;
use plan::model::{Model, Mtbfs, Wanted, Wishes};
use plan::planfile::{PartPlan, Plan};
use plan::simulate::{Outcome, Setting, WAYS, compare};
use plan::units::Nanos;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// So many checkpoints of a part are shown to a person.
const ROWS: usize = 40;

#[derive(Serialize)]
pub struct Planned {
    #[serde(flatten)]
    plan: Plan,
    simulated: Vec<Outcome>,
}

/// Makes a plan, and writes what is asked for.
pub fn run(flags: &flags::Plan) -> Result<Planned, Failure> {
    check(flags)?;
    let profile = read(&flags.profile)?;
    let told = |error| failure(None, &error);
    let wishes = wishes(flags).map_err(told)?;
    let plan = plan::model::plan(&profile, &wishes).map_err(told)?;
    let simulated = match flags.failures.simulate {
        Some(runs) => {
            let failures = failures(flags).map_err(told)?;
            let setting = Setting { mtbf: wishes.mtbf, failures, runs, seed: flags.failures.seed };
            let bar = bar(u64::from(runs) * u64::from(WAYS), flags.json.json);
            let simulated = compare(&profile, &wishes, &setting, &mut || bar.inc(1));
            bar.finish_and_clear();
            simulated.map_err(told)?
        }
        None => Vec::new(),
    };
    if let Some(file) = &flags.output {
        write("plan", file, &plan.to_json().map_err(told)?)?;
    }
    if let Some(file) = &flags.chart {
        let page = file.extension().is_some_and(|end| end == "html");
        let draw = if page { plan::chart::html } else { plan::chart::svg };
        write("chart", file, &draw(&profile, &plan, &simulated))?;
    }
    Ok(Planned { plan, simulated })
}

/// Refuses what clap cannot know to be wrong.
fn check(flags: &flags::Plan) -> Result<(), Failure> {
    let usage = |message: String| Err(Failure::new(Kind::Usage, message));
    let files = [
        ("the profile", Some(&flags.profile)),
        ("the plan", flags.output.as_ref()),
        ("the chart", flags.chart.as_ref()),
    ];
    for (at, (what, file)) in files.iter().enumerate() {
        let same =
            files[at + 1..].iter().find(|(_, other)| file.zip(*other).is_some_and(|(a, b)| is_same(a, b)));
        if let (Some(file), Some((other, _))) = (file, same) {
            return usage(format!("{} would be {what} and {other}: name another file", file.display()));
        }
    }
    if flags.count_cpu.is_some() && flags.model == PlanModel::Sync {
        return usage("--count-cpu goes with --model async only".to_owned());
    }
    Ok(())
}

/// Whether two names are of one file, be it there or not.
fn is_same(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    real(a).is_some_and(|a| real(b) == Some(a))
}

/// A bar on the user's terminal.
fn bar(runs: u64, json: bool) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("simulating {wide_bar} {pos}/{len} runs, {eta} left");
    ProgressBar::new(runs).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn wishes(flags: &flags::Plan) -> Result<Wishes, plan::Error> {
    let costs = &flags.costs;
    let rates = match costs.stall {
        None => Rates::of_bandwidths(costs.bandwidth, costs.link_bandwidth)?,
        Some(stall) => Rates::of_measured(Measured {
            stall,
            copy: costs.link_bandwidth,
            write: costs.bandwidth,
            traffic: costs.traffic * 10,
        })?,
    };
    let objective = match flags.least {
        Least::RunTime if flags.incremental => {
            return Err(plan::Error::Together("--incremental goes with --least cost only"));
        }
        Least::RunTime => Wanted::RunTime(failures(flags)?),
        Least::Cost if flags.incremental => Wanted::IncrementalCost,
        Least::Cost => Wanted::Cost,
    };
    Ok(Wishes {
        model: match flags.model {
            PlanModel::Sync => Model::Sync,
            PlanModel::Async => Model::Async,
        },
        mtbf: Mtbfs { gpu: flags.mtbf_gpu, cpu: flags.mtbf_cpu },
        interval: flags.interval,
        count: flags.count,
        cpu_count: flags.count_cpu,
        offset: flags.offset,
        rates,
        objective,
    })
}

fn failures(flags: &flags::Plan) -> Result<Failures, plan::Error> {
    Failures::weibull(flags.failures.weibull_shape, flags.failures.restart_time)
}

fn write(what: &str, file: &Path, text: &str) -> Result<(), Failure> {
    plan::replace(file, text.as_bytes())
        .map_err(|error| Failure::of(format_args!("cannot write the {what} {}", file.display()), &error))
}

impl Show for Planned {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        for part in &self.plan.parts {
            show_part(out, part)?;
        }
        if !self.simulated.is_empty() {
            show_simulated(out, &self.simulated)?;
        }
        Ok(())
    }
}

fn show_part(out: &mut dyn Write, part: &PartPlan) -> io::Result<()> {
    let interval = part.interval_ns.map_or(String::new(), |interval| format!(" (at most {interval})"));
    writeln!(
        out,
        "{}: {} checkpoints, longest gap {}{interval}, {} in all, cost {}",
        part.part.name(),
        part.checkpoints.len(),
        part.longest_gap_ns,
        HumanBytes(part.bytes),
        seconds(part.cost_s)
    )?;
    let mut rows =
        vec![["AT", "BOUNDARY", "DEVICE", "PROCESSOR", "COST", "KERNEL"].map(String::from).to_vec()];
    rows.extend(part.checkpoints.iter().take(ROWS).map(|each| {
        vec![
            each.at_ns.to_string(),
            each.boundary.to_string(),
            HumanBytes(each.gpu_bytes).to_string(),
            HumanBytes(each.cpu_bytes).to_string(),
            seconds(each.cost_s),
            each.kernel.clone().unwrap_or_default(),
        ]
    }));
    table(out, &rows)?;
    let more = part.checkpoints.len().saturating_sub(ROWS);
    if more > 0 {
        writeln!(out, "and {more} more (--json has all)")?;
    }
    writeln!(out)
}

fn show_simulated(out: &mut dyn Write, outcomes: &[Outcome]) -> io::Result<()> {
    let mut rows =
        vec![["SIMULATED", "CHECKPOINTS", "UNDISTURBED", "WITH FAILURES"].map(String::from).to_vec()];
    rows.extend(outcomes.iter().map(|each| {
        let error = seconds(each.error_s.unwrap_or(0.0));
        let mean = each.mean_s.map_or("never done".to_owned(), |mean| format!("{} ± {error}", seconds(mean)));
        let given_up = match each.given_up {
            0 => String::new(),
            runs => format!(" ({runs} runs were not done in 100 times the program's time)"),
        };
        vec![each.way.to_owned(), each.checkpoints.to_string(), seconds(each.undisturbed_s), mean + &given_up]
    }));
    table(out, &rows)
}

fn seconds(seconds: f64) -> String {
    Nanos((seconds * 1e9) as u64).to_string()
}
