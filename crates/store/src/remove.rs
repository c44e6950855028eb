//! Removing images, and then whatever no image needs any more. The order of steps is §7 of `docs/image-format.md`.

use std::collections::{HashMap, HashSet};
use std::io;

use image::{ImageId, Index, PackId, PackIndex};
use serde::Serialize;

use crate::condemned::Sentences;
use crate::error::is_unread;
use crate::inventory::{Inventory, Needed, Untold};
use crate::read::whole_pack;
use crate::store::random_id;
use crate::write::{CopyOptions, Elsewhere};
use crate::{FindError, Kept, KeptWhy, MediaError, ReadError, Store, WriteError, layout};

/// Why nothing is freed while others use the store.
const IN_USE: &str = "somebody reads an image, copies to the store, removes images too, or begins a checkpoint at this moment; the next `dormouse rm` \
                      frees what no image needs";

/// What became of a wish to remove images.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// The images that are gone.
    pub images: Vec<ImageId>,
    /// Bytes of packs that no image needed any more, and that are gone too.
    pub freed: u64,
    /// Bytes that were written anew for that: of packs of which images needed something.
    pub rewritten: u64,
    /// Bytes of packs that no image needs, and that a later removal frees: checkpoints that are being written may count on them.
    pub waiting: u64,
    /// Why nothing else was freed, if so.
    pub kept: Option<Kept>,
    /// Why not all was written anew that was to be, if so.
    pub not_rewritten: Option<Kept>,
}

/// What no image needs.
#[derive(Debug, Default)]
struct Unused {
    /// Indexes that name unused packs, and what is left of each; and damaged ones, and what is to be in their place.
    indexes: Vec<Index>,
    packs: Vec<PackId>,
    bytes: u64,
    /// How many packs get a name that none had.
    named_anew: usize,
}

impl Removal {
    /// Of which nothing was freed.
    fn kept(kept: Kept) -> Self {
        Self { kept: Some(kept), ..Self::default() }
    }
}

impl Store {
    /// The image that `reference` means for who wants to remove it, readable or not: an id, or at least four of its first digits.
    ///
    /// # Errors
    /// [`FindError::NotFound`], also for the name of a job; [`FindError::TooShort`], [`FindError::Ambiguous`], [`FindError::Read`].
    pub fn find_exactly(&self, reference: &str) -> Result<ImageId, FindError> {
        let mut candidates = self.image_ids()?;
        candidates.retain(|id| !reference.is_empty() && id.to_string().starts_with(reference));
        match candidates[..] {
            [] => Err(FindError::NotFound { reference: reference.to_owned(), dir: self.dir() }),
            _ if reference.len() < crate::list::LEAST_PREFIX => {
                let least = crate::list::LEAST_PREFIX;
                Err(FindError::TooShort { reference: reference.to_owned(), least })
            }
            [one] => Ok(one),
            _ => Err(FindError::Ambiguous { reference: reference.to_owned(), candidates }),
        }
    }

    /// Removes images, and then what no other needs: with none named, only that. Images that are not there have been removed by somebody else.
    /// While an image is open, nothing is freed, since it may have been removed. Beside drafts it takes two removals: what the first finds is
    /// condemned, so that new drafts do not use it, and goes with one that comes when all drafts that there were have ended.
    ///
    /// # Errors
    /// As the medium's. Whatever fails, and whenever, what is listed is complete.
    pub fn remove(&self, images: &[ImageId]) -> Result<Removal, WriteError> {
        self.remove_knowing(&mut Needed::default(), images, CopyOptions::default().threads)
    }

    /// The same, with what is known of images already, and with so many threads where much is to be read.
    pub(crate) fn remove_knowing(
        &self,
        needed: &mut Needed,
        images: &[ImageId],
        threads: usize,
    ) -> Result<Removal, WriteError> {
        let mut gone = Vec::new();
        if !images.is_empty() {
            // Others may be removed since newer ones are there: these must not go with the power.
            self.sync_images()?;
        }
        for image in self.only_there(images)? {
            let path = layout::image(image);
            match self.on("remove", &path, |media| media.remove(&path)) {
                Err(error) if error.error.kind() == io::ErrorKind::NotFound => {}
                removed => {
                    removed?;
                    gone.push(image);
                }
            }
        }
        // Durable before any chunk goes, also what was removed before this and never synced.
        self.sync_images()?;
        let elsewhere = self.found_elsewhere(needed, threads)?;
        Ok(Removal { images: gone, ..self.free_unused(needed, &elsewhere)? })
    }

