//! Guests × scenarios × rounds, side by side, and the table of what came out.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, anyhow};
use serde::Serialize;

use crate::kit::Kit;
use crate::manifest::{Guest, Manifest, Set};
use crate::place::{Device, Report};
use crate::reference::Reference;
use crate::scenario::{Case, Scenario};
use crate::seed::Seed;
use crate::served::Served;

/// Rounds of each scenario in CI.
pub const CI_ROUNDS: u32 = 1;
/// Rounds of each scenario in a soak.
pub const SOAK_ROUNDS: u32 = 20;

/// What to run.
#[derive(Debug, Clone)]
pub struct Suite {
    /// The programs under test.
    pub kit: Kit,
    /// Where calls go.
    pub device: Device,
    /// Whose device it is, if it is another machine's.
    pub served: Option<Arc<Served>>,
    /// What is done to each guest.
    pub scenarios: Vec<Scenario>,
    /// Rounds of each scenario.
    pub rounds: u32,
    /// What moments are drawn from.
    pub seed: u64,
    /// When no further round is begun.
    pub until: Option<Instant>,
}

/// News of a running suite, as soon as there is any.
#[derive(Debug)]
pub enum News<'a> {
    /// A round failed: what went wrong, with what it takes to see it again.
    Failed(&'a str),
    /// One more round of a guest, or its undisturbed run, is over: what has come out for it so far, and whether it was its last one.
    Round {
        /// The guest's row.
        row: &'a Row,
        /// Whether there is none left.
        last: bool,
    },
}

/// What came out for one guest.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The guest.
    pub guest: String,
    /// Seconds without Dormouse, where there is a GPU to run on.
    pub native_s: Option<f64>,
    /// Seconds under Dormouse, undisturbed.
    pub under_s: f64,
    /// Rounds passed, for each scenario in the order of [`Scenario::ALL`]; none of those that were not asked for.
    pub passed: Vec<Option<u32>>,
    /// Rounds asked for, of each.
    pub rounds: u32,
    /// Checkpoints in the rounds that passed.
    pub checkpoints: usize,
    /// Those of them that have a launch of a marked kernel half-way.
    pub half_way: usize,
    /// The median stall of its checkpoints, ms.
    pub stall_ms: Option<f64>,
    /// Of the stall, the host half, median, ms.
    pub host_ms: Option<f64>,
    /// The median time from the request to the published image, ms.
    pub total_ms: Option<f64>,
    /// What went wrong, with what it takes to see it again.
    pub failures: Vec<String>,
}

impl Row {
    /// Whether there was something to run, and every round of it passed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let mut asked = self.passed.iter().flatten().peekable();
        self.failures.is_empty() && asked.peek().is_some() && asked.all(|passed| *passed == self.rounds)
    }

    /// How many runs are known to have passed or failed.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.failures.len() + self.passed.iter().flatten().map(|passed| *passed as usize).sum::<usize>()
    }
}

impl Suite {
    /// Runs one guest through all scenarios. A round that fails does not keep others from being run.
    pub fn guest(&self, guest: &Guest) -> anyhow::Result<Row> {
        let mut rows = self.all(&[guest], 1, |_| {})?;
        rows.pop().context("one guest makes one row")
    }

    /// Runs many guests, `side_by_side` rounds at a time; behind them those that have to be alone. All undisturbed runs come first.
    pub fn all(
        &self,
        guests: &[&Guest],
        side_by_side: usize,
        tell: impl Fn(News<'_>) + Sync,
    ) -> anyhow::Result<Vec<Row>> {
        let (alone, others): (Vec<&Guest>, Vec<&Guest>) =
            guests.iter().partition(|guest| guest.alone && self.device == Device::Gpu);
        let mut rows = self.beside(&others, side_by_side, &tell)?;
        rows.extend(self.beside(&alone, 1, &tell)?);
        Ok(rows)
    }

    fn is_in_time(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }

    fn beside(
        &self,
        guests: &[&Guest],
        side_by_side: usize,
        tell: &(impl Fn(News<'_>) + Sync),
    ) -> anyhow::Result<Vec<Row>> {
        let folder =
            tempfile::Builder::new().prefix("dormouse-test-").tempdir().context("cannot make a folder")?;
        let trials: Vec<Trial<'_>> = side_by_side_map(side_by_side, guests.len(), |index| {
            let trial = Trial::begin(self, guests[index], folder.path().join(index.to_string()));
            trial.tally().failures.iter().for_each(|failure| tell(News::Failed(failure)));
            tell(News::Round { row: &trial.row(), last: false });
            Ok(trial)
        })?;
        // The first rounds of all guests, then the second: when time is up, all have had about as many.
        let each_round = trials.len() * self.scenarios.len();
        side_by_side_map(side_by_side, each_round * self.rounds as usize, |unit| {
            let (round, unit) = ((unit / each_round) as u32, unit % each_round);
            let (trial, scenario) = (unit / self.scenarios.len(), unit % self.scenarios.len());
            let (trial, scenario) = (&trials[trial], self.scenarios[scenario]);
            let wanted = self.is_in_time() && round < trial.rounds && trial.scenarios.contains(&scenario);
            if wanted {
                let last = trial.round(self, scenario, round, tell);
                tell(News::Round { row: &trial.row(), last });
            }
            Ok(())
        })?;
        Ok(trials.iter().map(Trial::row).collect())
    }
}

/// A guest whose rounds are being run.
struct Trial<'a> {
    guest: &'a Guest,
    folder: PathBuf,
    /// None where it failed, or there was no time for it.
    reference: Option<Reference>,
    /// What is done to it.
    scenarios: Vec<Scenario>,
    rounds: u32,
    tally: Mutex<Tally>,
}

