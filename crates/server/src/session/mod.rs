//! A session: one application process's use of the devices.
//!
//! `dispatch` takes a message to its handler; the handlers are in chapters, as the driver's API is: contexts, memory,
//! copies, streams, events, code, launch, callbacks. `ring` runs the rings' threads, `order` keeps the order that CUDA
//! promises between them.

mod arrays;
mod attributes;
mod burst;
mod callbacks;
mod code;
mod conditions;
mod contexts;
mod copies;
mod dispatch;
mod events;
mod fences;
mod filled;
mod graphs;
mod greens;
mod half_way;
mod launch;
mod link;
mod memory;
mod notice;
mod operations;
mod order;
mod output;
mod placement;
mod pools;
mod reached;
mod ring;
mod sharing;
mod slots;
mod streams;
mod textures;
mod virtual_memory;
mod wait;
mod watched;

pub use callbacks::Callbacks;
pub(crate) use graphs::Purpose;
pub use half_way::HalfWayRecord;
pub(crate) use reached::Reached;
pub use ring::Rings;
pub(crate) use ring::{THREAD_END, TIDYING, take_precedence};

use crate::application::Application;
use crate::buffers::BufferPool;
use crate::capture::Changes;
use crate::failure::{Failure, Result};
use crate::gate::Gate;
use crate::memory::{
    DeviceMemory, Imports, Layout, Managed, PINNED_BYTES, PinnedMemory, Shadows, VirtualMemory,
};
use crate::objects::{Context, Function, Placer, Stream, StreamKey, StreamRecord, Table};
use crate::restore::{Filling, Source};
use crate::sharing::{Giver, Sharing};
use crate::watch::Watch;
use crate::{lock, read, write};
use backend::{Backend, Range};
use output::Output;
use slots::Slots;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use transport::{RingIndex, ServerSession, State};
use wire::{Callee, ContextId, CuError, Stream as StreamName};

/// What a session is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// The session's folder on the job's tmpfs, as this process sees it.
    pub dir: PathBuf,
    /// Where memory lies.
    pub layout: Layout,
    /// The way to the job's other sessions.
    pub sharing: Arc<Sharing>,
    /// Which managed memory is to have shadow pages.
    pub managed: Managed,
}

/// A session. All its methods may be called from any thread.
pub struct Session {
    pub(crate) placer: Placer,
    pub(crate) buffers: Arc<BufferPool>,
    pub(crate) changes: Changes,
    pub(crate) link: Arc<ServerSession>,
    pub(crate) config: Config,
    pub(crate) table: RwLock<Table>,
    pub(crate) devices: Vec<DeviceMemory>,
    pub(crate) pinned: Mutex<PinnedMemory>,
    pub(crate) shadows: Arc<Shadows>,
    pub(crate) virtual_memory: Mutex<VirtualMemory>,
    pub(crate) imports: Mutex<Imports>,
    /// Held while an event of another session is opened.
    pub(crate) opening: Mutex<()>,
    pub(crate) gate: Gate,
    pub(crate) half_way: half_way::HalfWay,
    shortage: memory::Shortage,
    pub(crate) output: Output,
    pub(crate) callbacks: Arc<Callbacks>,
    /// Whether the device library knows the rings' fences, once that has been tried.
    fences: OnceLock<bool>,
    /// Which process it serves, once it has been told.
    pub(crate) application: OnceLock<Application>,
    /// Memory that the program may not reach yet, in a session that was restored.
    pub(crate) filling: OnceLock<Arc<Filling>>,
    /// What it is filled with, if the next checkpoint is to know that.
    pub(crate) filled_from: Mutex<Option<Source>>,
    pub(crate) watch: Arc<Watch>,
    ending: Arc<AtomicBool>,
}

/// The ring a message came from, and what the server keeps for it.
pub struct Caller {
    pub(crate) ring: RingIndex,
    pub(crate) slots: Slots,
    /// What its last work went to, as long as that is in the table.
    recent: Recent,
    /// The stream of the launch right before the message in hand, if that was there before the launch was submitted.
    launched: Option<StreamKey>,
    /// Whether a checkpoint is to be taken before the launch in hand.
    stops: bool,
    /// Number of the round trip in hand.
    round_trip: u64,
    /// Whether the device tells of its end itself.
    fenced: bool,
    /// Whether the graph's launch in hand has parts that its stream has not been given.
    is_in_part: bool,
    /// Why its managed memory found no room with shadow pages, until it is known whether it has some without.
    unshadowed: Option<Failure>,
}

