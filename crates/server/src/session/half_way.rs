//! Marked kernels: launched such that they can be stopped, kept from what comes behind them until they are done, stopped for a cut and launched again behind it
//! (`docs/in-kernel.md`).

use super::order::Footprint;
use super::wait::Backoff;
use super::{Caller, Session};
use crate::facts::multiprocessors;
use crate::failure::{Failure, Result};
use crate::memory::DeviceMemory;
use crate::objects::{Function, Marker, Owner, Stream, StreamKey, Twin};
use crate::session::Reached;
use crate::{lock, read};
use backend::{Fill, Launch, Range};
use cpt::context;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use wire::{Bytes, ContextId, CuError, Message, Request};

/// The most memory for threads that are done: of kernels with more threads a checkpoint waits for the end.
const DONE_MOST: u64 = 64 << 20;
/// The most memory for blocks that have stopped; those that find no room go on to their end.
const FRAMES_MOST: u64 = 1 << 30;

/// The marked kernels of a session that are not done.
#[derive(Default)]
pub(crate) struct HalfWay {
    /// How many there are.
    count: AtomicUsize,
    flights: Mutex<Vec<Flight>>,
}

/// A launch of a marked kernel, and the memory by which it is stopped.
pub(super) struct Flight {
    stream: Arc<Stream>,
    /// By which it is told to stop.
    beside: Arc<Stream>,
    function: Arc<Function>,
    /// Handle of what was launched.
    callee: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: Vec<u8>,
    /// The context of the kernel, and behind that which threads are done.
    control: Range,
    /// Blocks that have stopped, and where their frames lie: of the launch in hand, or of the last one.
    stopped: Range,
    /// For how many blocks there is room in that.
    capacity: u32,
    /// What the launch in hand goes on from.
    from: Option<Range>,
    state: State,
}

enum State {
    /// The device has it.
    Running(Run),
    /// It has not begun, or was stopped.
    Stopped,
}

/// What the device has of a kernel.
struct Run {
    /// Before it: from here on it can be told to stop.
    ready: Marker,
    /// Behind it.
    end: Marker,
    /// Whether it was told to stop.
    asked: bool,
}

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
    /// BLAKE3 of the PTX that its twin is in.
    pub code: [u8; 32],
    /// Handle of what was launched.
    pub callee: u64,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of each.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared: u32,
    /// Parameters.
    pub params: Vec<u8>,
    /// The kernel's context, and which threads are done: device memory.
    pub control: Range,
    /// Which blocks are half-way, and their frames: device memory.
    pub stopped: Range,
    /// For how many blocks there is room in that.
    pub capacity: u32,
}

impl std::fmt::Display for HalfWayRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel {}, which is half-way in {},", self.kernel, self.stream)
    }
}

impl Flight {
    fn blocks(&self) -> u64 {
        product(self.grid)
    }

    fn threads(&self) -> u64 {
        product(self.block)
    }

    fn twin(&self) -> Result<&Twin> {
        self.function.twin.as_ref().ok_or_else(|| CuError::INVALID_HANDLE.into())
    }

    fn is_over(&self) -> bool {
        matches!(&self.state, State::Running(Run { end, asked: false, .. }) if end.is_complete())
    }

    fn holds(&self, ours: &Footprint, table: &crate::objects::Table) -> bool {
        ours.conflicts(&Footprint::Stream(self.stream.record.key, self.stream.record.ctx, None), table)
    }

    /// Zeros in the stream.
    fn clear(&self, range: Range) -> Result<()> {
        let fill =
            Fill { dst: range.base, pitch: 0, element: 4, value: 0, width: range.bytes / 4, height: 1 };
        Ok(self.stream.backend().fill(self.stream.ctx.raw, self.stream.arg(), &fill)?)
    }

    /// Puts numbers into the kernel's context, in a stream.
    fn tell(&self, stream: &Stream, offset: u64, bytes: &[u8]) -> Result<()> {
        let (to, from) = (self.control.base + offset, bytes.as_ptr() as u64);
        Ok(self.stream.backend().copy(stream.ctx.raw, stream.arg(), to, from, bytes.len() as u64)?)
    }

    /// Tells the kernel, which the device has, to stop or not to stop; whether that could be done.
    fn ask(&self, stop: bool) -> bool {
        let told = self.tell(&self.beside, context::STOP, &u32::from(stop).to_le_bytes());
        told.inspect_err(|failure| tracing::warn!("{} is not told to stop: {failure}", self.function.name))
            .is_ok()
    }

