//! What calls cost: `bench/calls` natively and under Dormouse, side by side.

use std::fmt;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::kit::Kit;
use crate::outcome::Exit;
use crate::place::{Device, Place};
use crate::suite::job_name;

/// One figure, as `bench/calls` and others print it.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// In what.
    pub unit: String,
    /// The median.
    pub median: f64,
}

/// The median of a figure.
///
/// # Errors
/// When it is not among them.
pub fn named(figures: &[Figure], name: &str) -> anyhow::Result<f64> {
    let found = figures.iter().find(|figure| figure.name == name);
    Ok(found.with_context(|| format!("there is no {name} among what was measured"))?.median)
}

/// One figure of both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// What was measured.
    pub name: String,
    /// `us` (less is better) or `GB/s` (more is better).
    pub unit: String,
    /// The median without Dormouse.
    pub native: f64,
    /// The median under Dormouse.
    pub under: f64,
    /// How many times better or worse: above 1, Dormouse costs.
    pub ratio: f64,
}

/// Runs `bench/calls` natively and under Dormouse on the GPU.
pub fn measure(kit: &Kit) -> anyhow::Result<Vec<Cost>> {
    let folder =
        tempfile::Builder::new().prefix("dormouse-cost-").tempdir().context("cannot make a folder")?;
    let name = job_name("calls");
    let (device, folder_at) = (Device::Gpu, folder.path());
    let place = Place {
        kit,
        device,
        served: None,
        name: &name,
        managed: None,
        device_memory: None,
        folder: folder_at,
    };
    std::fs::create_dir_all(place.cwd()).context("cannot make a working directory")?;
    let program = kit.bench("calls");
    let figures = |native: bool| -> anyhow::Result<Vec<Figure>> {
        let job = if native { place.run_natively(&program, &[])? } else { place.run(&program, &[])? };
        let finished = job.finish()?;
        ensure!(finished.exit == Exit::Code(0), "{} under test: {}", program.display(), finished.stderr);
        parse(&String::from_utf8_lossy(&finished.stdout), &program)
    };
    compare(&figures(true)?, &figures(false)?)
}

/// What a benchmark has printed: lines of a name, a unit and a median.
///
/// # Errors
/// Names the line that is otherwise.
pub fn parse(text: &str, program: &Path) -> anyhow::Result<Vec<Figure>> {
    let figure = |line: &str| -> Option<Figure> {
        let mut words = line.split_whitespace();
        let (name, unit) = (words.next()?.to_owned(), words.next()?.to_owned());
        Some(Figure { name, unit, median: words.next()?.parse().ok()? })
    };
    let parsed = |line| figure(line).with_context(|| format!("{} printed {line:?}", program.display()));
    text.lines().map(parsed).collect()
}

fn compare(native: &[Figure], under: &[Figure]) -> anyhow::Result<Vec<Cost>> {
    ensure!(native.len() == under.len(), "{} figures natively, {} under Dormouse", native.len(), under.len());
    let pair = |(native, under): (&Figure, &Figure)| {
        ensure!(
            native.name == under.name && native.unit == under.unit,
            "{} is not {}",
            under.name,
            native.name
        );
        let ratio = match native.unit.as_str() {
            "GB/s" => native.median / under.median,
            _ => under.median / native.median,
        };
        let (name, unit) = (native.name.clone(), native.unit.clone());
        Ok(Cost { name, unit, native: native.median, under: under.median, ratio })
    };
    native.iter().zip(under).map(pair).collect()
}

/// Costs as a table for people.
pub struct Table<'a>(pub &'a [Cost]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<32}{:>6}{:>12}{:>12}{:>8}", "call", "unit", "native", "under", "cost")?;
        for cost in self.0 {
            let Cost { name, unit, native, under, ratio } = cost;
            writeln!(f, "{name:<32}{unit:>6}{native:>12.2}{under:>12.2}{ratio:>7.2}x")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(text: &str) -> Vec<Figure> {
        parse(text, Path::new("calls")).unwrap()
    }

    #[test]
    fn a_cost_is_above_one_for_times_and_for_rates() {
        let native = parsed("launch us 2.0 1.9 2.1\npinned GB/s 50.0 49 51\n");
        let under = parsed("launch us 3.0 1.9 2.1\npinned GB/s 25.0 49 51\n");
        let costs = compare(&native, &under).unwrap();
        assert_eq!(costs.iter().map(|cost| cost.ratio).collect::<Vec<_>>(), [1.5, 2.0]);
        assert!(Table(&costs).to_string().contains("1.50x"));
    }

    #[test]
    fn what_does_not_match_is_refused() {
        let one = parsed("launch us 2.0 1.9 2.1\n");
        assert!(compare(&one, &[]).is_err());
        assert!(compare(&one, &parsed("copy us 2.0 1.9 2.1\n")).is_err());
        assert!(parse("launch us\n", Path::new("calls")).is_err());
    }
}