#[derive(Default)]
struct Recent {
    /// The stream that was found for the message in hand.
    found: Option<(StreamKey, Arc<Stream>)>,
    stream: Option<(StreamKey, Weak<Stream>)>,
    callee: Option<(ContextId, Callee, Weak<Function>)>,
}

impl Caller {
    /// Nothing kept yet for that ring.
    #[must_use]
    pub fn new(ring: RingIndex) -> Self {
        Self {
            ring,
            slots: Slots::default(),
            recent: Recent::default(),
            launched: None,
            stops: false,
            round_trip: 0,
            fenced: false,
            is_in_part: false,
            unshadowed: None,
        }
    }

    /// The ring's number.
    #[must_use]
    pub fn number(&self) -> u16 {
        // There are at most `MAX_RINGS`.
        self.ring.get() as u16
    }
}

impl Session {
    /// A session with no objects, on shared files that exist already. The first object has turn `turn`.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, link: Arc<ServerSession>, config: Config, turn: u64) -> Arc<Self> {
        let watch: Arc<Watch> = Arc::default();
        let devices = (0..backend.devices().len())
            .map(|device| {
                let sharing = Arc::clone(&config.sharing);
                DeviceMemory::new(Arc::clone(&backend), device, config.layout, sharing).watched(&watch)
            })
            .collect();
        let window = Range { base: config.layout.pinned, bytes: PINNED_BYTES };
        let ending = Arc::new(AtomicBool::new(false));
        let buffers = BufferPool::new(&backend);
        link.control().set_exclusive(config.managed == Managed::Exclusive);
        let shadows = Shadows::new(&buffers, config.dir.clone(), config.managed);
        let shadows = Arc::new(shadows);
        let windows = (0..backend.devices().len()).map(|device| config.layout.imports(device));
        let imports = Imports::new(Arc::clone(&backend), Arc::clone(&config.sharing), windows);
        let session = Arc::new(Self {
            virtual_memory: Mutex::new(VirtualMemory::new(
                Arc::clone(&backend),
                Arc::clone(&config.sharing),
                config.layout.reservations(),
            )),
            imports: Mutex::new(imports),
            opening: Mutex::default(),
            pinned: Mutex::new(PinnedMemory::new(Arc::clone(&backend), config.dir.clone(), window)),
            callbacks: Arc::new(Callbacks::new(link.callbacks(), Arc::clone(&ending), Arc::clone(&shadows))),
            shadows,
            placer: Placer::new(backend, turn),
            buffers,
            changes: Changes::default(),
            link,
            config,
            table: RwLock::default(),
            devices,
            gate: Gate::default(),
            half_way: half_way::HalfWay::default(),
            shortage: memory::Shortage::default(),
            output: Output::default(),
            fences: OnceLock::new(),
            application: OnceLock::new(),
            filling: OnceLock::new(),
            filled_from: Mutex::default(),
            watch,
            ending,
        });
        let giver: Weak<dyn Giver> = Arc::downgrade(&(Arc::clone(&session) as Arc<dyn Giver>));
        session.config.sharing.give_from(giver);
        session.shadows.belong_to(Arc::downgrade(&session));
        session
    }

    /// The device library.
    #[must_use]
    pub fn backend(&self) -> &dyn Backend {
        &*self.placer.backend
    }

    /// Ends the session: whoever waits is told, and every later call of the application fails.
    pub fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.link.control().set_state(State::Dead);
        if let Some(filling) = self.filling.get() {
            filling.stop();
        }
        self.gate.open();
        for (index, _) in self.link.control().rings() {
            self.link.wake(index);
        }
        self.link.control().ring_doorbell();
        self.shadows.rest();
    }

    /// Ends the application, since nobody is left who looks after its job; its calls and its memory are served until then.
    pub fn end_application(&self) {
        if let Some(Err(error)) = self.application.get().map(Application::end) {
            tracing::error!("the program cannot be ended: {error}");
        }
    }

    /// Keeps the shadows of managed memory that were kept before, in a session that was restored.
    ///
    /// # Errors
    /// When the kernel does not tell of its faults, or what the application has mapped cannot be read.
    pub fn keep_shadows_again(&self) -> Result<()> {
        // It has been told of before its userfaultfd was given.
        let mappings = || {
            self.application.get().map(Application::mappings).transpose().map_err(|error| {
                let detail = format!("what the application has mapped cannot be read: {error}");
                Failure::new(CuError::UNKNOWN, detail)
            })
        };
        self.shadows.keep_again(mappings)
    }

    /// Tells the application that messages are taken.
    pub fn announce(&self) {
        self.link.control().set_state(State::Running);
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    pub(crate) fn context(&self, id: ContextId) -> Result<Arc<Context>> {
        read(&self.table).context(id)
    }

    /// The stream a message of `caller` means by `stream` in `ctx`; a thread's own is made when it is first used.
    pub(crate) fn stream(
        &self,
        caller: &mut Caller,
        ctx: ContextId,
        stream: StreamName,
    ) -> Result<Arc<Stream>> {
        let key = StreamKey::new(ctx, stream, caller.number());
        let found = caller.recent.found.take().filter(|(found, stream)| *found == key && !stream.is_gone());
        if let Some(found) = found.map(|(_, stream)| stream).or_else(|| self.known_stream(caller, key)) {
            if found.record.ctx != ctx {
                return Err(Failure::new(CuError::INVALID_HANDLE, format!("{key} is of another context")));
            }
            return Ok(found);
        }
        let context = self.context(ctx)?;
        match key {
            StreamKey::PerThread(..) => {
                let placement = Default::default();
                let record = StreamRecord { key, ctx, flags: 0, priority: 0, green: None, placement };
                let made = Stream::make(&self.placer, &context, None, record, crate::objects::Making::New)?;
                let mut table = write(&self.table);
                table.changes += 1;
                // Only this ring's thread makes it, so nothing is replaced.
                table.streams.insert(key, Arc::clone(&made));
                Ok(made)
            }
            _ => Err(Failure::new(CuError::INVALID_HANDLE, format!("there is no {key}"))),
        }
    }

    /// The stream with this key, if there is one.
    fn known_stream(&self, caller: &mut Caller, key: StreamKey) -> Option<Arc<Stream>> {
        if let Some((recent, stream)) = &caller.recent.stream
            && *recent == key
            && let Some(stream) = stream.upgrade()
            && !stream.is_gone()
        {
            return Some(stream);
        }
        let found = read(&self.table).streams.get(&key).cloned()?;
        caller.recent.stream = Some((key, Arc::downgrade(&found)));
        Some(found)
    }

    /// The function a message of `caller` means by `callee` in `ctx`.
    pub(crate) fn launched(
        &self,
        caller: &mut Caller,
        ctx: ContextId,
        callee: Callee,
    ) -> Result<Arc<Function>> {
        if let Some((of, recent, function)) = &caller.recent.callee
            && (*of, *recent) == (ctx, callee)
            && let Some(function) = function.upgrade()
            && !function.module.is_gone()
        {
            return Ok(function);
        }
        let function = self.callee(ctx, callee)?;
        caller.recent.callee = Some((ctx, callee, Arc::downgrade(&function)));
        Ok(function)
    }

    /// Checks that the bytes are memory of this session, so that a message can name nothing else of this process: a live
    /// allocation, pinned memory, or a variable of a module.
    pub(crate) fn check_memory(&self, address: u64, bytes: u64) -> Result<()> {
        self.is_here(address, bytes).map(drop)
    }

    /// The same, and whether this process reads and writes it as the devices do: the host's memory, at the same address.
    pub(super) fn is_here(&self, address: u64, bytes: u64) -> Result<bool> {
        if bytes == 0 {
            return Ok(false);
        }
        let in_arena = |memory: &DeviceMemory| memory.is_here(address, bytes);
        if let Some(here) = self.devices.iter().find_map(in_arena) {
            return Ok(here);
        }
        let pinned = lock(&self.pinned);
        if pinned.contains(address, bytes) {
            return Ok(pinned.has_made(address, bytes));
        }
        drop(pinned);
        let elsewhere = lock(&self.virtual_memory).contains(address, bytes)
            || lock(&self.imports).contains(address, bytes)
            || read(&self.table).in_module(address, bytes);
        if elsewhere {
            return Ok(false);
        }
        let detail = format!("{:#x}+{bytes:#x} is no memory of this program", address);
        Err(Failure::new(CuError::INVALID_VALUE, detail))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(filling) = self.filling.get() {
            filling.stop();
        }
        self.forget_fences();
    }
}
