//! `dormouse copy`

use super::access;
use crate::flags::Copy;
use crate::output::{Show, bytes_bar};
use checkpoint::{
    Failure, Kind, copy_failure, existing_store, find_image, open_failure, open_or_create_store, open_store,
    read_failure,
};
use image::ImageId;
use indicatif::HumanBytes;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use store::{Access, CopiedImage, CopyOptions, CopyReport, Location, Store, UncopiedImage};

#[derive(Serialize)]
pub struct Copied {
    #[serde(flatten)]
    pub report: CopyReport,
    pub dry_run: bool,
    /// Whoever asked for one by name is not content without it.
    #[serde(skip)]
    pub named: Vec<ImageId>,
}

/// What is to be copied.
struct Chosen {
    /// Oldest first.
    images: Vec<ImageId>,
    /// Those of them that were asked for one by one.
    named: Vec<ImageId>,
    /// Those that cannot be read and were not asked for so.
    damaged: Vec<UncopiedImage>,
}

/// Copies images from one store to another.
pub fn run(flags: &Copy) -> Result<Copied, Failure> {
    if is_same(&flags.from, &flags.to) {
        let message =
            format!("{} and {} are the same store: name another one to copy to", flags.from, flags.to);
        return Err(Failure::new(Kind::Usage, message));
    }
    let from = open_store(&access(flags.from.clone(), &flags.keys.key, &[])?)?;
    let to = access(flags.to.clone(), &flags.keys.key, &flags.encrypt)?;
    if from.is_encrypted() && !flags.plain {
        check_encrypted(&to)?;
    }
    let chosen = chosen(&from, flags)?;
    copy_chosen(&from, &to, chosen, flags)
}

fn copy_chosen(from: &Store, to: &Access, chosen: Chosen, flags: &Copy) -> Result<Copied, Failure> {
    let Chosen { images, named, mut damaged } = chosen;
    let to = match flags.dry_run {
        true => would_open(to)?,
        false => Some(open_or_create_store(to)?),
    };
    let planned = from.would_copy_to(to.as_ref(), &images).map_err(copy_failure)?;
    let mut report = match to {
        Some(to) if !flags.dry_run => copy(from, &to, &images, &planned, flags.json.json)?,
        _ => planned,
    };
    damaged.append(&mut report.damaged);
    Ok(Copied { report: CopyReport { damaged, ..report }, dry_run: flags.dry_run, named })
}

/// The store, if it is there; one that is not must be such as can be made.
fn would_open(to: &Access) -> Result<Option<Store>, Failure> {
    let there = existing_store(to)?;
    if there.is_none() {
        to.check_new().map_err(|error| open_failure(&error))?;
    }
    Ok(there)
}

/// Whether what is copied to a store will be encrypted there.
fn check_encrypted(to: &Access) -> Result<(), Failure> {
    let what = match existing_store(to) {
        Ok(Some(there)) if there.is_encrypted() => return Ok(()),
        Ok(None) if !to.recipients.is_empty() => return Ok(()),
        Ok(None) => "would not be",
        // A folder that is there and empty becomes a store.
        Err(_) if is_empty(to) && !to.recipients.is_empty() => return Ok(()),
        Err(_) if is_empty(to) => "would not be",
        Ok(Some(_)) => "is not",
        Err(failure) => return Err(failure),
    };
    let message = format!(
        "the images are encrypted, and the store {} {what}: give --encrypt RECIPIENT for a new store that is, or --plain if whoever can \
         read that one may read them",
        to.at
    );
    Err(Failure::new(Kind::Refused, message))
}

fn is_empty(to: &Access) -> bool {
    to.at.as_folder().is_some_and(|dir| std::fs::read_dir(dir).is_ok_and(|mut names| names.next().is_none()))
}

/// Whether two places are one, under whatever names.
fn is_same(from: &Location, to: &Location) -> bool {
    let real = |at: &Location| at.as_folder().and_then(|dir| dir.canonicalize().ok());
    from == to || real(from).is_some_and(|dir| real(to) == Some(dir))
}

