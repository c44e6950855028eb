//! Writing anew what images need of packs that hold much else, so that these can go.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use image::{ChunkId, Entry, ImageId, Index, PackId, PackIndex};

use super::copy::{Copier, CopyOptions, Wanted};
use super::elsewhere::{Elsewhere, sift};
use crate::chunk_map::{ChunkMap, Place, is_there};
use crate::condemned::Sentences;
use crate::error::WRITTEN_ANEW;
use crate::inventory::{Inventory, NOWHERE, Needed, Untold};
use crate::{CopyError, Kept, KeptWhy, MediaError, Removal, Store, WriteError};

/// The draft of whoever writes a store anew: there is one at a time.
const REWRITER: ImageId = ImageId(*b"dormouse repacks");
/// So much is written anew before what it replaces goes: it takes no more room than that, and others get to the store in between.
const BATCH: u64 = 256 << 20;
/// Where there is less room than this, nothing is.
const LEAST: u64 = 4 << 20;

/// How much of a store may be what no image needs, where it lies in packs of which images need something.
#[derive(Debug, Clone)]
pub struct Repack {
    /// By what images need: 0.1 is a tenth of that.
    pub max_unused: f64,
    /// How many bytes are read and written anew for it, at most, but for the last pack's.
    pub most: u64,
    /// How.
    pub how: CopyOptions,
}

/// Who is told of how many bytes have been written anew, of how many for now, and says whether to go on.
pub type Rewriting<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// A pack of which images need something.
struct Mixed<'a> {
    pack: &'a PackIndex,
    /// Bytes of the chunks that are needed and of which this is the best place.
    needed: u64,
    /// Of all others.
    unneeded: u64,
    /// What has to be read for it to go.
    cost: u64,
}

impl Mixed<'_> {
    fn share(&self) -> f64 {
        share(self.needed, self.needed + self.unneeded)
    }
}

/// What is to be written anew, and what for.
#[derive(Debug, Default)]
struct Plan {
    /// The packs that can go then, and what images need of each.
    packs: HashMap<PackId, Vec<ChunkId>>,
    /// How long these are.
    len: u64,
    /// Chunks to be written.
    carried: Wanted,
    /// Copies of chunks elsewhere, which have to be good.
    elsewhere: Wanted,
    /// Where all these lie.
    map: ChunkMap,
}

/// What was written anew.
#[derive(Debug, Default)]
struct Rewritten {
    /// What can go for it.
    old: Elsewhere,
    /// What can go where it replaces nothing.
    new: Elsewhere,
    /// Bytes of those.
    bytes: u64,
    /// How much was looked at for it.
    cost: u64,
    /// How much was to be written.
    all: u64,
    /// Packs that stay, since something of them cannot be read.
    bad: Vec<PackId>,
    /// A chunk that cannot, and why.
    unread: Option<(ChunkId, String)>,
    /// Whether no other draft is being written.
    is_alone: bool,
    /// Whether there is more room for it.
    has_freed: bool,
    /// Whether somebody said that it is enough.
    is_stopped: bool,
    /// Why not all, where there was no room.
    full: Option<MediaError>,
}

impl Store {
    /// Removes images as [`Store::remove`] does, and then writes anew what is needed of packs that hold much that is not, so that these go too: as long as `progress`
    /// wants it, and while less waits than may be unused. Nothing more is written where somebody else does the same.
    ///
    /// # Errors
    /// As [`Store::remove`]'s. Whatever fails, and whenever, what is listed is complete.
    pub fn remove_and_repack(
        &self,
        images: &[ImageId],
        repack: &Repack,
        progress: &mut Rewriting<'_>,
    ) -> Result<Removal, WriteError> {
        let mut needed = Needed::default();
        let mut removal = self.remove_knowing(&mut needed, images, repack.how.threads)?;
        if repack.max_unused.is_infinite() {
            return Ok(removal);
        }
        let (mut left, mut batch, mut bad, mut unread) = (repack.most, BATCH, HashSet::new(), None);
        while removal.kept.is_none() && removal.not_rewritten.is_none() && left > 0 {
            let how = CopyOptions { pack_len: repack.how.pack_len.min(batch), ..repack.how.clone() };
            let now = Repack { most: batch.min(left), how, ..repack.clone() };
            // The images are gone, whatever becomes of this.
            match self.rewrite_some(&mut needed, &now, &mut removal, &bad, progress) {
                Ok(Rewritten { full: Some(_), .. }) if batch > LEAST => batch = (batch / 4).max(LEAST),
                Ok(Rewritten { full: Some(full), all, .. }) => {
                    removal.not_rewritten = Some(no_room(&full, all))
                }
                Err(WriteError::Full { operation }) => {
                    removal.not_rewritten = Some(no_room(&operation, LEAST))
                }
                Err(error) => removal.not_rewritten = Some(KeptWhy::Medium.says(error.to_string())),
                Ok(done) if !done.is_stopped && (done.has_freed || !done.bad.is_empty()) => {
                    left = left.saturating_sub(done.cost);
                    bad.extend(done.bad);
                    unread = unread.or(done.unread);
                }
                Ok(_) => break,
            }
        }
        if let Some((chunk, problem)) = unread {
            let message = self.not_read(&chunk, &problem, bad.len())?;
            removal.not_rewritten = Some(KeptWhy::Unreadable.says(message));
        }
        Ok(removal)
    }

