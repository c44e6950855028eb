//! Recording: the rings' threads say what happens, another makes a profile of it.

use super::kernels::Kernels;
use crate::lock;
use crate::objects::{Function, Image};
use backend::Range;
use plan::Error;
use plan::record::Recording;
use plan::units::Nanos;
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::{CopySide, Request};

/// So many events are handed over at once.
const BATCH: usize = 1 << 12;
/// So many batches may wait, before who has more to tell waits.
const BATCHES: usize = 64;
/// How often what is not a whole batch is looked at, and how much memory the program has.
const LOOK: Duration = Duration::from_millis(500);

/// Something that happened.
enum Event {
    /// A launch of the kernel with this number, with so many bytes of parameters, at a time.
    Kernel {
        at: u64,
        kernel: u32,
        parameters: u32,
    },
    /// A launch of a graph of so many nodes.
    Graph {
        at: u64,
        nodes: usize,
    },
    /// The processor has waited for the device.
    Wait {
        from: u64,
        to: u64,
    },
    Found(Range),
    Allocate(Range),
    Free(Range),
    Read(Range),
    Write(Range),
    Overwrite(Range),
    /// Whatever there are pointers to may be read and written.
    Anything,
}

#[derive(Default)]
struct Batch {
    events: Vec<Event>,
    parameters: Vec<u8>,
}

/// A kernel that has been launched.
struct Kernel {
    name: String,
    image: Arc<Image>,
    capability: u32,
}

#[derive(Default)]
struct Queue {
    filling: Batch,
    full: VecDeque<Batch>,
    kernels: Vec<Arc<Kernel>>,
    ending: bool,
    /// Nobody takes anything out any more.
    is_unheard: bool,
}

struct Shared {
    began: Instant,
    queue: Mutex<Queue>,
    /// Told when there is a batch, or room for one.
    moved: Condvar,
    /// The process whose half of a checkpoint is the processor's, once that is known.
    process: OnceLock<i32>,
}

/// Records a session.
pub struct Recorder {
    shared: Arc<Shared>,
    file: PathBuf,
    making: Mutex<Option<JoinHandle<Result<Recording, Error>>>>,
}

/// What came of a profile.
pub struct Outcome {
    /// How many boundaries it has.
    pub boundaries: u64,
    /// From when on there was no room for more, if so.
    pub full: Option<Nanos>,
}

