//! Guests × scenarios × rounds, side by side, and the table of what came out.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow};
use serde::Serialize;

use crate::kit::Kit;
use crate::manifest::{Guest, Manifest, Set};
use crate::place::Device;
use crate::reference::Reference;
use crate::scenario::{Case, Scenario};
use crate::seed::Seed;

/// Rounds of each scenario in CI.
pub const CI_ROUNDS: u32 = 3;
/// Rounds of each scenario in a soak.
pub const SOAK_ROUNDS: u32 = 20;

/// What to run.
#[derive(Debug, Clone)]
pub struct Suite {
    /// The programs under test.
    pub kit: Kit,
    /// Where calls go.
    pub device: Device,
    /// Rounds of each scenario.
    pub rounds: u32,
    /// What moments are drawn from.
    pub seed: u64,
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
    /// Rounds passed, for each scenario in the order of [`Scenario::ALL`].
    pub passed: Vec<u32>,
    /// Rounds asked for, of each.
    pub rounds: u32,
    /// The median stall of its checkpoints, ms.
    pub stall_ms: Option<f64>,
    /// Of the stall, the host half, median, ms.
    pub host_ms: Option<f64>,
    /// What went wrong, with what it takes to see it again.
    pub failures: Vec<String>,
}

impl Suite {
    /// Runs one guest through all scenarios. A round that fails does not keep others from being run.
    pub fn guest(&self, guest: &Guest) -> anyhow::Result<Row> {
        let folder =
            tempfile::Builder::new().prefix("dormouse-test-").tempdir().context("cannot make a folder")?;
        let job = job_name(&guest.name);
        let mut row = Row {
            guest: guest.name.clone(),
            native_s: None,
            under_s: 0.0,
            passed: vec![0; Scenario::ALL.len()],
            rounds: self.rounds,
            stall_ms: None,
            host_ms: None,
            failures: Vec::new(),
        };
        let reference = match Reference::measure(&self.kit, self.device, guest, folder.path(), &job) {
            Ok(reference) => reference,
            Err(error) => {
                row.failures.push(format!("{}, undisturbed: {error:#}", guest.name));
                return Ok(row);
            }
        };
        row.native_s = reference.native.map(|took| took.as_secs_f64());
        row.under_s = reference.took.as_secs_f64();

        let case = Case {
            kit: &self.kit,
            device: self.device,
            guest,
            reference: &reference,
            job: &job,
            folder: folder.path(),
        };
        let mut reports = Vec::new();
        for (scenario, passed) in Scenario::ALL.into_iter().zip(&mut row.passed) {
            for round in 0..self.rounds {
                let seed = Seed::of_round(self.seed, &guest.name, scenario.name(), round);
                match case.round(scenario, &seed) {
                    Ok(more) => {
                        reports.extend(more);
                        *passed += 1;
                    }
                    Err(error) => row.failures.push(format!(
                        "{}, {}, round {round}, seed {}: {error:#}",
                        guest.name,
                        scenario.name(),
                        self.seed
                    )),
                }
            }
        }
        row.stall_ms = median(reports.iter().map(|report| report.stall_ms).collect());
        row.host_ms = median(reports.iter().map(|report| report.host_ms).collect());
        Ok(row)
    }

    /// Runs many guests, `side_by_side` at a time, and tells of each when it is done.
    pub fn all(
        &self,
        guests: &[&Guest],
        side_by_side: usize,
        done: impl Fn(&Row) + Sync,
    ) -> anyhow::Result<Vec<Row>> {
        let next = AtomicUsize::new(0);
        let rows = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let work = || -> anyhow::Result<()> {
                while let Some(guest) = guests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = self.guest(guest)?;
                    done(&row);
                    rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
                }
                Ok(())
            };
            let threads: Vec<_> = (0..side_by_side.max(1)).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a test thread panicked"))?)
        })?;
        let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
        rows.sort_by_key(|row| guests.iter().position(|guest| guest.name == row.guest));
        Ok(rows)
    }
}

/// The guests of the matrix, or those of them that are named.
pub fn choose<'m>(manifest: &'m Manifest, names: &[String]) -> anyhow::Result<Vec<&'m Guest>> {
    if names.is_empty() {
        return Ok(manifest.set(Set::Matrix).collect());
    }
    names.iter().map(|name| manifest.guest(name)).collect()
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
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        write!(f, "{:<20}{:>10}{:>10}", "guest", "native s", "under s")?;
        for scenario in Scenario::ALL {
            write!(f, "{:>12}", scenario.name())?;
        }
        writeln!(f, "{:>10}{:>10}", "stall ms", "host ms")?;
        for row in self.0 {
            write!(f, "{:<20}{:>10}{:>10.2}", row.guest, number(row.native_s, 2), row.under_s)?;
            for passed in &row.passed {
                write!(f, "{:>12}", format!("{passed}/{}", row.rounds))?;
            }
            let verdict = if row.failures.is_empty() { "" } else { "  FAILED" };
            writeln!(f, "{:>10}{:>10}{verdict}", number(row.stall_ms, 0), number(row.host_ms, 0))?;
        }
        Ok(())
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
            passed: vec![3, 3, 3 - failures.len() as u32],
            rounds: 3,
            stall_ms: Some(41.7),
            host_ms: None,
            failures: failures.iter().map(|&text| text.to_owned()).collect(),
        };
        let table = Table(&[row("stencil", &[]), row("linked", &["differs"])]).to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[1].contains("3/3") && lines[1].contains("42") && !lines[1].contains("FAILED"),
            "{table}"
        );
        assert!(lines[2].contains("2/3") && lines[2].ends_with("FAILED"), "{table}");
    }

    #[test]
    fn job_names_are_not_used_twice() {
        assert_ne!(job_name("a"), job_name("a"));
    }
}