/// What came out of a guest's rounds so far.
#[derive(Default)]
struct Tally {
    run: usize,
    passed: [Option<u32>; Scenario::ALL.len()],
    reports: Vec<Report>,
    failures: Vec<String>,
}

impl<'a> Trial<'a> {
    fn begin(suite: &Suite, guest: &'a Guest, folder: PathBuf) -> Self {
        let measure = || {
            let (device, name) = ((suite.device, suite.served.as_deref()), job_name(&guest.name));
            Reference::measure(&suite.kit, device, guest, &folder, &name)
        };
        let (reference, failure) = match suite.is_in_time().then(measure) {
            Some(Ok(reference)) => (Some(reference), None),
            Some(Err(error)) => (None, Some(format!("{}, undisturbed: {error:#}", guest.name))),
            None => (None, None),
        };
        let on_gpu = suite.device == Device::Gpu && suite.served.is_none();
        let suits = |scenario: &Scenario| scenario.suits(guest, on_gpu);
        let scenarios: Vec<_> = suite.scenarios.iter().copied().filter(suits).collect();
        let passed = Scenario::ALL.map(|scenario| scenarios.contains(&scenario).then_some(0));
        let tally = Tally { passed, failures: failure.into_iter().collect(), ..Tally::default() };
        let most = guest.gpu_rounds.filter(|_| suite.device == Device::Gpu).unwrap_or(u32::MAX);
        let (rounds, tally) = (suite.rounds.min(most), Mutex::new(tally));
        Self { guest, folder, reference, scenarios, rounds, tally }
    }

    /// Runs one round; whether it was the last one.
    fn round(&self, suite: &Suite, scenario: Scenario, round: u32, tell: impl Fn(News<'_>)) -> bool {
        let result = self.reference.as_ref().map(|reference| {
            let case = Case {
                kit: &suite.kit,
                device: suite.device,
                served: suite.served.as_deref(),
                guest: self.guest,
                reference,
                job: &job_name(&self.guest.name),
                folder: &self.folder.join(format!("{}-{round}", scenario.name())),
            };
            let seed = Seed::of_round(suite.seed, &self.guest.name, scenario.name(), round);
            case.round(scenario, &seed).with_context(|| {
                format!("{}, {}, round {round}, seed {}", self.guest.name, scenario.name(), suite.seed)
            })
        });
        let mut tally = self.tally();
        match result {
            Some(Ok(reports)) => {
                tally.reports.extend(reports);
                *tally.passed[scenario as usize].get_or_insert_default() += 1;
            }
            Some(Err(error)) => {
                let failure = format!("{error:#}");
                tell(News::Failed(&failure));
                tally.failures.push(failure);
            }
            // What is wrong with the reference has been said.
            None => {}
        }
        tally.run += 1;
        tally.run == self.scenarios.len() * self.rounds as usize
    }

    fn row(&self) -> Row {
        let tally = self.tally();
        let reference = self.reference.as_ref();
        let middle = |of: fn(&Report) -> f64| median(tally.reports.iter().map(of).collect());
        Row {
            guest: self.guest.name.clone(),
            native_s: reference.and_then(|each| each.native).map(|took| took.as_secs_f64()),
            under_s: reference.map_or(0.0, |each| each.took.as_secs_f64()),
            passed: tally.passed.to_vec(),
            rounds: self.rounds,
            checkpoints: tally.reports.len(),
            half_way: tally.reports.iter().filter(|report| report.half_way > 0).count(),
            stall_ms: middle(|report| report.stall_ms),
            host_ms: middle(|report| report.host_ms),
            total_ms: middle(|report| report.total_ms),
            failures: tally.failures.clone(),
        }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `each` of `0..count`, at most `side_by_side` at a time; what they answer, in order.
fn side_by_side_map<T: Send>(
    side_by_side: usize,
    count: usize,
    each: impl Fn(usize) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return Ok(());
                }
                let answer = each(index)?;
                answers.lock().unwrap_or_else(PoisonError::into_inner).push((index, answer));
            }
        };
        let threads: Vec<_> = (0..side_by_side.max(1)).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a test thread panicked"))?)
    })?;
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_by_key(|(index, _)| *index);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// The guests of the matrix, or those that are named, each by itself or all of a set.
pub fn choose<'m>(manifest: &'m Manifest, names: &[String]) -> anyhow::Result<Vec<&'m Guest>> {
    if names.is_empty() {
        return Ok(manifest.set(Set::Matrix).collect());
    }
    let mut chosen = Vec::new();
    for name in names {
        match name.as_str() {
            "matrix" => chosen.extend(manifest.set(Set::Matrix)),
            "marked" => chosen.extend(manifest.set(Set::Marked)),
            name => chosen.push(manifest.guest(name)?),
        }
    }
    // Who is named twice runs once.
    let mut names = BTreeSet::new();
    chosen.retain(|guest: &&Guest| names.insert(&guest.name));
    Ok(chosen)
}

