//! Where device memory is copied to, so that the application can go on.

use super::{DeviceCopies, Item, OnDevices};
use crate::buffers::{BufferPool, Buffers};
use crate::lock;
use crate::memory::ARENA_BYTES;
use crate::session::Session;
use backend::{BLOCK_GRANULARITY, Range};
use image::CHUNK_SIZE;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::CuError;

/// Copies begin at multiples of this, as allocations do.
const ALIGNMENT: u64 = 512;
/// The host's memory is had in slices: while the device library registers one, whatever else the application asks of it waits.
const SLICE: u64 = 32 << 20;
/// The most of the host's memory that a session's copies take. It is had in some twenty seconds, in which processes that begin or end wait.
const HOST_MOST: u64 = 72 << 30;
/// For how many times as long the application's calls then have no such neighbour.
const PAUSE: u32 = 3;

/// Some of a session's devices, by their ordinals below 64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceSet(u64);

impl DeviceSet {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self(u64::MAX);

    /// Whether a device is one of them.
    #[must_use]
    pub fn contains(self, device: usize) -> bool {
        device < 64 && self.0 & (1 << device) != 0
    }
}

impl FromIterator<usize> for DeviceSet {
    fn from_iter<I: IntoIterator<Item = usize>>(devices: I) -> Self {
        Self(devices.into_iter().filter(|device| *device < 64).fold(0, |all, device| all | 1 << device))
    }
}

/// Where copies may lie, beside other sessions'.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyBudget {
    /// On which devices: copies give way to their own session only.
    pub on_devices: DeviceSet,
    /// Bytes of the host's memory.
    pub on_host: u64,
}

/// Room for copies.
pub struct CopyRoom {
    on_devices: DeviceSet,
    slices: Vec<Buffers>,
}

impl CopyRoom {
    /// None: everything is written while the application stands still.
    #[must_use]
    pub fn none() -> Self {
        Self { on_devices: DeviceSet::NONE, slices: Vec::new() }
    }

    /// Copies are made there from now on. What the application has had let go of stays unregistered: to register it takes as long as it saves.
    pub(super) fn begin(&self) {
        self.slices.iter().for_each(Buffers::unsettle);
        let slow = self.slices.iter().filter(|slice| !slice.is_registered()).map(|slice| slice.range().bytes);
        let slow = slow.sum::<u64>() >> 20;
        if slow > 0 {
            tracing::info!(
                "copies on the host have {slow} MiB that are not registered, since the devices are full: they take three times as long there"
            );
        }
    }

    /// All copies are there, and none will be made any more.
    pub(super) fn settle(&self) {
        self.slices.iter().for_each(Buffers::settle);
    }

    /// Bytes of each slice of the host's memory.
    pub(super) fn slices(&self) -> Vec<u64> {
        self.slices.iter().map(|slice| slice.range().bytes).collect()
    }

    /// Where a slice begins.
    pub(super) fn base(&self, slice: usize) -> u64 {
        self.slices.get(slice).map_or(0, |slice| slice.range().base)
    }