    /// Gives the kernel to its stream, the first time or again.
    fn submit(&self) -> Result<Run> {
        let twin = self.twin()?;
        if self.from.is_none() {
            self.clear(self.control)?;
        }
        self.clear(self.stopped)?;
        let slots = slots(self.blocks());
        let from = self.from.map_or(0, |from| from.base);
        let words = [
            (context::CAPACITY, self.capacity.into()),
            (context::DONE, self.control.base + context::BYTES),
            (context::FROM, from),
            (context::INTO, self.stopped.base),
            (context::FRAMES_FROM, from + slots),
            (context::FRAMES_INTO, self.stopped.base + slots),
        ];
        let mut head = [0; context::BYTES as usize];
        for (offset, word) in words {
            head[offset as usize..][..8].copy_from_slice(&u64::to_le_bytes(word));
        }
        self.tell(&self.stream, 0, &head)?;
        let ctx = &self.stream.ctx;
        let ready = ctx.mark(self.stream.arg())?;
        let mut params = self.params.clone();
        params.resize(twin.kernel.context as usize, 0);
        params.extend(self.control.base.to_le_bytes());
        let launch = Launch {
            function: twin.raw,
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            stream: self.stream.arg(),
            attributes: &[],
            params: &params,
        };
        let launched = self.stream.backend().launch(ctx.raw, &launch);
        launched.map_err(|code| Failure::new(code, format!("launch of {}", self.function.name)))?;
        Ok(Run { ready, end: ctx.mark(self.stream.arg())?, asked: false })
    }
}

fn product(of: [u32; 3]) -> u64 {
    of.into_iter().map(u64::from).product()
}

/// Bytes that say which frame each block has.
fn slots(blocks: u64) -> u64 {
    (blocks * 4).next_multiple_of(16)
}

impl Session {
    /// What it takes to launch a marked kernel such that it can be stopped; none where it is to be launched as it is.
    pub(super) fn stoppable(
        &self,
        stream: &Arc<Stream>,
        function: &Arc<Function>,
        (callee, launch): (u64, &wire::Launch),
    ) -> Result<Option<Flight>> {
        let Some(twin) = &function.twin else { return Ok(None) };
        let (blocks, threads) = (product(launch.grid), product(launch.block));
        let done = blocks.saturating_mul(context::words(threads) * 4);
        // What is wrong with a launch the device library says.
        if !launch.attributes.is_empty() || blocks == 0 || threads == 0 || done > DONE_MOST {
            return Ok(None);
        }
        let frame = twin.kernel.frame.bytes(threads, launch.shared.into());
        let capacity = self.blocks_at_a_time(stream, twin, launch)?.min(blocks).min(FRAMES_MOST / frame);
        // Where it is full a checkpoint waits.
        let beside = self.own_stream(&stream.ctx, StreamKey::Stops(stream.ctx.id()))?;
        let Some((control, stopped)) =
            self.memory_for(stream, context::BYTES + done, blocks, capacity, frame)
        else {
            return Ok(None);
        };
        let Bytes(params) = &launch.params;
        Ok(Some(Flight {
            stream: Arc::clone(stream),
            beside,
            function: Arc::clone(function),
            callee,
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            params: params[..params.len().min(twin.kernel.context as usize)].to_vec(),
            control,
            stopped,
            capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
            from: None,
            state: State::Stopped,
        }))
    }

    /// Launches it; to be called while the stream is given work.
    pub(super) fn take_off(&self, mut flight: Flight) -> Result<()> {
        flight.state = State::Running(flight.submit().inspect_err(|_| self.let_go(&flight))?);
        let mut flights = lock(&self.half_way.flights);
        flights.push(flight);
        self.half_way.count.store(flights.len(), Ordering::Release);
        Ok(())
    }

    /// How many blocks of a launch the device has at a time, at most.
    fn blocks_at_a_time(&self, stream: &Stream, twin: &Twin, launch: &wire::Launch) -> Result<u64> {
        let (backend, device) = (self.backend(), stream.ctx.device());
        let threads = u32::try_from(product(launch.block)).unwrap_or(u32::MAX);
        let each = backend.occupancy_blocks(stream.ctx.raw, twin.raw, threads, launch.shared.into(), 0)?;
        let multiprocessors = backend.devices().get(device).map_or(1, multiprocessors);
        Ok(u64::try_from(each).unwrap_or(0) * u64::from(multiprocessors))
    }

    fn memory_for(
        &self,
        stream: &Stream,
        control: u64,
        blocks: u64,
        capacity: u64,
        frame: u64,
    ) -> Option<(Range, Range)> {
        let control = self.device_range(stream, control)?;
        let stopped = self.device_range(stream, slots(blocks) + capacity * frame);
        if stopped.is_none() {
            self.free_range(stream, control);
        }
        Some((control, stopped?))
    }

