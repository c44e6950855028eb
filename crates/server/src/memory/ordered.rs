//! Stream-ordered allocation: a place freed in a stream is that stream's at once, and everybody's when the stream has come to
//! the free.

use super::arena::{Allocation, Arena, Freed, Holder, Place};
use super::device::{DeviceMemory, Inner};
use super::pending::Pending;
use super::pool::{self, Pool, PoolKey, PoolRecord};
use crate::failure::Result;
use crate::lock;
use crate::objects::{Marker, Stream};
use std::sync::{Arc, Weak};
use wire::{ContextId, CuError};

/// What one stream has freed and not come to yet. A piece of a place shares the marker of the whole.
pub(super) struct StreamFrees {
    stream: Weak<Stream>,
    freed: Pending<Arc<Marker>>,
}

impl StreamFrees {
    /// With the first place that it has freed.
    fn new(stream: Weak<Stream>, marker: Arc<Marker>, freed: Freed, place: Place) -> Self {
        let mut frees = Self { stream, freed: Pending::default() };
        frees.freed.push(marker, freed, place);
        frees
    }

    /// Bytes of its places.
    pub(super) fn bytes(&self) -> u64 {
        self.freed.bytes()
    }

    fn is_of(&self, stream: &Arc<Stream>) -> bool {
        std::ptr::eq(self.stream.as_ptr(), Arc::as_ptr(stream))
    }
}

impl DeviceMemory {
    /// Allocates from a pool, for use in `stream` and in what is ordered behind it; `Ok(None)` when there is no room before a
    /// free is complete that the stream cannot be made to wait for: try again later.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is no such pool, `OUT_OF_MEMORY`, or the backend's.
    pub fn allocate_ordered(
        &self,
        stream: &Arc<Stream>,
        key: PoolKey,
        bytes: u64,
    ) -> Result<Option<Allocation>> {
        let mut inner = lock(&self.inner);
        let pool = inner.pool(self.device, key)?;
        let has_room = pool.has_room(bytes);
        if pool.record.destroyed {
            return Err(pool::unknown(key));
        }
        if bytes == 0 {
            return Err(CuError::INVALID_VALUE.into());
        }
        if !has_room {
            return Err(CuError::OUT_OF_MEMORY.into());
        }
        inner.unsynchronized = true;
        let (ctx, holder) = (stream.record.ctx, Holder::Pool(key));
        if let Some(allocation) = inner.take_freed(holder, bytes, ctx, |frees| frees.is_of(stream)) {
            return Ok(Some(allocation.0));
        }
        inner.settle();
        if let Some(allocation) = self.allocate_in(&mut inner, holder, ctx, bytes)? {
            return Ok(Some(allocation));
        }
        // A place that another stream has freed does once this stream has waited for the free.
        match inner.take_freed(holder, bytes, ctx, |_| true) {
            Some((allocation, marker)) => {
                drop(inner);
                let waits = stream.begin_work().and_then(|_work| {
                    self.backend.stream_wait_event(stream.ctx.raw, stream.arg(), marker.event(), 0)
                });
                match waits {
                    Ok(()) => Ok(Some(allocation)),
                    Err(code) => {
                        self.put_back(&allocation, marker);
                        Err(code.into())
                    }
                }
            }
            None if inner.is_settled() => Err(CuError::OUT_OF_MEMORY.into()),
            None => Ok(None),
        }
    }

    /// Frees what a stream could not be made to wait for: it is as far as it was, and no stream's own.
    fn put_back(&self, allocation: &Allocation, marker: Arc<Marker>) {
        let mut inner = lock(&self.inner);
        let Some(freed) = inner.free(allocation.range.base) else { return };
        match inner.arena.place(&freed) {
            Some(place) => inner.streams.push(StreamFrees::new(Weak::new(), marker, freed, place)),
            None => inner.arena.reclaim(freed),
        }
    }