    /// Fills `room` from a slice, from `offset` on.
    pub(super) fn read(&self, slice: usize, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let read = self.slices.get(slice).is_some_and(|slice| slice.read(offset as usize, room));
        if read { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Something to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Planned {
    pub(super) device: usize,
    pub(super) bytes: u64,
}

/// Where bytes of a copy lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the copies on its device, from this offset on.
    Device(u64),
    /// In a slice of the host's memory, from this offset on.
    Host(usize, u64),
}

impl Place {
    /// The place so many bytes behind this one.
    pub(super) fn further(self, bytes: u64) -> Self {
        match self {
            Self::Device(offset) => Self::Device(offset + bytes),
            Self::Host(slice, offset) => Self::Host(slice, offset + bytes),
        }
    }
}

/// So many bytes of a copy, which begin there. All parts but the last are whole chunks.
pub(super) type Part = (u64, Place);

/// Room that is taken from front to back.
struct Room {
    end: u64,
    budget: u64,
}

impl Room {
    fn new(budget: u64) -> Self {
        Self { end: 0, budget }
    }

    /// All of so many bytes, or the whole chunks of it that there is room for: where they begin, and how many.
    fn take(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let begin = self.end.checked_next_multiple_of(ALIGNMENT)?;
        let left = self.budget.checked_sub(begin)?;
        let taken = if bytes <= left { bytes } else { left / CHUNK_SIZE as u64 * CHUNK_SIZE as u64 };
        self.end = if taken > 0 { begin + taken } else { self.end };
        (taken > 0).then_some((begin, taken))
    }
}

/// Places all, each on its device as far as what is before it leaves room in that device's budget, then in the host's memory. What of it finds no
/// room, whole chunks at its end, is in no part: it goes into the store, at once.
pub(super) fn places(planned: &[Planned], budgets: &BTreeMap<usize, u64>, slices: &[u64]) -> Vec<Vec<Part>> {
    let mut devices: BTreeMap<usize, Room> =
        budgets.iter().map(|(device, bytes)| (*device, Room::new(*bytes))).collect();
    let mut slices: Vec<Room> = slices.iter().map(|bytes| Room::new(*bytes)).collect();
    let place = |each: &Planned| {
        let (mut parts, mut left) = (Vec::new(), each.bytes);
        let on_device = devices.get_mut(&each.device).into_iter().map(|room| (None, room));
        let on_host = slices.iter_mut().enumerate().map(|(slice, room)| (Some(slice), room));
        for (slice, room) in on_device.chain(on_host) {
            if let Some((begin, bytes)) = room.take(left) {
                parts.push((bytes, slice.map_or(Place::Device(begin), |slice| Place::Host(slice, begin))));
                left -= bytes;
            }
            if left == 0 {
                break;
            }
        }
        parts
    };
    planned.iter().map(place).collect()
}

/// What of `free` bytes of a device copies may take: the application finds room for small things without moving them.
fn share_of(free: u64) -> u64 {
    (free - free / 8) / BLOCK_GRANULARITY * BLOCK_GRANULARITY
}

impl Session {
    /// Makes room for copies ready, before the gate closes: in the host's memory for what the devices will probably have none for. `progress` is
    /// told of each slice how many bytes it has, and may stop it.
    #[must_use]
    pub fn room_for_copies(
        &self,
        budget: CopyBudget,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> CopyRoom {
        let CopyBudget { on_devices, on_host } = budget;
        let wanted: u64 = (0..self.devices.len())
            .map(|device| self.wanted_on_host(device, on_devices.contains(device)))
            .sum();
        let on_host = on_host.saturating_add(self.buffers.spare_bytes());
        let wanted = wanted.min(on_host).min(HOST_MOST);
        CopyRoom { on_devices, slices: slices(&self.buffers, wanted, progress) }
    }

    /// For how much live memory of a device `copies` find no room there, and some more: the application goes on meanwhile, and parts of pieces are whole
    /// chunks. They get addresses.
    fn wanted_on_host(&self, device: usize, copies: bool) -> u64 {
        let Some(ctx) = self.context_on(device) else { return 0 };
        let reserved = self.devices.get(device).is_some_and(|memory| {
            memory.reserve_copies(self.config.layout.copies(device), &self.buffers).is_ok()
        });
        let arena = self.devices.get(device).map_or(0, |memory| memory.bytes_to_save());
        let pieces: u64 = lock(&self.virtual_memory)
            .pieces()
            .filter(|record| record.device as usize == device)
            .map(|record| record.bytes)
            .sum();
        let free = self.backend().memory_info(ctx.raw).map_or(0, |(free, _)| free);
        let there = if copies && reserved { share_of(free) } else { 0 };
        let live = arena.saturating_add(pieces);
        match live {
            0 => 0,
            live => live.saturating_add(live / 16 + 2 * CHUNK_SIZE as u64).saturating_sub(there),
        }
    }

    /// What copies may take of each device on which there is something.
    pub(super) fn budgets(&self, room: &CopyRoom, items: &[Item]) -> BTreeMap<usize, u64> {
        let mut budgets = BTreeMap::new();
        for item in items.iter().filter(|item| room.on_devices.contains(item.ctx.device())) {
            budgets.entry(item.ctx.device()).or_insert_with(|| {
                let free = self.backend().memory_info(item.ctx.raw).map_or(0, |(free, _)| free);
                share_of(free).min(ARENA_BYTES)
            });
        }
        budgets
    }

    /// Makes the blocks for what is placed on devices; `Err` with a device that has no room for its.
    pub(super) fn make_copies(&self, planned: &[Vec<Part>], items: &[Item]) -> Result<OnDevices, usize> {
        let mut ends: BTreeMap<usize, (u64, &Item)> = BTreeMap::new();
        for (parts, item) in planned.iter().zip(items) {
            for (bytes, place) in parts {
                if let Place::Device(offset) = place {
                    ends.insert(item.ctx.device(), (offset + bytes, item));
                }
            }
        }
        let mut made = OnDevices::default();
        for (device, (end, item)) in ends {
            let Some(memory) = self.devices.get(device) else { return Err(device) };
            let window = self.config.layout.copies(device);
            let range = Range { bytes: end.next_multiple_of(BLOCK_GRANULARITY), ..window };
            let reserved = memory.reserve_copies(window, &self.buffers);
            let copies = match reserved.and_then(|()| DeviceCopies::map(&self.buffers, &item.ctx, range)) {
                Ok(copies) => Arc::new(copies),
                Err(error) => {
                    if error != CuError::OUT_OF_MEMORY {
                        tracing::info!(%error, "no copies on device {device}");
                    }
                    return Err(device);
                }
            };
            memory.keep_copies(&copies);
            made.0.insert(device, copies);
        }
        Ok(made)
    }
}

/// Slices of the host's memory of so many bytes together, or of as many as can be had; settled, so that they stand in the way of no allocation. One after the other: making memory in one thread slows down its
/// registration in another, and so the application, ten times.
fn slices(
    buffers: &Arc<BufferPool>,
    wanted: u64,
    progress: &mut dyn FnMut(u64) -> io::Result<()>,
) -> Vec<Buffers> {
    let mut slices = Vec::new();
    for first in (0..wanted).step_by(SLICE as usize) {
        let count = (wanted - first).min(SLICE).div_ceil(CHUNK_SIZE as u64);
        let made = match buffers.take_spare(count as usize) {
            Some(slice) => Ok((slice, Duration::ZERO)),
            None => buffers.map(count as usize).and_then(|memory| {
                let begun = Instant::now();
                let slice = buffers.register_if_there_is_room(memory)?;
                Ok((slice, begun.elapsed()))
            }),
        };
        match made {
            Ok((slice, registering)) => {
                let told = progress(slice.range().bytes);
                slice.settle();
                slices.push(slice);
                if told.is_err() {
                    break;
                }
                std::thread::sleep(registering * PAUSE);
            }
            Err(error) => {
                tracing::info!("the host has no more room for copies: {error}");
                break;
            }
        }
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_it_was_made_of() {
        let some: DeviceSet = [0, 5, 63, 64].into_iter().collect();
        let found: Vec<usize> = (0..100).filter(|device| some.contains(*device)).collect();
        assert_eq!(found, [0, 5, 63]);
        assert!((0..64).all(|device| DeviceSet::ALL.contains(device) && !DeviceSet::NONE.contains(device)));
    }

    const CHUNK: u64 = CHUNK_SIZE as u64;

    #[test]
    fn what_has_no_room_goes_further() {
        let planned = [(0, 1000), (0, 600), (1, 300), (0, 480), (0, 2000)];
        let planned = planned.map(|(device, bytes)| Planned { device, bytes });
        let budgets = BTreeMap::from([(0, 2048), (1, 100)]);
        let found = places(&planned, &budgets, &[700, 600]);
        let whole = |bytes, place| vec![(bytes, place)];
        assert_eq!(
            found,
            [
                whole(1000, Place::Device(0)),
                whole(600, Place::Device(1024)),
                whole(300, Place::Host(0, 0)),
                whole(480, Place::Host(1, 0)),
                vec![]
            ]
        );
        assert_eq!(places(&planned[..1], &BTreeMap::new(), &[]), [[]]);
    }

    #[test]
    fn what_has_room_in_several_places_is_divided_into_chunks() {
        let planned = [5 * CHUNK + 7, 3 * CHUNK, 5 * CHUNK, CHUNK].map(|bytes| Planned { device: 0, bytes });
        let budgets = BTreeMap::from([(0, 2 * CHUNK + 100)]);
        let found = places(&planned, &budgets, &[2 * CHUNK, 3 * CHUNK + 600, CHUNK]);
        let first = vec![
            (2 * CHUNK, Place::Device(0)),
            (2 * CHUNK, Place::Host(0, 0)),
            (CHUNK + 7, Place::Host(1, 0)),
        ];
        let second = vec![(2 * CHUNK, Place::Host(1, CHUNK + 512)), (CHUNK, Place::Host(2, 0))];
        assert_eq!(found, [first, second, vec![], vec![]]);
        let planned = [Planned { device: 0, bytes: 9 * CHUNK }];
        let most = [(2 * CHUNK, Place::Device(0)), (CHUNK, Place::Host(0, 0))];
        assert_eq!(places(&planned, &budgets, &[CHUNK + 900]), [most], "the rest is written at once");
    }
}