/// The images to copy.
fn chosen(from: &Store, flags: &Copy) -> Result<Chosen, Failure> {
    let named = flags.images.iter().map(|reference| find_image(from, reference));
    let named = named.collect::<Result<Vec<_>, _>>()?;
    // Behind it: what was found is listed, or has gone.
    let listing = from.list().map_err(read_failure)?;
    let mut wanted = named.clone();
    for job in &flags.job {
        let of_job = listing.images.iter().filter(|image| image.job == *job);
        let before = wanted.len();
        wanted.extend(of_job.map(|image| image.id));
        if wanted.len() == before && !listing.damaged.iter().any(|image| image.may_be_of(job)) {
            let message = format!("there is no image of a job named {job:?} in {}", from.location());
            return Err(Failure::new(Kind::NotFound, message));
        }
    }
    let all = flags.images.is_empty() && flags.job.is_empty();
    let may_be_meant = |image: &&store::DamagedImage| all || flags.job.iter().any(|job| image.may_be_of(job));
    let damaged = listing.damaged.iter().filter(may_be_meant);
    let damaged = damaged.map(|image| UncopiedImage {
        image: image.image,
        problem: format!("{}: {}", image.path.display(), image.problem),
    });
    let damaged = damaged.collect();
    let mut images: Vec<_> =
        listing.images.iter().map(|image| image.id).filter(|id| all || wanted.contains(id)).collect();
    let unlisted: Vec<_> = named.iter().copied().filter(|id| !images.contains(id)).collect();
    images.extend(unlisted);
    Ok(Chosen { images, named, damaged })
}

