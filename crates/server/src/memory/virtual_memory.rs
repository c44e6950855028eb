//! Virtual memory that the application manages: ranges of addresses, pieces of device memory, and what is mapped where.

use super::addresses::Addresses;
use super::excluded::Excluded;
use crate::failure::{Failure, Result};
use crate::objects::insert;
use crate::sharing::{Gift, Given, Sharing, fresh};
use backend::{Access, BLOCK_GRANULARITY, Backend, Range, RawPhysical};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{CuError, Device, PhysicalId, ShareId};

/// A piece of device memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PhysicalRecord {
    /// Its handle.
    pub id: PhysicalId,
    /// Index of its device.
    pub device: u32,
    /// Bytes.
    pub bytes: u64,
    /// The types of shareable handles that the application wanted to be able to ask for.
    pub handle_types: u32,
    /// Whether the device may compress it: as asked for until it is made, then as the driver has made it.
    pub compressible: bool,
    /// How many of its handles the application has not released.
    pub handles: u32,
    /// Its name, where other sessions may have it.
    pub share: Option<ShareId>,
}

/// A mapping of the beginning of a piece.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MappingRecord {
    /// Where.
    pub range: Range,
    /// Of what.
    pub physical: PhysicalId,
    /// What each device may do with it.
    pub access: BTreeMap<u32, Access>,
}

/// All of it, as it goes into an image.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VirtualState {
    /// Reserved ranges.
    pub reservations: Vec<Range>,
    /// Pieces of memory.
    pub physical: Vec<PhysicalRecord>,
    /// Mappings.
    pub mappings: Vec<MappingRecord>,
}

/// A session's virtual memory.
pub struct VirtualMemory {
    backend: Arc<dyn Backend>,
    sharing: Arc<Sharing>,
    addresses: Addresses,
    physical: BTreeMap<PhysicalId, (PhysicalRecord, RawPhysical)>,
    mappings: BTreeMap<u64, MappingRecord>,
    /// What need not be saved, by where it is mapped.
    excluded: Excluded,
}

/// Where a piece of memory can be read and written while nothing else goes on.
pub struct View {
    /// The handle of the piece.
    pub handle: u64,
    /// Index of its device.
    pub device: usize,
    /// The addresses.
    pub range: Range,
    /// Whether the program has it mapped there and nowhere else, and no other session can have it.
    pub only: bool,
}

/// A view of every piece; those that were mapped for it are unmapped with it.
pub struct Views {
    /// The views.
    pub all: Vec<View>,
    borrowed: Vec<Range>,
    backend: Arc<dyn Backend>,
}

impl Drop for Views {
    fn drop(&mut self) {
        for range in self.borrowed.drain(..) {
            if let Err(error) = self.backend.unmap_physical(range) {
                tracing::warn!(%range, %error, "a view of device memory stays");
            }
        }
    }
}

/// The memory of a record, from what another session has given.
fn imported(backend: &dyn Backend, record: &PhysicalRecord, given: Given) -> Result<RawPhysical> {
    match given {
        (Gift::Memory { device, bytes, .. }, Some(file))
            if (device, bytes) == (record.device, record.bytes) =>
        {
            Ok(backend.physical_import(device as usize, file, bytes)?)
        }
        (gift, _) => Err(invalid(format!("{gift:?} is not {:?}", record.id))),
    }
}

fn invalid(what: impl Into<String>) -> Failure {
    Failure::new(CuError::INVALID_VALUE, what)
}

