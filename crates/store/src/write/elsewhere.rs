//! Whether what images need of packs that are to go can be read elsewhere: what has rotted there would be lost with them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Mutex, PoisonError};

use image::{ChunkId, PackId};

use super::copy::Wanted;
use crate::chunk_map::{ChunkMap, Place};
use crate::condemned::Sentences;
use crate::inventory::{Needed, Untold};
use crate::read::{Fetcher, Scratch};
use crate::{MediaError, Store, WriteError};

/// What was read in place of packs that are to go.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// Packs that may go where all that images need of them is `good`.
    pub(crate) packs: HashSet<PackId>,
    /// Chunks that were found good in packs that stay, or written into such.
    pub(crate) good: HashSet<ChunkId>,
    /// Packs that have the only good copy of a chunk.
    pub(crate) only: HashSet<PackId>,
}

impl Elsewhere {
    /// Whether a pack may go of which images need these chunks. They may need more of it than when it was looked for.
    pub(crate) fn has_all<'a>(&self, pack: &PackId, mut needed: impl Iterator<Item = &'a ChunkId>) -> bool {
        self.packs.contains(pack) && needed.all(|chunk| self.good.contains(chunk))
    }
}

impl Store {
    /// Looks for what images need of those packs that are condemned and wait for nobody any more, by reading it elsewhere with so many threads.
    /// Holds the store as who reads an image does: others begin checkpoints meanwhile.
    pub(crate) fn found_elsewhere(
        &self,
        needed: &mut Needed,
        threads: usize,
    ) -> Result<Elsewhere, WriteError> {
        let condemned = self.condemned()?.unwrap_or_default();
        if condemned.groups.iter().all(|group| group.named.is_empty()) {
            return Ok(Elsewhere::default());
        }
        let _share = match self.share() {
            // Somebody else removes.
            Err(MediaError { error, .. }) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Elsewhere::default());
            }
            held => held?,
        };
        // Whatever stands in the way, a removal says so.
        let Ok(alive) = self.remove_abandoned_drafts() else { return Ok(Elsewhere::default()) };
        let sentences = Sentences::load(self, alive)?;
        let has = match self.inventory(needed, &[]) {
            Ok(has) => has,
            Err(Untold::Kept(_)) => return Ok(Elsewhere::default()),
            Err(Untold::Failed(error)) => return Err(error),
        };
        let goes = |pack: &PackId| sentences.is_condemned(pack) || has.missing.contains(pack);
        let replaced = has.replaced(goes);
        let (mut going, mut copies) = (HashMap::new(), Wanted::new());
        for pack in has.packs().filter(|pack| replaced.contains(&pack.id) && sentences.is_over(&pack.id)) {
            going.insert(pack.id, has.needed_of(pack).copied().collect::<Vec<_>>());
        }
        let wanted: HashSet<&ChunkId> = going.values().flatten().collect();
        let mut seen = HashSet::new();
        for pack in has.packs().filter(|pack| !goes(&pack.id) && has.is_there(pack) && seen.insert(pack.id)) {
            let found = pack.frames().filter(|(_, entry)| wanted.contains(&entry.id));
            copies.extend(found.map(|(offset, entry)| {
                (entry.id, entry.plain_len, Place { pack: pack.id, offset, entry: *entry })
            }));
        }
        let fetcher = Fetcher::new(self.clone(), ChunkMap::default());
        let good = sift(&fetcher, copies, threads).0;
        let good: HashSet<ChunkId> = good.into_iter().map(|(chunk, ..)| chunk).collect();
        let (packs, only): (HashMap<_, _>, HashMap<_, _>) =
            going.into_iter().partition(|(_, chunks)| chunks.iter().all(|chunk| good.contains(chunk)));
        if !only.is_empty() {
            let packs = only.len();
            tracing::warn!(
                "{packs} packs stay that have the only good copy of chunks; `dormouse verify` names the bad ones"
            );
        }
        Ok(Elsewhere { packs: packs.into_keys().collect(), good, only: only.into_keys().collect() })
    }
}

/// Reads copies, and tells those that are what they should be from the others.
pub(super) fn sift(fetcher: &Fetcher, copies: Wanted, threads: usize) -> (Wanted, Wanted) {
    let (next, sifted) = (Mutex::new(copies.into_iter()), Mutex::new((Wanted::new(), Wanted::new())));
    let look = || {
        let (mut scratch, mut plain) = (Scratch::default(), Vec::new());
        loop {
            let Some(copy) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else { break };
            plain.resize(copy.1 as usize, 0);
            let is_good = fetcher.fetch_copy(&copy.2, &mut plain, &mut scratch).is_ok();
            let mut sifted = sifted.lock().unwrap_or_else(PoisonError::into_inner);
            if is_good { sifted.0.push(copy) } else { sifted.1.push(copy) }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where there may be no more threads, there are fewer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, look);
        }
        look();
    });
    sifted.into_inner().unwrap_or_else(PoisonError::into_inner)
}
