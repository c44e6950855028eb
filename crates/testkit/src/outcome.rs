//! What a run left behind, and how two runs differ.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use serde::Deserialize;

/// Everything of a run that must not depend on checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// How it ended.
    pub exit: Exit,
    /// The files it wrote, by name; `None` for one that is not there.
    pub files: BTreeMap<String, Option<Vec<u8>>>,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exit {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Default for Exit {
    fn default() -> Self {
        Self::Code(0)
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        status.code().map_or_else(|| Self::Signal(status.signal().unwrap_or_default()), Self::Code)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Reads the files a guest wrote in `folder`.
pub fn files(folder: &Path, names: &[String]) -> BTreeMap<String, Option<Vec<u8>>> {
    names.iter().map(|name| (name.clone(), std::fs::read(folder.join(name)).ok())).collect()
}

/// The first thing in which a run differs from what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// They ended differently.
    Exit {
        /// How the reference ended.
        expected: Exit,
        /// How this run ended.
        found: Exit,
    },
    /// The output, or a file, differs.
    Bytes {
        /// `stdout`, or the file's name.
        of: String,
        /// The first line that differs, from 1.
        line: usize,
        /// That line in the reference.
        expected: String,
        /// That line here.
        found: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit { expected, found } => write!(f, "ended with {found} instead of {expected}"),
            Self::Bytes { of, line, expected, found } => {
                write!(f, "{of}, line {line}: {found:?} instead of {expected:?}")
            }
        }
    }
}

impl Outcome {
    /// The first difference from `reference`, if there is one.
    pub fn difference(&self, reference: &Self) -> Option<Difference> {
        if let Some(difference) = first_difference("stdout", &self.stdout, &reference.stdout) {
            return Some(difference);
        }
        for (name, expected) in &reference.files {
            let found = self.files.get(name).cloned().flatten().unwrap_or_default();
            let expected = expected.clone().unwrap_or_default();
            if let Some(difference) = first_difference(name, &found, &expected) {
                return Some(difference);
            }
        }
        (self.exit != reference.exit)
            .then_some(Difference::Exit { expected: reference.exit, found: self.exit })
    }
}

fn first_difference(of: &str, found: &[u8], expected: &[u8]) -> Option<Difference> {
    if found == expected {
        return None;
    }
    let lines = |bytes: &[u8]| -> Vec<String> {
        bytes
            .split_inclusive(|b| *b == b'\n')
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect()
    };
    let (found, expected) = (lines(found), lines(expected));
    let at = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
    let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_else(|| "(end)".to_owned());
    Some(Difference::Bytes {
        of: of.to_owned(),
        line: at + 1,
        expected: line(&expected),
        found: line(&found),
    })
}

/// Why pieces of output do not add up to a whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoesNotFit;

/// Whether `pieces` can be the outputs of a job and of its restarts, one after the other.
///
/// Each restart goes on at its checkpoint, so it may repeat what was printed between the checkpoint and the kill; it
/// may not leave a gap, and nothing but the reference's bytes may appear. Where nothing was printed in between (a
/// checkpoint with `--stop`), pass `exact`, and repetition is an error too.
pub fn fits(reference: &[u8], pieces: &[&[u8]], exact: bool) -> Result<(), DoesNotFit> {
    fn from(reference: &[u8], start: usize, pieces: &[&[u8]], exact: bool) -> bool {
        let Some((piece, rest)) = pieces.split_first() else { return false };
        let end = start + piece.len();
        if reference.get(start..end) != Some(*piece) {
            return false;
        }
        if rest.is_empty() {
            return end == reference.len();
        }
        let earliest = if exact { end } else { start };
        (earliest..=end).rev().any(|next| from(reference, next, rest, exact))
    }
    if from(reference, 0, pieces, exact) { Ok(()) } else { Err(DoesNotFit) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pieces_may_overlap_but_not_leave_a_gap() {
        let whole = b"one\ntwo\nthree\n";
        assert!(fits(whole, &[b"one\ntwo\n", b"two\nthree\n"], false).is_ok());
        assert!(fits(whole, &[b"one\ntwo\n", b"three\n"], false).is_ok());
        assert!(fits(whole, &[b"one\n", b"three\n"], false).is_err());
        assert!(fits(whole, &[b"one\ntwo\n", b"two\nthree\nfour\n"], false).is_err());
        assert!(fits(whole, &[b"one\n", b"one\ntwo\n", b"three\n"], false).is_ok());
    }

    #[test]
    fn a_stopped_job_repeats_nothing() {
        let whole = b"one\ntwo\nthree\n";
        assert!(fits(whole, &[b"one\ntwo\n", b"three\n"], true).is_ok());
        assert!(fits(whole, &[b"one\ntwo\n", b"two\nthree\n"], true).is_err());
    }

    #[test]
    fn the_first_differing_line_is_named() {
        let outcome =
            |text: &str, exit| Outcome { stdout: text.as_bytes().to_vec(), exit, files: BTreeMap::new() };
        let reference = outcome("a\nb\nc\n", Exit::Code(0));
        let difference = outcome("a\nB\nc\n", Exit::Code(0)).difference(&reference).unwrap();
        assert_eq!(difference.to_string(), r#"stdout, line 2: "B\n" instead of "b\n""#);
        let difference = outcome("a\nb\n", Exit::Code(0)).difference(&reference).unwrap();
        assert_eq!(difference.to_string(), r#"stdout, line 3: "(end)" instead of "c\n""#);
        let difference = outcome("a\nb\nc\n", Exit::Signal(6)).difference(&reference).unwrap();
        assert_eq!(difference.to_string(), "ended with signal 6 instead of exit code 0");
        assert_eq!(reference.difference(&reference), None);
    }

    #[test]
    fn a_missing_file_is_a_difference() {
        let with = |contents: Option<&str>| Outcome {
            stdout: Vec::new(),
            exit: Exit::Code(0),
            files: BTreeMap::from([("log".to_owned(), contents.map(|text| text.as_bytes().to_vec()))]),
        };
        let difference = with(None).difference(&with(Some("x\n"))).unwrap();
        assert_eq!(difference.to_string(), r#"log, line 1: "(end)" instead of "x\n""#);
    }
}
