//! A context: its streams, and the error that breaks it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use wire::{ConditionKind, CuError, MemoryOperation};

use super::event::Record;
use super::queue::Item;
use super::{Choice, Copy3, Event, Stream, Ticket, Work, operations, work};
use crate::exec::Launch;
use crate::memory::Memory;
use crate::sched::{Grid, Pool};

/// Copies from plain memory up to this size are taken at the call; for larger ones the call waits.
const TAKEN_AT_ONCE: u64 = 64 << 10;

struct Streams {
    legacy: Arc<Stream>,
    created: Vec<Arc<Stream>>,
    /// Ends of streams that were destroyed with work in them.
    leftover: Vec<(bool, Ticket)>,
}

/// What executing work needs.
struct Executor {
    memory: Arc<Memory>,
    pool: Arc<Pool>,
    /// The first execution error: from then on nothing is executed.
    error: OnceLock<CuError>,
    /// Nobody waits for what is left any more.
    ending: AtomicBool,
}

/// A context.
pub struct Context {
    /// The device.
    pub device: usize,
    executor: Arc<Executor>,
    streams: Mutex<Streams>,
}

type Result<T> = std::result::Result<T, CuError>;

impl Context {
    /// A context with nothing in it.
    pub fn new(device: usize, memory: Arc<Memory>, pool: Arc<Pool>) -> Self {
        let streams = Streams { legacy: Stream::new(true), created: Vec::new(), leftover: Vec::new() };
        let executor =
            Arc::new(Executor { memory, pool, error: OnceLock::new(), ending: AtomicBool::new(false) });
        Self { device, executor, streams: Mutex::new(streams) }
    }

