//! A bucket of S3-compatible object storage, or the part of one whose names begin alike.
//!
//! The names are those of a folder, but for packs in a draft: a pack lies under its final name from the start, where nothing finds it before an
//! index names it, since there is no renaming of objects and copying a pack would take as long as writing it. A small object in the draft's
//! folder stands for it until it is published. What that means for the rules of publication is in `docs/image-format.md`, §7.

mod client;
mod fault;
mod lease;
mod read;
mod upload;
mod uploads;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use image::{Index, PackId};

use client::Client;
use lease::{Lease, Leases};
use read::Object;
use upload::Upload;
use uploads::{Unfinished, Uploads};

use super::{Cursor, LOCK_WAIT, Media, MediaFile, MediaLock, MediaRead};
use crate::store::random_id;
use crate::{MediaError, OpenError, layout};

/// How patient requests and leases are, and how large parts.
#[derive(Debug, Clone)]
pub struct S3Options {
    /// Length of all parts of a large object but the last. Servers take nothing below 5 MiB, and at most 10,000 parts.
    pub part: usize,
    /// How often a request that may succeed later is tried again, with growing pauses.
    pub retries: usize,
    /// The first of them, on average.
    pub pause: Duration,
    /// After how long no more is tried.
    pub retry_for: Duration,
    /// How long one request may take.
    pub request: Duration,
    /// How long a connection may take, and each silence of a server that has no more to do than to answer.
    pub answer: Duration,
    /// How often a lease is renewed.
    pub beat: Duration,
    /// For how long a lease is good after it was renewed, in the eyes of its holder.
    pub valid: Duration,
    /// When a lease that was not renewed has ended, in the eyes of others. Longer than `valid` and all that one request may take.
    pub expiry: Duration,
    /// For how long a lease is waited for.
    pub wait: Duration,
}

/// [`S3Options::part`] by default, bytes.
const PART: usize = 8 << 20;

impl S3Options {
    /// What a large object takes by default while it is being written: parts that are under way, and the one that is gathered; bytes.
    pub const UPLOAD: u64 = (upload::UNDER_WAY as u64 + 1) * PART as u64;
}

impl Default for S3Options {
    fn default() -> Self {
        Self {
            part: PART,
            retries: 10,
            pause: Duration::from_millis(100),
            retry_for: Duration::from_secs(60),
            request: Duration::from_secs(60),
            answer: Duration::from_secs(10),
            beat: Duration::from_secs(20),
            valid: Duration::from_secs(120),
            expiry: Duration::from_secs(300),
            wait: LOCK_WAIT,
        }
    }
}

/// A bucket, or a part of one. Its leases end with it.
#[derive(Debug)]
pub struct S3 {
    client: Arc<Client>,
    leases: Arc<Leases>,
    part: usize,
}

impl S3 {
    /// What the names of variables begin with that are for the store alone, and not for jobs.
    pub const OWN_VARIABLES: &str = "DORMOUSE_AWS_";

    /// The objects of `bucket` whose names begin with `prefix`. Endpoint, region and credentials are those of the environment: the usual
    /// `AWS_*` variables, and before them the same with `DORMOUSE_` in front. No request is made.
    ///
    /// # Errors
    /// [`OpenError::Media`] where the environment does not fit.
    pub fn connect(bucket: &str, prefix: &str) -> Result<Self, OpenError> {
        Self::with_options(bucket, prefix, &[], S3Options::default())
    }

