//! Writing anew what images need of packs that hold much else, so that these can go.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use image::{ChunkId, Entry, ImageId, Index, PackId, PackIndex};

use super::copy::{Copier, CopyOptions, Wanted};
use crate::chunk_map::{ChunkMap, Place};
use crate::condemned::Sentences;
use crate::inventory::{Inventory, Untold};
use crate::read::{Fetcher, Scratch};
use crate::{CopyError, Removal, Store, WriteError};

/// The draft of whoever writes a store anew: there is one at a time.
const REWRITER: ImageId = ImageId(*b"dormouse repacks");
/// Packs are not made shorter than this where room is scarce.
const SHORTEST: u64 = 1 << 20;

/// How much of a store may be what no image needs, where it lies in packs of which images need something.
#[derive(Debug, Clone)]
pub struct Repack {
    /// By what images need: 0.1 is a tenth of that.
    pub max_unused: f64,
    /// How many bytes are written anew for it, at most, but for the last pack's.
    pub most: u64,
    /// How.
    pub how: CopyOptions,
}

/// A pack of which images need something.
struct Mixed<'a> {
    pack: &'a PackIndex,
    /// Bytes of the chunks that are needed and for which this is the best of packs.
    needed: u64,
    /// Of all others.
    unneeded: u64,
}

impl Mixed<'_> {
    fn share(&self) -> f64 {
        self.needed as f64 / (self.needed + self.unneeded).max(1) as f64
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
}

/// What was written anew.
#[derive(Debug, Default)]
struct Rewritten {
    packs: HashSet<PackId>,
    bytes: u64,
    /// Why not all, where there was no room.
    full: Option<WriteError>,
}

