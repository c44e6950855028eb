//! `dormouse ls`, `inspect` and `verify`

use super::checkpoint::bar;
use super::store_access;
use crate::flags;
use crate::output::{Show, command_line, printable, table};
use checkpoint::{Failure, Kind, existing_store, find_image, open_store, read_failure};
use image::FileAction;
use indicatif::HumanBytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use store::report::ImageDetails;
use store::{Damage, Listing, ReadError, VerifyReport};

#[derive(Serialize)]
#[serde(transparent)]
pub struct Images(Listing);

/// Lists the images of a store; of one job, if asked.
pub fn ls(flags: &flags::Ls) -> Result<Images, Failure> {
    let access = store_access(&flags.store)?;
    let at = &access.at;
    let mut listing = if let Some(store) = existing_store(&access)? {
        store.list().map_err(|error| Failure::of(format_args!("cannot list {at}"), &error))?
    } else {
        // Not an error: the first checkpoint makes it.
        if !flags.json.json {
            eprintln!("dormouse: the store {at} does not exist yet");
        }
        Listing::default()
    };
    if let Some(job) = &flags.job {
        listing.images.retain(|image| image.job == *job);
        listing.damaged.retain(|image| image.may_be_of(job));
        if listing.images.is_empty() && listing.damaged.is_empty() {
            let message = format!(
                "there is no image of a job named {job:?} in {at}: `dormouse ls` shows those that are there"
            );
            return Err(Failure::new(Kind::NotFound, message));
        }
    }
    Ok(Images(listing))
}

impl Show for Images {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows = vec![
            ["IMAGE", "JOB", "CREATED", "TAKEN", "SIZE", "WRITTEN", "DEVICE", "COMMAND"]
                .map(String::from)
                .to_vec(),
        ];
        rows.extend(self.0.images.iter().map(|image| {
            vec![
                image.id.short(),
                image.job.clone(),
                image.created.clone(),
                if image.regular { "regularly" } else { "on request" }.to_owned(),
                HumanBytes(image.stored.data).to_string(),
                HumanBytes(image.stored.written).to_string(),
                image.devices.join(", "),
                command_line(&image.command),
            ]
        }));
        table(out, &rows)?;
        for each in &self.0.damaged {
            let what = if each.newer { "not readable" } else { "damaged" };
            let job =
                each.job.as_ref().map(|job| format!(", as it seems of job {job:?}")).unwrap_or_default();
            writeln!(out, "{what}: image {}{job}: {}: {}", each.image, each.path.display(), each.problem)?;
        }
        Ok(())
    }

    /// Whoever looks only at the code must not take a list with holes for a whole one.
    fn code(&self) -> ExitCode {
        let damaged = self.0.damaged.iter().any(|image| !image.newer);
        if damaged { Kind::Damaged.exit_code().into() } else { ExitCode::SUCCESS }
    }
}

#[derive(Serialize)]
#[serde(transparent)]
pub struct Details(ImageDetails);

/// Shows everything about an image but its bytes.
pub fn inspect(flags: &flags::Image) -> Result<Details, Failure> {
    let store = open_store(&store_access(&flags.store)?)?;
    let id = find_image(&store, &flags.image)?;
    store.inspect(&id).map(Details).map_err(read_failure)
}

impl Show for Details {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let image = &self.0;
        let summary = &image.summary;
        writeln!(out, "image      {}", summary.id)?;
        writeln!(out, "job        {}", summary.job)?;
        writeln!(out, "created    {} by dormouse {}", summary.created, summary.dormouse)?;
        writeln!(out, "command    {}", command_line(&summary.command))?;
        writeln!(out, "folder     {}", printable(&image.cwd))?;
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
        if summary.half_way > 0 {
            writeln!(out, "half-way   launches of marked kernels: {}", summary.half_way)?;
        }
        let times = &image.times;
        writeln!(
            out,
            "stall      {:.0} ms (drain {:.0}, device {:.0}, shared {:.0}, host {:.0})",
            times.stall_ms, times.drain_ms, times.device_ms, times.shared_ms, times.host_ms
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
        if stored.excluded > 0 {
            writeln!(
                out,
                "excluded   {}, which the program need not have back",
                HumanBytes(stored.excluded)
            )?;
        }
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
                object.object.clone(),
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

/// What was found.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Verified {
    /// Of the image that was asked for.
    One(Box<VerifyReport>),
    /// Of a store.
    All {
        /// Whether nothing is wrong with any image.
        ok: bool,
        /// Of each of them, oldest first; behind them those of which the manifest cannot be read.
        images: Vec<VerifyReport>,
    },
}

/// Reads an image whole, or all that there are, or only looks whether they are there.
pub fn verify(flags: &flags::Verify) -> Result<Verified, Failure> {
    let store = open_store(&store_access(&flags.store)?)?;
    let ids = match &flags.image {
        Some(image) => vec![find_image(&store, image)?],
        None => {
            let listing = store.list().map_err(|error| Failure::of("cannot list the store", &error))?;
            let damaged = listing.damaged.iter().map(|image| image.image);
            listing.images.iter().map(|image| image.id).chain(damaged).collect()
        }
    };
    // Behind the list: what is in that is in the indexes, too.
    let mut verifier = store.verifier().map_err(read_failure)?;
    let bar = bar(!flags.json.json);
    let mut images = Vec::new();
    for (number, id) in (1..).zip(&ids) {
        bar.set_message(format!("image {number} of {}", ids.len()));
        let report = match flags.quick {
            true => verifier.verify_structure(id),
            false => verifier.verify(id, &mut |progress| {
                bar.set_length(progress.total);
                bar.set_position(progress.done);
            }),
        };
        match report {
            // Somebody has removed it since, or while it was read.
            Ok(report) if !report.ok && matches!(store.manifest(id), Err(ReadError::NoImage { .. })) => {
                if flags.image.is_some() {
                    return Err(read_failure(ReadError::NoImage { image: *id, dir: store.dir() }));
                }
            }
            Err(ReadError::NoImage { .. }) if flags.image.is_none() => {}
            Ok(report) => images.push(report),
            Err(error) => return Err(read_failure(error)),
        }
    }
    bar.finish_and_clear();
    let ok = images.iter().all(|report| report.ok);
    match images.pop() {
        Some(report) if flags.image.is_some() => Ok(Verified::One(Box::new(report))),
        last => Ok(Verified::All { ok, images: images.into_iter().chain(last).collect() }),
    }
}

impl Verified {
    fn reports(&self) -> &[VerifyReport] {
        match self {
            Self::One(report) => std::slice::from_ref(report),
            Self::All { images, .. } => images,
        }
    }
}

impl Show for Verified {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let reports = self.reports();
        if reports.is_empty() {
            return writeln!(out, "there are no images");
        }
        for report in reports {
            show_damage(report, out)?;
            match report {
                VerifyReport { ok: true, read_data: true, image, .. } => {
                    writeln!(out, "image {image} is whole")?;
                }
                VerifyReport { ok: true, image, .. } => {
                    writeln!(
                        out,
                        "nothing of image {image} is missing; without --quick its bytes are read, too"
                    )?;
                }
                VerifyReport { image, .. } if report.can_be_read() => {
                    writeln!(out, "image {image} can be read whole, and files that it is in are damaged")?;
                }
                VerifyReport { image, .. } => writeln!(out, "image {image} is damaged")?,
            }
        }
        VerifyReport::advice(reports).iter().try_for_each(|advice| writeln!(out, "{advice}"))
    }

