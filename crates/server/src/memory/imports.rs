//! Allocations of other sessions that this one has open: each block that any of them lies in is mapped once, whole.

use crate::failure::{Failure, Result};
use crate::sharing::{Gift, Given, Sharing};
use backend::{Access, BLOCK_GRANULARITY, Backend, Range, RawPhysical};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::{Claim, ContextId, CuError, ShareId};

/// An allocation that is open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Opened {
    bytes: u64,
    /// Which allocation at that place of its block.
    number: u64,
    /// How often it is to be closed, by the context that opened it.
    counts: BTreeMap<ContextId, u32>,
}

impl Opened {
    fn count(&mut self, ctx: ContextId) {
        let count = self.counts.entry(ctx).or_default();
        *count = count.saturating_add(1);
    }
}

/// A block of another session, as it goes into an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImportRecord {
    /// Its name.
    pub share: ShareId,
    /// Index of its device.
    pub device: u32,
    /// Where it is mapped.
    pub range: Range,
    /// The devices that reach it here.
    reach: BTreeSet<u32>,
    /// Allocations, by address here.
    opened: BTreeMap<u64, Opened>,
}

/// The blocks of other sessions.
pub struct Imports {
    backend: Arc<dyn Backend>,
    sharing: Arc<Sharing>,
    /// Where those of each device are mapped, and whether the addresses are claimed.
    windows: Vec<(Range, bool)>,
    all: BTreeMap<ShareId, (ImportRecord, RawPhysical)>,
}

fn invalid(what: impl Into<String>) -> Failure {
    Failure::new(CuError::INVALID_VALUE, what)
}

impl Imports {
    /// None yet; those of each device will lie in its window.
    #[must_use]
    pub fn new(
        backend: Arc<dyn Backend>,
        sharing: Arc<Sharing>,
        windows: impl Iterator<Item = Range>,
    ) -> Self {
        let windows = windows.map(|range| (range, false)).collect();
        Self { backend, sharing, windows, all: BTreeMap::new() }
    }

    /// An allocation that is open already is opened once more, for a context on a device; its address.
    ///
    /// # Errors
    /// The backend's, when the device cannot reach it.
    pub fn reopen(&mut self, claim: &Claim, (ctx, device): (ContextId, u32)) -> Result<Option<u64>> {
        let Some((record, _)) = self.all.get_mut(&claim.share) else { return Ok(None) };
        let Some(address) = record.range.base.checked_add(claim.offset) else { return Ok(None) };
        let same = |opened: &&mut Opened| (opened.bytes, opened.number) == (claim.bytes, claim.number);
        let Some(opened) = record.opened.get_mut(&address).filter(same) else { return Ok(None) };
        if !record.reach.contains(&device) {
            self.backend.set_access(device as usize, record.range, Access::ReadWrite)?;
            record.reach.insert(device);
        }
        opened.count(ctx);
        Ok(Some(address))
    }

    /// Opens an allocation of which the block is given, for a context on `device`; its address here.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a gift or a claim that makes no sense, `OUT_OF_MEMORY` when there are no addresses left, the backend's.
    pub fn open(&mut self, claim: &Claim, given: Given, opener: (ContextId, u32)) -> Result<u64> {
        let (Gift::Memory { device: home, bytes, .. }, Some(file)) = given else {
            return Err(invalid("what was given is no memory"));
        };
        if !(Range { base: 0, bytes }).contains(claim.offset, claim.bytes) || claim.bytes == 0 {
            return Err(invalid(format!("{claim:?} lies outside of its block of {bytes:#x} bytes")));
        }
        if let Some(address) = self.reopen(claim, opener)? {
            return Ok(address);
        }
        let (ctx, device) = opener;
        if !self.all.contains_key(&claim.share) {
            let range = self.gap(home, bytes)?;
            let raw = self.backend.physical_import(home as usize, file, bytes)?;
            let reach = BTreeSet::from([home]);
            let record =
                ImportRecord { share: claim.share, device: home, range, reach, opened: BTreeMap::new() };
            self.map(record, raw)?;
        }
        let (record, _) = self.all.get_mut(&claim.share).ok_or(CuError::INVALID_HANDLE)?;
        if !record.reach.contains(&device) {
            let range = record.range;
            if let Err(error) = self.backend.set_access(device as usize, range, Access::ReadWrite) {
                // A block of which nothing is open goes again.
                self.remove(claim.share, |_, _| false)?;
                return Err(error.into());
            }
            record.reach.insert(device);
        }
        let address = record.range.base + claim.offset;
        let Claim { bytes, number, .. } = *claim;
        // The owner may have freed what is still open there, and allocated again: the new one is closed as often as both.
        let counts = record.opened.remove(&address).map(|former| former.counts).unwrap_or_default();
        let mut opened = Opened { bytes, number, counts };
        opened.count(ctx);
        record.opened.insert(address, opened);
        Ok(address)
    }

