//! Mirrors of the client's registered memory, at the same addresses, so that kernels reach them.

use super::Session;
use super::quota::Kind;
use crate::area::{Area, PAGE};
use crate::messages::Word;
use crate::ranges::Ranges;
use crate::{diff, lock};
use backend::{Range, Result};
use std::sync::{Arc, Mutex};
use wire::{Bytes, CuError};

/// How much is compared before what has changed is sent: its runs fit into a message.
const STEP: usize = 256 << 10;

/// A mirror, and what the client knows of it.
pub(super) struct Mirror {
    range: Range,
    memory: Area,
    known: Mutex<Area>,
}

/// Every mirror of a session.
#[derive(Default)]
pub(super) struct Mirrors(Mutex<Ranges<Arc<Mirror>>>);

impl Mirrors {
    fn all(&self) -> Vec<Arc<Mirror>> {
        lock(&self.0).iter().map(|(_, mirror)| Arc::clone(mirror)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).iter().next().is_none()
    }

    /// Appends what the device has changed since the client last heard.
    pub(super) fn collect(&self, words: &mut Vec<Word>) {
        for mirror in self.all() {
            let mut known = lock(&mirror.known);
            for (number, known) in known.bytes_mut().chunks_mut(STEP).enumerate() {
                let mut runs = Vec::new();
                // SAFETY: a part of the mirror's memory, which is as long as what is known of it.
                unsafe { diff::collect(mirror.memory.as_mut_ptr().add(number * STEP), known, &mut runs) };
                if !runs.is_empty() {
                    let base = mirror.range.base + (number * STEP) as u64;
                    words.push(Word::Changes { base, runs: Bytes(runs) });
                }
            }
        }
    }

    /// Applies what the host has changed.
    pub(super) fn apply(&self, base: u64, runs: &[u8]) -> Result<()> {
        let found = lock(&self.0).at(base).map(|(range, mirror)| (range, Arc::clone(mirror)));
        let (range, mirror) = found.ok_or(CuError::INVALID_VALUE)?;
        if !base.is_multiple_of(8) {
            return Err(CuError::INVALID_VALUE);
        }
        let offset = (base - range.base) as usize;
        let mut known = lock(&mirror.known);
        let known = &mut known.bytes_mut()[offset..];
        // SAFETY: the rest of the mirror's memory, which is as long as what is known of it.
        unsafe { diff::apply(mirror.memory.as_mut_ptr().add(offset), known, runs) }
            .ok_or(CuError::INVALID_VALUE)
    }
}

impl Session {
    pub(super) fn mirror(&self, range: Range) -> Result<()> {
        let pages = range.base.is_multiple_of(PAGE as u64) && range.bytes.is_multiple_of(PAGE as u64);
        if !pages || range.bytes == 0 || range.base.checked_add(range.bytes).is_none() {
            return Err(CuError::INVALID_VALUE);
        }
        // Itself, and what the client knows of it.
        let taken = range.bytes.checked_mul(2).ok_or(CuError::INVALID_VALUE)?;
        self.account.take(Kind::Host, taken)?;
        let make = || {
            let memory = Area::at(range).map_err(|_| CuError::OUT_OF_MEMORY)?;
            let known = Mutex::new(Area::new(range.bytes as usize).map_err(|_| CuError::OUT_OF_MEMORY)?);
            self.backend.register_host(range)?;
            Ok(Arc::new(Mirror { range, memory, known }))
        };
        let made = make().inspect_err(|_: &CuError| self.account.give_back(Kind::Host, taken))?;
        lock(&self.mirrors.0).insert(range, made);
        self.objects.space_mut().mirrors.insert(range, ());
        self.completions.wake();
        Ok(())
    }

    pub(super) fn unmirror(&self, range: Range) -> Result<()> {
        let known = lock(&self.mirrors.0).at(range.base).is_some_and(|(found, _)| found == range);
        if !known {
            return Err(CuError::INVALID_VALUE);
        }
        self.objects.space_mut().mirrors.remove(range.base);
        let ended = self.backend.unregister_host(range);
        // What its last work has written.
        self.send_changes();
        lock(&self.mirrors.0).remove(range.base);
        self.account.give_back(Kind::Host, 2 * range.bytes);
        ended
    }

    pub(super) fn unmirror_all(&self) {
        for mirror in self.mirrors.all() {
            let _ = self.unmirror(mirror.range);
        }
    }
}