/// A job name that nobody else uses: tests run side by side.
pub fn job_name(guest: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{guest}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Rows as a table for people.
pub struct Table<'a>(pub &'a [Row]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<20}{:>10}{:>10}", "guest", "native s", "under s")?;
        for scenario in Scenario::ALL {
            write!(f, "{:>12}", scenario.name())?;
        }
        writeln!(
            f,
            "{:>10}{:>10}{:>10}{:>10}{:>10}",
            "images", "half-way", "stall ms", "host ms", "total ms"
        )?;
        self.0.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

/// The row of the table.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        write!(f, "{:<20}{:>10}{:>10.2}", self.guest, number(self.native_s, 2), self.under_s)?;
        for passed in &self.passed {
            let passed = passed.map_or_else(|| "-".to_owned(), |passed| format!("{passed}/{}", self.rounds));
            write!(f, "{passed:>12}")?;
        }
        write!(f, "{:>10}{:>10}", self.checkpoints, self.half_way)?;
        for time in [self.stall_ms, self.host_ms, self.total_ms] {
            write!(f, "{:>10}", number(time, 0))?;
        }
        match (self.is_complete(), self.failures.is_empty()) {
            (true, _) => Ok(()),
            (false, true) if self.passed.iter().all(Option::is_none) => {
                write!(f, "  nothing that was asked for suits it")
            }
            (false, true) => write!(f, "  time was up"),
            (false, false) => write!(f, "  FAILED"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_table_says_what_failed() {
        let row = |guest: &str, failures: &[&str]| Row {
            guest: guest.to_owned(),
            native_s: None,
            under_s: 1.5,
            passed: vec![None, Some(3), Some(3 - failures.len() as u32)],
            rounds: 3,
            checkpoints: 9,
            half_way: 0,
            stall_ms: Some(41.7),
            host_ms: None,
            total_ms: None,
            failures: failures.iter().map(|&text| text.to_owned()).collect(),
        };
        let of_nothing =
            |passed: [Option<u32>; 3]| Row { passed: passed.to_vec(), ..row("marked_list", &[]) };
        let rows = [
            row("stencil", &[]),
            row("linked", &["differs"]),
            of_nothing([None; 3]),
            of_nothing([None, Some(0), None]),
        ];
        let table = Table(&rows).to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[3].ends_with("suits it") && lines[4].ends_with("time was up"), "{table}");
        assert!(
            lines[1].contains("3/3") && lines[1].contains("42") && !lines[1].contains("FAILED"),
            "{table}"
        );
        assert!(lines[2].contains("2/3") && lines[2].ends_with("FAILED"), "{table}");
        assert!(lines[1].contains(" -  "), "a scenario that was not asked for: {table}");
    }

    #[test]
    fn job_names_are_not_used_twice() {
        assert_ne!(job_name("a"), job_name("a"));
    }
}
