//! The device's side of shadow pages: what their keeper reads from the device, writes to it, and asks of it.

use super::device::DeviceMemory;
use super::rows::Rows;
use super::staging::Staging;
use crate::objects::Stream;
use crate::session::{Session, take_precedence};
use crate::{lock, read};
use backend::{Backend, Copy3D, Fill, Range};
use shadow::{Device, DeviceError};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

/// Said of what never is.
const TOO_SHORT: &str = "the buffer is too short";

/// That side, for the session that it belongs to.
pub(super) struct Side {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) staging: Staging,
    pub(super) session: OnceLock<Weak<Session>>,
    /// Held, by several, while something is copied; by one while regions move.
    pub(super) still: RwLock<()>,
    /// What has been written back, while somebody wants to know.
    pub(super) noted: Mutex<Option<Vec<Range>>>,
}

impl Side {
    /// Fills a region with zeros, and waits for that.
    pub(super) fn clear(&self, stream: &Stream, range: Range) -> backend::Result<()> {
        let Range { base, bytes } = range;
        let fill = Fill { dst: base, pitch: bytes, element: 1, value: 0, width: bytes, height: 1 };
        self.backend.fill(stream.ctx.raw, stream.arg(), &fill)?;
        self.backend.stream_synchronize(stream.ctx.raw, stream.arg())
    }

    /// Does something with the memory of the device that a region belongs to, and the region's pages.
    fn with_memory(
        &self,
        shadow::Range { base, bytes }: shadow::Range,
        ask: impl FnOnce(&DeviceMemory, Range) -> backend::Result<()>,
    ) -> std::result::Result<(), DeviceError> {
        let session = self.session.get().and_then(Weak::upgrade).ok_or("the session has ended")?;
        let memory = session.memory_around(base).ok_or("no managed memory is there")?;
        Ok(ask(memory, Range { base, bytes })?)
    }

    /// Copies from or to these bytes of managed memory, which begin at an address of the destination's and one of the source's: those rows.
    pub(super) fn copy(
        &self,
        (address, bytes): (u64, usize),
        (dst, src): (u64, u64),
        all: &[Rows],
    ) -> std::result::Result<(), DeviceError> {
        let session = self.session.get().and_then(Weak::upgrade).ok_or("the session has ended")?;
        let record = session.shadows.around(address, bytes as u64).ok_or("no managed memory is there")?;
        if !session.await_range_filled(Range { base: address, bytes: bytes as u64 }) {
            return Err("the session has ended".into());
        }
        let stream = session.shadow_stream(record.ctx).ok_or("its context has ended")?;
        let (ctx, stream) = (stream.ctx.raw, stream.arg());
        let _copying = read(&self.still);
        for rows in all {
            let (dst, src, width) = (rows.at(dst), rows.at(src), rows.width as u64);
            match rows.count {
                1 => self.backend.copy(ctx, stream, dst.address, src.address, width)?,
                count => {
                    let copy = Copy3D { dst, src, width, height: count as u64, depth: 1 };
                    self.backend.copy_3d(ctx, stream, &copy)?;
                }
            }
        }
        Ok(self.backend.stream_synchronize(ctx, stream)?)
    }

    /// Writes these parts, which are in order, out of a buffer where they are worth one.
    fn write_parts(
        &self,
        address: u64,
        bytes: &[u8],
        parts: &[std::ops::Range<usize>],
    ) -> std::result::Result<(), DeviceError> {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(()) };
        let (to, rows) = ((address, bytes.len()), Rows::of(parts));
        let Some(buffer) = self.staging.take(last.end - first.start) else {
            return self.copy(to, (address, bytes.as_ptr() as u64), &rows);
        };
        if !buffer.write(0, &bytes[first.start..last.end]) {
            return Err(TOO_SHORT.into());
        }
        let copied = self.copy(to, (address, buffer.range().base - first.start as u64), &rows);
        self.staging.put(buffer, &copied);
        copied
    }
}

impl Device for Side {
    fn read(&self, address: u64, bytes: &mut [u8]) -> std::result::Result<(), DeviceError> {
        let (from, whole) = ((address, bytes.len()), [Rows::one(0..bytes.len())]);
        let Some(buffer) = self.staging.take(bytes.len()) else {
            return self.copy(from, (bytes.as_mut_ptr() as u64, address), &whole);
        };
        let copied = self.copy(from, (buffer.range().base, address), &whole);
        let is_read = copied.is_err() || buffer.read(0, bytes);
        self.staging.put(buffer, &copied);
        if is_read { copied } else { Err(TOO_SHORT.into()) }
    }

    fn write(
        &self,
        address: u64,
        bytes: &[u8],
        parts: &[std::ops::Range<usize>],
    ) -> std::result::Result<(), DeviceError> {
        let written = self.write_parts(address, bytes, parts);
        // Behind it: what is noted as long as somebody wants to know includes all that ends in that time.
        if let Some(noted) = &mut *lock(&self.noted) {
            noted.push(Range { base: address, bytes: bytes.len() as u64 });
        }
        written
    }

    fn is_busy(&self) -> bool {
        self.session.get().and_then(Weak::upgrade).is_some_and(|session| session.has_work_beside_shadows())
    }

    fn cohere(&self, region: shadow::Range, file: BorrowedFd<'_>) -> std::result::Result<(), DeviceError> {
        self.with_memory(region, |memory, pages| memory.cohere(pages, file))
    }

    fn separate(&self, region: shadow::Range) -> std::result::Result<(), DeviceError> {
        self.with_memory(region, |memory, pages| memory.separate(pages.base))
    }

    fn awaited(&self, address: u64) {
        tracing::warn!(
            "the program reads {address:#x} again and again while a kernel runs: processor and a running kernel do not see at once what the other \
             writes to managed memory that has shadow pages; a program whose kernels and threads wait for each other there needs \
             --managed=coherent"
        );
    }

    fn held(&self, address: u64) {
        tracing::warn!(
            "a thread has waited for ten seconds at {address:#x} for the end of work in flight, as it does with --managed=exclusive; a program whose \
             kernels wait for the processor, and not only take long, never goes on so, and needs --managed=coherent"
        );
    }

    fn is_awaited(&self, thread: u32) -> bool {
        let session = self.session.get().and_then(Weak::upgrade);
        session.is_some_and(|session| session.callbacks.is_run_by(thread))
    }

    fn begun(&self) -> bool {
        !self.backend.runs_on_cores() && take_precedence()
    }

    fn failed(&self, error: shadow::Error) {
        let ending = self.session.get().and_then(Weak::upgrade).is_none_or(|session| session.is_ending());
        if !ending {
            tracing::error!("the program waits for its managed memory in vain: {}", chain(&error));
            // The supervisor ends the program then. Handlers of the driver's might wait for this thread.
            std::process::abort();
        }
    }
}

/// An error, and what it came of.
pub(super) fn chain(error: &shadow::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