    /// Why packs stay: a chunk of the first, which images need.
    fn not_read(&self, chunk: &ChunkId, problem: &str, packs: usize) -> Result<String, WriteError> {
        let needs = |image: &ImageId| {
            self.manifest(image).is_ok_and(|manifest| manifest.chunks().any(|(id, _)| id == *chunk))
        };
        let images: Vec<String> =
            self.image_ids()?.iter().filter(|image| needs(image)).map(ImageId::to_string).collect();
        let stay = match packs {
            1 => "its pack stays".to_owned(),
            packs => format!("{packs} packs stay of which something cannot be read"),
        };
        Ok(format!(
            "{problem}; needed by image {}; {stay}, and `dormouse verify` names all that is lost: bring the file back from a copy, remove \
             the images that need it, or move the pack out of the store: {WRITTEN_ANEW}",
            images.join(", ")
        ))
    }

    /// Writes some of it anew, and lets go what that replaces; or what was written, where that replaces nothing.
    fn rewrite_some(
        &self,
        needed: &mut Needed,
        repack: &Repack,
        removal: &mut Removal,
        bad: &HashSet<PackId>,
        progress: &mut Rewriting<'_>,
    ) -> Result<Rewritten, WriteError> {
        let mut rewritten = self.rewrite(needed, repack, removal.waiting, bad, progress)?;
        if rewritten.old.packs.is_empty() && rewritten.new.packs.is_empty() {
            return Ok(rewritten);
        }
        // Where there is little room it is not given to what has to wait for others. What lies in packs that stay is not to lie there twice: what went with it is
        // written without that the next time.
        let is_taken_back = rewritten.old.packs.is_empty()
            || !rewritten.bad.is_empty()
            || rewritten.full.is_some() && !rewritten.is_alone;
        if !is_taken_back {
            removal.rewritten += rewritten.bytes;
        }
        let then = self.free_unused(needed, if is_taken_back { &rewritten.new } else { &rewritten.old })?;
        if then.kept.is_none() {
            removal.waiting = then.waiting;
        }
        removal.kept = then.kept;
        removal.freed += if is_taken_back { then.freed.saturating_sub(rewritten.bytes) } else { then.freed };
        rewritten.has_freed = !is_taken_back && then.freed > 0;
        Ok(rewritten)
    }

    /// What [`Store::remove_and_repack`] would do if nobody used the store. Changes nothing.
    ///
    /// # Errors
    /// As [`Store::remove`]'s.
    pub fn would_remove_and_repack(
        &self,
        images: &[ImageId],
        repack: &Repack,
    ) -> Result<Removal, WriteError> {
        self.would_free(images, |has| {
            let plan = Plan::of(has, repack, 0, |_, _| false);
            Removal { freed: plan.len, rewritten: bytes(&plan.carried), ..Removal::default() }
        })
    }