impl Store {
    /// Removes images as [`Store::remove`] does, and then writes anew what is needed of packs that hold much that is not, so that these go too. `progress` is told
    /// of how many bytes that is done, and how many there are. Nothing more is written where somebody else does the same.
    ///
    /// # Errors
    /// As [`Store::remove`]'s. Whatever fails, and whenever, what is listed is complete.
    pub fn remove_and_repack(
        &self,
        images: &[ImageId],
        repack: &Repack,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Removal, WriteError> {
        let mut removal = self.remove(images)?;
        let mut how = repack.how.clone();
        while removal.kept.is_none() {
            let rewritten = self.rewrite(&Repack { how: how.clone(), ..repack.clone() }, progress)?;
            removal.rewritten += rewritten.bytes;
            let mut freed = 0;
            if !rewritten.packs.is_empty() {
                let then = self.free_unused(&rewritten.packs)?;
                freed = then.freed;
                removal = Removal {
                    freed: removal.freed + freed,
                    waiting: then.waiting,
                    kept: then.kept,
                    ..removal
                };
            }
            match rewritten.full {
                None => break,
                // There is room again, or what was written need not be written once more.
                Some(_) if removal.waiting == 0 && (freed > 0 || rewritten.bytes > 0) => {}
                Some(_) if removal.waiting == 0 && how.pack_len > SHORTEST => {
                    how.pack_len = (how.pack_len / 8).max(SHORTEST);
                }
                Some(full) => {
                    removal.kept = removal.kept.or_else(|| Some(format!("{full}: no more was written anew")))
                }
            }
        }
        Ok(removal)
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
        let removal = self.would_remove(images)?;
        match self.inventory(&removal.images) {
            Ok(has) => {
                let plan = Plan::of(&has, repack, |_, _| false);
                Ok(Removal { freed: removal.freed + plan.len, rewritten: bytes(&plan.carried), ..removal })
            }
            // It has been said why.
            Err(Untold::Kept(_)) => Ok(removal),
            Err(Untold::Failed(error)) => Err(error),
        }
    }

    fn rewrite(&self, repack: &Repack, progress: &mut dyn FnMut(u64, u64)) -> Result<Rewritten, WriteError> {
        let Some(_alone) = self.try_begin(REWRITER)? else { return Ok(Rewritten::default()) };
        // From here on nothing goes; drafts that begin now are not known, and have nothing that images need alone.
        let mut copier = Copier::within(self, ChunkMap::default(), &repack.how)?;
        let sentences = Sentences::load(self, self.remove_abandoned_drafts()?)?;
        let has = match self.inventory(&[]) {
            Ok(has) => has,
            // A removal says so.
            Err(Untold::Kept(_)) => return Ok(Rewritten::default()),
            Err(Untold::Failed(error)) => return Err(error),
        };
        let mut plan =
            Plan::of(&has, repack, |image, pack| sentences.is_alive(image) || sentences.is_condemned(pack));
        if plan.packs.is_empty() {
            return Ok(Rewritten::default());
        }
        let mut map = ChunkMap::default();
        has.indexes.into_iter().flat_map(|index| index.packs).for_each(|pack| map.add(pack));
        copier.fetcher.knows(map);
        let bad = not_good(&copier.fetcher, &plan.elsewhere, repack.how.threads);
        plan.carried.extend(bad);

        let draft = self.begin()?;
        let mut index = Index { image: draft.id(), packs: Vec::new() };
        let mut missing: HashSet<ChunkId> = plan.carried.iter().map(|(chunk, ..)| *chunk).collect();
        let (mut done, all) = (0, bytes(&plan.carried));
        let told = &mut |entry: &Entry| {
            done += u64::from(entry.frame_len);
            progress(done, all);
        };
        // Its pack stays.
        let unread = |chunk: &ChunkId, problem: String| {
            tracing::warn!("chunk {chunk} is not written anew: {problem}");
            Ok(())
        };
        let carried =
            copier.copy_chunks((&draft, &mut index), plan.carried, (&unread, &AtomicBool::new(false)), told);
        let full = match carried {
            Ok(()) => None,
            Err(CopyError::Target(full @ WriteError::Full { .. })) => Some(full),
            Err(CopyError::Target(error)) => return Err(error),
            Err(CopyError::Source(error)) => return Err(error.into()),
        };
        for entry in index.packs.iter().flat_map(|pack| &pack.entries) {
            missing.remove(&entry.id);
        }
        plan.packs.retain(|_, chunks| !chunks.iter().any(|chunk| missing.contains(chunk)));
        let packs = plan.packs.into_keys().collect();
        let bytes = index.packs.iter().map(|pack| pack.file_len).sum();
        Ok(Rewritten { packs, bytes, full })
    }
}

impl Plan {
    /// What is to be written anew of what there is: of the packs of which least is needed, until no more is unused than may be. What is to be `passed`
    /// over stays as it is.
    fn of(has: &Inventory, repack: &Repack, passed: impl Fn(&ImageId, &PackId) -> bool) -> Self {
        let mut packs: HashMap<PackId, &PackIndex> = HashMap::new();
        for index in &has.indexes {
            let usable = index
                .packs
                .iter()
                .filter(|pack| !passed(&index.image, &pack.id) && has.is_there(pack) && has.needs(pack));
            packs.extend(usable.map(|pack| (pack.id, pack)));
        }
        let homes = homes(has, &packs);
        let mixed = packs.into_values().map(|pack| {
            let is_home = |entry: &&Entry| homes.get(&entry.id).is_some_and(|place| place.pack == pack.id);
            let all: u64 = pack.entries.iter().map(|entry| u64::from(entry.frame_len)).sum();
            let needed = pack.entries.iter().filter(is_home).map(|entry| u64::from(entry.frame_len)).sum();
            Mixed { pack, needed, unneeded: all - needed }
        });
        let mut mixed: Vec<Mixed<'_>> = mixed.collect();
        mixed.sort_by(|a, b| a.share().total_cmp(&b.share()).then(a.pack.id.cmp(&b.pack.id)));

        let needed: u64 = mixed.iter().map(|each| each.needed).sum();
        let mut unneeded: u64 = mixed.iter().map(|each| each.unneeded).sum();
        let (mut plan, mut carried) = (Self::default(), 0);
        let chosen: Vec<&PackIndex> = mixed
            .iter()
            .take_while(|each| {
                let is_worth_it = each.unneeded > 0
                    && unneeded as f64 > needed as f64 * repack.max_unused
                    && carried < repack.most;
                unneeded -= each.unneeded;
                carried += each.needed;
                is_worth_it
            })
            .map(|each| each.pack)
            .collect();
        plan.len = chosen.iter().map(|pack| pack.file_len).sum();
        let is_needed = |entry: &&Entry| has.needed.contains(&entry.id);
        let chunks = |pack: &PackIndex| pack.entries.iter().filter(is_needed).map(|entry| entry.id).collect();
        plan.packs = chosen.iter().map(|pack| (pack.id, chunks(pack))).collect();
        for pack in chosen {
            for entry in &pack.entries {
                let Some(home) = homes.get(&entry.id) else { continue };
                let wanted = (entry.id, entry.plain_len, *home);
                if home.pack == pack.id {
                    plan.carried.push(wanted);
                } else if !plan.packs.contains_key(&home.pack) {
                    plan.elsewhere.push(wanted);
                }
            }
        }
        plan
    }
}

/// The best place of each chunk that images need: in the pack of which most is needed.
fn homes(has: &Inventory, packs: &HashMap<PackId, &PackIndex>) -> HashMap<ChunkId, Place> {
    let mut best: HashMap<ChunkId, (f64, Place)> = HashMap::new();
    for pack in packs.values() {
        let len = |entry: &Entry| u64::from(entry.frame_len);
        let needed: u64 = pack.entries.iter().filter(|entry| has.needed.contains(&entry.id)).map(len).sum();
        let share = needed as f64 / pack.entries.iter().map(len).sum::<u64>().max(1) as f64;
        for (offset, entry) in pack.frames().filter(|(_, entry)| has.needed.contains(&entry.id)) {
            let here = (share, Place { pack: pack.id, offset, entry: *entry });
            let best = best.entry(entry.id).or_insert(here);
            if (here.0, here.1.pack) > (best.0, best.1.pack) {
                *best = here;
            }
        }
    }
    best.into_iter().map(|(chunk, (_, place))| (chunk, place)).collect()
}

fn bytes(wanted: &Wanted) -> u64 {
    wanted.iter().map(|(.., place)| u64::from(place.entry.frame_len)).sum()
}

/// Those of these copies that are not what they should be.
fn not_good(fetcher: &Fetcher, copies: &Wanted, threads: usize) -> Wanted {
    let (next, bad) = (Mutex::new(copies.iter()), Mutex::new(Wanted::new()));
    let look = || {
        let (mut scratch, mut plain) = (Scratch::default(), Vec::new());
        loop {
            let Some(copy) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else { break };
            plain.resize(copy.1 as usize, 0);
            if fetcher.fetch_copy(&copy.2, &mut plain, &mut scratch).is_err() {
                bad.lock().unwrap_or_else(PoisonError::into_inner).push(*copy);
            }
        }
    };
    std::thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(look))));
    bad.into_inner().unwrap_or_else(PoisonError::into_inner)
}