    /// Frees what no image needs, and packs of which all that images need lies in others, too, and was found good there.
    pub(crate) fn free_unused(
        &self,
        needed: &mut Needed,
        elsewhere: &Elsewhere,
    ) -> Result<Removal, WriteError> {
        let Some(_alone) = self.on("lock", layout::CONFIG, |media| media.lock(layout::CONFIG, false))? else {
            return Ok(Removal::kept(KeptWhy::InUse.says(IN_USE)));
        };
        // Nothing may be left that a writer who was taken for dead could publish.
        let alive = match self.remove_abandoned_drafts() {
            Ok(alive) => alive,
            Err(error) => {
                let message = format!("{error}: nothing else is freed");
                return Ok(Removal::kept(KeptWhy::Medium.says(message)));
            }
        };
        if alive.is_empty()
            && let Err(error) = self.media().end_uploads()
        {
            tracing::debug!(%error, "uploads that were cut off could not be ended");
        }
        let mut sentences = Sentences::load(self, alive)?;
        let found = self.inventory(needed, &[]).and_then(|has| self.unused(has, elsewhere, &mut sentences));
        let unused = match found {
            Ok(unused) => unused,
            Err(Untold::Kept(kept)) => return Ok(Removal::kept(kept)),
            Err(Untold::Failed(error)) => return Err(error),
        };
        // What somebody else has removed meanwhile must not come back either.
        self.sync_images()?;
        self.free(&unused)?;
        if unused.named_anew > 0 {
            tracing::warn!(
                "an index was damaged or missing: what images need of {} packs that no other names is indexed anew",
                unused.named_anew
            );
        }
        let removal = Removal { freed: unused.bytes, ..Removal::default() };
        let waiting = sentences.bytes;
        // Behind that: who sees a pack no longer condemned finds no index that names it, or it stays.
        match sentences.changed().map_or(Ok(()), |condemned| self.condemn(&condemned)) {
            Ok(()) => Ok(Removal { waiting, ..removal }),
            // On a full disk what goes has gone all the same.
            Err(error) => {
                let message = format!("{error}: what waits could not be noted");
                Ok(Removal { kept: Some(KeptWhy::Medium.says(message)), ..removal })
            }
        }
    }

    /// Makes durable which images there are.
    fn sync_images(&self) -> Result<(), MediaError> {
        self.on("sync", layout::IMAGES, |media| media.sync_folder(layout::IMAGES))
    }

    /// What [`Store::remove`] would do if nobody used the store. Changes nothing.
    ///
    /// # Errors
    /// As [`Store::remove`].
    pub fn would_remove(&self, images: &[ImageId]) -> Result<Removal, WriteError> {
        self.would_free(images, |_| Removal::default())
    }