    fn rewrite(
        &self,
        needed: &mut Needed,
        repack: &Repack,
        waiting: u64,
        bad: &HashSet<PackId>,
        progress: &mut Rewriting<'_>,
    ) -> Result<Rewritten, WriteError> {
        // From here on nothing goes; drafts that begin now are not known, and have nothing that images need alone.
        let mut copier = Copier::within(self, &repack.how)?;
        let Some(_alone) = self.try_begin(REWRITER)? else { return Ok(Rewritten::default()) };
        let alive = self.remove_abandoned_drafts()?;
        let is_alone = alive.iter().all(|draft| *draft == REWRITER);
        let sentences = Sentences::load(self, alive)?;
        let mut has = match self.inventory(needed, &[]) {
            Ok(has) => has,
            // A removal says so.
            Err(Untold::Kept(_)) => return Ok(Rewritten::default()),
            Err(Untold::Failed(error)) => return Err(error),
        };
        let passed = |image: &ImageId, pack: &PackId| {
            sentences.is_alive(image) || sentences.is_condemned(pack) || bad.contains(pack)
        };
        let mut plan = Plan::of(&mut has, repack, waiting, passed);
        drop(has);
        if plan.packs.is_empty() {
            return Ok(Rewritten::default());
        }
        copier.fetcher.knows(std::mem::take(&mut plan.map));
        let cost = bytes(&plan.carried) + bytes(&plan.elsewhere);
        let elsewhere = std::mem::take(&mut plan.elsewhere);
        let (good, bad) = sift(&copier.fetcher, elsewhere, repack.how.threads);
        let mut good: HashSet<ChunkId> = good.into_iter().map(|(chunk, ..)| chunk).collect();
        plan.carried.extend(bad);

        let draft = self.begin()?;
        let mut index = Index { image: draft.id(), packs: Vec::new() };
        let mut missing: HashSet<ChunkId> = plan.carried.iter().map(|(chunk, ..)| *chunk).collect();
        let (mut done, all, stop) = (0, bytes(&plan.carried), AtomicBool::new(progress(0, 0).is_break()));
        let told = &mut |entry: &Entry| {
            done += u64::from(entry.frame_len);
            if progress(done, all).is_break() {
                stop.store(true, Ordering::Release);
            }
        };
        // Its pack stays.
        let first_unread = Mutex::new(None);
        let unread = |chunk: &ChunkId, problem: String| {
            first_unread.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((*chunk, problem));
            Ok(())
        };
        let full = match copier.copy_chunks(
            (&draft, &mut index),
            std::mem::take(&mut plan.carried),
            (&unread, &stop),
            told,
        ) {
            Ok(()) => None,
            Err(CopyError::Target(WriteError::Full { operation })) => Some(operation),
            Err(CopyError::Target(error)) => return Err(error),
            Err(CopyError::Source(error)) => return Err(error.into()),
        };
        let written: HashSet<ChunkId> =
            index.packs.iter().flat_map(|pack| &pack.entries).map(|entry| entry.id).collect();
        missing.retain(|chunk| !written.contains(chunk));
        good.extend(&written);
        let is_whole = |chunks: &Vec<ChunkId>| !chunks.iter().any(|chunk| missing.contains(chunk));
        let (old, others): (HashMap<_, _>, HashMap<_, _>) =
            plan.packs.into_iter().partition(|(_, chunks)| is_whole(chunks));
        let is_stopped = stop.into_inner();
        let bad = if is_stopped || full.is_some() { Vec::new() } else { others.into_keys().collect() };
        Ok(Rewritten {
            old: Elsewhere { packs: old.into_keys().collect(), good, only: HashSet::new() },
            bad,
            unread: first_unread.into_inner().unwrap_or_else(PoisonError::into_inner),
            is_alone,
            has_freed: false,
            new: Elsewhere {
                packs: index.packs.iter().map(|pack| pack.id).collect(),
                good: written,
                only: HashSet::new(),
            },
            bytes: index.packs.iter().map(|pack| pack.file_len).sum(),
            cost,
            all,
            is_stopped,
            full,
        })
    }
}

