//! Results to text or JSON, failures to a sentence and an exit code.

use crate::exit;
use checkpoint::supervisor::Ended;
use checkpoint::{Failure, Kind, Moved};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

/// A result that can be shown to a person; its JSON is its serde form.
pub trait Show: Serialize {
    /// Writes it for a person.
    fn show(&self, out: &mut dyn Write) -> io::Result<()>;
    /// The exit code when it was shown.
    fn code(&self) -> ExitCode {
        ExitCode::SUCCESS
    }
}

impl Show for () {
    fn show(&self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a command.
pub fn finish<T: Show>(json: bool, result: Result<T, Failure>) -> ExitCode {
    let printed = match &result {
        Ok(value) if json => print(|out| as_json(out, value)),
        Ok(value) => print(|out| value.show(out)),
        Err(failure) if json => print(|out| as_json(out, &serde_json::json!({ "error": failure }))),
        Err(failure) => {
            complain(failure);
            Ok(())
        }
    };
    match (printed, result) {
        (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&Failure::of("cannot write the result", &error));
            ExitCode::FAILURE
        }
        (_, Ok(value)) => value.code(),
        (_, Err(failure)) => exit::of(&failure),
    }
}

/// A bar for so many bytes of long work, where somebody looks on.
pub fn bytes_bar(total: u64, json: bool) -> ProgressBar {
    let visible = io::stderr().is_terminal() && !json;
    let bar = if visible { ProgressBar::new(total) } else { ProgressBar::hidden() };
    if let Ok(style) =
        ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes}, {binary_bytes_per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    bar
}

/// Says what went wrong, on stderr.
pub fn complain(failure: &Failure) {
    eprintln!("dormouse: {failure}");
    if failure.kind == Kind::Unavailable {
        eprintln!("dormouse: `dormouse doctor` says what works on this machine");
    }
}

/// Says how a job goes on that was stopped, or that has lost a GPU server.
pub fn tell_end(ended: &Ended) {
    let Some(restart) = ended.newest.as_ref().map(checkpoint::Newest::command) else { return };
    if let Some(Moved { place, is_certain: true }) = &ended.moved_to {
        eprintln!(
            "dormouse: the job goes on at {place}; if that comes to nothing, '{restart}' has what it was when it left"
        );
    } else if let Some(Moved { place, .. }) = &ended.moved_to {
        eprintln!(
            "dormouse: whoever moved the job to {place} was gone before it was known whether it runs there: if it does not, continue with '{restart}'"
        );
    } else if let Some(image) = ended.stopped_after {
        eprintln!("dormouse: stopped after image {image} was taken; continue with '{restart}'");
    } else if ended.lost {
        eprintln!(
            "dormouse: a GPU server of the job had died; continue from the newest image with '{restart}'"
        );
    }
}

fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write(&mut out)?;
    out.flush()
}

fn as_json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Program and arguments on one line, as a shell takes them where there is nothing in them that [`printable`] shows otherwise.
pub fn command_line(command: &[String]) -> String {
    printable(&command.iter().map(|word| checkpoint::quoted(word)).collect::<Vec<_>>().join(" "))
}

/// A text of one line, which changes nothing about a terminal: a script may be among a program's arguments, and anything in an image of others. What is not
/// to be seen, or turns the order of what is, is shown as `\n` or `\u{1b}`.
pub fn printable(text: &str) -> String {
    let is_shown =
        |c: char| !(c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'));
    text.chars().fold(String::new(), |mut shown, c| {
        if is_shown(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
        shown
    })
}

/// Rows of cells, each column as wide as its widest cell; the last is not padded.
pub fn table(out: &mut dyn Write, rows: &[Vec<String>]) -> io::Result<()> {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A time, as `ls` shows it: UTC, to the second.
pub fn time(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Year, month and day of a day counted from 1970-01-01 (Howard Hinnant's `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day_of_year - (153 * shifted_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(951_782_400_000_000_000), "2000-02-29 00:00:00");
        assert_eq!(time(1_795_219_199_000_000_000), "2026-11-20 23:59:59");
    }

    #[test]
    fn a_command_is_one_that_can_be_typed() {
        let command = ["./train", "--name", "a b", "", "it's", "x=1"].map(String::from);
        assert_eq!(command_line(&command), r"./train --name 'a b' '' 'it'\''s' x=1");
        assert_eq!(command_line(&["sh", "-c", "a\n\x1b[2Jb"].map(String::from)), r"sh -c 'a\n\u{1b}[2Jb'");
    }

    #[test]
    fn columns_line_up() {
        let mut out = Vec::new();
        let rows = [vec!["a".into(), "b\nb".into()], vec!["long".into(), "c".into()]];
        assert!(table(&mut out, &rows).is_ok());
        assert_eq!(out, b"a     b\\nb\nlong  c\n");
    }
}