impl Recorder {
    /// Begins a profile that is to be written to `file`.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn begin(file: PathBuf) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            began: Instant::now(),
            queue: Mutex::default(),
            moved: Condvar::new(),
            process: OnceLock::new(),
        });
        let making = Arc::clone(&shared);
        let making = std::thread::Builder::new().name("profile".into()).spawn(move || make(&making))?;
        Ok(Self { shared, file, making: Mutex::new(Some(making)) })
    }

    /// Which process the session serves.
    pub(crate) fn of_process(&self, pid: i32) {
        let _ = self.shared.process.set(pid);
    }

    /// A kernel is about to be launched.
    pub(crate) fn launch(&self, function: &Function, parameters: &[u8]) {
        let at = self.now();
        let mut queue = lock(&self.shared.queue);
        let kernel = *function.watched.get_or_init(|| {
            let kernel = Kernel {
                name: function.name.clone(),
                image: Arc::clone(&function.module.image),
                capability: function.module.ctx.compute_capability(),
            };
            queue.kernels.push(Arc::new(kernel));
            (queue.kernels.len() - 1) as u32
        });
        queue.filling.parameters.extend_from_slice(parameters);
        let event = Event::Kernel { at, kernel, parameters: parameters.len() as u32 };
        self.put(queue, event);
    }

    /// A graph is about to be launched.
    pub(crate) fn graph(&self, nodes: usize) {
        self.tell(Event::Graph { at: self.now(), nodes });
        self.tell(Event::Anything);
    }

    /// A thread of the program has waited since then.
    pub(crate) fn waited(&self, since: Instant) {
        let from = since.saturating_duration_since(self.shared.began).as_nanos() as u64;
        self.tell(Event::Wait { from, to: self.now() });
    }

    pub(super) fn found(&self, range: Range) {
        self.tell(Event::Found(range));
    }

    pub(super) fn allocate(&self, range: Range) {
        self.tell(Event::Allocate(range));
    }

    pub(super) fn free(&self, range: Range) {
        self.tell(Event::Free(range));
    }

    /// What a message has the device read and write, launches apart.
    pub(crate) fn message(&self, request: &Request) {
        let range = |base: u64, bytes: u64| Range { base, bytes };
        match request {
            Request::CopyFromInline(m) => self.tell(Event::Overwrite(range(m.dst, m.data.0.len() as u64))),
            Request::CopyFromSlot(m) => self.tell(Event::Overwrite(range(m.dst, m.bytes.into()))),
            Request::CopyToInline(m) => self.tell(Event::Read(range(m.src, m.bytes.into()))),
            Request::CopyToSlot(m) => self.tell(Event::Read(range(m.src, m.bytes.into()))),
            Request::Copy(wire::Copy { dst, src, bytes, .. })
            | Request::CopyWait(wire::CopyWait { dst, src, bytes, .. })
            | Request::CopyPeer(wire::CopyPeer { dst, src, bytes, .. }) => {
                self.tell(Event::Read(range(*src, *bytes)));
                self.tell(Event::Overwrite(range(*dst, *bytes)));
            }
            Request::Fill(m) => {
                let row = m.width.saturating_mul(m.element.into());
                let whole = m.height <= 1 || m.pitch == row;
                let bytes = row.saturating_add(m.pitch.saturating_mul(m.height.saturating_sub(1)));
                let range = range(m.dst, bytes);
                self.tell(if whole { Event::Overwrite(range) } else { Event::Write(range) });
            }
            Request::Copy3D(m) => self.rows(Some(&m.src), Some(&m.dst), (m.height, m.depth), m.width),
            Request::CopyRowsFromSlot(m) => self.rows(None, Some(&m.dst), (m.height, m.depth), m.width),
            Request::CopyRowsToSlot(m) => self.rows(Some(&m.src), None, (m.height, m.depth), m.width),
            Request::CopyBox(m) => {
                let side = |side| match side {
                    CopySide::Memory(side) => Some(side),
                    CopySide::Array(..) | CopySide::Slot(_) => None,
                };
                self.rows(side(m.src).as_ref(), side(m.dst).as_ref(), (m.height, m.depth), m.width);
            }
            Request::MemoryOperations(m) => {
                for word in m.operations.iter().filter_map(wire::MemoryOperation::word) {
                    self.tell(Event::Read(range(word.address, word.bytes())));
                    self.tell(Event::Write(range(word.address, word.bytes())));
                }
            }
            _ => {}
        }
    }

    /// Rows with something between them.
    fn rows(
        &self,
        src: Option<&wire::Pitched>,
        dst: Option<&wire::Pitched>,
        (height, depth): (u64, u64),
        width: u64,
    ) {
        let span = |side: &wire::Pitched| {
            let rows =
                side.rows.saturating_mul(depth.saturating_sub(1)).saturating_add(height.saturating_sub(1));
            Range { base: side.address, bytes: side.pitch.saturating_mul(rows).saturating_add(width) }
        };
        src.into_iter().for_each(|side| self.tell(Event::Read(span(side))));
        dst.into_iter().for_each(|side| self.tell(Event::Write(span(side))));
    }

    /// Writes the profile: whole, or not at all.
    ///
    /// # Errors
    /// Why there is none, as a sentence; `None` in place of an outcome when it was written before.
    pub fn end(&self) -> Result<Option<Outcome>, String> {
        let Some(making) = lock(&self.making).take() else { return Ok(None) };
        let end = Nanos(self.now());
        lock(&self.shared.queue).ending = true;
        self.shared.moved.notify_all();
        let recording = making.join().map_err(|_| "the thread that made it panicked".to_owned())?;
        let (profile, full) =
            recording.and_then(|recording| recording.finish(end)).map_err(|e| e.to_string())?;
        plan::replace(&self.file, &plan::format::encode(&profile))
            .map_err(|error| format!("{}: {error}", self.file.display()))?;
        Ok(Some(Outcome { boundaries: profile.device().len(), full }))
    }

    fn now(&self) -> u64 {
        self.shared.began.elapsed().as_nanos() as u64
    }

    fn tell(&self, event: Event) {
        self.put(lock(&self.shared.queue), event);
    }

    fn put(&self, mut queue: std::sync::MutexGuard<'_, Queue>, event: Event) {
        if queue.is_unheard {
            return;
        }
        queue.filling.events.push(event);
        if queue.filling.events.len() < BATCH {
            return;
        }
        while queue.full.len() >= BATCHES && !queue.ending && !queue.is_unheard {
            queue = self.shared.moved.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let batch = std::mem::take(&mut queue.filling);
        queue.full.push_back(batch);
        self.shared.moved.notify_all();
    }
}

