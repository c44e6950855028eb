//! Has managed regions change places: those that go to and fro become coherent for a while; those come to a device that its work uses, others go to the host, also for the program's own allocations.

use super::Session;
use super::dispatch::Execute;
use super::{Caller, wait::Backoff};
use crate::failure::Result;
use crate::gate::Alone;
use crate::memory::{DeviceMemory, Home, ShadowRecord};
use std::sync::RwLockWriteGuard;
use std::time::{Duration, Instant};
use wire::CuError;

/// How long a message waits for the end of work that may use the regions which could make room for it, or which it takes away.
const PATIENCE: Duration = Duration::from_secs(10);
/// With so much more than is asked for, room is not what is missing.
const SLACK: u64 = 64 << 20;

/// No work is under way, none begins, and no region is read or written.
struct Standstill<'a> {
    _alone: Alone<'a>,
    _still: RwLockWriteGuard<'a, ()>,
}

impl Session {
    /// No work is under way, and none begins before what is given is dropped; if that can be had at once.
    fn alone(&self) -> Option<Alone<'_>> {
        // Without holding anybody up, first.
        if !self.is_idle() || self.is_filling() {
            return None;
        }
        let alone = self.gate.alone()?;
        self.is_idle().then_some(alone)
    }

    fn stand_still(&self) -> Option<Standstill<'_>> {
        let alone = self.alone()?;
        if let Err(failure) = self.shadows.separate() {
            tracing::debug!(%failure, "managed memory stays coherent");
            return None;
        }
        Some(Standstill { _alone: alone, _still: self.shadows.hold_still() })
    }

    /// To be called by a message that may have waited for work: has regions become coherent, or be so no more, if that is due and nothing else happens.
    pub(super) fn change_coherence(&self) -> Result<()> {
        if !self.shadows.is_change_due() {
            return Ok(());
        }
        let Some(_alone) = self.alone() else { return Ok(()) };
        self.shadows.change()
    }

    /// Has no region coherent that is about to go, and which `of` names: to take one away waits for all work of its device, with locks that the work of others may need.
    pub(super) fn separate_before(&self, of: impl Fn(&ShadowRecord) -> bool) -> Result<()> {
        if self.shadows.coherent(&of).is_empty() {
            return Ok(());
        }
        let (begun, mut backoff) = (Instant::now(), Backoff::new());
        let _waiting = self.gate.wait();
        while begun.elapsed() < PATIENCE && !self.is_ending() {
            self.wait_for_everything()?;
            if let Some(_alone) = self.alone() {
                let coherent = self.shadows.coherent(&of);
                return coherent.into_iter().try_for_each(|base| self.shadows.separate_one(base));
            }
            backoff.pause();
        }
        if !self.is_ending() {
            tracing::warn!(
                "managed memory goes that kernels reach in the host's memory, while work is in flight: there was no moment without any in {} s; \
                 other calls may wait for that work (with --managed=shadow there is no such memory)",
                begun.elapsed().as_secs()
            );
        }
        Ok(())
    }

    /// To be called by a message that may have waited for work: has regions change places, if it is time for that and nothing else happens.
    pub(super) fn exchange_regions(&self) {
        for (device, memory) in self.devices.iter().enumerate().filter(|(_, each)| each.is_exchange_due()) {
            let Some(_still) = self.stand_still() else { return };
            let Some(ctx) = self.context_on(device) else { continue };
            let moved = memory.empty_bytes().and_then(|empty| {
                let (free, _) = self.backend().memory_info(ctx.raw)?;
                let carry = |dst, src, bytes| self.carry(device, dst, src, bytes);
                memory.exchange(free.saturating_add(empty), &carry)
            });
            if let Err(error) = moved {
                tracing::debug!(%error, "managed memory stays where it is");
            }
        }
    }

    /// Allocates so many bytes of a device, and makes way for that if there is no room.
    pub(crate) fn or_make_way<T>(
        &self,
        memory: &DeviceMemory,
        bytes: u64,
        allocate: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let mut rehearsals = self.config.sharing.rehearsals();
        loop {
            match allocate() {
                Err(failure)
                    if failure.code == CuError::OUT_OF_MEMORY
                        && self.make_way(memory, bytes, &mut rehearsals)? => {}
                made => return made,
            }
        }
    }

    /// Makes room for an allocation that found none: has a rehearsal end, or a region go to the host. False when that is of no use. `rehearsals` is how
    /// many had ended before it was tried.
    pub(super) fn make_way(&self, memory: &DeviceMemory, bytes: u64, rehearsals: &mut u64) -> Result<bool> {
        let ended = self.config.sharing.end_rehearsal(|| self.is_ending());
        if ended > *rehearsals {
            *rehearsals = ended;
            return Ok(true);
        }
        let device = memory.device();
        let free = self.free_on(device)?;
        if free >= bytes.saturating_add(SLACK) {
            return Ok(false);
        }
        // At least something, since what is free is not of use as it is.
        let missing = bytes.saturating_sub(free).max(1);
        if memory.could_give_way(missing) && !self.await_all_filled() {
            return Ok(false);
        }
        let (begun, mut backoff) = (Instant::now(), Backoff::new());
        let _waiting = self.gate.wait();
        while memory.could_give_way(missing) && begun.elapsed() < PATIENCE && !self.is_ending() {
            if let Some(_still) = self.stand_still() {
                let carry = |dst, src, bytes| self.carry(device, dst, src, bytes);
                // Whatever keeps a region from moving, there is no room.
                let moved = memory.give_way(missing, &carry);
                return Ok(moved
                    .inspect_err(|error| tracing::debug!(%error, "no region makes way"))
                    .unwrap_or(false));
            }
            backoff.pause();
        }
        Ok(false)
    }

    /// The memory that an address of a managed region lies in.
    pub(crate) fn memory_around(&self, address: u64) -> Option<&DeviceMemory> {
        self.devices.iter().find(|memory| memory.block_around(address).is_some())
    }

    /// Copies a region's bytes on their way.
    fn carry(&self, device: usize, dst: u64, src: u64, bytes: u64) -> backend::Result<()> {
        let is_there = |ctx| self.context(ctx).is_ok_and(|ctx| ctx.device() == device);
        let stream = self.shadows.any_context(is_there).and_then(|ctx| self.shadow_stream(ctx));
        let stream = stream.ok_or(CuError::INVALID_CONTEXT)?;
        let (ctx, arg) = (stream.ctx.raw, stream.arg());
        self.backend().copy(ctx, arg, dst, src, bytes)?;
        self.backend().stream_synchronize(ctx, arg)
    }
}

impl Execute for wire::ManagedHint {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        for (device, memory) in session.devices.iter().enumerate() {
            match self.device {
                None => memory.want(self.address, Home::Host),
                Some(wire::Device(wanted)) if wanted == device as u32 => {
                    memory.want(self.address, Home::Device)
                }
                // A region stays with its device: others reach it there.
                Some(_) => {}
            }
        }
        // Before the kernel that it is for.
        session.exchange_regions();
        Ok(())
    }
}