    /// Frees the allocation at exactly `address` behind everything that `stream` has been given, where its marker is; without one
    /// nothing is still to come. False when there is no such allocation.
    pub fn free_ordered(&self, address: u64, stream: &Arc<Stream>, marker: Option<Marker>) -> bool {
        let mut inner = lock(&self.inner);
        let Some(freed) = self.end(&mut inner, address) else { return false };
        inner.unsynchronized = true;
        let (Some(marker), Some(place)) = (marker.map(Arc::new), inner.arena.place(&freed)) else {
            inner.arena.reclaim(freed);
            return true;
        };
        match inner.streams.iter_mut().find(|frees| frees.is_of(stream)) {
            Some(frees) => frees.freed.push(marker, freed, place),
            None => inner.streams.push(StreamFrees::new(Arc::downgrade(stream), marker, freed, place)),
        }
        true
    }

    /// Whether a pool, if there is one, may hold so many bytes more.
    pub fn pool_has_room(&self, key: PoolKey, bytes: u64) -> bool {
        lock(&self.inner).pools.get(&key).is_none_or(|pool| pool.has_room(bytes))
    }

    /// Somebody has waited for the device: pools give up what they hold above their thresholds.
    pub fn note_synchronized(&self) {
        let mut inner = lock(&self.inner);
        if !inner.unsynchronized {
            return;
        }
        inner.settle();
        let Inner { arena, pools, streams, unsynchronized, .. } = &mut *inner;
        pools.values().for_each(|pool| arena.release(pool.holder(), pool.record.threshold));
        *unsynchronized = !streams.is_empty();
    }

    /// As `cuMemPoolCreate`.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an id in use.
    pub fn create_pool(&self, key: PoolKey, max_bytes: u64) -> Result<()> {
        let pool = Pool::new(self.device, key, max_bytes);
        crate::objects::insert(&mut lock(&self.inner).pools, key, pool)
    }

    /// As `cuMemPoolDestroy`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is no such pool.
    pub fn destroy_pool(&self, key: PoolKey) -> Result<()> {
        let mut inner = lock(&self.inner);
        inner.pool(self.device, key)?.record.destroyed = true;
        inner.settle();
        Ok(())
    }

    /// As `cuMemPoolTrimTo`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is no such pool.
    pub fn trim_pool(&self, key: PoolKey, keep: u64) -> Result<()> {
        let mut inner = lock(&self.inner);
        inner.pool(self.device, key)?;
        inner.settle();
        inner.arena.release(Holder::Pool(key), keep);
        Ok(())
    }

    /// As `cuMemPoolGetAttribute`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is no such pool or attribute.
    pub fn pool_attribute(&self, key: PoolKey, attribute: u32) -> Result<u64> {
        let mut inner = lock(&self.inner);
        inner.pool(self.device, key)?;
        let Inner { arena, pools, .. } = &*inner;
        pools.get(&key).ok_or_else(|| pool::unknown(key))?.attribute(attribute, arena)
    }

    /// As `cuMemPoolSetAttribute`.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is no such pool or attribute, or the value cannot be set.
    pub fn set_pool_attribute(&self, key: PoolKey, attribute: u32, value: u64) -> Result<()> {
        let mut inner = lock(&self.inner);
        inner.pool(self.device, key)?;
        let Inner { arena, pools, .. } = &mut *inner;
        pools.get_mut(&key).ok_or_else(|| pool::unknown(key))?.set_attribute(attribute, value, arena)
    }

    /// Whether it has that pool.
    #[must_use]
    pub fn has_pool(&self, key: PoolKey) -> bool {
        lock(&self.inner).pools.contains_key(&key)
    }

    /// Every pool that is more than a default one never used.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolRecord> {
        lock(&self.inner).pools.values().map(|pool| pool.record.clone()).collect()
    }

    /// Makes a pool again; the arena is there already.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for one that is there.
    pub fn restore_pool(&self, record: PoolRecord) -> Result<()> {
        let mut inner = lock(&self.inner);
        let (key, holder) = (record.key, Holder::Pool(record.key));
        let allocated = inner.arena.allocations().filter(|each| each.holder == holder);
        let used = allocated.map(|each| each.size()).sum();
        crate::objects::insert(&mut inner.pools, key, Pool { record, used })
    }
}

