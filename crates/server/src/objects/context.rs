//! Contexts, and the markers that tell how far their streams are.

use super::{HostCopy, Making, NON_BLOCKING, Placement, Placer};
use crate::failure::Result;
use crate::lock;
use backend::{Backend, Range, RawContext, RawEvent, RawStream, StreamArg};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use wire::ContextId;

/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;
/// What it takes to make a context again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ContextRecord {
    /// Its handle.
    pub id: ContextId,
    /// Index of its device.
    pub device: u32,
    /// As it was created.
    pub flags: u32,
    /// Whether it is the device's primary context.
    pub primary: bool,
    /// When it was made, and what the device library took.
    pub placement: Placement,
}

/// What the application has changed since.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ContextSettings {
    /// `CUlimit` and value.
    pub limits: BTreeMap<u32, u64>,
    /// `CUfunc_cache`.
    pub cache_config: Option<u32>,
    /// Contexts whose memory it may reach.
    pub peers: BTreeSet<u32>,
}

/// A live context; ended when the last user lets go.
pub struct Context {
    /// Its constructor.
    pub record: ContextRecord,
    /// The backend's handle.
    pub raw: RawContext,
    /// Changes.
    pub settings: Mutex<ContextSettings>,
    /// After a restart: an event recorded when the session went on, from which times of earlier events are counted.
    pub epoch: OnceLock<RawEvent>,
    /// The last copy from the application's memory in a default stream, until it is known to be complete.
    host_copy: HostCopy,
    /// Whether code that may print has been loaded.
    prints: AtomicBool,
    /// The first module of which a kernel was launched that may have allocated from the device library's own heap.
    allocating: OnceLock<String>,
    /// What its other kernels allocate from, once one has been launched.
    pub heap: Mutex<Option<Range>>,
    spare_markers: Mutex<Vec<RawEvent>>,
    /// For the server's own copies, once it makes some. A driver takes 2 MiB of the device's memory for every second stream (580, an H200), which a program then lacks: so these
    /// are all, and stay.
    own_streams: Mutex<Option<[RawStream; 2]>>,
    /// How many times one was asked for.
    asked: AtomicUsize,
    backend: Arc<dyn Backend>,
}

impl Context {
    /// Makes the context and completes its record.
    ///
    /// # Errors
    /// The backend's.
    pub fn make(placer: &Placer, mut record: ContextRecord, making: Making) -> Result<Arc<Self>> {
        let backend = &placer.backend;
        let raw = placer.place(&mut record.placement, making, || {
            backend.context_create(record.device as usize, record.flags, record.primary)
        })?;
        Ok(Arc::new(Self {
            record,
            raw,
            settings: Mutex::default(),
            epoch: OnceLock::new(),
            host_copy: HostCopy::default(),
            prints: AtomicBool::new(false),
            allocating: OnceLock::new(),
            heap: Mutex::default(),
            spare_markers: Mutex::default(),
            own_streams: Mutex::default(),
            asked: AtomicUsize::new(0),
            backend: Arc::clone(backend),
        }))
    }

    /// The device library that it is one of.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// One of its streams for the server's own copies, each of them in turn: of the least priority, and it waits for nothing that the application does, nor that for it.
    ///
    /// # Errors
    /// The backend's, when there are none and they cannot be made.
    pub fn own_stream(&self) -> backend::Result<StreamArg> {
        let mut own = lock(&self.own_streams);
        let streams = match *own {
            Some(streams) => streams,
            None => {
                let least =
                    self.backend.devices().get(self.device()).map_or(0, |facts| facts.stream_priorities.0);
                let make = || self.backend.stream_create(self.raw, NON_BLOCKING, least);
                let first = make()?;
                let second = make().inspect_err(|_| {
                    let _ = self.backend.stream_destroy(self.raw, first);
                })?;
                *own.insert([first, second])
            }
        };
        Ok(StreamArg::Created(streams[self.asked.fetch_add(1, Ordering::Relaxed) % streams.len()]))
    }

    /// Its handle.
    #[must_use]
    pub fn id(&self) -> ContextId {
        self.record.id
    }

    /// Index of its device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.record.device as usize
    }

    /// Compute capability of its device: major × 10 + minor.
    #[must_use]
    pub fn compute_capability(&self) -> u32 {
        self.backend.devices().get(self.device()).map_or(0, crate::facts::compute_capability)
    }

    /// Notes that code that may print is loaded.
    pub fn note_prints(&self) {
        self.prints.store(true, Ordering::Release);
    }

    /// Whether its kernels may print: then somebody who synchronises is to be given the output.
    #[must_use]
    pub fn may_print(&self) -> bool {
        self.prints.load(Ordering::Acquire)
    }

    /// Notes that a kernel is launched that may allocate from the device library's own heap.
    pub fn note_allocating(&self, module: impl FnOnce() -> String) {
        self.allocating.get_or_init(module);
    }

    /// Whose kernels may have allocated from that, if any.
    #[must_use]
    pub fn allocating_kernels(&self) -> Option<&str> {
        self.allocating.get().map(String::as_str)
    }

    /// What the context knows of copies from the application's memory.
    #[must_use]
    pub fn host_copy(&self) -> &HostCopy {
        &self.host_copy
    }

    /// Records a marker behind everything that `stream` has been given.
    ///
    /// # Errors
    /// The backend's, for instance an execution error of the context.
    pub fn mark(self: &Arc<Self>, stream: StreamArg) -> backend::Result<Marker> {
        let marker = self.marker()?;
        marker.record(stream)?;
        Ok(marker)
    }

    /// A marker that is to be [recorded](Marker::record) yet.
    ///
    /// # Errors
    /// The backend's.
    pub fn marker(self: &Arc<Self>) -> backend::Result<Marker> {
        let spare = lock(&self.spare_markers).pop();
        let raw = match spare {
            Some(raw) => raw,
            None => self.backend.event_create(self.raw, UNTIMED)?,
        };
        Ok(Marker { ctx: Arc::clone(self), raw })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        for raw in lock(&self.spare_markers).drain(..).chain(self.host_copy.event()) {
            // It ends with the context anyway.
            let _ = self.backend.event_destroy(self.raw, raw);
        }
        for raw in lock(&self.own_streams).take().into_iter().flatten() {
            let _ = self.backend.stream_destroy(self.raw, raw);
        }
        if let Err(error) = self.backend.context_destroy(self.raw) {
            tracing::warn!(ctx = self.record.id.0, %error, "context not destroyed");
        }
    }
}

/// A point in a stream: complete when all that was in the stream before it is.
pub struct Marker {
    ctx: Arc<Context>,
    raw: RawEvent,
}

impl Marker {
    /// Puts it behind everything that `stream` has been given.
    ///
    /// # Errors
    /// The backend's, for instance an execution error of the context.
    pub fn record(&self, stream: StreamArg) -> backend::Result<()> {
        self.ctx.backend.event_record(self.ctx.raw, self.raw, stream, 0)
    }

    /// Whether the stream has come this far. Nothing is still to come in a context that has failed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.ctx.backend.event_query(self.ctx.raw, self.raw).unwrap_or(true)
    }

    /// The same, telling the context's failure.
    ///
    /// # Errors
    /// The execution error the context is in.
    pub fn poll(&self) -> backend::Result<bool> {
        self.ctx.backend.event_query(self.ctx.raw, self.raw)
    }

    /// The backend's name for it.
    #[must_use]
    pub fn event(&self) -> RawEvent {
        self.raw
    }

    /// The context of the stream.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        lock(&self.ctx.spare_markers).push(self.raw);
    }
}
