//! `dormouse rm`

use super::store_access;
use crate::flags::Rm;
use crate::output::Show;
use checkpoint::{Failure, open_store, remove_images};
use indicatif::HumanBytes;
use serde::Serialize;
use std::io::{self, Write};
use store::Removal;

/// Why nothing is freed where images are removed.
const SHARED: &str = "other images have data in the same packs, which go with the last of them";

/// When what waits goes.
const WRITTEN: &str = "when the checkpoints that are being written now have ended";

#[derive(Serialize)]
pub struct Removed {
    #[serde(flatten)]
    pub removal: Removal,
    pub dry_run: bool,
}

/// Removes images.
pub fn run(flags: &Rm) -> Result<Removed, Failure> {
    let store = open_store(&store_access(&flags.store)?)?;
    let removal = remove_images(&store, &flags.images, flags.dry_run)?;
    Ok(Removed { removal, dry_run: flags.dry_run })
}

impl Show for Removed {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let Removal { images, freed, waiting, kept } = &self.removal;
        let would = if self.dry_run { "would be " } else { "" };
        images.iter().try_for_each(|image| writeln!(out, "image {image} {would}removed"))?;
        match kept {
            Some(why) if *freed > 0 => {
                writeln!(out, "{} {would}freed, and no more: {why}", HumanBytes(*freed))
            }
            None if *freed == 0 && *waiting == 0 && !images.is_empty() => {
                writeln!(out, "nothing {would}freed yet: {SHARED}")
            }
            None => writeln!(out, "{} {would}freed", HumanBytes(*freed)),
            Some(why) => writeln!(out, "no room {would}freed: {why}"),
        }?;
        match waiting {
            0 => Ok(()),
            _ => writeln!(
                out,
                "{} more can go with the next `dormouse rm` or `prune`, {WRITTEN}",
                HumanBytes(*waiting)
            ),
        }
    }
}
