//! Where device memory is copied to, so that the application can go on.

use super::{Block, DeviceCopies, Item, OnDevices};
use crate::lock;
use crate::memory::ARENA_BYTES;
use crate::session::Session;
use crate::transfer::Buffers;
use backend::{BLOCK_GRANULARITY, Range};
use image::CHUNK_SIZE;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use wire::CuError;

/// Copies begin at multiples of this, as allocations do.
const ALIGNMENT: u64 = 512;
/// The most of the host's memory that a session's copies take: to register it takes the device library a second for each few GiB, in which
/// other registrations wait.
const HOST_MOST: u64 = 4 << 30;

/// Where copies may lie, beside other sessions'.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyBudget {
    /// Whether on devices: copies give way to their own session only.
    pub on_devices: bool,
    /// Bytes of the host's memory.
    pub on_host: u64,
}

/// Room for copies.
pub struct CopyRoom {
    on_devices: bool,
    host: Option<Buffers>,
}

impl CopyRoom {
    /// None: everything is written while the application stands still.
    #[must_use]
    pub fn none() -> Self {
        Self { on_devices: false, host: None }
    }

    /// Bytes of the host's memory.
    pub(super) fn host_bytes(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| host.range().bytes)
    }

    /// Where that begins.
    pub(super) fn host_base(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| host.range().base)
    }

    /// Fills `room` from the host's memory, from `offset` on.
    pub(super) fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let read = self.host.as_ref().is_some_and(|host| host.read(offset as usize, room));
        if read { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Something to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Planned {
    pub(super) device: usize,
    pub(super) bytes: u64,
}

/// Where it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Into the copies on its device, at this offset.
    Device(u64),
    /// Into the host's memory, at this offset.
    Host(u64),
    /// Into the store, at once.
    Now,
}

/// Places all, each on its device if what is before it leaves room in that device's budget, else in the host's memory, else nowhere.
pub(super) fn places(planned: &[Planned], budgets: &BTreeMap<usize, u64>, host: u64) -> Vec<Place> {
    let mut ends: BTreeMap<usize, u64> = BTreeMap::new();
    let mut host_end = 0;
    let take = |end: &mut u64, bytes: u64, budget: u64| {
        let begin = end.checked_next_multiple_of(ALIGNMENT)?;
        *end = begin.checked_add(bytes).filter(|end| *end <= budget)?;
        Some(begin)
    };
    let place = |each: &Planned| {
        if each.bytes == 0 {
            return Place::Now;
        }
        let end = ends.entry(each.device).or_default();
        let before = *end;
        if let Some(begin) = take(end, each.bytes, budgets.get(&each.device).copied().unwrap_or(0)) {
            return Place::Device(begin);
        }
        *end = before;
        let before = host_end;
        match take(&mut host_end, each.bytes, host) {
            Some(begin) => Place::Host(begin),
            None => {
                host_end = before;
                Place::Now
            }
        }
    };
    planned.iter().map(place).collect()
}

/// What of `free` bytes of a device copies may take: the application finds room for small things without moving them.
fn share_of(free: u64) -> u64 {
    (free - free / 8) / BLOCK_GRANULARITY * BLOCK_GRANULARITY
}

impl Session {
    /// Makes room for copies ready, before the gate closes: in the host's memory for what the devices will probably have none for.
    #[must_use]
    pub fn room_for_copies(&self, budget: CopyBudget) -> CopyRoom {
        let CopyBudget { on_devices, on_host } = budget;
        let live: u64 = (0..self.devices.len()).map(|device| self.wanted_on_host(device, on_devices)).sum();
        // Some more: the application goes on meanwhile.
        let wanted = live.saturating_add(live / 16);
        let count = wanted.min(on_host).min(HOST_MOST).div_ceil(CHUNK_SIZE as u64);
        let host = usize::try_from(count).ok().filter(|count| *count > 0).map(|count| {
            Buffers::new(&self.placer.backend, count)
                .inspect_err(|error| tracing::info!("no room in the host's memory for copies: {error}"))
        });
        CopyRoom { on_devices, host: host.and_then(Result::ok) }
    }

    /// How much memory of a device is live, unless `copies` find room for it there; they get addresses.
    fn wanted_on_host(&self, device: usize, copies: bool) -> u64 {
        let Some(ctx) = self.context_on(device) else { return 0 };
        // Whoever makes copies finds out whether there are any.
        let _ =
            self.devices.get(device).map(|memory| memory.reserve_copies(self.config.layout.copies(device)));
        let arena = self.devices.get(device).map_or(0, |memory| memory.live_bytes());
        let pieces: u64 = lock(&self.virtual_memory)
            .pieces()
            .filter(|record| record.device as usize == device)
            .map(|record| record.bytes)
            .sum();
        let live = arena.saturating_add(pieces);
        let free = self.backend().memory_info(ctx.raw).map_or(0, |(free, _)| free);
        // Nothing is divided, so what does not fit may be any part of it.
        if copies && live <= share_of(free) { 0 } else { live }
    }

    /// What copies may take of each device on which there is something.
    pub(super) fn budgets(&self, room: &CopyRoom, items: &[Item<'_>]) -> BTreeMap<usize, u64> {
        let mut budgets = BTreeMap::new();
        for item in items.iter().filter(|_| room.on_devices) {
            budgets.entry(item.ctx.device()).or_insert_with(|| {
                let free = self.backend().memory_info(item.ctx.raw).map_or(0, |(free, _)| free);
                share_of(free).min(ARENA_BYTES)
            });
        }
        budgets
    }

    /// Makes the blocks for what is placed on devices; `Err` with a device that has no room for its.
    pub(super) fn make_copies(&self, planned: &[Place], items: &[Item<'_>]) -> Result<OnDevices, usize> {
        let mut ends: BTreeMap<usize, (u64, &Item<'_>)> = BTreeMap::new();
        for (place, item) in planned.iter().zip(items) {
            if let Place::Device(offset) = place {
                ends.insert(item.ctx.device(), (offset + item.source.bytes(), item));
            }
        }
        let mut made = OnDevices::default();
        for (device, (end, item)) in ends {
            let Some(memory) = self.devices.get(device) else { return Err(device) };
            let window = self.config.layout.copies(device);
            let range = Range { bytes: end.next_multiple_of(BLOCK_GRANULARITY), ..window };
            let block =
                memory.reserve_copies(window).and_then(|()| Block::map(&self.placer.backend, device, range));
            let block = match block {
                Ok(block) => block,
                Err(error) => {
                    if error != CuError::OUT_OF_MEMORY {
                        tracing::info!(%error, "no copies on device {device}");
                    }
                    return Err(device);
                }
            };
            let copies = Arc::new(DeviceCopies::of(&item.ctx, block, range));
            memory.keep_copies(&copies);
            made.0.insert(device, copies);
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_goes_further() {
        let planned = [(0, 1000), (0, 600), (1, 300), (0, 480), (0, 2000)];
        let planned = planned.map(|(device, bytes)| Planned { device, bytes });
        let budgets = BTreeMap::from([(0, 2048), (1, 100)]);
        let found = places(&planned, &budgets, 1000);
        assert_eq!(
            found,
            [Place::Device(0), Place::Device(1024), Place::Host(0), Place::Host(512), Place::Now]
        );
        assert_eq!(places(&planned[..1], &BTreeMap::new(), 0), [Place::Now]);
    }
}
