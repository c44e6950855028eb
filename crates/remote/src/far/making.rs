//! Objects: made under the client's names and within its quota, and let go of.

use super::Session;
use super::objects::{Block, Counted, Names};
use super::quota::Kind;
use crate::lock;
use backend::{Range, RawArray, RawBlock, RawContext, RawMipmap, RawPhysical, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use wire::{ArrayDesc, CuError};

/// What keeps pieces of memory: their handles and their mappings.
#[derive(Default)]
pub(super) struct Holdings {
    /// By name: handles and mappings together, bytes, and what they count as.
    pieces: HashMap<u64, (u64, u64, Kind)>,
    /// What is mapped, by address.
    mapped: HashMap<u64, u64>,
}

impl Session {
    /// Makes an object of a context (0: of none).
    pub(super) fn make<T: Copy>(
        &self,
        names: &Names<T>,
        name: u64,
        of: RawContext,
        create: impl FnOnce() -> Result<T>,
    ) -> Result<()> {
        names.is_free(name)?;
        self.account.take(Kind::Objects, 1)?;
        match create() {
            Ok(raw) => {
                names.insert(name, raw, of.0);
                Ok(())
            }
            Err(error) => {
                self.account.give_back(Kind::Objects, 1);
                Err(error)
            }
        }
    }

    /// Takes an object out.
    pub(super) fn unmake<T: Copy>(&self, names: &Names<T>, name: u64) -> Result<T> {
        let raw = names.remove(name)?;
        self.account.give_back(Kind::Objects, 1);
        Ok(raw)
    }

    pub(super) fn physical(
        &self,
        name: RawPhysical,
        bytes: u64,
        kind: Kind,
        create: impl FnOnce() -> Result<RawPhysical>,
    ) -> Result<()> {
        self.account.take(kind, bytes)?;
        // Before anybody can release it, or map it.
        let is_new = match lock(&self.holdings).pieces.entry(name.0) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert((1, bytes, kind));
                true
            }
        };
        if !is_new {
            self.account.give_back(kind, bytes);
            return Err(CuError::INVALID_VALUE);
        }
        let create = || create().map(|raw| Counted { raw, bytes });
        let made = self.make(&self.objects.physicals, name.0, RawContext(0), create);
        if made.is_err() {
            self.let_go(&mut lock(&self.holdings), name.0);
        }
        made
    }

    /// A handle or a mapping is gone: the memory is, with the last of them.
    fn let_go(&self, holdings: &mut Holdings, name: u64) {
        let Some((uses, bytes, kind)) = holdings.pieces.get_mut(&name) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.account.give_back(*kind, *bytes);
            holdings.pieces.remove(&name);
        }
    }

    pub(super) fn physical_release(&self, name: RawPhysical) -> Result<()> {
        let physical = self.unmake(&self.objects.physicals, name.0)?;
        let released = self.backend.physical_release(physical.raw);
        self.let_go(&mut lock(&self.holdings), name.0);
        released
    }

    pub(super) fn map_physical(&self, name: RawPhysical, range: Range) -> Result<()> {
        let physical = self.objects.physicals.get(name.0)?;
        // Before it is mapped: it may be released meanwhile.
        let piece = |holdings: &mut Holdings| holdings.pieces.get_mut(&name.0).map(|(uses, ..)| *uses += 1);
        piece(&mut lock(&self.holdings)).ok_or(CuError::INVALID_HANDLE)?;
        if let Err(error) = self.backend.map_physical(physical.raw, range) {
            self.let_go(&mut lock(&self.holdings), name.0);
            return Err(error);
        }
        lock(&self.holdings).mapped.insert(range.base, name.0);
        self.objects.space_mut().mapped.insert(range, ());
        Ok(())
    }

    pub(super) fn unmap_physical(&self, range: Range) -> Result<()> {
        // Before it is unmapped: another piece may be mapped there as soon as it is.
        let name = lock(&self.holdings).mapped.remove(&range.base).ok_or(CuError::INVALID_VALUE)?;
        let taken = self.objects.space_mut().mapped.remove(range.base);
        if let Err(error) = self.backend.unmap_physical(range) {
            if let Some((range, ())) = taken {
                self.objects.space_mut().mapped.insert(range, ());
            }
            lock(&self.holdings).mapped.insert(range.base, name);
            return Err(error);
        }
        self.let_go(&mut lock(&self.holdings), name);
        Ok(())
    }

    /// A device by the number that it has for the client.
    pub(super) fn device(&self, number: u32) -> Result<usize> {
        let device = usize::try_from(number).ok().and_then(|number| self.devices.get(number));
        device.copied().ok_or(CuError::INVALID_DEVICE)
    }

    pub(super) fn map_block(&self, name: RawBlock, device: u32, range: Range) -> Result<()> {
        self.account.take(Kind::Memory, range.bytes)?;
        let create = || self.backend.map_block(self.device(device)?, range).map(|raw| Block { raw, range });
        let made = self.make(&self.objects.blocks, name.0, RawContext(0), create);
        match made {
            Ok(()) => drop(self.objects.space_mut().mapped.insert(range, ())),
            Err(_) => self.account.give_back(Kind::Memory, range.bytes),
        }
        made
    }

    pub(super) fn unmap_block(&self, name: RawBlock) -> Result<()> {
        let block = self.unmake(&self.objects.blocks, name.0)?;
        self.objects.space_mut().mapped.remove(block.range.base);
        let unmapped = self.backend.unmap_block(block.raw);
        self.account.give_back(Kind::Memory, block.range.bytes);
        unmapped
    }

    pub(super) fn memory_info(&self, ctx: RawContext) -> Result<(u64, u64)> {
        let (free, total) = self.backend.memory_info(self.objects.ctx(ctx)?)?;
        let (left, most) = self.account.memory();
        Ok((free.min(left), total.min(most)))
    }

    pub(super) fn array_create(&self, ctx: RawContext, name: RawArray, desc: &ArrayDesc) -> Result<()> {
        self.counted(ctx, &self.objects.arrays, name.0, desc, 1, |ctx| self.backend.array_create(ctx, desc))
    }

    pub(super) fn mipmap_create(
        &self,
        ctx: RawContext,
        name: RawMipmap,
        desc: &ArrayDesc,
        levels: u32,
    ) -> Result<()> {
        // All levels together have less than twice the first one's memory.
        self.counted(ctx, &self.objects.mipmaps, name.0, desc, 2, |ctx| {
            self.backend.mipmap_create(ctx, desc, levels)
        })
    }

    fn counted<T: Copy>(
        &self,
        ctx: RawContext,
        names: &Names<Counted<T>>,
        name: u64,
        desc: &ArrayDesc,
        times: u64,
        create: impl FnOnce(RawContext) -> Result<T>,
    ) -> Result<()> {
        desc.check()?;
        let bytes = times * desc.shape().ok_or(CuError::INVALID_VALUE)?.bytes();
        let raw = self.objects.ctx(ctx)?;
        self.account.take(Kind::Memory, bytes)?;
        let made = self.make(names, name, ctx, || create(raw).map(|raw| Counted { raw, bytes }));
        if made.is_err() {
            self.account.give_back(Kind::Memory, bytes);
        }
        made
    }

    pub(super) fn counted_gone<T: Copy>(&self, names: &Names<Counted<T>>, name: u64) -> Result<T> {
        let counted = self.unmake(names, name)?;
        self.account.give_back(Kind::Memory, counted.bytes);
        Ok(counted.raw)
    }
}