/// Whatever becomes of the thread that makes the profile, nobody waits for it.
struct Unheard<'a>(&'a Shared);

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        lock(&self.0.queue).is_unheard = true;
        self.0.moved.notify_all();
    }
}

/// Takes what the rings' threads say, until they have said all.
fn make(shared: &Shared) -> Result<Recording, Error> {
    let _unheard = Unheard(shared);
    let mut making = Making::default();
    let mut failed = None;
    loop {
        let mut queue = lock(&shared.queue);
        if queue.full.is_empty() && !queue.ending {
            (queue, _) = shared.moved.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
        let batch = queue.full.pop_front().unwrap_or_else(|| std::mem::take(&mut queue.filling));
        making.kernels.extend_from_slice(&queue.kernels[making.kernels.len()..]);
        let is_last = queue.ending && queue.full.is_empty() && queue.filling.events.is_empty();
        drop(queue);
        shared.moved.notify_all();
        if let Some(bytes) = shared.process.get().and_then(|pid| private_bytes(*pid)) {
            making.recording.host_bytes(bytes);
        }
        // Who has more to tell must not wait for one that has failed.
        if failed.is_none() {
            failed = making.take(batch).err();
        }
        if is_last {
            return failed.map_or(Ok(making.recording), Err);
        }
    }
}

/// What a process has in memory that is its own.
fn private_bytes(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut pages = text.split(' ').skip(1).map(|field| field.trim().parse::<u64>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(shared).saturating_mul(4096))
}

#[derive(Default)]
struct Making {
    recording: Recording,
    kernels: Vec<Arc<Kernel>>,
    code: Kernels,
    /// What each of `kernels` reaches.
    reached: HashMap<u32, Option<Arc<ptx::Reach>>>,
}

impl Making {
    fn take(&mut self, Batch { events, parameters }: Batch) -> Result<(), Error> {
        let mut parameters = parameters.as_slice();
        for event in events {
            let memory = &mut self.recording.memory;
            match event {
                Event::Kernel { at, kernel, parameters: len } => {
                    let (own, rest) = parameters.split_at((len as usize).min(parameters.len()));
                    parameters = rest;
                    self.kernel(at, kernel, own)?;
                }
                Event::Graph { at, nodes } => self.recording.boundary(Nanos(at), &graph_name(nodes))?,
                Event::Wait { from, to } => self.recording.waited(Nanos(from), Nanos(to))?,
                Event::Found(Range { base, bytes }) => memory.allocate(base, bytes, true),
                Event::Allocate(Range { base, bytes }) => memory.allocate(base, bytes, false),
                Event::Free(range) => memory.free(range.base),
                Event::Read(Range { base, bytes }) => memory.read(base, bytes),
                Event::Write(Range { base, bytes }) => memory.write(base, bytes),
                Event::Overwrite(Range { base, bytes }) => memory.overwrite(base, bytes),
                Event::Anything => memory.touch_anything(),
            }
        }
        Ok(())
    }

    fn kernel(&mut self, at: u64, number: u32, parameters: &[u8]) -> Result<(), Error> {
        let Some(kernel) = self.kernels.get(number as usize) else { return Ok(()) };
        self.recording.boundary(Nanos(at), &kernel.name)?;
        let reach = self
            .reached
            .entry(number)
            .or_insert_with(|| self.code.reach(&kernel.image, kernel.capability, &kernel.name));
        let memory = &mut self.recording.memory;
        let Some(reach) = reach else {
            memory.touch_anything();
            return Ok(());
        };
        let pointer = |offset: &u64| {
            let at = usize::try_from(*offset).ok()?;
            parameters.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
        };
        reach.reads.iter().filter_map(pointer).for_each(|address| memory.read_around(address));
        reach.writes.iter().filter_map(pointer).for_each(|address| memory.write_around(address));
        Ok(())
    }
}

/// What a graph's launch is called in a profile.
pub(crate) fn graph_name(nodes: usize) -> String {
    format!("graph of {nodes} nodes")
}