    /// Maps memory where its record says, for the devices that it names; this session holds it from now on.
    fn map(&mut self, record: ImportRecord, raw: RawPhysical) -> Result<()> {
        let reach = || {
            record.reach.iter().try_for_each(|device| {
                self.backend.set_access(*device as usize, record.range, Access::ReadWrite)
            })
        };
        let mapped = self.backend.map_physical(raw, record.range).and_then(|()| {
            reach().or_else(|error| self.backend.unmap_physical(record.range).and(Err(error)))
        });
        if let Err(error) = mapped {
            self.backend.physical_release(raw)?;
            return Err(error.into());
        }
        self.sharing.hold(record.share);
        self.all.insert(record.share, (record, raw));
        Ok(())
    }

    /// The lowest free addresses for a block of a device.
    fn gap(&mut self, device: u32, bytes: u64) -> Result<Range> {
        let window = self.claim(device)?;
        if bytes == 0 || !bytes.is_multiple_of(BLOCK_GRANULARITY) {
            return Err(invalid(format!("a block of {bytes:#x} bytes")));
        }
        let mut taken: Vec<Range> = self
            .all
            .values()
            .filter(|(record, _)| record.device == device)
            .map(|(record, _)| record.range)
            .collect();
        taken.sort_unstable();
        let mut base = window.base;
        for range in taken {
            if range.base - base >= bytes {
                break;
            }
            base = range.end();
        }
        let free = window.contains(base, bytes).then_some(Range { base, bytes });
        free.ok_or_else(|| {
            Failure::new(CuError::OUT_OF_MEMORY, format!("{window} is full of others' memory"))
        })
    }

    fn claim(&mut self, device: u32) -> Result<Range> {
        let (window, claimed) = self.windows.get_mut(device as usize).ok_or(CuError::INVALID_DEVICE)?;
        if !*claimed {
            self.backend.reserve(*window)?;
            *claimed = true;
        }
        Ok(*window)
    }

    /// Whether to close the allocation at `address` is to close it for the last time.
    #[must_use]
    pub fn closes_at_last(&self, address: u64) -> bool {
        let mut opened = self.all.values().filter_map(|(record, _)| record.opened.get(&address));
        opened.next().is_some_and(|opened| opened.counts.values().eq(&[1]))
    }

    /// Closes the allocation at `address` once; whether nobody has it open any more, which the caller has made sure that no work
    /// uses then.
    ///
    /// # Errors
    /// `INVALID_VALUE` when none is open there; the backend's.
    pub fn close(&mut self, address: u64) -> Result<bool> {
        let mut all = self.all.values_mut();
        let (share, opened) = all
            .find_map(|(record, _)| Some((record.share, record.opened.get_mut(&address)?)))
            .ok_or_else(|| invalid(format!("nothing of another process is open at {address:#x}")))?;
        if let Some(mut first) = opened.counts.first_entry() {
            *first.get_mut() = first.get().saturating_sub(1);
            if *first.get() == 0 {
                first.remove();
            }
        }
        if !opened.counts.is_empty() {
            return Ok(false);
        }
        self.remove(share, |at, _| at == address)?;
        Ok(true)
    }

