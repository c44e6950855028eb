//! `dormouse prune`

use super::rm::{Removed, with_progress};
use super::store_access;
use crate::flags::Prune;
use crate::output::Show;
use checkpoint::{Failure, Kind, open_store, prune_images};
use image::ImageId;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use store::{Keep, LackingImage, Pruned};

#[derive(Serialize)]
pub struct Answer {
    pub kept_images: Vec<ImageId>,
    pub lacking: Vec<LackingImage>,
    #[serde(flatten)]
    pub removed: Removed,
}

/// Removes what is not to be kept.
pub fn run(flags: &Prune) -> Result<Answer, Failure> {
    let keep = Keep {
        last: flags.keep_last,
        hourly: flags.keep_hourly,
        daily: flags.keep_daily,
        weekly: flags.keep_weekly,
        monthly: flags.keep_monthly,
    };
    if keep.is_nothing() {
        let what = "nothing would be kept: give one of the --keep options a number, or remove images by `dormouse rm`";
        return Err(Failure::new(Kind::Usage, what));
    }
    let store = open_store(&store_access(&flags.store)?)?;
    let Pruned { kept_images, lacking, removal } =
        with_progress(flags.max_unused, flags.dry_run, flags.json.json, |removing| {
            prune_images(&store, flags.job.as_deref(), &keep, removing)
        })?;
    Ok(Answer {
        kept_images,
        lacking,
        removed: Removed { removal, dry_run: flags.dry_run, max_unused: flags.max_unused },
    })
}

impl Show for Answer {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        self.removed.show(out)?;
        writeln!(out, "{} kept", self.kept_images.len())
    }

    fn code(&self) -> ExitCode {
        self.removed.code()
    }
}
