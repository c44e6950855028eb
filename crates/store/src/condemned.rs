//! Packs that no image needs and that drafts which are being written may count on: who keeps them, and who must not use them.
//! Why that is safe is argued in `docs/image-format.md`, §7.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use image::{Condemned, CondemnedPacks, ImageId, PackId};

use crate::{MediaError, ReadError, Store, WriteError, layout};

/// Packs whose chunks a draft must not use again.
#[derive(Debug)]
pub(crate) enum Barred {
    /// These.
    Packs(HashSet<PackId>),
    /// Of which that is cannot be told.
    All,
}

impl Barred {
    /// None at all, for who holds the store so that nothing is freed.
    pub(crate) fn none() -> Self {
        Self::Packs(HashSet::new())
    }

    /// For a draft. It has to be read before any index is: what is not in it any more is not in those either, or stays.
    pub(crate) fn for_draft(store: &Store, draft: ImageId) -> Result<Self, ReadError> {
        let Some(condemned) = store.condemned()? else { return Ok(Self::All) };
        // What was condemned since the draft was begun stays for it.
        let others = condemned.groups.into_iter().filter(|group| !group.drafts.contains(&draft));
        Ok(Self::Packs(others.flat_map(|group| group.named).collect()))
    }

    pub(crate) fn has(&self, pack: &PackId) -> bool {
        match self {
            Self::Packs(packs) => packs.contains(pack),
            Self::All => true,
        }
    }
}

/// Which packs go now and which wait, for one removal.
#[derive(Debug, Default)]
pub(crate) struct Sentences {
    /// The drafts that are being written.
    alive: HashSet<ImageId>,
    /// What was condemned before, and whom of those it waits for.
    named: HashMap<PackId, Vec<ImageId>>,
    unnamed: HashMap<PackId, Vec<ImageId>>,
    /// What is to be condemned from now on, by whom it waits for.
    waiting: BTreeMap<Vec<ImageId>, CondemnedPacks>,
    /// What the file has now.
    before: Option<Condemned>,
    /// Bytes of what waits and is no draft's that is being written.
    pub(crate) bytes: u64,
}

impl Sentences {
    /// With what was condemned before, for who holds the store while these drafts are alive.
    pub(crate) fn load(store: &Store, alive: Vec<ImageId>) -> Result<Self, ReadError> {
        let before = store.condemned()?;
        let mut this = Self { alive: alive.into_iter().collect(), before, ..Self::default() };
        for group in this.before.iter().flat_map(|condemned| &condemned.groups) {
            let left: Vec<_> = group.drafts.iter().filter(|id| this.alive.contains(id)).copied().collect();
            this.named.extend(group.named.iter().map(|pack| (*pack, left.clone())));
            this.unnamed.extend(group.unnamed.iter().map(|pack| (*pack, left.clone())));
        }
        Ok(this)
    }

    /// Whether a draft is being written that has this id.
    pub(crate) fn is_alive(&self, draft: &ImageId) -> bool {
        self.alive.contains(draft)
    }

    pub(crate) fn is_anybody_alive(&self) -> bool {
        !self.alive.is_empty()
    }

    /// Whether a pack that an index names was to go before, and waits.
    pub(crate) fn is_condemned(&self, pack: &PackId) -> bool {
        self.named.contains_key(pack)
    }

    /// Whether such a pack waits for nobody any more.
    pub(crate) fn is_over(&self, pack: &PackId) -> bool {
        self.named.get(pack).is_some_and(Vec::is_empty)
    }

    /// Whether a pack that an index names, and of which no image needs anything, goes now. If not, it is condemned.
    pub(crate) fn named_goes(&mut self, pack: PackId, bytes: u64) -> bool {
        let waits_for = self.named.get(&pack).cloned();
        let goes = self.goes(waits_for, |group| group.named.push(pack));
        self.bytes += if goes { 0 } else { bytes };
        goes
    }

    /// A pack that an index names goes on being condemned, though it waits for nobody.
    pub(crate) fn stays_condemned(&mut self, pack: PackId, bytes: u64) {
        self.waiting.entry(Vec::new()).or_default().named.push(pack);
        self.bytes += bytes;
    }

    /// Whether a pack that no index names goes now. If not, it is condemned.
    pub(crate) fn unnamed_goes(&mut self, pack: PackId) -> bool {
        let waits_for = self.unnamed.get(&pack).or_else(|| self.named.get(&pack)).cloned();
        self.goes(waits_for, |group| group.unnamed.push(pack))
    }

    fn goes(&mut self, waits_for: Option<Vec<ImageId>>, add: impl FnOnce(&mut CondemnedPacks)) -> bool {
        let waits_for = waits_for.unwrap_or_else(|| {
            let mut all: Vec<_> = self.alive.iter().copied().collect();
            all.sort_unstable();
            all
        });
        if waits_for.is_empty() {
            return true;
        }
        let group = self.waiting.entry(waits_for.clone()).or_default();
        group.drafts = waits_for;
        add(group);
        false
    }

    /// What the file is to have now; none where it has that.
    pub(crate) fn changed(self) -> Option<Condemned> {
        let now = Condemned { groups: self.waiting.into_values().collect() };
        (self.before.as_ref() != Some(&now)).then_some(now)
    }
}

impl Store {
    /// What is condemned. None where that cannot be told, because the file is damaged or a newer Dormouse's.
    pub(crate) fn condemned(&self) -> Result<Option<Condemned>, ReadError> {
        match self.read_file(layout::CONDEMNED, |file| Condemned::read(file)) {
            Err(ReadError::Media(MediaError { error, .. })) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Some(Condemned::default()))
            }
            Err(error @ ReadError::File { .. }) if !error.is_unread() => {
                tracing::warn!(
                    "{error}; until a removal has written it anew nothing that the store has is used again"
                );
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Notes what is condemned from now on.
    pub(crate) fn condemn(&self, condemned: &Condemned) -> Result<(), WriteError> {
        if condemned.groups.is_empty() {
            self.on("remove", layout::CONDEMNED, |media| media.remove(layout::CONDEMNED))?;
        } else {
            let path = self.media().full_path(layout::CONDEMNED);
            let bytes = condemned.to_bytes().map_err(|error| ReadError::File { path, error })?;
            self.replace(layout::CONDEMNED, &bytes)?;
        }
        Ok(self.on("sync", layout::INDEX, |media| media.sync_folder(layout::INDEX))?)
    }
}
