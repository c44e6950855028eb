//! Memory of which CRIU has not heard (`crates/criu-plugin`): private memory, page by page (`withheld.rs` there), and files in memory that have no
//! names (`shared.rs`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};

use super::several::{THREADS, by_threads};
use crate::pagescan::Pages;
use crate::tasks::OuterPid;

/// The environment variable by which the plugin knows the file.
pub(super) const FILE: &str = "DORMOUSE_WITHHELD";
/// The one by which it knows that files in memory are to be withheld, too.
pub(super) const FILES: &str = "DORMOUSE_WITHHELD_FILES";
/// How many addresses one thread looks at, at a time.
const LOOKED_AT: u64 = 256 << 20;
/// No list is longer, bytes: some two million mappings.
const LONGEST: u64 = 64 << 20;

/// Ranges of processes' addresses, in order.
pub(super) type Ranges = BTreeMap<OuterPid, Vec<Range<u64>>>;

/// What CRIU would have dumped.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    /// Private pages of processes.
    pub(super) pages: Ranges,
    /// Files in memory that have no names, which CRIU keeps open there.
    pub(super) files: Vec<PathBuf>,
}

/// Where the plugin writes down what it withholds.
#[derive(Debug)]
pub(super) struct Withheld(OwnedFd);

impl Withheld {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(memfd_create("withheld", MemfdFlags::CLOEXEC)?))
    }

    /// What CRIU gets.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// What the plugin has to know of it.
    pub(super) fn number(&self) -> String {
        self.0.as_raw_fd().to_string()
    }

    /// What CRIU would have dumped, of processes that still stand. It has not ended yet: it keeps the files.
    pub(super) fn read(self) -> io::Result<Unheard> {
        let mut file = File::from(self.0);
        file.rewind()?;
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text)?;
        // A list without its end would be an image without some of the memory.
        if text.len() as u64 == LONGEST {
            let why = format!("processes have more mappings than {} MiB can list", LONGEST >> 20);
            return Err(io::Error::other(why));
        }
        let (ranges, files) = told(&text)?;
        Ok(Unheard { pages: pages_of(&ranges)?, files })
    }
}

/// What the lines say, the ranges as little divided as can be; and where the files are.
fn told(text: &str) -> io::Result<(Ranges, Vec<PathBuf>)> {
    let mut all = Ranges::new();
    let mut files = Vec::new();
    for line in text.lines() {
        if let Some(file) = file(line) {
            files.push(file);
            continue;
        }
        let (process, range) = range(line).ok_or(io::ErrorKind::InvalidData)?;
        all.entry(process).or_default().push(range);
    }
    for ranges in all.values_mut() {
        ranges.sort_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let is_beside = next.start <= last.end;
            last.end = if is_beside { last.end.max(next.end) } else { last.end };
            is_beside
        });
    }
    Ok((all, files))
}

fn file(line: &str) -> Option<PathBuf> {
    let (process, fd) = line.strip_prefix("file ")?.split_once(' ')?;
    let (process, fd): (u32, u32) = (process.parse().ok()?, fd.parse().ok()?);
    Some(format!("/proc/{process}/fd/{fd}").into())
}

fn range(line: &str) -> Option<(OuterPid, Range<u64>)> {
    let mut fields = line.split(' ');
    let process = fields.next()?.parse().ok().filter(|pid| *pid > 0).map(OuterPid)?;
    let mut address = || u64::from_str_radix(fields.next()?, 16).ok();
    let range = address()?..address()?;
    (range.start < range.end && fields.next().is_none()).then_some((process, range))
}

/// A part that one thread looks at.
struct Part<'a> {
    process: OuterPid,
    pages: &'a Pages,
    range: Range<u64>,
    found: OnceLock<Vec<Range<u64>>>,
}

fn pages_of(ranges: &Ranges) -> io::Result<Ranges> {
    let opened = ranges.keys().map(|process| Ok((*process, Pages::open(*process)?)));
    let opened = opened.collect::<io::Result<BTreeMap<_, _>>>()?;
    let all = ranges.iter().zip(opened.values());
    let parts = all.flat_map(|((process, ranges), pages)| {
        let part = |range| Part { process: *process, pages, range, found: OnceLock::new() };
        ranges.iter().flat_map(divided).map(part)
    });
    let parts: Vec<Part<'_>> = parts.collect();
    by_threads(
        THREADS,
        &parts,
        || (),
        |(), part| {
            let _ = part.found.set(part.pages.of(part.range.clone())?);
            Ok(())
        },
    )?;
    let mut found = Ranges::new();
    for part in parts {
        found.entry(part.process).or_default().extend(part.found.into_inner().unwrap_or_default());
    }
    Ok(found)
}

/// The parts of a range.
fn divided(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, end) = (range.start, range.end);
    let count = (end - start).div_ceil(LOOKED_AT);
    (0..count).map(move |number| {
        let at = start + number * LOOKED_AT;
        at..at.saturating_add(LOOKED_AT).min(end)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    #[test]
    fn what_was_withheld_is_read() {
        let lines = "7 2000 3000\n9 1000 2000\nfile 5 12\n9 3000 4000\n7 1000 2000\n7 8000 a000\n";
        let (ranges, files) = told(lines).unwrap();
        assert_eq!(files, [Path::new("/proc/5/fd/12")]);
        let expected = [
            (OuterPid(7), vec![0x1000..0x3000, 0x8000..0xa000]),
            (OuterPid(9), vec![0x1000..0x2000, 0x3000..0x4000]),
        ];
        assert_eq!(ranges, expected.into());
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for line in ["", "7", "7 1000", "7 1000 x", "0 1000 2000", "-1 1000 2000", "7 2000 1000", "7 1 2 3"] {
            assert_eq!(range(line), None, "{line}");
        }
        for line in ["and", "file 5", "file 5 x", "file -5 1", "file 5 1 2"] {
            assert!(told(&format!("7 1000 2000\n{line}\n")).is_err(), "{line}");
        }
    }

    #[test]
    fn pages_of_a_process_are_found_in_every_part() {
        let written = vec![1u8; 3 * LOOKED_AT as usize / 256];
        let withheld = Withheld::new().unwrap();
        let (start, here) = (written.as_ptr() as u64 & !4095, std::process::id());
        let end = start + written.len() as u64;
        let path = format!("/proc/self/fd/{}", withheld.number());
        let mut list = fs::OpenOptions::new().append(true).open(path).unwrap();
        writeln!(list, "{here} {start:x} {:x}", start + 4096).unwrap();
        writeln!(list, "{here} {:x} {end:x}", start + 4096).unwrap();
        if crate::pagescan::is_there() {
            let found = withheld.read().unwrap().pages;
            let bytes: u64 = found[&OuterPid(here as i32)].iter().map(|range| range.end - range.start).sum();
            assert!(bytes >= written.len() as u64 - 8192, "{bytes}");
        }
    }

    #[test]
    fn a_range_is_divided_without_a_gap() {
        let whole = 5..5 + 2 * LOOKED_AT + 1;
        let parts: Vec<_> = divided(&whole).collect();
        assert_eq!(parts.len(), 3);
        assert!(parts.windows(2).all(|two| two[0].end == two[1].start));
        assert_eq!((parts[0].start, parts[2].end), (whole.start, whole.end));
    }
}