impl Plan {
    /// What is to be written anew of what there is: of the packs of which least is needed, until no more is unused than may be. None where more waits than
    /// that. What is to be `passed` over stays as it is.
    fn of(
        has: &mut Inventory<'_>,
        repack: &Repack,
        waiting: u64,
        passed: impl Fn(&ImageId, &PackId) -> bool,
    ) -> Self {
        let Inventory { indexes, lengths, needed: homes, .. } = has;
        let mut packs: HashMap<PackId, &PackIndex> = HashMap::new();
        for index in indexes.iter() {
            let usable = index.packs.iter().filter(|pack| {
                !passed(&index.image, &pack.id)
                    && is_there(lengths, pack)
                    && pack.entries.iter().any(|entry| homes.contains_key(&entry.id))
            });
            packs.extend(usable.map(|pack| (pack.id, pack)));
        }
        let mut packs: Vec<&PackIndex> = packs.into_values().collect();
        packs.sort_unstable_by_key(|pack| pack.id);
        let is_needed = |homes: &HashMap<ChunkId, u32>, entry: &Entry| homes.contains_key(&entry.id);
        let sizes: Vec<(u64, u64)> = packs
            .iter()
            .map(|pack| {
                let needed = pack.entries.iter().filter(|entry| is_needed(homes, entry));
                (len(needed), len(&pack.entries))
            })
            .collect();
        find_homes(&packs, &sizes, homes);
        let mut mixed: Vec<Mixed<'_>> = (0..)
            .zip(packs.iter().zip(sizes))
            .map(|(number, (pack, (cost, all)))| {
                let at_home = pack.entries.iter().filter(|entry| homes.get(&entry.id) == Some(&number));
                let needed = len(at_home);
                Mixed { pack, needed, unneeded: all - needed, cost }
            })
            .collect();
        let needed: u64 = mixed.iter().map(|each| each.needed).sum();
        let mut unneeded: u64 = mixed.iter().map(|each| each.unneeded).sum();
        let may_be = needed as f64 * repack.max_unused;
        mixed.sort_by(|a, b| a.share().total_cmp(&b.share()).then(a.pack.id.cmp(&b.pack.id)));

        let (mut plan, mut cost) = (Self::default(), 0);
        if waiting as f64 > may_be {
            return plan;
        }
        for each in mixed {
            if each.unneeded == 0 || unneeded as f64 <= may_be || cost >= repack.most {
                break;
            }
            unneeded -= each.unneeded;
            cost += each.cost;
            plan.len += each.pack.file_len;
            let chunks = each.pack.entries.iter().filter(|entry| is_needed(homes, entry));
            plan.packs.insert(each.pack.id, chunks.map(|entry| entry.id).collect());
        }
        plan.look_up(&packs, homes);
        plan
    }

    /// Finds where the chunks lie.
    fn look_up(&mut self, packs: &[&PackIndex], homes: &HashMap<ChunkId, u32>) {
        let wanted: HashSet<ChunkId> = self.packs.values().flatten().copied().collect();
        for (number, pack) in (0..).zip(packs) {
            let is_at_home =
                |entry: &Entry| homes.get(&entry.id) == Some(&number) && wanted.contains(&entry.id);
            let at_home = pack.frames().filter(|(_, entry)| is_at_home(entry));
            let found = at_home.map(|(offset, entry)| {
                (entry.id, entry.plain_len, Place { pack: pack.id, offset, entry: *entry })
            });
            let goes = self.packs.contains_key(&pack.id);
            let before = self.elsewhere.len();
            if goes {
                self.carried.extend(found)
            } else {
                self.elsewhere.extend(found)
            }
            if goes || self.elsewhere.len() > before {
                self.map.add((*pack).clone());
            }
        }
    }
}

/// Gives each chunk that images need the number of the best of these packs: of which most is needed, by the bytes that are and all that there are.
fn find_homes(packs: &[&PackIndex], sizes: &[(u64, u64)], homes: &mut HashMap<ChunkId, u32>) {
    let shares: Vec<f64> = sizes.iter().map(|(needed, all)| share(*needed, *all)).collect();
    for (number, pack) in (0..).zip(packs) {
        for entry in &pack.entries {
            if let Some(home) = homes.get_mut(&entry.id)
                && (*home == NOWHERE || shares[number as usize] > shares[*home as usize])
            {
                *home = number;
            }
        }
    }
}

/// Why nothing is written anew where it takes so many bytes.
fn no_room(operation: &MediaError, bytes: u64) -> Kept {
    KeptWhy::Medium.says(format!(
        "the store is full: {operation}: it takes {} MiB, until what that replaces goes: make so much room beside the store, or remove another image \
         (`dormouse rm --dry-run IMAGE` says what that gives back)",
        bytes.div_ceil(1 << 20)
    ))
}

fn len<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> u64 {
    entries.into_iter().map(|entry| u64::from(entry.frame_len)).sum()
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn bytes(wanted: &Wanted) -> u64 {
    wanted.iter().map(|(.., place)| u64::from(place.entry.frame_len)).sum()
}
