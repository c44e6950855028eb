//! `dormouse rm`

use super::store_access;
use crate::flags::Rm;
use crate::output::{Show, bytes_bar};
use checkpoint::{Failure, Removing, kept_kind, open_store, remove_images};
use indicatif::HumanBytes;
use serde::Serialize;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use store::{CopyOptions, KeptWhy, Removal, Repack};

/// When what waits goes.
const WRITTEN: &str = "when the checkpoints that are being written now have ended";

#[derive(Serialize)]
pub struct Removed {
    #[serde(flatten)]
    pub removal: Removal,
    pub dry_run: bool,
    /// How much was allowed to lie unused, by what images need.
    #[serde(skip)]
    pub max_unused: f64,
}

/// Removes images.
pub fn run(flags: &Rm) -> Result<Removed, Failure> {
    let store = open_store(&store_access(&flags.store)?)?;
    let removal = with_progress(flags.max_unused, flags.dry_run, flags.json.json, |removing| {
        remove_images(&store, &flags.images, removing)
    })?;
    Ok(Removed { removal, dry_run: flags.dry_run, max_unused: flags.max_unused })
}

/// Removes as the flags say, with a bar for what is written anew.
pub fn with_progress<T>(max_unused: f64, dry: bool, json: bool, remove: impl FnOnce(Removing<'_>) -> T) -> T {
    let bar = bytes_bar(0, json);
    let progress = &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
        ControlFlow::Continue(())
    };
    let repack = Repack { max_unused, most: u64::MAX, how: CopyOptions::default() };
    let removed = remove(Removing { dry, repack, progress });
    bar.finish_and_clear();
    removed
}

/// Why nothing is freed where images are removed, and what would free some of it. What is in force already would not.
fn shared(max_unused: f64) -> String {
    // As it was given.
    let percent = (max_unused * 1e8).round() / 1e6;
    let less = match percent {
        0.0 => String::new(),
        unlimited if unlimited.is_infinite() => {
            ", or with --max-unused PERCENT (--dry-run says how much that frees)".to_owned()
        }
        _ => format!(
            ", or with --max-unused below the {percent} in force (--dry-run says how much that frees)"
        ),
    };
    format!("other images have data in the same packs, which go with the last of them{less}")
}

impl Show for Removed {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let Removal { images, freed, rewritten, waiting, kept, not_rewritten } = &self.removal;
        let would = if self.dry_run { "would be " } else { "" };
        images.iter().try_for_each(|image| writeln!(out, "image {image} {would}removed"))?;
        // What is free by it.
        let net = HumanBytes(freed.saturating_sub(*rewritten));
        match kept {
            Some(why) if *freed > 0 => writeln!(out, "{net} {would}freed, and no more: {why}"),
            None if *freed == 0 && *waiting == 0 && !images.is_empty() => {
                writeln!(out, "nothing {would}freed yet: {}", shared(self.max_unused))
            }
            None => writeln!(out, "{net} {would}freed"),
            Some(why) => writeln!(out, "no room {would}freed: {why}"),
        }?;
        if *rewritten > 0 && *freed > 0 {
            let (old, new) = (HumanBytes(*freed), HumanBytes(*rewritten));
            writeln!(out, "packs of {old} {would}gone, of which {new} that images need {would}written anew")?;
        }
        if let Some(why) = not_rewritten {
            writeln!(out, "no more is written anew: {why}")?;
        }
        match waiting {
            0 => Ok(()),
            _ => writeln!(
                out,
                "{} more can go with the next `dormouse rm` or `prune`, {WRITTEN}",
                HumanBytes(*waiting)
            ),
        }
    }

    /// As restic's and borg's: what was to be freed and is not is no success, though the images are gone.
    fn code(&self) -> ExitCode {
        let Removal { kept, not_rewritten, .. } = &self.removal;
        // Damage is told whatever it concerns; that there is no room to write something anew is not.
        let damage = not_rewritten.as_ref().filter(|why| why.why == KeptWhy::Unreadable);
        let kept = kept.as_ref().or(damage).filter(|_| !self.dry_run);
        kept.map_or(ExitCode::SUCCESS, |kept| kept_kind(kept).exit_code().into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags;
    use image::Manifest;
    use std::fs;
    use store::media::{Dir, Media};
    use store::{Kept, Location, Store};

    /// What is in force already is no advice.
    #[test]
    fn nothing_that_was_asked_for_is_advised() {
        let said = |max_unused| {
            let removal = Removal { images: vec![image::ImageId([1; 16])], ..Removal::default() };
            let mut text = Vec::new();
            Removed { removal, dry_run: false, max_unused }.show(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert!(said(f64::INFINITY).contains("with --max-unused PERCENT ("), "{}", said(f64::INFINITY));
        for (max_unused, below) in [(0.1, "below the 10 in force"), (0.07, "below the 7 in force")] {
            let said = said(max_unused);
            assert!(said.contains(below) && !said.contains("--max-unused 10"), "{said}");
        }
        assert!(said(0.0).ends_with("the last of them\n"), "{}", said(0.0));
    }

    /// What is damaged is; that a disk is full is no damage.
    #[test]
    fn a_pack_that_stays_since_it_is_damaged_is_told_by_the_exit_code() {
        for (why, code) in [(KeptWhy::Unreadable, 7), (KeptWhy::Medium, 0)] {
            let why = Kept { why, message: "it stays".to_owned() };
            let removal = Removal { freed: 5, not_rewritten: Some(why), ..Removal::default() };
            let removed = Removed { removal, dry_run: false, max_unused: 0.1 };
            assert_eq!(removed.code(), ExitCode::from(code));
        }
    }

    #[test]
    fn room_that_stays_taken_is_told_by_the_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_or_create(folder.path()).unwrap();
        let image = store.begin().unwrap().publish(Manifest::new("job"), Vec::new()).unwrap().id;
        let code = || {
            let store = Some(Location::Folder(folder.path().to_owned()));
            let store = flags::Store { store, keys: flags::Keys::default() };
            let json = flags::Json { json: false };
            let flags = Rm { images: Vec::new(), max_unused: f64::INFINITY, dry_run: false, store, json };
            run(&flags).unwrap().code()
        };
        assert_eq!(code(), ExitCode::SUCCESS);
        let reader = Dir::new(folder.path()).share("config").unwrap();
        assert_eq!(code(), ExitCode::from(4));
        drop(reader);
        fs::write(folder.path().join(format!("images/{image}.img")), "").unwrap();
        assert_eq!(code(), ExitCode::from(7));
    }
}