    /// Closes all that a context has open, which is ending.
    ///
    /// # Errors
    /// The backend's.
    pub fn close_context(&mut self, ctx: ContextId) -> Result<()> {
        let shares: Vec<ShareId> = self.all.keys().copied().collect();
        let close = |opened: &mut Opened| opened.counts.remove(&ctx).is_some() && opened.counts.is_empty();
        shares.into_iter().try_for_each(|share| self.remove(share, |_, opened| close(opened)))
    }

    /// Takes allocations of a block out, and the block when none is left.
    fn remove(&mut self, share: ShareId, gone: impl Fn(u64, &mut Opened) -> bool) -> Result<()> {
        let Some((record, raw)) = self.all.get_mut(&share) else { return Ok(()) };
        record.opened.retain(|address, opened| !gone(*address, opened));
        if !record.opened.is_empty() {
            return Ok(());
        }
        let (range, raw) = (record.range, *raw);
        self.all.remove(&share);
        // Whatever the device library says, it is held no longer.
        let unmapped = self.backend.unmap_physical(range);
        let released = self.backend.physical_release(raw);
        self.sharing.release(share);
        Ok(unmapped.and(released)?)
    }

    /// Whether the bytes lie in an open allocation.
    #[must_use]
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        self.all.values().any(|(record, _)| {
            let below = record.opened.range(..=address).next_back();
            below.is_some_and(|(base, opened)| {
                Range { base: *base, bytes: opened.bytes }.contains(address, bytes)
            })
        })
    }

    /// Gives a block of which this session is the owner now.
    ///
    /// # Errors
    /// The backend's.
    pub fn give(&self, share: ShareId) -> Result<Option<Given>> {
        let Some((record, raw)) = self.all.get(&share) else { return Ok(None) };
        let file = self.backend.physical_export(*raw)?;
        let gift = Gift::Memory {
            device: record.device,
            bytes: record.range.bytes,
            handle_types: 0,
            compressible: false,
        };
        Ok(Some((gift, Some(file))))
    }

    /// All of them, for an image.
    #[must_use]
    pub fn state(&self) -> Vec<ImportRecord> {
        self.all.values().map(|(record, _)| record.clone()).collect()
    }

    /// Claims the addresses of a state's blocks.
    ///
    /// # Errors
    /// The backend's, when they cannot be had; `INVALID_VALUE` for a state that cannot be.
    pub fn restore_addresses(&mut self, state: &[ImportRecord]) -> Result<()> {
        for record in state {
            let window = self.claim(record.device)?;
            let Range { base, bytes } = record.range;
            let whole = bytes > 0 && (base | bytes).is_multiple_of(BLOCK_GRANULARITY);
            let counted = |opened: &Opened| {
                !opened.counts.is_empty() && !opened.counts.values().any(|count| *count == 0)
            };
            let open =
                |(at, opened): (&u64, &Opened)| record.range.contains(*at, opened.bytes) && counted(opened);
            let all_open = !record.opened.is_empty() && record.opened.iter().all(open);
            if !whole || !window.contains(base, bytes) || !all_open {
                return Err(invalid(format!("{} cannot have been memory of another process", record.range)));
            }
        }
        Ok(())
    }

    /// Makes a block again that the session owns, or with what its owner gives.
    ///
    /// # Errors
    /// `INVALID_VALUE` when what is given is not that; the backend's.
    pub fn restore(&mut self, record: &ImportRecord, given: Option<Given>) -> Result<()> {
        let ImportRecord { device, range, .. } = *record;
        let raw = match given {
            None => self.backend.physical_create(device as usize, range.bytes, false)?.0,
            Some((Gift::Memory { device: home, bytes, .. }, Some(file)))
                if (home, bytes) == (device, range.bytes) =>
            {
                self.backend.physical_import(device as usize, file, bytes)?
            }
            Some((gift, _)) => {
                return Err(invalid(format!("{gift:?} is not the block {range} of device {device}")));
            }
        };
        self.map(record.clone(), raw)
    }
}