    /// The error that broke the context, if any.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<()> {
        self.executor.error.get().map_or(Ok(()), |error| Err(*error))
    }

    /// The legacy stream.
    pub fn legacy(&self) -> Arc<Stream> {
        self.lock().legacy.clone()
    }

    /// A new stream.
    pub fn create_stream(&self, blocking: bool) -> Arc<Stream> {
        let stream = Stream::new(blocking);
        self.lock().created.push(stream.clone());
        stream
    }

    /// Forgets a stream; what is in it still completes, and is waited for like before.
    pub fn destroy_stream(&self, stream: &Arc<Stream>) {
        let mut streams = self.lock();
        streams.created.retain(|each| !Arc::ptr_eq(each, stream));
        streams.leftover.retain(|(_, ticket)| !ticket.is_done());
        streams.leftover.push((stream.blocking, stream.tail()));
        stream.end();
    }

    /// Appends work to a stream.
    ///
    /// # Errors
    /// The error that broke the context.
    pub fn submit(&self, stream: &Arc<Stream>, work: Work) -> Result<Ticket> {
        self.submit_after(stream, Vec::new(), work)
    }

    /// Appends several pieces to a stream, with nothing between them; each may wait for tickets of its own. Gives
    /// each piece's ticket.
    ///
    /// # Errors
    /// The error that broke the context.
    pub fn submit_all(
        &self,
        stream: &Arc<Stream>,
        pieces: impl Iterator<Item = (Vec<Ticket>, Work)>,
    ) -> Result<Vec<Ticket>> {
        self.check()?;
        let streams = self.lock();
        pieces.map(|(after, work)| self.append(&streams, stream, after, work)).collect()
    }

    fn submit_after(&self, stream: &Arc<Stream>, after: Vec<Ticket>, work: Work) -> Result<Ticket> {
        self.check()?;
        // Held until the work is in its queue: what is submitted later sees it.
        let streams = self.lock();
        self.append(&streams, stream, after, work)
    }

    fn append(
        &self,
        streams: &Streams,
        stream: &Arc<Stream>,
        mut after: Vec<Ticket>,
        work: Work,
    ) -> Result<Ticket> {
        if Arc::ptr_eq(stream, &streams.legacy) {
            let blocking = streams.created.iter().filter(|each| each.blocking).map(|each| each.tail());
            let left =
                streams.leftover.iter().filter(|(blocking, _)| *blocking).map(|(_, ticket)| ticket.clone());
            after.extend(blocking.chain(left));
        } else if stream.blocking {
            after.push(streams.legacy.tail());
        }
        after.retain(|ticket| !ticket.is_done());
        let executor = self.executor.clone();
        stream.submit(Item { after, work }, move |work| executor.run(work))
    }

    /// Submits a copy, and waits for it where plain host memory is read or written later than the call may take.
    ///
    /// # Errors
    /// The error that broke the context.
    pub fn copy(&self, stream: &Arc<Stream>, copy: Copy3) -> Result<()> {
        self.check()?;
        if copy.is_empty() {
            return Ok(());
        }
        copy.validate(&self.executor.memory)?;
        let (dst_plain, src_plain) = copy.plain_sides(&self.executor.memory);
        let linear = copy.height == 1 && copy.depth == 1;
        if src_plain && !dst_plain && linear && copy.width <= TAKEN_AT_ONCE {
            // SAFETY: the caller promises that plain host memory is there during the call (`Backend::copy`).
            let bytes =
                unsafe { std::slice::from_raw_parts(copy.src.address as *const u8, copy.width as usize) };
            self.submit(stream, Work::CopyFrom(copy.dst.address, bytes.to_vec()))?;
            return Ok(());
        }
        let ticket = self.submit(stream, Work::Copy(copy))?;
        if dst_plain || src_plain {
            ticket.wait();
            return self.check();
        }
        Ok(())
    }

    /// Submits a fill of `height` rows of `width` elements.
    ///
    /// # Errors
    /// When nothing is there; the error that broke the context.
    pub fn fill(
        &self,
        stream: &Arc<Stream>,
        dst: u64,
        pitch: u64,
        value: Vec<u8>,
        [width, height]: [u64; 2],
    ) -> Result<()> {
        self.check()?;
        let row = width.checked_mul(value.len() as u64).ok_or(CuError::INVALID_VALUE)?;
        work::validate_fill(&self.executor.memory, dst, pitch, row, height)?;
        self.submit(stream, Work::Fill { dst, pitch, value, width, height }).map(drop)
    }

    /// Submits operations on words of memory.
    ///
    /// # Errors
    /// When a word is not there; the error that broke the context.
    pub fn operate(&self, stream: &Arc<Stream>, operations: &[MemoryOperation]) -> Result<()> {
        self.check()?;
        operations::validate(&self.executor.memory, operations)?;
        self.submit(stream, Work::Operations(operations.to_vec())).map(drop)
    }

    /// Whether a stream has nothing to do.
    ///
    /// # Errors
    /// The error that broke the context.
    pub fn query(&self, stream: &Arc<Stream>) -> Result<bool> {
        let done = self.ends(stream).iter().all(Ticket::is_done);
        self.check().map(|()| done)
    }

    /// Waits until a stream has nothing to do.
    ///
    /// # Errors
    /// The error that broke the context.
    pub fn synchronize(&self, stream: &Arc<Stream>) -> Result<()> {
        self.ends(stream).iter().for_each(Ticket::wait);
        self.check()
    }

    /// The end of a stream; the legacy stream also waits for what it is ordered with.
    fn ends(&self, stream: &Arc<Stream>) -> Vec<Ticket> {
        let streams = self.lock();
        let mut ends = vec![stream.tail()];
        if Arc::ptr_eq(stream, &streams.legacy) {
            ends.extend(streams.created.iter().filter(|each| each.blocking).map(|each| each.tail()));
            ends.extend(
                streams.leftover.iter().filter(|(blocking, _)| *blocking).map(|(_, ticket)| ticket.clone()),
            );
        }
        ends
    }

    /// Waits for everything.
    ///
    /// # Errors
    /// The error that broke the context.
    pub fn synchronize_all(&self) -> Result<()> {
        let ends: Vec<Ticket> = {
            let streams = self.lock();
            let created = streams.created.iter().map(|stream| stream.tail());
            let left = streams.leftover.iter().map(|(_, ticket)| ticket.clone());
            created.chain(left).chain([streams.legacy.tail()]).collect()
        };
        ends.iter().for_each(Ticket::wait);
        self.check()
    }

    /// Records an event.
    ///
    /// # Errors
    /// The error that broke the context.
    pub fn record(&self, event: &Event, stream: &Arc<Stream>) -> Result<()> {
        if let Some(shared) = &event.shared {
            return self.submit(stream, Work::Signal(shared.begin())).map(drop);
        }
        let time = Arc::new(OnceLock::<Instant>::new());
        let ticket = self.submit(stream, Work::Mark(time.clone()))?;
        event.set(Record { ticket, time });
        Ok(())
    }

    /// What follows in the stream waits for the event's last record.
    ///
    /// # Errors
    /// The error that broke the context.
    pub fn wait_event(&self, stream: &Arc<Stream>, event: &Event) -> Result<()> {
        if let Some(shared) = &event.shared {
            let number = shared.latest();
            return match shared.is_complete(number) {
                true => self.check(),
                false => self.submit(stream, Work::Await(Arc::clone(shared), number)).map(drop),
            };
        }
        match event.get() {
            Some(record) => self.submit_after(stream, vec![record.ticket], Work::Nothing).map(drop),
            None => self.check(),
        }
    }

    /// Lets the threads of all streams end when their work is done.
    pub fn end(&self) {
        self.executor.ending.store(true, Ordering::Release);
        let streams = self.lock();
        streams.created.iter().chain([&streams.legacy]).for_each(|stream| stream.end());
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Executor {
    /// Whether nobody waits for what is left.
    fn is_over(&self) -> bool {
        self.error.get().is_some() || self.ending.load(Ordering::Acquire)
    }

    fn run_grid(&self, launch: Launch, resident: usize) -> Result<()> {
        let name = launch.image.functions[launch.kernel].name.clone();
        self.pool.run(Grid::new(launch, resident)).map_err(|fault| {
            tracing::error!(kernel = %name, "{fault}");
            fault.code()
        })
    }

    /// Runs the bodies that a condition asks for, as long as it does.
    fn choose(&self, choice: &Choice) -> Result<()> {
        while let Some(body) = choice.next() {
            for work in body {
                self.run_again(work)?;
            }
            if choice.kind != ConditionKind::While || self.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// Runs work that stays as it is: what a body can hold.
    fn run_again(&self, work: &Work) -> Result<()> {
        match work {
            Work::Nothing => Ok(()),
            Work::Launch(launch, resident) => {
                let launch = launch.again().map_err(|_| CuError::OUT_OF_MEMORY)?;
                self.run_grid(launch, *resident)
            }
            Work::Copy(copy) => copy.run(&self.memory),
            Work::Fill { dst, pitch, value, width, height } => {
                work::fill(&self.memory, *dst, *pitch, value, *width, *height)
            }
            Work::Choice(choice) => self.choose(choice),
            _ => Err(CuError::NOT_SUPPORTED),
        }
    }

    fn run(&self, work: Work) {
        let broken = self.error.get().copied();
        let outcome = match work {
            Work::Host(function) => {
                function(broken.map_or(Ok(()), Err));
                Ok(())
            }
            Work::Mark(time) => {
                time.get_or_init(Instant::now);
                Ok(())
            }
            Work::Signal(signal) => {
                drop(signal);
                Ok(())
            }
            Work::Nothing => Ok(()),
            _ if broken.is_some() => Ok(()),
            Work::Begin(conditions) => {
                conditions.iter().for_each(|condition| condition.begin());
                Ok(())
            }
            Work::Launch(launch, resident) => self.run_grid(*launch, resident),
            Work::Choice(choice) => self.choose(&choice),
            Work::Await(shared, number) => {
                operations::wait(|| shared.is_complete(number) || self.is_over());
                Ok(())
            }
            Work::Copy(copy) => copy.run(&self.memory),
            Work::CopyFrom(dst, bytes) => work::copy_from(&self.memory, dst, &bytes),
            Work::Operations(list) => operations::run(&self.memory, &list, || self.is_over()),
            Work::Fill { dst, pitch, value, width, height } => {
                work::fill(&self.memory, dst, pitch, &value, width, height)
            }
        };
        if let Err(error) = outcome {
            self.error.get_or_init(|| error);
        }
    }
}