fn copy(
    from: &Store,
    to: &Store,
    images: &[ImageId],
    planned: &CopyReport,
    json: bool,
) -> Result<CopyReport, Failure> {
    let total = planned.images.iter().map(|image| image.written).sum();
    let bar = bytes_bar(total, json);
    let copied = from.copy_to(to, images, &CopyOptions::default(), &mut |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    copied.map_err(copy_failure)
}

impl Show for Copied {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let would = if self.dry_run { "would be " } else { "" };
        for CopiedImage { image, job, there, chunks, written, .. } in &self.report.images {
            if *there {
                writeln!(out, "image {image} of job {job} is there already")?;
            } else {
                let written = HumanBytes(*written);
                writeln!(out, "image {image} of job {job} {would}copied: {chunks} chunks, {written}")?;
            }
        }
        for UncopiedImage { image, problem } in &self.report.damaged {
            writeln!(out, "not copied: image {image}: {problem}")?;
        }
        for image in &self.report.gone {
            writeln!(out, "not copied: image {image} has been removed meanwhile")?;
        }
        let written = self.report.images.iter().map(|image| image.written).sum();
        let copied = self.report.images.iter().filter(|image| !image.there).count();
        let all = self.report.images.len() + self.report.damaged.len();
        let what = if self.dry_run { "would copy" } else { "copied" };
        writeln!(out, "{what} {copied} of {all} images, {}", HumanBytes(written))
    }

    /// Whoever looks only at the code must not take some for all.
    fn code(&self) -> ExitCode {
        if !self.report.damaged.is_empty() {
            return Kind::Damaged.exit_code().into();
        }
        let is_missed = self.report.gone.iter().any(|image| self.named.contains(image));
        if is_missed { Kind::NotFound.exit_code().into() } else { ExitCode::SUCCESS }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags::{Json, Keys};
    use image::{Manifest, ObjectKind};
    use std::path::Path;
    use store::WriteOptions;

    fn publish(dir: &Path, job: &str, byte: u8) -> ImageId {
        let store = Store::open_or_create(dir).unwrap();
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions::default()).unwrap();
        writer.put(ObjectKind::HostRecord, &[byte; 5000]).unwrap();
        let manifest = Manifest { created_ns: byte.into(), ..Manifest::new(job) };
        draft.publish(manifest, vec![writer.finish().unwrap()]).unwrap().id
    }

    /// What is removed behind the list is missed by who named it, and by nobody else.
    #[test]
    fn an_image_that_goes_meanwhile_is_no_damage() {
        for (name_it, dry_run, code) in
            [(false, false, 0), (true, false, 3), (false, true, 0), (true, true, 3)]
        {
            let folder = tempfile::tempdir().unwrap();
            let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
            let [gone, _] = [1, 2].map(|byte| publish(&from, "job", byte));
            let images = if name_it { vec![gone.to_string(), "job".to_owned()] } else { Vec::new() };
            let [at, to] = [&from, &to].map(|folder| Location::Folder(folder.clone()));
            let (job, encrypt, plain, keys, json) =
                (Vec::new(), Vec::new(), false, Keys::default(), Json { json: true });
            let flags = Copy { from: at, to: to.clone(), images, job, encrypt, plain, keys, dry_run, json };
            let store = Store::open(&from).unwrap();
            let chosen = chosen(&store, &flags).unwrap();
            store.remove(&[gone]).unwrap();
            let copied = copy_chosen(&store, &to.into(), chosen, &flags).unwrap();
            assert_eq!((&copied.report.gone[..], copied.report.images.len()), (&[gone][..], 1));
            assert_eq!(copied.code(), ExitCode::from(code), "{name_it}, {dry_run}");
            let mut text = Vec::new();
            copied.show(&mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains(&format!("image {gone} has been removed meanwhile")), "{text}");
            assert!(text.contains(" 1 of 1 images, "), "{text}");
        }
    }

    #[test]
    fn images_are_chosen_by_id_and_job() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to/be/made"));
        let [a, b, c] = [("one", 1), ("two", 2), ("two", 3)].map(|(job, byte)| publish(&from, job, byte));
        let copy = |images: &[&str], job: &[&str], dry_run| {
            let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let (images, job, json) = (texts(images), texts(job), Json { json: true });
            let [from, to] = [&from, &to].map(|folder| store::Location::Folder(folder.clone()));
            let (encrypt, plain, keys) = (Vec::new(), false, Keys::default());
            run(&Copy { from, to, images, job, encrypt, plain, keys, dry_run, json })
        };
        let came = |copied: &Copied| -> Vec<ImageId> {
            copied.report.images.iter().filter(|image| !image.there).map(|image| image.image).collect()
        };
        let planned = copy(&[], &[], true).unwrap();
        assert_eq!(came(&planned), [a, b, c]);
        assert!(!to.exists());
        assert_eq!(came(&copy(&["two"], &[], true).unwrap()), [c], "a job's name is its newest image");
        assert_eq!(came(&copy(&[], &["two"], true).unwrap()), [b, c]);
        assert_eq!(copy(&["nothing"], &[], true).err().unwrap().kind, Kind::NotFound);
        assert_eq!(copy(&[], &["nothing"], true).err().unwrap().kind, Kind::NotFound);
        let onto_itself = Copy {
            from: Location::Folder(from.clone()),
            to: Location::Folder(from.join("../from")),
            images: Vec::new(),
            job: Vec::new(),
            encrypt: Vec::new(),
            plain: false,
            keys: Keys::default(),
            dry_run: false,
            json: Json { json: true },
        };
        assert_eq!(run(&onto_itself).err().unwrap().kind, Kind::Usage);
        assert_eq!(came(&copy(&[&b.to_string(), "one"], &[], false).unwrap()), [a, b]);
        assert_eq!(Store::open(&to).unwrap().list().unwrap().images.len(), 2);
        std::fs::write(from.join(format!("images/{a}.img")), "").unwrap();
        let rest = copy(&[], &[], false).unwrap();
        assert_eq!((came(&rest), rest.report.damaged[0].image), (vec![c], a));
        assert_eq!(rest.code(), ExitCode::from(7));
        let mut text = Vec::new();
        rest.show(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("is there already") && text.contains("not copied: image"), "{text}");
        assert!(text.contains("\ncopied 1 of 3 images, "), "{text}");
    }
}
