//! `dormouse ls`, `inspect` and `verify`

use super::store_dir;
use crate::flags;
use crate::output::{Show, table};
use checkpoint::{Failure, Kind, find_image, open_store};
use image::FileAction;
use indicatif::{HumanBytes, ProgressBar};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use store::report::ImageDetails;
use store::{Listing, VerifyReport};

#[derive(Serialize)]
#[serde(transparent)]
pub struct Images(Listing);

/// Lists the images of a store; of one job, if asked.
pub fn ls(flags: &flags::Ls) -> Result<Images, Failure> {
    let dir = store_dir(&flags.store);
    let mut listing = if dir.try_exists().unwrap_or(true) {
        let listed = open_store(&dir)?.list();
        listed.map_err(|error| Failure::of(format_args!("cannot list {}", dir.display()), &error))?
    } else {
        // Not an error: the first checkpoint makes it.
        if !flags.json.json {
            eprintln!("dormouse: the store {} does not exist yet", dir.display());
        }
        Listing::default()
    };
    if let Some(job) = &flags.job {
        listing.images.retain(|image| image.job == *job);
        if listing.images.is_empty() {
            let message = format!(
                "there is no image of a job named {job:?} in {}: `dormouse ls` shows those that are there",
                dir.display()
            );
            return Err(Failure::new(Kind::NotFound, message));
        }
    }
    Ok(Images(listing))
}

impl Show for Images {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows = vec![
            ["IMAGE", "JOB", "CREATED", "SIZE", "WRITTEN", "DEVICE", "COMMAND"].map(String::from).to_vec(),
        ];
        rows.extend(self.0.images.iter().map(|image| {
            vec![
                image.id.to_string().chars().take(12).collect(),
                image.job.clone(),
                image.created.clone(),
                HumanBytes(image.stored.data).to_string(),
                HumanBytes(image.stored.written).to_string(),
                image.devices.join(", "),
                image.command.join(" "),
            ]
        }));
        table(out, &rows)?;
        for damaged in &self.0.damaged {
            writeln!(out, "damaged: {}: {}", damaged.path.display(), damaged.problem)?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
#[serde(transparent)]
pub struct Details(ImageDetails);

/// Shows everything about an image but its bytes.
pub fn inspect(flags: &flags::Image) -> Result<Details, Failure> {
    let store = open_store(&store_dir(&flags.store))?;
    let id = find_image(&store, &flags.image)?;
    store.inspect(&id).map(Details).map_err(|error| Failure::new(Kind::Damaged, error.to_string()))
}

impl Show for Details {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let image = &self.0;
        let summary = &image.summary;
        writeln!(out, "image      {}", summary.id)?;
        writeln!(out, "job        {}", summary.job)?;
        writeln!(out, "created    {} by dormouse {}", summary.created, summary.dormouse)?;
        writeln!(out, "command    {}", summary.command.join(" "))?;
        writeln!(out, "folder     {}", image.cwd)?;
        writeln!(
            out,
            "machine    {} ({}, Linux {})",
            image.host.hostname, summary.machine, image.host.kernel
        )?;
        for device in &image.device_details {
            let capability = device.compute_capability;
            writeln!(
                out,
                "device {}   {} ({}, {}.{}, {})",
                device.ordinal,
                device.name,
                device.backend,
                capability / 10,
                capability % 10,
                HumanBytes(device.total_memory)
            )?;
        }
        writeln!(out, "rehearsed  {}", if summary.rehearsed { "yes" } else { "no" })?;
        let times = &image.times;
        writeln!(
            out,
            "stall      {:.3} s (drain {:.3}, device {:.3}, shared {:.3}, host {:.3})",
            times.stall, times.drain_wait, times.device_capture, times.pinned_capture, times.host_freeze
        )?;
        let stored = &summary.stored;
        writeln!(
            out,
            "bytes      {} ({} stored before) and {} of zeros, which take no room; {} written",
            HumanBytes(stored.data),
            HumanBytes(stored.reused),
            HumanBytes(stored.zero),
            HumanBytes(stored.written)
        )?;
        for file in &image.job_files {
            writeln!(
                out,
                "wrote      {} ({} bytes; a restart {})",
                file.path,
                file.len,
                in_words(file.action)
            )?;
        }
        writeln!(out)?;
        let mut rows = vec![["BYTES", "ZERO", "CHUNKS", "OBJECT"].map(String::from).to_vec()];
        rows.extend(image.objects.iter().map(|object| {
            vec![
                object.len.to_string(),
                object.zero.to_string(),
                object.chunks.to_string(),
                object.name.clone(),
            ]
        }));
        table(out, &rows)
    }
}

/// What a restart does with a file that the job has written.
fn in_words(action: FileAction) -> &'static str {
    match action {
        FileAction::Truncate => "cuts it back to this length",
        FileAction::PutBack => "puts this content back",
        FileAction::Warn => "leaves it as it is, and says so",
    }
}

#[derive(Serialize)]
#[serde(transparent)]
pub struct Verified(VerifyReport);

/// Reads an image whole.
pub fn verify(flags: &flags::Image) -> Result<Verified, Failure> {
    let store = open_store(&store_dir(&flags.store))?;
    let id = find_image(&store, &flags.image)?;
    let visible = io::stderr().is_terminal() && !flags.json.json;
    let bar = if visible { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let report = store.verify(&id, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    report.map(Verified).map_err(|error| Failure::new(Kind::Damaged, error.to_string()))
}

impl Show for Verified {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        for damage in &self.0.damage {
            writeln!(out, "damaged: {damage}")?;
        }
        if self.0.more_damage > 0 {
            writeln!(out, "and {} more", self.0.more_damage)?;
        }
        if self.0.ok {
            writeln!(out, "image {} is whole", self.0.image)?;
        }
        Ok(())
    }

    fn code(&self) -> ExitCode {
        if self.0.ok { ExitCode::SUCCESS } else { crate::exit::code(Kind::Damaged).into() }
    }
}