    fn code(&self) -> ExitCode {
        let ok = self.reports().iter().all(|report| report.ok);
        if ok { ExitCode::SUCCESS } else { Kind::Damaged.exit_code().into() }
    }
}

/// A line for each damaged file.
fn show_damage(report: &VerifyReport, out: &mut dyn Write) -> io::Result<()> {
    let mut files: BTreeMap<&Path, Vec<&Damage>> = BTreeMap::new();
    report.damage.iter().for_each(|damage| files.entry(&damage.file).or_default().push(damage));
    for faults in files.values() {
        let Some((first, more)) = faults.split_first() else { continue };
        let more =
            if more.is_empty() { String::new() } else { format!("; {} more faults in it", more.len()) };
        writeln!(out, "damaged: {first}{more}")?;
    }
    match report.more_damage {
        0 => Ok(()),
        more => writeln!(out, "and {more} more faults"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use image::ImageId;
    use store::Cure;

    #[test]
    fn a_damaged_pack_is_one_line() {
        let fault = |file: &str, offset: u64| Damage {
            file: file.into(),
            file_offset: Some(offset),
            objects: Vec::new(),
            problem: "it cannot be read".to_owned(),
            cure: Cure::default(),
        };
        let mut damage: Vec<Damage> = (0..100).map(|number| fault("packs/a.pack", number * 16)).collect();
        damage.push(fault("packs/b.pack", 3));
        let report = VerifyReport {
            image: ImageId([7; 16]),
            ok: false,
            read_data: true,
            objects: 1,
            chunks: 101,
            bytes: 0,
            damage,
            more_damage: 0,
        };
        let mut text = Vec::new();
        Verified::One(Box::new(report)).show(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[0].contains("packs/a.pack at offset 0x0") && lines[0].ends_with("; 99 more faults in it"),
            "{text}"
        );
        assert!(
            lines[1].contains("packs/b.pack at offset 0x3") && !lines[1].contains("more faults"),
            "{text}"
        );
    }

    #[test]
    fn an_image_that_can_be_read_is_told_from_one_that_has_lost_something() {
        let report = |cure| VerifyReport {
            image: ImageId([7; 16]),
            ok: false,
            read_data: true,
            objects: 1,
            chunks: 1,
            bytes: 0,
            damage: vec![Damage {
                file: "packs/a.pack".into(),
                file_offset: None,
                objects: Vec::new(),
                problem: "it is cut short".to_owned(),
                cure,
            }],
            more_damage: 0,
        };
        let said = |reports: Vec<VerifyReport>| {
            let (mut text, verified) = (Vec::new(), Verified::All { ok: false, images: reports });
            verified.show(&mut text).unwrap();
            assert_eq!(verified.code(), ExitCode::from(7));
            String::from_utf8(text).unwrap()
        };
        let readable = said(vec![report(Cure::Anew)]);
        assert!(
            readable.contains("can be read whole") && !readable.contains("use another image"),
            "{readable}"
        );
        // What helps against each sort of damage is said once.
        let both = said(vec![report(Cure::Copy), report(Cure::Anew), report(Cure::Copy)]);
        assert_eq!(both.matches("use another image").count(), 1, "{both}");
        assert_eq!(both.matches("`dormouse copy").count(), 1, "{both}");
    }
}