    /// Device memory of the server's own that is in images; none where there is not so much.
    fn device_range(&self, stream: &Stream, bytes: u64) -> Option<Range> {
        let memory = self.devices.get(stream.ctx.device())?;
        let allocation = memory.allocate(stream.record.ctx, bytes).ok()??;
        Some(allocation.range)
    }

    /// Nothing uses it any more.
    fn free_range(&self, stream: &Stream, range: Range) {
        self.devices
            .get(stream.ctx.device())
            .map(|memory: &DeviceMemory| memory.free(range.base, Vec::new()));
    }

    fn let_go(&self, flight: &Flight) {
        for range in [Some(flight.control), Some(flight.stopped), flight.from].into_iter().flatten() {
            self.free_range(&flight.stream, range);
        }
    }

    /// Forgets those that are done.
    fn reap(&self, flights: &mut Vec<Flight>) {
        for flight in flights.extract_if(.., |flight| flight.is_over()) {
            self.let_go(&flight);
        }
        self.half_way.count.store(flights.len(), Ordering::Release);
    }

    /// Waits until no marked kernel is on its way that `request` has to come behind; outside of the gate, which closes meanwhile. False when the session ends first.
    pub(super) fn await_half_way(&self, request: &Request, caller: &Caller) -> bool {
        !self.has_half_way() || self.await_half_way_in(&Footprint::of_work(request, caller.number()))
    }

    /// The same, for what touches this.
    pub(super) fn await_half_way_in(&self, ours: &Footprint) -> bool {
        let mut backoff = Backoff::new();
        while self.is_held_back(ours) {
            if self.is_ending() {
                return false;
            }
            backoff.pause();
        }
        true
    }

    /// The same, for what is in any of these streams.
    pub(super) fn await_half_way_in_streams(&self, which: impl Fn(&StreamKey) -> bool) {
        let is_in = |flight: &Flight| which(&flight.stream.record.key);
        let mut backoff = Backoff::new();
        while self.has_half_way() && !self.is_ending() {
            let mut flights = lock(&self.half_way.flights);
            self.reap(&mut flights);
            if !flights.iter().any(is_in) {
                return;
            }
            drop(flights);
            backoff.pause();
        }
    }

    /// Whether there is a marked kernel that is not known to be done.
    pub(super) fn has_half_way(&self) -> bool {
        self.half_way.count.load(Ordering::Acquire) > 0
    }

    /// Whether what touches this has to wait for the end of a marked kernel.
    pub(super) fn is_held_back(&self, ours: &Footprint) -> bool {
        if !self.has_half_way() {
            return false;
        }
        let table = read(&self.table);
        let mut flights = lock(&self.half_way.flights);
        self.reap(&mut flights);
        flights.iter().any(|flight| flight.holds(ours, &table))
    }

    /// Tells all marked kernels to stop.
    pub(crate) fn stop_half_way(&self) {
        if !self.has_half_way() {
            return;
        }
        for flight in &mut *lock(&self.half_way.flights) {
            let State::Running(run) = &flight.state else { continue };
            if !run.asked
                && run.ready.is_complete()
                && flight.ask(true)
                && let State::Running(run) = &mut flight.state
            {
                run.asked = true;
            }
        }
    }

    /// Finds out which of the marked kernels that the device has given back are done.
    pub(crate) fn settle_half_way(&self) {
        if !self.has_half_way() {
            return;
        }
        let mut flights = lock(&self.half_way.flights);
        self.reap(&mut flights);
        let done = |flight: &mut Flight| match &flight.state {
            State::Running(run) if run.end.is_complete() => self.is_done(flight).unwrap_or_else(|failure| {
                tracing::warn!("whether {} is done is not known: {failure}", flight.function.name);
                true
            }),
            _ => false,
        };
        for flight in flights.extract_if(.., done) {
            self.let_go(&flight);
        }
        self.half_way.count.store(flights.len(), Ordering::Release);
    }

    /// Whether all threads of a kernel are done that was told to stop and has left the device; it is noted as stopped otherwise.
    fn is_done(&self, flight: &mut Flight) -> Result<bool> {
        let mut words = vec![0u32; (flight.control.bytes - context::BYTES) as usize / 4];
        let stream = &flight.beside;
        let (to, from) = (words.as_mut_ptr() as u64, flight.control.base + context::BYTES);
        self.backend().copy(stream.ctx.raw, stream.arg(), to, from, words.len() as u64 * 4)?;
        self.backend().stream_synchronize(stream.ctx.raw, stream.arg())?;
        let done: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
        if done == flight.blocks() * flight.threads() {
            return Ok(true);
        }
        flight.state = State::Stopped;
        if let Some(from) = flight.from.take() {
            self.free_range(&flight.stream, from);
        }
        Ok(false)
    }

