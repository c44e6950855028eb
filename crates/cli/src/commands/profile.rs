//! `dormouse profile show`

use crate::flags::ProfileShow;
use crate::output::{Show, table};
use checkpoint::{Failure, Kind};
use indicatif::HumanBytes;
use plan::profile::{Profile, Summary};
use plan::units::Nanos;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// A profile file is not longer: loops are told once.
const MOST: u64 = 1 << 30;
/// So many kernels are shown to a person.
const ROWS: usize = 20;

#[derive(Serialize)]
pub struct Shown {
    file_bytes: u64,
    #[serde(flatten)]
    summary: Summary,
}

/// Says what a profile holds.
pub fn show(flags: &ProfileShow) -> Result<Shown, Failure> {
    let bytes = bytes(&flags.file)?;
    let summary = of(&flags.file, &bytes)?.summary();
    Ok(Shown { file_bytes: bytes.len() as u64, summary })
}

/// Reads a profile.
pub fn read(file: &Path) -> Result<Profile, Failure> {
    of(file, &bytes(file)?)
}

fn bytes(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| {
        let kind = if error.kind() == io::ErrorKind::NotFound { Kind::NotFound } else { Kind::Failed };
        Failure::new(kind, format!("cannot read the profile {}: {error}", file.display()))
    };
    let mut bytes = Vec::new();
    File::open(file).and_then(|open| open.take(MOST + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MOST {
        let message = format!("{} is no profile: it has more than {MOST} bytes", file.display());
        return Err(Failure::new(Kind::Damaged, message));
    }
    Ok(bytes)
}

fn of(file: &Path, bytes: &[u8]) -> Result<Profile, Failure> {
    plan::format::decode(bytes).map_err(|error| failure(Some(file), &error))
}

/// What is wrong with a profile, or with what is asked of it.
pub fn failure(file: Option<&Path>, error: &plan::Error) -> Failure {
    let kind = match error {
        plan::Error::Damaged(_)
        | plan::Error::MoreLiveThanAllocated { .. }
        | plan::Error::Overflow { .. } => Kind::Damaged,
        plan::Error::Version { .. } => Kind::Mismatch,
        _ => Kind::Refused,
    };
    let file = file.map_or(String::new(), |file| format!("{}: ", file.display()));
    Failure::new(kind, format!("{file}{error}"))
}

impl Show for Shown {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { file_bytes, summary } = self;
        let time = |ms: f64| Nanos((ms * 1e6) as u64);
        writeln!(out, "program    {}", time(summary.ms))?;
        writeln!(
            out,
            "device     {} boundaries, {} allocated at most, {} to {} live",
            summary.boundaries,
            HumanBytes(summary.allocated_most),
            HumanBytes(summary.live_least.unwrap_or(0)),
            HumanBytes(summary.live_most)
        )?;
        let changed = HumanBytes(summary.changed);
        writeln!(out, "changes    sampled at {} boundaries, {changed} in all", summary.sampled)?;
        writeln!(
            out,
            "processor  {} intervals, {} at most, idle for {}",
            summary.cpu_intervals,
            HumanBytes(summary.cpu_bytes_most),
            time(summary.cpu_idle_ms)
        )?;
        writeln!(out, "file       {}, version {}", HumanBytes(*file_bytes), summary.version)?;
        writeln!(out)?;
        let mut rows = vec![["LAUNCHES", "TIME", "KERNEL"].map(String::from).to_vec()];
        rows.extend(summary.kernels.iter().take(ROWS).map(|kernel| {
            vec![kernel.launches.to_string(), time(kernel.ms).to_string(), kernel.name.clone()]
        }));
        table(out, &rows)?;
        match summary.kernels.len().saturating_sub(ROWS) {
            0 => Ok(()),
            more => writeln!(out, "and {more} more kernels (--json has all)"),
        }
    }
}
