//! `dormouse diff`

use super::store_access;
use crate::flags::Diff;
use crate::output::{Show, table};
use checkpoint::{Failure, find_image, open_store, read_failure};
use indicatif::HumanBytes;
use serde::Serialize;
use std::io::{self, Write};
use store::{Change, Chunks, ObjectDiff, Pieces};

#[derive(Serialize)]
#[serde(transparent)]
pub struct Differences(store::Diff);

/// Compares two images.
pub fn run(flags: &Diff) -> Result<Differences, Failure> {
    let store = open_store(&store_access(&flags.store)?)?;
    let (a, b) = (find_image(&store, &flags.a)?, find_image(&store, &flags.b)?);
    store.diff(&a, &b).map(Differences).map_err(read_failure)
}

impl Show for Differences {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let diff = &self.0;
        if diff.is_empty() {
            return writeln!(out, "the objects of images {} and {} are the same", diff.a, diff.b);
        }
        let mut rows = vec![["CHANGE", "BYTES", "CHUNKS", "OBJECT"].map(String::from).to_vec()];
        rows.extend(diff.objects.iter().map(|each| {
            let ObjectDiff { object, change, differ: Pieces { bytes, chunks }, .. } = each;
            vec![in_a_word(*change).to_owned(), bytes.to_string(), chunks.to_string(), object.clone()]
        }));
        table(out, &rows)?;
        writeln!(out)?;
        let mut rows =
            vec![["KIND", "SAME", "CHANGED", "ADDED", "REMOVED", "BYTES"].map(String::from).to_vec()];
        rows.extend(diff.kinds.iter().map(|sum| {
            let objects = [sum.same, sum.changed, sum.added, sum.removed].map(|count| count.to_string());
            let kind = sum.kind.replace('_', " ");
            [kind].into_iter().chain(objects).chain([HumanBytes(sum.differ.bytes).to_string()]).collect()
        }));
        table(out, &rows)?;
        writeln!(out)?;
        let mut rows = vec![["CHUNKS OF", "NUMBER", "BYTES"].map(String::from).to_vec()];
        let sums =
            [("both", diff.shared), ("the first alone", diff.only_a), ("the second alone", diff.only_b)];
        rows.extend(sums.map(|(whose, Chunks { chunks, bytes })| {
            vec![whose.to_owned(), chunks.to_string(), HumanBytes(bytes).to_string()]
        }));
        table(out, &rows)
    }
}

fn in_a_word(change: Change) -> &'static str {
    match change {
        Change::Added => "added",
        Change::Removed => "removed",
        Change::Changed => "changed",
    }
}