    /// The same, with what is freed by what is `beside` a removal.
    pub(crate) fn would_free(
        &self,
        images: &[ImageId],
        beside: impl FnOnce(&mut Inventory<'_>) -> Removal,
    ) -> Result<Removal, WriteError> {
        let images = self.only_there(images)?;
        let mut needed = Needed::default();
        let found = self.inventory(&mut needed, &images).and_then(|mut has| {
            let beside = beside(&mut has);
            Ok((self.unused(has, &Elsewhere::default(), &mut Sentences::default())?, beside))
        });
        match found {
            Ok((unused, beside)) => Ok(Removal { images, freed: unused.bytes + beside.freed, ..beside }),
            Err(Untold::Kept(kept)) => Ok(Removal { images, ..Removal::kept(kept) }),
            Err(Untold::Failed(error)) => Err(error),
        }
    }

    fn only_there(&self, images: &[ImageId]) -> Result<Vec<ImageId>, ReadError> {
        let there: HashSet<ImageId> = self.image_ids()?.into_iter().collect();
        Ok(images.iter().copied().filter(|image| there.contains(image)).collect())
    }

    /// What goes now of what there is; why that cannot be told, where something cannot be read.
    fn unused(
        &self,
        mut has: Inventory<'_>,
        elsewhere: &Elsewhere,
        sentences: &mut Sentences,
    ) -> Result<Unused, Untold> {
        // What is not there at all is named in vain.
        let may_go = |pack: &&PackIndex| {
            has.missing.contains(&pack.id) || elsewhere.has_all(&pack.id, has.needed_of(pack))
        };
        let unsettled: HashSet<PackId> =
            has.packs().filter(|pack| !may_go(pack)).map(|pack| pack.id).collect();
        let replaced = has.replaced(|pack| !unsettled.contains(pack) || sentences.is_condemned(pack));
        let mut unused = Unused::default();
        let named: HashSet<PackId> = has.packs().map(|pack| pack.id).collect();
        // Asked only where what no index names may be what is lacking.
        let has_others = has.lengths.keys().any(|pack| !named.contains(pack));
        let lacks = has_others && has.lacks();
        let mut kept = HashSet::new();
        // A pack that two indexes name is sentenced once.
        let mut sentenced: HashMap<PackId, bool> = HashMap::new();
        for mut index in std::mem::take(&mut has.indexes) {
            let before = index.packs.len();
            // The manifest of a draft may come behind its index.
            if !sentences.is_alive(&index.image) {
                index.packs.retain(|pack| {
                    let (id, is_needed) = (pack.id, has.needs(pack));
                    if is_needed && (!replaced.contains(&id) || elsewhere.only.contains(&id)) {
                        return true;
                    }
                    !*sentenced.entry(id).or_insert_with(|| {
                        // The next removal looks for what images need of it.
                        let is_unseen = is_needed && unsettled.contains(&id) && sentences.is_over(&id);
                        if is_unseen {
                            sentences.stays_condemned(id, pack.file_len);
                        }
                        !is_unseen && sentences.named_goes(id, pack.file_len)
                    })
                });
            }
            kept.extend(index.packs.iter().map(|pack| pack.id));
            if index.packs.len() < before {
                unused.indexes.push(index);
            }
        }
        if !has.lost.is_empty() && sentences.is_anybody_alive() {
            return Err(Untold::Kept(KeptWhy::InUse.says(self.not_now(&has.lost))));
        }
        // Whose a pack is that no index names is not known beside drafts: what may be an image's stays until they have ended.
        let all_others_stay = lacks && sentences.is_anybody_alive();
        if !has.lost.is_empty() || lacks && !all_others_stay {
            let indexes = self.indexes_anew(&mut has, &named)?;
            kept.extend(indexes.iter().flat_map(|index| &index.packs).map(|pack| pack.id));
            unused.named_anew = indexes.iter().map(|index| index.packs.len()).sum();
            unused.indexes.extend(indexes);
        }
        // Other packs that no index names are of a writer that was killed between two steps.
        for (pack, len) in has.lengths.into_iter().filter(|(id, _)| !kept.contains(id)) {
            if named.contains(&pack) || !all_others_stay && sentences.unnamed_goes(pack) {
                unused.packs.push(pack);
                unused.bytes += len;
            }
        }
        Ok(unused)
    }

    /// What is to be in the place of damaged indexes, or beside the others where one is missing: one names all packs that are needed and that no other
    /// does, as their trailers have it, so that the other damaged ones need not be. Why not, where what is lacking may be in a pack that does not say what it
    /// holds.
    fn indexes_anew(&self, has: &mut Inventory, named: &HashSet<PackId>) -> Result<Vec<Index>, Untold> {
        // Of those that cannot be opened there is no length.
        let names = self.on("list", layout::PACKS, |media| media.list(layout::PACKS))?;
        let (mut packs, mut mute) = (Vec::new(), None);
        for id in names.iter().filter_map(|name| layout::pack_of(name)).filter(|id| !named.contains(id)) {
            let path = layout::pack(id);
            match whole_pack(self, &path, id) {
                Ok((_, pack)) if has.needs(&pack) => {
                    has.found_in(&pack);
                    packs.push(pack);
                }
                Ok(_) => {}
                Err(error) => mute = mute.or(Some((path, error))),
            }
        }
        if let Some((path, error)) = mute.filter(|_| !has.lost.is_empty() || has.lacks_still()) {
            return Err(Untold::Kept(KeptWhy::Unreadable.says(self.not_anew(&has.lost, &path, &error))));
        }
        let mut images = has.lost.clone();
        if images.is_empty() && !packs.is_empty() {
            // As a copier's: it is no image's own.
            images.push(ImageId(self.on("find an id in", layout::INDEX, |_| random_id())?));
        }
        Ok(images.into_iter().map(|image| Index { image, packs: std::mem::take(&mut packs) }).collect())
    }

    /// Damaged indexes, as the user knows them.
    fn shown(&self, lost: &[ImageId]) -> String {
        let path = |image: &ImageId| self.media().full_path(&layout::index(*image)).display().to_string();
        lost.iter().map(path).collect::<Vec<_>>().join(", ")
    }

    /// Why damaged indexes are not written anew beside drafts: whose a pack is that none names is not known.
    fn not_now(&self, lost: &[ImageId]) -> String {
        let indexes = self.shown(lost);
        format!(
            "{indexes} is damaged; a `dormouse rm` writes it anew when no checkpoint is being written, and frees what no image needs"
        )
    }

    /// Why damaged or missing indexes cannot be written anew.
    fn not_anew(&self, lost: &[ImageId], pack: &str, error: &io::Error) -> String {
        let index = match lost {
            [] => format!(
                "an index is missing from {}, as images need chunks that none there names,",
                self.media().full_path(layout::INDEX).display()
            ),
            lost => format!("{} is damaged", self.shown(lost)),
        };
        let pack = self.media().full_path(pack).display().to_string();
        // What cannot be had now may be whole.
        let (what, rescue) = if is_unread(error) {
            ("cannot be read", "see to its permissions, the disk or the network and try again")
        } else {
            ("is damaged, too", "bring one of them back from a copy")
        };
        format!(
            "{index} and cannot be written anew from the packs, since {pack} {what}: {error}; nothing else is freed; {rescue}, or {}",
            self.way_out()
        )
    }

    /// Indexes first: what they name is there.
    fn free(&self, unused: &Unused) -> Result<(), WriteError> {
        for index in &unused.indexes {
            let path = layout::index(index.image);
            if index.packs.is_empty() {
                self.on("remove", &path, |media| media.remove(&path))?;
            } else {
                self.replace_index(index)?;
            }
        }
        // Also what a removal that failed has replaced and never synced.
        if !unused.indexes.is_empty() || !unused.packs.is_empty() {
            self.on("sync", layout::INDEX, |media| media.sync_folder(layout::INDEX))?;
        }
        for pack in &unused.packs {
            let path = layout::pack(*pack);
            self.on("remove", &path, |media| media.remove(&path))?;
        }
        Ok(())
    }

    /// Puts an index in the place of one that names more.
    fn replace_index(&self, index: &Index) -> Result<(), WriteError> {
        let format = |error| WriteError::Format { what: "index", image: index.image, error };
        self.replace(&layout::index(index.image), &index.to_bytes().map_err(format)?)
    }

    /// Puts a file in the place of what is there, in one step. What is left behind by a crash looks like an abandoned draft.
    pub(crate) fn replace(&self, path: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let id = ImageId(self.on("find an id in", layout::TMP, |_| random_id())?);
        let (folder, fresh) = (layout::draft(id), layout::draft_index(id));
        let written = (|| {
            self.on("create", layout::TMP, |media| media.create_folder(layout::TMP))?;
            self.on("create", &folder, |media| media.create_folder(&folder))?;
            let mut file = self.on("create", &fresh, |media| media.create(&fresh))?;
            self.on("write", &fresh, |_| file.write_all(bytes))?;
            self.on("sync", &fresh, |_| file.sync())?;
            self.on("name", path, |media| media.rename(&fresh, path))
        })();
        if written.is_err() {
            ignore_missing(self.media().remove(&fresh));
        }
        ignore_missing(self.media().remove_folder(&folder));
        written.map_err(|error| without_room(error, bytes.len()))
    }
}

/// Why something is not freed for want of room. Who prunes is not helped by the advice to prune.
fn without_room(error: MediaError, bytes: usize) -> WriteError {
    match error.into() {
        WriteError::Full { operation: MediaError { operation, path, error } } => {
            let problem = format!(
                "{error}: what is freed takes {} KiB for a moment; make so much room beside the store, and `dormouse rm` frees what no image needs",
                bytes.div_ceil(1 << 10)
            );
            WriteError::Media(MediaError { operation, path, error: io::Error::new(error.kind(), problem) })
        }
        other => other,
    }
}

/// What stays, the next draft removes.
fn ignore_missing(removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::debug!(%error, "a folder for a new index could not be removed");
    }
}