    /// Launches those again that were stopped, and has those go on that are about to; nothing else is given to their streams meanwhile.
    pub(crate) fn resume_half_way(&self) {
        if !self.has_half_way() || self.is_filling() {
            return;
        }
        self.settle_half_way();
        let mut flights = lock(&self.half_way.flights);
        // Those that have been told to stop and did not.
        let asked = |flight: &&Flight| matches!(&flight.state, State::Running(run) if run.asked);
        for flight in flights.iter().filter(asked) {
            flight.ask(false);
        }
        let failed = |flight: &mut Flight| match self.resume(flight) {
            Ok(()) => false,
            Err(failure) => {
                self.note_failure(&failure, wire::Launch::OPCODE, true);
                true
            }
        };
        for flight in flights.extract_if(.., failed) {
            self.let_go(&flight);
        }
        self.half_way.count.store(flights.len(), Ordering::Release);
    }

    /// Launches it again, if it was stopped and there is memory for that.
    fn resume(&self, flight: &mut Flight) -> Result<()> {
        if !matches!(flight.state, State::Stopped) {
            return Ok(());
        }
        // Where there is no room blocks go on to their end.
        let slots = slots(flight.blocks());
        let room =
            self.device_range(&flight.stream, flight.stopped.bytes).map(|range| (range, flight.capacity));
        let Some((stopped, capacity)) =
            room.or_else(|| self.device_range(&flight.stream, slots).map(|range| (range, 0)))
        else {
            return Ok(());
        };
        flight.from = Some(std::mem::replace(&mut flight.stopped, stopped));
        flight.capacity = capacity;
        let _reach = self.shadows.reach(|| Reached::Anything)?;
        let stream = Arc::clone(&flight.stream);
        let _work = stream.begin_launch(flight.callee)?;
        flight.state = State::Running(flight.submit()?);
        Ok(())
    }

    /// Those that are half-way; the gate is closed and the device idle.
    pub(crate) fn half_way_records(&self) -> Vec<HalfWayRecord> {
        let flights = lock(&self.half_way.flights);
        let record = |flight: &Flight| {
            let module = &flight.function.module;
            let code = module.stoppable.as_ref()?.hash;
            Some(HalfWayRecord {
                stream: flight.stream.record.key,
                owner: module.record.owner,
                ctx: module.record.ctx,
                kernel: flight.function.name.clone(),
                code,
                callee: flight.callee,
                grid: flight.grid,
                block: flight.block,
                shared: flight.shared,
                params: flight.params.clone(),
                control: flight.control,
                stopped: flight.stopped,
                capacity: flight.capacity,
            })
        };
        flights.iter().filter_map(record).collect()
    }

    /// Has a kernel of an image go on as soon as others may begin.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it cannot go on in the code that is here, or what the image says of it does not fit.
    pub(crate) fn restore_half_way(&self, record: &HalfWayRecord) -> Result<()> {
        let wrong = |what: &str| Failure::new(CuError::INVALID_VALUE, what.to_owned());
        let table = read(&self.table);
        let find = |key: StreamKey| table.streams.get(&key).cloned().ok_or_else(|| wrong("it has no stream"));
        let (stream, beside) = (find(record.stream)?, find(StreamKey::Stops(record.ctx))?);
        let is_its = |module: &&Arc<crate::objects::Module>| {
            (module.record.owner, module.record.ctx) == (record.owner, record.ctx)
        };
        let module =
            table.loaded_modules().iter().find(is_its).cloned().ok_or_else(|| wrong("it has no module"))?;
        drop(table);
        if module.stoppable.as_ref().is_none_or(|code| code.hash != record.code) {
            return Err(wrong(
                "another version of Dormouse made the code in which it is half-way; restart with the one that made the image",
            ));
        }
        let function = module.function(&record.kernel)?;
        let Some(twin) = &function.twin else { return Err(wrong("it cannot be stopped")) };
        let (blocks, threads) = (product(record.grid), product(record.block));
        let frame = twin.kernel.frame.bytes(threads, record.shared.into());
        let control = blocks.checked_mul(context::words(threads) * 4).map(|bytes| bytes + context::BYTES);
        let frames = u64::from(record.capacity).checked_mul(frame).map(|bytes| bytes + slots(blocks));
        if control != Some(record.control.bytes) || frames != Some(record.stopped.bytes) {
            return Err(wrong("its memory has another size"));
        }
        let flight = Flight {
            stream,
            beside,
            function,
            callee: record.callee,
            grid: record.grid,
            block: record.block,
            shared: record.shared,
            params: record.params.clone(),
            control: record.control,
            stopped: record.stopped,
            capacity: record.capacity,
            from: None,
            state: State::Stopped,
        };
        let mut flights = lock(&self.half_way.flights);
        flights.push(flight);
        self.half_way.count.store(flights.len(), Ordering::Release);
        Ok(())
    }
}
