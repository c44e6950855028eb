//! Proofs that device memory holds the chunks it is to hold, from the device itself: a few chunks at a time, behind their copies, in the same stream.

use super::filling::Part;
use super::hasher::{CHUNKS, Hasher, Slot};
use crate::objects::Marker;
use crate::transfer::{TransferError, await_awake};
use backend::{Backend, Range};
use image::{CHUNK_SIZE, ChunkId, Extent, MemoryKind, Object, ObjectKind};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What is less than this is read and checked sooner than the kernel is compiled and has paid for it, bytes.
const WORTH: u64 = 1 << 30;
/// Launches of one thread that may be under way.
const LAUNCHES: usize = 2;

/// Who finds out whether what was read is what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Checks {
    /// The processor, before it goes to the device.
    OnProcessor,
    /// The device, of what it can; no kernel of the program's may be there, behind which ours would wait.
    OnDevice,
}

impl Checks {
    /// What is best for these parts of an image, before the program runs.
    pub(super) fn of(backend: &dyn Backend, image: &store::Image, parts: &[Part]) -> Self {
        let could = backend.reaches_host() && !backend.runs_on_cores() && !image.is_trusted();
        let objects = &image.manifest().objects;
        let on_device =
            |part: &&Part| objects.get(part.object).is_some_and(|object| is_provable(object, part));
        let bytes = parts.iter().filter(on_device).map(|part| part.range.bytes).sum::<u64>();
        if could && bytes >= WORTH { Self::OnDevice } else { Self::OnProcessor }
    }
}

/// Whether the device can hash a part of an object: a whole chunk, in memory that any context of its device reaches.
pub(super) fn is_provable(object: &Object, part: &Part) -> bool {
    let ObjectKind::DeviceMemory { memory: MemoryKind::Allocation | MemoryKind::Physical, .. } = object.kind
    else {
        return false;
    };
    matches!(part.extent, Extent::Chunk { len, .. } if len as usize == CHUNK_SIZE)
        && part.range.base.is_multiple_of(16)
}

/// A chunk that was given to the device as it was read.
#[derive(Debug)]
pub(super) struct Claim {
    /// Where it belongs.
    pub(super) part: Part,
    /// What it should be.
    pub(super) id: ChunkId,
}

/// What has become of claims.
#[derive(Default)]
pub(super) struct Judged {
    /// Memory that holds what it is to hold.
    pub(super) proven: Vec<Range>,
    /// What does not, or where nobody knows.
    pub(super) unproven: Vec<Claim>,
}

/// A launch under way.
struct Batch {
    claims: Vec<Claim>,
    slot: Slot,
    marker: Marker,
}

/// Has the device hash what one thread writes in one stream.
pub(super) struct Prover {
    hasher: Arc<Hasher>,
    /// Those that no launch uses.
    slots: Vec<Slot>,
    collected: Vec<Claim>,
    under_way: VecDeque<Batch>,
    judged: Judged,
    /// Whether a launch was refused: the next one would be, too.
    refused: bool,
}

impl Prover {
    /// One, if there is room for another.
    pub(super) fn of(hasher: &Arc<Hasher>) -> Option<Self> {
        let slots = std::iter::repeat_with(|| hasher.slot()).take(LAUNCHES).collect::<Option<Vec<_>>>()?;
        let (collected, under_way) = (Vec::with_capacity(CHUNKS), VecDeque::with_capacity(LAUNCHES));
        Some(Self {
            hasher: Arc::clone(hasher),
            slots,
            collected,
            under_way,
            judged: Judged::default(),
            refused: false,
        })
    }

    /// Whether the device does what it is asked for.
    pub(super) fn is_usable(&self) -> bool {
        !self.refused
    }

    /// Takes a claim on memory whose write is in the stream.
    ///
    /// # Errors
    /// The context's failure.
    pub(super) fn take(&mut self, claim: Claim) -> Result<(), TransferError> {
        self.collected.push(claim);
        if self.collected.len() >= CHUNKS { self.launch() } else { Ok(()) }
    }

    /// Waits until all claims are judged.
    ///
    /// # Errors
    /// The context's failure.
    pub(super) fn finish(&mut self) -> Result<(), TransferError> {
        if !self.collected.is_empty() {
            self.launch()?;
        }
        while let Some(batch) = self.under_way.pop_front() {
            self.judge(batch)?;
        }
        Ok(())
    }

    /// The claims that have been judged since this was asked last.
    pub(super) fn judged(&mut self) -> Judged {
        std::mem::take(&mut self.judged)
    }

    fn launch(&mut self) -> Result<(), TransferError> {
        if self.slots.is_empty()
            && let Some(batch) = self.under_way.pop_front()
        {
            self.judge(batch)?;
        }
        let claims = std::mem::replace(&mut self.collected, Vec::with_capacity(CHUNKS));
        let Some(slot) = self.slots.pop() else {
            self.judged.unproven.extend(claims);
            return Ok(());
        };
        let addresses: Vec<u64> = claims.iter().map(|claim| claim.part.range.base).collect();
        match self.hasher.launch(&slot, &addresses) {
            Ok(marker) => self.under_way.push_back(Batch { claims, slot, marker }),
            Err(error) => {
                tracing::info!(%error, "the device hashes no chunks: the processor does");
                // Its slot is not used again, whatever the launch may still do.
                self.refused = true;
                self.judged.unproven.extend(claims);
            }
        }
        Ok(())
    }

    /// Waits for a launch and compares what it says.
    fn judge(&mut self, batch: Batch) -> Result<(), TransferError> {
        let Batch { claims, slot, marker } = batch;
        // Asleep: each look takes the device library's lock, which the other threads need.
        if let Err(code) = await_awake(&marker, Duration::ZERO) {
            let range = claims.first().map_or(Range { base: 0, bytes: 0 }, |claim| claim.part.range);
            return Err(TransferError::Device { range, code });
        }
        let found = self.hasher.ids(&slot, claims.len());
        self.slots.push(slot);
        for (claim, found) in claims.into_iter().zip(found) {
            if claim.id == found {
                self.judged.proven.push(claim.part.range);
            } else {
                tracing::warn!(expected = %claim.id, %found, memory = %claim.part.range, "a chunk is damaged: it is read again");
                self.judged.unproven.push(claim);
            }
        }
        Ok(())
    }
}

impl Drop for Prover {
    fn drop(&mut self) {
        // Values may still be written to room that others have after this.
        for batch in self.under_way.drain(..) {
            let _ = await_awake(&batch.marker, Duration::ZERO);
        }
    }
}
