//! Marked kernels in an image.

use super::FRAMES_MOST;
use super::flight::{Flight, Size, Stage, State};
use crate::failure::{Failure, Result};
use crate::objects::{Module, Owner, StreamKey};
use crate::read;
use crate::session::Session;
use backend::Range;
use image::DeviceFacts;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use wire::{ContextId, CuError};

/// A marked kernel in an image.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HalfWayRecord {
    /// Its stream.
    pub stream: StreamKey,
    /// Whose module it is in.
    pub owner: Owner,
    /// In which context.
    pub ctx: ContextId,
    /// Its name.
    pub kernel: String,
    /// BLAKE3 of what its module is known by ([`cpt::identity`]).
    pub code: [u8; 32],
    /// How it was launched.
    pub launched: Launched,
    /// The kernel's context, and which threads are done: device memory.
    pub control: Range,
    /// Which blocks are half-way, and their frames: device memory.
    pub stopped: Range,
    /// For how many blocks there is room in that.
    pub capacity: u32,
}

/// A launch of a marked kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Launched {
    /// Handle of what was launched.
    pub callee: u64,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of each.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared: u32,
    /// Parameters, but for the twin's own.
    pub params: Vec<u8>,
}

/// Whether a device is of the kind that it was when an image was made.
fn is_alike(device: usize, then: &[DeviceFacts], now: &[DeviceFacts]) -> bool {
    let kind = |all: &[DeviceFacts]| {
        let facts = all.iter().find(|facts| facts.ordinal.0 as usize == device)?;
        Some((facts.backend.clone(), facts.name.clone(), facts.driver_version))
    };
    kind(then).is_some_and(|then| kind(now) == Some(then))
}

impl std::fmt::Display for HalfWayRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel {}, which is half-way in {},", cpt::in_source(&self.kernel), self.stream)
    }
}

fn wrong(what: &str) -> Failure {
    Failure::new(CuError::INVALID_VALUE, what.to_owned())
}

impl Session {
    /// Has a kernel of an image go on as soon as others may begin.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it cannot go on in the code that is here, or what the image says of it does not fit.
    pub(crate) fn restore_half_way(&self, record: &HalfWayRecord) -> Result<()> {
        let table = read(&self.table);
        let find = |key: StreamKey| table.streams.get(&key).cloned().ok_or_else(|| wrong("it has no stream"));
        let (stream, beside) = (find(record.stream)?, find(StreamKey::Stops(record.ctx))?);
        let is_its =
            |module: &&Arc<Module>| (module.record.owner, module.record.ctx) == (record.owner, record.ctx);
        let module =
            table.loaded_modules().iter().find(is_its).cloned().ok_or_else(|| wrong("it has no module"))?;
        drop(table);
        if stream.record.ctx != record.ctx {
            return Err(wrong("its stream is of another context"));
        }
        if module.rewritten.as_ref().is_none_or(|code| code.hash != record.code) {
            return Err(wrong(
                "another version of Dormouse made the code in which it is half-way, which has other frames; restart with the one that made the image",
            ));
        }
        let function = module.function(&record.kernel)?;
        let twin = function.twin.as_ref().ok_or_else(|| wrong("it cannot be stopped"))?;
        let size = Size::of(&twin.kernel, &record.launched);
        let size = size.ok_or_else(|| wrong("its size is none"))?;
        if size.control() != record.control.bytes
            || size.stopped(record.capacity) != Some(record.stopped.bytes)
        {
            return Err(wrong("its memory has another size"));
        }
        let at_a_time = self.blocks_at_a_time((&stream, &function), twin.raw, &record.launched)?;
        if !size.can_stop(twin, at_a_time.min(record.capacity.into())) {
            return Err(wrong(
                "its blocks wait for one another, and the device does not have them all at a time",
            ));
        }
        let attributes = twin.attributes().to_vec();
        let frames = at_a_time.min(FRAMES_MOST / size.frame).min(size.blocks());
        let stage =
            Stage { stopped: record.stopped, capacity: record.capacity, from: None, state: State::Stopped };
        self.add_half_way(Flight {
            stream,
            beside,
            function: Arc::clone(&function),
            launched: record.launched.clone(),
            attributes,
            size,
            frames: u32::try_from(frames).unwrap_or(u32::MAX).max(record.capacity),
            control: record.control,
            stage: Mutex::new(stage),
        });
        Ok(())
    }

    /// Checks that a kernel of an image, which was made of such devices, has memory of its own, and goes on on a device that it can go on on.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it has not, or cannot.
    pub(crate) fn check_half_way(&self, record: &HalfWayRecord, made_of: &[DeviceFacts]) -> Result<()> {
        let device = self.context(record.ctx)?.device();
        let flights = self.flights();
        let twin = flights.iter().find(|flight| flight.control == record.control);
        let is_bound =
            twin.and_then(|flight| flight.function.twin.as_ref()).is_some_and(|twin| twin.kernel.is_bound);
        if is_bound && !is_alike(device, made_of, &self.used_devices()) {
            return Err(wrong(
                "it may keep addresses of shared or local memory, which are right on the same model of device with the same driver alone; restart it on such a one",
            ));
        }
        let memory = self.device_memory(device)?;
        let is_whole = |range: Range| memory.find(range.base).is_some_and(|found| found.range == range);
        let is_own = record.control != record.stopped && is_whole(record.control) && is_whole(record.stopped);
        is_own.then_some(()).ok_or_else(|| wrong("it has no device memory of its own"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::DeviceOrdinal;

    fn device(ordinal: u32, backend: &str, name: &str, driver_version: u32) -> DeviceFacts {
        DeviceFacts {
            ordinal: DeviceOrdinal(ordinal),
            backend: backend.to_owned(),
            name: name.to_owned(),
            uuid: [ordinal as u8; 16],
            compute_capability: 90,
            total_memory: 1 << 30,
            driver_version,
        }
    }

    #[test]
    fn devices_are_alike_of_one_model_and_driver() {
        let then = [device(0, "driver", "A", 13000), device(1, "driver", "B", 13000)];
        let same = [device(0, "driver", "A", 13000), device(1, "driver", "A", 13000)];
        assert!(is_alike(0, &then, &same));
        assert!(!is_alike(1, &then, &same), "another model");
        assert!(!is_alike(0, &then, &[device(0, "driver", "A", 13010)]), "another driver");
        assert!(!is_alike(0, &then, &[device(0, "soft", "A", 13000)]), "another backend");
        assert!(!is_alike(2, &then, &same), "nothing is known of it");
    }
}