    /// [`S3::connect`], with further settings by the names of variables, and another patience.
    ///
    /// # Errors
    /// As [`S3::connect`].
    pub fn with_options(
        bucket: &str,
        prefix: &str,
        settings: &[(&str, &str)],
        options: S3Options,
    ) -> Result<Self, OpenError> {
        let client = Client::new(bucket, prefix, settings, &options).map_err(|error| {
            let path =
                crate::Location::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() }.to_path();
            MediaError { operation: "reach", path, error }
        })?;
        let client = Arc::new(client);
        let part = options.part;
        Ok(Self { leases: Arc::new(Leases::new(client.clone(), options)), client, part })
    }

    /// Gives up what a draft has of a pack: an upload that was never completed, a pack that no index names.
    fn give_up_pack(&self, stand_in: &str, draft: &str, pack: PackId) -> io::Result<()> {
        // An upload that has ended stays as it is: of a published pack there is nothing to abort.
        match self.client.upload_of(stand_in) {
            Ok(Some(upload)) => self.client.abort(&layout::pack(pack), &upload)?,
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // A stand-in that is here although its pack was published would be a request of long ago that came late.
        let may_be_published = match layout::draft_of(draft) {
            Some(image) => self.may_be_indexed(&layout::index(image), pack)?,
            None => false,
        };
        if !may_be_published {
            self.client.remove(&layout::pack(pack))?;
        }
        self.client.remove(stand_in)
    }

    /// Whether an index names a pack. One that cannot be understood may: in an encrypted store that is each, since its cover is not opened here.
    fn may_be_indexed(&self, index: &str, pack: PackId) -> io::Result<bool> {
        let file = match Object::open(self.client.clone(), index.to_owned()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        match Index::read(Cursor::new(&file, 0, file.len()?)) {
            Ok(index) => Ok(index.packs.iter().any(|each| each.id == pack)),
            Err(image::FormatError::Read(error)) => Err(error),
            Err(_) => Ok(true),
        }
    }

    /// Asks for the store, without patience, so that nobody waits long for a server that does not answer at all.
    ///
    /// # Errors
    /// [`OpenError::Media`] where the server cannot be reached, does not answer, or does not let anybody in. What else is wrong is told by
    /// whoever opens the store.
    pub fn reach(&self) -> Result<(), OpenError> {
        let reached = self.client.reach(layout::CONFIG);
        Ok(reached.map_err(|error| MediaError { operation: "reach", path: self.full_path(""), error })?)
    }
}

/// Whether a store has such a file that may take an upload.
fn is_uploaded(path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let in_draft = |folder: &str| {
        let draft = folder.strip_prefix(layout::TMP).and_then(|rest| rest.strip_prefix('/'));
        draft.is_some_and(|draft| layout::draft_of(draft).is_some())
    };
    (folder == layout::PACKS && layout::pack_of(name).is_some())
        || (in_draft(folder) && ["index", "manifest"].contains(&name))
}

/// A draft's id as a text and its pack, where `path` is one in a draft's folder.
fn draft_pack(path: &str) -> Option<(&str, PackId)> {
    let (draft, name) = path.strip_prefix(layout::TMP)?.strip_prefix('/')?.split_once('/')?;
    Some((draft, layout::pack_of(name)?))
}

/// Whether `path` is itself a lock and nothing else.
fn is_lock(path: &str) -> bool {
    path.rsplit('/').next() == Some(layout::LOCK_NAME)
}

impl Media for S3 {
    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        self.leases.check()?;
        let (name, stand_in) = match draft_pack(path) {
            Some((_, pack)) => (layout::pack(pack), Some(path.to_owned())),
            None => (path.to_owned(), None),
        };
        Ok(Box::new(Upload::new((self.client.clone(), self.leases.clone()), name, stand_in, self.part)))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        let name = draft_pack(path).map_or_else(|| path.to_owned(), |(_, pack)| layout::pack(pack));
        Ok(Box::new(Object::open(self.client.clone(), name)?))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let names: Vec<_> = self.client.list(folder)?.into_iter().map(|entry| entry.name).collect();
        // Only those of a store are there without anything in them.
        if names.is_empty() && folder.contains('/') { Err(io::ErrorKind::NotFound.into()) } else { Ok(names) }
    }

    fn lengths(&self, folder: &str) -> io::Result<HashMap<String, u64>> {
        let entries = self.client.list(folder)?.into_iter();
        Ok(entries.filter_map(|entry| Some((entry.name, entry.object?.len))).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.leases.check()?;
        if draft_pack(from).is_none() {
            self.client.copy(from, to)?;
        } else {
            // It has its name; from now on it is nobody's to give up.
            return self.client.remove(from);
        }
        if let Err(error) = self.client.remove(from) {
            tracing::debug!(%error, "what was published stays in the draft, too; the next draft removes it");
        }
        Ok(())
    }

    /// Written again: a copy on the server would go over whatever is there.
    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        self.leases.check()?;
        let (bytes, _) = self.client.get_range(from, 0..self.client.len(from)?)?;
        if !self.client.put_new(to, bytes)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if let Err(error) = self.client.remove(from) {
            tracing::debug!(%error, "what has its name stays under its first one, too");
        }
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.leases.check()?;
        match draft_pack(path) {
            Some((draft, pack)) => self.give_up_pack(path, draft, pack),
            None => self.client.remove(path),
        }
    }

    /// There are no folders.
    fn create_folder(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove_folder(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    /// What was answered is durable.
    fn sync_folder(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        if !is_lock(path) {
            return Ok(self.leases.exclusive(path)?.map(|lease| Box::new(lease) as MediaLock));
        }
        if create {
            let first = self.client.put_new(path, random_id()?.to_vec())?;
            if !first {
                return Ok(None);
            }
            let lease = Lease::take(&self.leases, path.to_owned())?;
            // Whoever began with this while he held the store, and lost that, may not have been seen by who had it alone since.
            self.leases.check()?;
            return Ok(Some(Box::new(lease)));
        }
        // Whoever finds it ended may do as if it were his: so may others, and all do the same.
        Ok(self.leases.has_ended(path)?.then(|| Box::new(()) as MediaLock))
    }

    fn share(&self, path: &str) -> io::Result<MediaLock> {
        Ok(Box::new(self.leases.shared(path)?))
    }

    fn end_uploads(&self) -> io::Result<()> {
        for folder in [layout::PACKS, layout::TMP] {
            let mut page = self.client.uploads(folder, None)?;
            loop {
                let Uploads { found, next } = page;
                for Unfinished { path, upload, begun } in found {
                    if is_uploaded(&path) && self.leases.is_long_ago(begun) {
                        self.leases.check()?;
                        self.client.abort(&path, &upload)?;
                        tracing::info!(%path, "ended an upload of somebody who was killed");
                    }
                }
                let Some(mark) = next else { break };
                page = self.client.uploads(folder, Some(&mark))?;
                // Whoever gives the same page again would do so for ever.
                if page.next.as_ref() == Some(&mark) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn full_path(&self, path: &str) -> PathBuf {
        let root = self.client.location().to_path();
        if path.is_empty() { root } else { root.join(path) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_of_drafts_are_told_from_all_else() {
        let (image, pack) = ("0".repeat(32), "1".repeat(32));
        let path = format!("tmp/{image}/{pack}.pack");
        assert_eq!(draft_pack(&path), Some((&*image, pack.parse().unwrap())));
        for other in
            ["tmp", "tmp/x", "packs/x.pack", &format!("tmp/{image}/lock"), &format!("packs/{pack}.pack")]
        {
            assert_eq!(draft_pack(other), None, "{other}");
        }
        let draft = format!("tmp/{image}/index");
        assert!(is_uploaded(&draft) && is_uploaded(&format!("packs/{pack}.pack")));
        for other in ["config", "packs/x.pack", "a/packs/x", "tmp/x/index", &format!("a/{draft}"), &path] {
            assert!(!is_uploaded(other), "{other}");
        }
        assert!(is_lock(&format!("tmp/{image}/lock")) && !is_lock("config"));
    }
}