impl VirtualMemory {
    /// None yet; ranges will lie in `window`.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, sharing: Arc<Sharing>, window: Range) -> Self {
        Self {
            backend,
            sharing,
            addresses: Addresses::new(window),
            physical: BTreeMap::new(),
            mappings: BTreeMap::new(),
            excluded: Excluded::default(),
        }
    }

    /// As `cuMemAddressReserve`; `wanted` is where, if it can be had.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `OUT_OF_MEMORY` when the window is full, or the backend's.
    pub fn reserve(&mut self, bytes: u64, alignment: u64, wanted: u64) -> Result<u64> {
        self.addresses.reserve(&*self.backend, bytes, alignment, wanted)
    }

    /// As `cuMemAddressFree`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is no whole reservation, or something is mapped in it; the backend's.
    pub fn free(&mut self, range: Range) -> Result<()> {
        if self.mappings_in(range).next().is_some() {
            return Err(invalid(format!("something is mapped in {range}")));
        }
        self.addresses.free(range)
    }

    /// As `cuMemCreate`.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `INVALID_HANDLE` for an id in use, or the backend's.
    pub fn create(&mut self, record: PhysicalRecord) -> Result<()> {
        if record.bytes == 0 || !record.bytes.is_multiple_of(BLOCK_GRANULARITY) {
            return Err(invalid(format!("{:#x} bytes of memory", record.bytes)));
        }
        self.add(record, |backend, record| {
            let PhysicalRecord { device, bytes, compressible, .. } = *record;
            let (raw, compressible) = backend.physical_create(device as usize, bytes, compressible)?;
            record.compressible = compressible;
            Ok(raw)
        })
    }

    fn add(
        &mut self,
        mut record: PhysicalRecord,
        make: impl FnOnce(&dyn Backend, &mut PhysicalRecord) -> Result<RawPhysical>,
    ) -> Result<()> {
        if self.physical.contains_key(&record.id) {
            return Err(crate::objects::in_use(record.id));
        }
        let raw = make(&*self.backend, &mut record)?;
        if let Some(share) = record.share {
            self.sharing.hold(share);
        }
        insert(&mut self.physical, record.id, (record, raw))
    }

    /// As `cuMemExportToShareableHandle`: the name of a piece, which it keeps.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is no such handle.
    pub fn export(&mut self, id: PhysicalId) -> Result<ShareId> {
        let found = self.physical.get_mut(&id).filter(|(record, _)| record.handles > 0);
        let (record, _) = found.ok_or_else(|| invalid(format!("there is no {id:?}")))?;
        if record.share.is_none() {
            let share = fresh()?;
            self.sharing.hold(share);
            record.share = Some(share);
        }
        record.share.ok_or_else(|| CuError::INVALID_VALUE.into())
    }

    /// Another handle of a piece that is here already.
    pub fn reopen(&mut self, share: ShareId) -> Option<PhysicalId> {
        let mut all = self.physical.values_mut();
        let (record, _) = all.find(|(record, _)| record.share == Some(share))?;
        record.handles = record.handles.saturating_add(1);
        Some(record.id)
    }

    /// A piece of another session's, or one more handle of one that is here.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a gift that is none, or the backend's.
    pub fn import(&mut self, id: PhysicalId, share: ShareId, given: Given) -> Result<PhysicalId> {
        if let Some(id) = self.reopen(share) {
            return Ok(id);
        }
        let Gift::Memory { device, bytes, handle_types, compressible } = given.0 else {
            return Err(invalid("what was given is no memory"));
        };
        let (handles, share) = (1, Some(share));
        let record = PhysicalRecord { id, device, bytes, handle_types, compressible, handles, share };
        self.add(record, |backend, record| imported(backend, record, given))?;
        Ok(id)
    }

    /// Gives a piece.
    ///
    /// # Errors
    /// The backend's.
    pub fn give(&self, share: ShareId) -> Result<Option<Given>> {
        let found = self.physical.values().find(|(record, _)| record.share == Some(share));
        let Some((record, raw)) = found else { return Ok(None) };
        let PhysicalRecord { device, bytes, handle_types, compressible, .. } = *record;
        let file = self.backend.physical_export(*raw)?;
        let gift = Gift::Memory { device, bytes, handle_types, compressible };
        Ok(Some((gift, Some(file))))
    }

    /// As `cuMemRelease`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is no such handle, or the backend's.
    pub fn release(&mut self, id: PhysicalId) -> Result<()> {
        let found = self.physical.get_mut(&id).filter(|(record, _)| record.handles > 0);
        found.ok_or_else(|| invalid(format!("there is no {id:?}")))?.0.handles -= 1;
        self.bury(id)
    }

    /// Gives back what has no handle and no mapping.
    fn bury(&mut self, id: PhysicalId) -> Result<()> {
        let unused = self.physical.get(&id).is_some_and(|(record, _)| record.handles == 0);
        if unused && self.mappings.values().all(|mapping| mapping.physical != id) {
            let (record, raw) = self.physical.remove(&id).ok_or(CuError::INVALID_VALUE)?;
            self.backend.physical_release(raw)?;
            if let Some(share) = record.share {
                self.sharing.release(share);
            }
        }
        Ok(())
    }

    /// As `cuMemRetainAllocationHandle`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when nothing is mapped there.
    pub fn retain(&mut self, address: u64) -> Result<PhysicalId> {
        let id = self.mapping(address).map(|mapping| mapping.physical);
        let id = id.ok_or_else(|| invalid(format!("nothing is mapped at {address:#x}")))?;
        if let Some((record, _)) = self.physical.get_mut(&id) {
            record.handles = record.handles.saturating_add(1);
        }
        Ok(id)
    }

    /// The device of a piece, the types of handles that were asked for, and whether it is compressible.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is no such handle.
    pub fn properties(&self, id: PhysicalId) -> Result<(Device, (u32, bool))> {
        let found = self.physical.get(&id).filter(|(record, _)| record.handles > 0);
        let (record, _) = found.ok_or_else(|| invalid(format!("there is no {id:?}")))?;
        Ok((Device(record.device), (record.handle_types, record.compressible)))
    }

    /// As `cuMemMap`.
    ///
    /// # Errors
    /// `INVALID_VALUE`, or the backend's.
    pub fn map(&mut self, range: Range, id: PhysicalId) -> Result<()> {
        let whole = range.bytes > 0 && (range.base | range.bytes).is_multiple_of(BLOCK_GRANULARITY);
        if !whole || !self.addresses.holds(range) || self.mappings_in(range).next().is_some() {
            return Err(invalid(format!("{range} is no free part of a reservation")));
        }
        let found = self.physical.get(&id).filter(|(record, _)| record.handles > 0);
        let (record, raw) = found.ok_or_else(|| invalid(format!("there is no {id:?}")))?;
        if range.bytes > record.bytes {
            return Err(invalid(format!("{id:?} has {:#x} bytes, not {:#x}", record.bytes, range.bytes)));
        }
        self.backend.map_physical(*raw, range)?;
        self.mappings.insert(range.base, MappingRecord { range, physical: id, access: BTreeMap::new() });
        Ok(())
    }

    /// As `cuMemUnmap`; the caller has made sure that no work uses it.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the range is not of whole mappings, or the backend's.
    pub fn unmap(&mut self, range: Range) -> Result<()> {
        for base in self.whole_mappings(range)? {
            let Some(mapping) = self.mappings.remove(&base) else { continue };
            self.excluded.remove(mapping.range);
            self.backend.unmap_physical(mapping.range)?;
            self.bury(mapping.physical)?;
        }
        Ok(())
    }

    /// As `cuMemSetAccess`, for one device.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the range is not of whole mappings, or the backend's.
    pub fn set_access(&mut self, range: Range, device: u32, access: Access) -> Result<()> {
        for base in self.whole_mappings(range)? {
            let Some(mapping) = self.mappings.get_mut(&base) else { continue };
            self.backend.set_access(device as usize, mapping.range, access)?;
            mapping.access.insert(device, access);
        }
        Ok(())
    }

    /// As `cuMemGetAccess`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when nothing is mapped there.
    pub fn access(&self, address: u64, device: u32) -> Result<Access> {
        let mapping = self.mapping(address);
        let mapping = mapping.ok_or_else(|| invalid(format!("nothing is mapped at {address:#x}")))?;
        Ok(mapping.access.get(&device).copied().unwrap_or(Access::None))
    }

    /// Whether the bytes are mapped without a gap, and some device may use them.
    #[must_use]
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while at < end {
            let usable = |mapping: &&MappingRecord| mapping.access.values().any(|each| *each != Access::None);
            match self.mapping(at).filter(usable) {
                Some(mapping) => at = mapping.range.end(),
                None => return false,
            }
        }
        true
    }

    /// Excludes the contents of a range from images, until it is included or unmapped.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is not mapped without a gap, `OUT_OF_MEMORY` when there are too many ranges.
    pub fn exclude(&mut self, range: Range) -> Result<()> {
        if range.bytes == 0 || !self.contains(range.base, range.bytes) {
            return Err(invalid(format!("{range} is no device memory that can be excluded")));
        }
        self.excluded.add(range)
    }

    /// Saves it again; whether something is mapped there.
    pub fn include(&mut self, range: Range) -> bool {
        self.excluded.remove(range);
        self.mapping(range.base).is_some()
    }

    /// What need not be saved.
    pub(crate) fn excluded(&self) -> &Excluded {
        &self.excluded
    }

    /// What of pieces need not be saved, by their handles, each piece's from its beginning on.
    pub(crate) fn excluded_of_pieces(&self) -> BTreeMap<u64, Excluded> {
        let mut found: BTreeMap<u64, Excluded> = BTreeMap::new();
        for range in self.excluded.all() {
            for mapping in self.mappings_in(range) {
                let of_piece = found.entry(mapping.physical.handle()).or_default();
                let base = range.base.max(mapping.range.base);
                let end = range.end().min(mapping.range.end());
                // Where there are too many, the rest is saved.
                let _ = of_piece.add(Range { base: base - mapping.range.base, bytes: end - base });
            }
        }
        found
    }

    /// The mapping that an address lies in.
    fn mapping(&self, address: u64) -> Option<&MappingRecord> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        mapping.range.contains(address, 1).then_some(mapping)
    }

    /// Every mapping of which something lies in the range.
    fn mappings_in(&self, range: Range) -> impl Iterator<Item = &MappingRecord> {
        let below = self.mappings.range(..range.end()).rev().map(|(_, mapping)| mapping);
        below.take_while(move |mapping| mapping.range.end() > range.base)
    }

    /// Where the mappings begin of which the range is made, and of nothing else.
    fn whole_mappings(&self, range: Range) -> Result<Vec<u64>> {
        let inside = |mapping: &&MappingRecord| range.contains(mapping.range.base, mapping.range.bytes);
        let found: Vec<&MappingRecord> = self.mappings_in(range).collect();
        let bytes: u64 = found.iter().map(|mapping| mapping.range.bytes).sum();
        if range.bytes == 0 || bytes != range.bytes || !found.iter().all(inside) {
            return Err(invalid(format!("{range} is not made of whole mappings")));
        }
        Ok(found.into_iter().map(|mapping| mapping.range.base).collect())
    }

    /// Every piece.
    pub fn pieces(&self) -> impl Iterator<Item = &PhysicalRecord> {
        self.physical.values().map(|(record, _)| record)
    }

    /// The state for an image.
    #[must_use]
    pub fn state(&self) -> VirtualState {
        VirtualState {
            reservations: self.addresses.all().collect(),
            physical: self.physical.values().map(|(record, _)| record.clone()).collect(),
            mappings: self.mappings.values().cloned().collect(),
        }
    }

    /// Claims the addresses of a state, and nothing behind them.
    ///
    /// # Errors
    /// The backend's, when they cannot be had.
    pub fn restore_addresses(&mut self, state: &VirtualState) -> Result<()> {
        state.reservations.iter().try_for_each(|range| self.addresses.insert(&*self.backend, *range))
    }

    /// Makes a piece of a state, or takes what its owner gives.
    ///
    /// # Errors
    /// As the calls that made it first.
    pub fn restore_piece(&mut self, record: &PhysicalRecord, given: Option<Given>) -> Result<()> {
        // What the application has released is only mapped now.
        let record = PhysicalRecord { handles: record.handles.max(1), ..record.clone() };
        match given {
            None => self.create(record),
            Some(given) => self.add(record, |backend, record| imported(backend, record, given)),
        }
    }

    /// Makes the mappings of a state, whose addresses are claimed and whose pieces are there.
    ///
    /// # Errors
    /// As the calls that made them first.
    pub fn restore_mappings(&mut self, state: &VirtualState) -> Result<()> {
        for mapping in &state.mappings {
            self.map(mapping.range, mapping.physical)?;
            for (device, access) in &mapping.access {
                self.set_access(mapping.range, *device, *access)?;
            }
        }
        for record in state.physical.iter().filter(|record| record.handles == 0) {
            self.release(record.id)?;
        }
        Ok(())
    }

    /// Makes every piece readable and writable for its device: where it is mapped already, or in addresses taken for it.
    ///
    /// # Errors
    /// The backend's.
    pub fn views(&mut self) -> Result<Views> {
        let mut views = Views { all: Vec::new(), borrowed: Vec::new(), backend: Arc::clone(&self.backend) };
        let mut mapped: BTreeMap<PhysicalId, Range> = BTreeMap::new();
        let mut times: BTreeMap<PhysicalId, usize> = BTreeMap::new();
        for mapping in self.mappings.values() {
            *times.entry(mapping.physical).or_default() += 1;
            let device =
                self.physical.get(&mapping.physical).map(|(record, _)| (record.device, record.bytes));
            let whole = device.is_some_and(|(device, bytes)| {
                bytes == mapping.range.bytes && mapping.access.get(&device) == Some(&Access::ReadWrite)
            });
            if whole {
                mapped.insert(mapping.physical, mapping.range);
            }
        }
        for (id, (record, raw)) in &self.physical {
            let only = mapped.contains_key(id) && times.get(id) == Some(&1) && record.share.is_none();
            let range = match mapped.get(id) {
                Some(range) => *range,
                None => {
                    let range = self.addresses.lend(&*self.backend, record.bytes, &views.borrowed)?;
                    self.backend.map_physical(*raw, range)?;
                    views.borrowed.push(range);
                    self.backend.set_access(record.device as usize, range, Access::ReadWrite)?;
                    range
                }
            };
            views.all.push(View { handle: id.handle(), device: record.device as usize, range, only });
        }
        Ok(views)
    }
}