impl Inner {
    /// The pool; a default one is made when it is first asked for.
    fn pool(&mut self, device: usize, key: PoolKey) -> Result<&mut Pool> {
        match key {
            PoolKey::Default => Ok(self.pools.entry(key).or_insert_with(|| Pool::new(device, key, 0))),
            PoolKey::Created(_) => self.pools.get_mut(&key).ok_or_else(|| pool::unknown(key)),
        }
    }

    /// Allocates in a place that a stream of those `wanted` has freed and that does.
    fn take_freed(
        &mut self,
        holder: Holder,
        bytes: u64,
        ctx: ContextId,
        wanted: impl Fn(&StreamFrees) -> bool,
    ) -> Option<(Allocation, Arc<Marker>)> {
        let Self { arena, streams, .. } = self;
        let sizes = Arena::places_for(bytes)?;
        let mut streams = streams.iter_mut().filter(|frees| wanted(frees));
        let (frees, number) = streams
            .find_map(|frees| frees.freed.find(holder, sizes).map(|number| (&mut frees.freed, number)))?;
        let (marker, freed) = frees.remove(number)?;
        let (allocation, rest) = arena.reuse(freed, bytes, ctx);
        if let Some(rest) = rest
            && let Some(place) = arena.place(&rest)
        {
            frees.insert(number, Arc::clone(&marker), rest, place);
        }
        self.count(&allocation);
        Some((allocation, marker))
    }

    /// Makes the places available that streams have come to the free of, and lets destroyed pools go that have nothing left.
    pub(super) fn settle_streams(&mut self) {
        let Self { arena, streams, pools, .. } = self;
        for frees in streams.iter_mut() {
            while let Some(freed) = frees.freed.pop_if(|marker| marker.is_complete()) {
                arena.reclaim(freed);
            }
        }
        streams.retain(|frees| !frees.freed.is_empty());
        pools.retain(|_, pool| {
            if pool.record.destroyed {
                arena.release(pool.holder(), 0);
            }
            !pool.record.destroyed || arena.held(pool.holder()).mapped > 0
        });
    }

    /// The device is idle, or the streams of `ctx` are: nothing they have freed is used any more.
    pub(super) fn forget_frees(&mut self, ctx: Option<ContextId>) {
        let Self { arena, streams, .. } = self;
        for frees in streams.iter_mut() {
            let over = |marker: &Arc<Marker>| ctx.is_none_or(|ctx| marker.context().id() == ctx);
            frees.freed.take_if(over).into_iter().for_each(|freed| arena.reclaim(freed));
        }
    }

    /// Notes that the allocation is there, in its pool too.
    pub(super) fn count(&mut self, allocation: &Allocation) {
        self.watch.allocate(allocation.range);
        let Self { arena, pools, .. } = self;
        if let Holder::Pool(key) = allocation.holder
            && let Some(pool) = pools.get_mut(&key)
        {
            pool.count(allocation.size(), arena);
        }
    }

    /// Ends the allocation at exactly `address`, in its pool too.
    pub(super) fn free(&mut self, address: u64) -> Option<Freed> {
        let found = self.arena.find(address)?;
        let (range, size) = (found.range, found.size());
        let freed = self.arena.free(address)?;
        self.watch.free(range);
        self.exports.forget(address);
        self.excluded.remove(range);
        if let Holder::Pool(key) = freed.holder()
            && let Some(pool) = self.pools.get_mut(&key)
        {
            pool.used = pool.used.saturating_sub(size);
        }
        Some(freed)
    }

    /// Whether nothing that is freed is still waited for.
    pub(super) fn is_settled(&self) -> bool {
        self.tickets.is_empty() && self.streams.is_empty()
    }
}
