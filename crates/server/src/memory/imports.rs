//! Allocations of other sessions that this one has open: each block that any of them lies in is mapped once, whole.

use crate::failure::{Failure, Result};
use crate::sharing::{Gift, Given, Sharing};
use backend::{Access, BLOCK_GRANULARITY, Backend, Range, RawPhysical};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::{Claim, ContextId, CuError, ShareId};

/// An allocation that is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Opened {
    bytes: u64,
    /// Which allocation at that place of its block.
    number: u64,
    /// The context that opened it first.
    ctx: ContextId,
    /// How often it is to be closed.
    count: u32,
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

    /// An allocation that is open already is opened once more; its address.
    pub fn reopen(&mut self, claim: &Claim) -> Option<u64> {
        let (record, _) = self.all.get_mut(&claim.share)?;
        let address = record.range.base.checked_add(claim.offset)?;
        let opened = record.opened.get_mut(&address)?;
        if (opened.bytes, opened.number) != (claim.bytes, claim.number) {
            return None;
        }
        opened.count = opened.count.saturating_add(1);
        Some(address)
    }

    /// Opens an allocation of which the block is given, for a context on `device`; its address here.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a gift or a claim that makes no sense, `OUT_OF_MEMORY` when there are no addresses left, the backend's.
    pub fn open(&mut self, claim: &Claim, given: Given, ctx: ContextId, device: u32) -> Result<u64> {
        let (Gift::Memory { device: home, bytes, .. }, Some(file)) = given else {
            return Err(invalid("what was given is no memory"));
        };
        if !(Range { base: 0, bytes }).contains(claim.offset, claim.bytes) || claim.bytes == 0 {
            return Err(invalid(format!("{claim:?} lies outside of its block of {bytes:#x} bytes")));
        }
        if let Some(address) = self.reopen(claim) {
            return Ok(address);
        }
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
        record.opened.insert(address, Opened { bytes: claim.bytes, number: claim.number, ctx, count: 1 });
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

    /// Whether an open allocation begins at `address`.
    #[must_use]
    pub fn is_open(&self, address: u64) -> bool {
        self.all.values().any(|(record, _)| record.opened.contains_key(&address))
    }

    /// Closes the allocation at `address` once; whether nobody has it open any more. The caller has made sure that no work uses it.
    ///
    /// # Errors
    /// `INVALID_VALUE` when none is open there; the backend's.
    pub fn close(&mut self, address: u64) -> Result<bool> {
        let mut all = self.all.values_mut();
        let (record, opened) = all
            .find_map(|(record, _)| Some((record.share, record.opened.get_mut(&address)?)))
            .ok_or_else(|| invalid(format!("nothing of another process is open at {address:#x}")))?;
        opened.count -= 1;
        if opened.count > 0 {
            return Ok(false);
        }
        self.remove(record, |at, _| at == address)?;
        Ok(true)
    }

    /// Closes all that a context has open, which is ending.
    ///
    /// # Errors
    /// The backend's.
    pub fn close_context(&mut self, ctx: ContextId) -> Result<()> {
        let shares: Vec<ShareId> = self.all.keys().copied().collect();
        shares.into_iter().try_for_each(|share| self.remove(share, |_, opened| opened.ctx == ctx))
    }

    /// Takes allocations of a block out, and the block when none is left.
    fn remove(&mut self, share: ShareId, gone: impl Fn(u64, &Opened) -> bool) -> Result<()> {
        let Some((record, raw)) = self.all.get_mut(&share) else { return Ok(()) };
        record.opened.retain(|address, opened| !gone(*address, opened));
        if !record.opened.is_empty() {
            return Ok(());
        }
        let (range, raw) = (record.range, *raw);
        self.all.remove(&share);
        self.backend.unmap_physical(range)?;
        self.backend.physical_release(raw)?;
        self.sharing.release(share);
        Ok(())
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
            let inside = |(at, opened): (&u64, &Opened)| record.range.contains(*at, opened.bytes);
            if !whole || !window.contains(base, bytes) || !record.opened.iter().all(inside) {
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
