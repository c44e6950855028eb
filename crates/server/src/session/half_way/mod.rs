//! Marked kernels: launched such that they can be stopped, kept from what comes behind them until they are done, stopped for a cut and launched again behind it
//! (`docs/in-kernel.md`).

mod flight;
mod reason;
mod record;
mod turns;

pub(super) use flight::Flight;
pub use record::{HalfWayRecord, Launched};
pub(super) use turns::Turns;

use super::order::Footprint;
use super::wait::Backoff;
use super::{Caller, Session};
use crate::facts::multiprocessors;
use crate::failure::Result;
use crate::objects::{Function, Module, Stream, StreamKey, Twin};
use crate::session::Reached;
use crate::{lock, read};
use backend::{Range, RawFunction};
use flight::{Fate, Size, Stage, State};
use reason::AsItIs;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::{Discriminant, discriminant};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use wire::{Bytes, LaunchValue, Message, Request};

/// The most memory for blocks that have stopped; those that find no room go on to their end.
const FRAMES_MOST: u64 = 1 << 30;

/// The marked kernels of a session that are not done.
#[derive(Default)]
pub(crate) struct HalfWay {
    /// Whether there is code with marked kernels.
    armed: AtomicBool,
    /// How many are not known to be done.
    count: AtomicUsize,
    board: Mutex<Board>,
    /// Of which kernels it has been told why they are launched as they are, by reasons.
    told: Mutex<HashMap<Discriminant<AsItIs>, HashSet<String>>>,
}

/// Who is where. Whoever holds it waits for no other lock.
#[derive(Default)]
struct Board {
    flights: Vec<Arc<Flight>>,
    /// The work that each ring is about to give, or waits for: no marked kernel gets before that, since it would then be behind it in part.
    claims: BTreeMap<u16, Footprint>,
}

/// A ring's claim, as long as this lives.
pub(super) struct Claim<'a>(Option<(&'a HalfWay, u16)>);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some((half_way, ring)) = self.0 {
            lock(&half_way.board).claims.remove(&ring);
        }
    }
}

/// What comes behind a flight.
fn behind(stream: &Stream) -> Footprint {
    Footprint::Stream(stream.record.key, stream.record.ctx, None)
}

impl Session {
    /// Notes that code is loaded, which may have marked kernels.
    pub(crate) fn note_marked(&self, module: &Module) {
        if module.rewritten.as_ref().is_some_and(|code| code.can_stop()) {
            self.half_way.armed.store(true, Ordering::Release);
        }
    }

    /// What it takes to launch a marked kernel such that it can be stopped; none where it is to be launched as it is. What comes behind it waits from now on.
    pub(super) fn stoppable(
        &self,
        (stream, ring): (&Arc<Stream>, u16),
        function: &Arc<Function>,
        (callee, launch): (u64, &wire::Launch),
    ) -> Option<Arc<Flight>> {
        let twin = function.twin.as_ref()?;
        let Bytes(params) = &launch.params;
        let launched = Launched {
            callee,
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            params: params[..params.len().min(twin.kernel.context as usize)].to_vec(),
        };
        // What is wrong with a launch the device library says.
        let size = Size::of(&twin.kernel, &launched)?;
        let attributes = twin.attributes_for(&launch.attributes).map_err(AsItIs::Attributes);
        let flight = attributes
            .and_then(|attributes| self.prepare((stream, function, twin), launched, size, attributes))
            .and_then(|flight| self.enter(flight, ring));
        flight.map_err(|why| self.half_way.tell(function, &why)).ok()
    }

    /// What it takes to launch a twin, memory included.
    fn prepare(
        &self,
        (stream, function, twin): (&Arc<Stream>, &Arc<Function>, &Twin),
        launched: Launched,
        size: Size,
        attributes: Vec<(u32, LaunchValue)>,
    ) -> std::result::Result<Flight, AsItIs> {
        if size.is_too_large() {
            return Err(AsItIs::Threads(size.blocks() * size.threads()));
        }
        let capacity = self.room((stream, function, twin), &launched, size)?;
        let beside = self.own_stream(&stream.ctx, StreamKey::Stops(stream.ctx.id()))?;
        let range = |bytes| self.device_range(stream, bytes).ok_or(AsItIs::Memory(bytes));
        let control = range(size.control())?;
        let stopped = size.stopped(capacity).ok_or(AsItIs::Memory(u64::MAX)).and_then(range);
        let stopped = stopped.inspect_err(|_| self.free_range(stream, control, false))?;
        Ok(Flight {
            stream: Arc::clone(stream),
            beside,
            function: Arc::clone(function),
            launched,
            attributes,
            size,
            frames: capacity,
            control,
            stage: Mutex::new(Stage { stopped, capacity, from: None, state: State::Waiting }),
        })
    }

    /// For how many blocks of a launch there have to be frames.
    fn room(
        &self,
        (stream, function, twin): (&Stream, &Function, &Twin),
        launched: &Launched,
        size: Size,
    ) -> std::result::Result<u32, AsItIs> {
        let at_a_time = self.blocks_at_a_time((stream, function), twin.raw, launched)?;
        if at_a_time == 0 {
            return Err(AsItIs::Block(size.threads()));
        }
        let (blocks, room) = (size.blocks(), at_a_time.min(FRAMES_MOST / size.frame));
        // Blocks that are all there at a time may wait for one another: for one that is not there yet, or, if they find no frame, for one that has stopped.
        let may_wait = || {
            let natively = || self.blocks_at_a_time((stream, function), function.raw, launched);
            !size.can_stop(twin, room) || !natively().is_ok_and(|natively| blocks > natively)
        };
        if room < blocks && may_wait() {
            return Err(AsItIs::Grid { blocks, room });
        }
        Ok(u32::try_from(room.min(blocks)).unwrap_or(u32::MAX))
    }

    /// Has what comes behind a flight wait for it.
    fn enter(&self, flight: Flight, ring: u16) -> std::result::Result<Arc<Flight>, AsItIs> {
        let flight = Arc::new(flight);
        let is_free = {
            let table = read(&self.table);
            let mut board = lock(&self.half_way.board);
            let ours = behind(&flight.stream);
            let mut others = board.claims.iter().filter(|(other, _)| **other != ring);
            let is_free = others.all(|(_, theirs)| !theirs.conflicts(&ours, &table));
            if is_free {
                self.half_way.add(&mut board, Arc::clone(&flight));
            }
            is_free
        };
        if !is_free {
            self.let_go(&flight, false);
            return Err(AsItIs::Beside);
        }
        Ok(flight)
    }

    /// Launches it, while its stream is given work; false where it is to be launched as it is after all.
    pub(super) fn take_off(&self, flight: &Arc<Flight>) -> bool {
        let submitted = flight.submit(&mut flight.stage()).map_err(AsItIs::from);
        if let Err(why) = &submitted {
            self.half_way.tell(&flight.function, why);
            self.forget(flight, true);
        }
        submitted.is_ok()
    }

    /// Takes one out that is over, or that nothing is to become of: `pending`, if its stream may still have what was given to it.
    pub(super) fn forget(&self, flight: &Arc<Flight>, pending: bool) {
        // Another thread may have seen its end before.
        let gone = self.half_way.remove(&mut lock(&self.half_way.board), |each| Arc::ptr_eq(each, flight));
        gone.iter().for_each(|flight| self.let_go(flight, pending));
    }

    fn add_half_way(&self, flight: Flight) {
        self.half_way.add(&mut lock(&self.half_way.board), Arc::new(flight));
    }

    /// How many blocks of a launch of this the device has at a time, at most.
    fn blocks_at_a_time(
        &self,
        (stream, function): (&Stream, &Function),
        raw: RawFunction,
        launched: &Launched,
    ) -> Result<u64> {
        let (backend, device) = (self.backend(), stream.ctx.device());
        let threads = launched.block.iter().product();
        let each = function.module.occupancy(raw, threads, launched.shared)?;
        let multiprocessors = match &stream.green {
            Some(green) => green.record.count.count,
            None => backend.devices().get(device).map_or(1, multiprocessors),
        };
        Ok(each * u64::from(multiprocessors))
    }

    /// Device memory of the server's own that is in images; none where there is not so much.
    fn device_range(&self, stream: &Stream, bytes: u64) -> Option<Range> {
        let memory = self.devices.get(stream.ctx.device())?;
        let allocation = memory.allocate(stream.record.ctx, bytes).ok()??;
        Some(allocation.range)
    }

    fn free_range(&self, stream: &Stream, range: Range, pending: bool) {
        // In a context that has failed nothing is pending.
        let marker = pending.then(|| stream.ctx.mark(stream.arg()).ok()).flatten();
        if let Some(memory) = self.devices.get(stream.ctx.device()) {
            memory.free(range.base, marker.into_iter().collect());
        }
    }

    fn let_go(&self, flight: &Flight, pending: bool) {
        for range in flight.memory() {
            self.free_range(&flight.stream, range, pending);
        }
    }

    /// Forgets those that are known to be done.
    fn reap(&self) {
        let over = self.half_way.remove(&mut lock(&self.half_way.board), |flight| flight.is_over());
        over.iter().for_each(|flight| self.let_go(flight, false));
    }

    /// Those that are not known to be done.
    fn flights(&self) -> Vec<Arc<Flight>> {
        self.reap();
        lock(&self.half_way.board).flights.clone()
    }

    /// Whether there is code with marked kernels.
    pub(super) fn has_marked(&self) -> bool {
        self.half_way.armed.load(Ordering::Acquire)
    }

    /// Waits until no marked kernel is on its way that `request` has to come behind; outside of the gate, which closes meanwhile. From then on none gets before it, as long as the
    /// claim lives. None when the session ends first.
    pub(super) fn await_half_way(&self, request: &Request, caller: &Caller) -> Option<Claim<'_>> {
        let ours = || match request {
            // Its launches come behind one another, in whichever streams.
            Request::GraphLaunch(launch) if self.is_divided(launch.exec) => Footprint::Session,
            _ => Footprint::of_work(request, caller.number()),
        };
        self.await_half_way_in(ours, caller)
    }

    /// The same, for what touches this.
    pub(super) fn await_half_way_in(
        &self,
        ours: impl FnOnce() -> Footprint,
        caller: &Caller,
    ) -> Option<Claim<'_>> {
        if !self.has_marked() {
            return Some(Claim(None));
        }
        let ours = ours();
        let mut backoff = Backoff::eager();
        loop {
            self.reap();
            {
                let table = read(&self.table);
                let mut board = lock(&self.half_way.board);
                // What is over meanwhile is seen the next time.
                let is_held = |flight: &Arc<Flight>| ours.conflicts(&behind(&flight.stream), &table);
                if !board.flights.iter().any(is_held) {
                    board.claims.insert(caller.number(), ours);
                    return Some(Claim(Some((&self.half_way, caller.number()))));
                }
            }
            if self.is_ending() {
                return None;
            }
            backoff.pause();
        }
    }

    /// Whether one is in this stream that is not known to be done.
    pub(super) fn has_half_way_in(&self, key: &StreamKey) -> bool {
        self.has_half_way() && self.flights().iter().any(|flight| flight.stream.record.key == *key)
    }

    /// Waits until no marked kernel is in any of these streams, or the session ends.
    pub(super) fn await_half_way_in_streams(&self, which: impl Fn(&StreamKey) -> bool) {
        let mut backoff = Backoff::eager();
        while self.has_half_way() && !self.is_ending() {
            if !self.flights().iter().any(|flight| which(&flight.stream.record.key)) {
                return;
            }
            backoff.pause();
        }
    }

    /// Whether there is a marked kernel that is not known to be done.
    pub(super) fn has_half_way(&self) -> bool {
        self.half_way.count.load(Ordering::Acquire) > 0
    }

    /// Whether a marked kernel is not done that the work of a stream is behind, or in it.
    pub(super) fn is_half_way(&self, stream: &Stream) -> bool {
        if !self.has_half_way() {
            return false;
        }
        let (flights, table, ours) = (self.flights(), read(&self.table), behind(stream));
        flights.iter().any(|flight| ours.conflicts(&behind(&flight.stream), &table))
    }

    /// Tells all marked kernels to stop that the device has come to.
    pub(crate) fn stop_half_way(&self) {
        if !self.has_half_way() {
            return;
        }
        for flight in self.flights() {
            if let Err(failure) = flight.ask() {
                tracing::warn!("kernel {} is not told to stop: {failure}", flight.name());
            }
        }
    }

    /// Finds out what has become of the marked kernels, when nothing is given to the device.
    ///
    /// # Errors
    /// Names of those of which that is not known.
    pub(crate) fn settle_half_way(&self) -> std::result::Result<(), Vec<String>> {
        if !self.has_half_way() {
            return Ok(());
        }
        let mut unknown = Vec::new();
        for flight in self.flights() {
            if let Err(failure) = self.settle(&flight) {
                unknown.push(format!("whether kernel {} is done is not known: {failure}", flight.name()));
            }
        }
        if unknown.is_empty() { Ok(()) } else { Err(unknown) }
    }

    /// Finds out what has become of one, and frees what it no longer needs.
    fn settle(&self, flight: &Arc<Flight>) -> Result<Fate> {
        let fate = flight.fate()?;
        match fate {
            Fate::Runs => {}
            Fate::Done => self.forget(flight, false),
            Fate::Stopped => {
                let from = flight.stage().from.take();
                from.into_iter().for_each(|range| self.free_range(&flight.stream, range, false));
            }
        }
        Ok(fate)
    }

    /// Launches those again that have stopped; nothing else is given to their streams meanwhile.
    pub(crate) fn resume_half_way(&self) {
        if !self.has_half_way() || self.is_filling() {
            return;
        }
        for unknown in self.settle_half_way().err().into_iter().flatten() {
            tracing::warn!("{unknown}");
        }
        self.flights().iter().for_each(|flight| self.go_on(flight));
    }

    /// Launches one again if it has stopped; if that fails, nothing is to become of it.
    fn go_on(&self, flight: &Arc<Flight>) {
        if let Err(failure) = self.resume(flight) {
            self.note_failure(&failure, wire::Launch::OPCODE, true);
            self.forget(flight, true);
        }
    }

    /// Launches one again, if it has stopped and there is memory for that.
    fn resume(&self, flight: &Flight) -> Result<()> {
        if !matches!(flight.stage().state, State::Stopped) {
            return Ok(());
        }
        let _reach = self.shadows.reach(|| Reached::Anything)?;
        let _work = flight.stream.begin_launch(flight.launched.callee)?;
        let mut stage = flight.stage();
        let room = |capacity: u32| {
            let range = self.device_range(&flight.stream, flight.size.stopped(capacity)?)?;
            Some((range, capacity))
        };
        // Where there is no room blocks go on to their end, this time.
        let without = || {
            let found = room(0)?;
            let bytes = flight.size.stopped(flight.frames).unwrap_or(u64::MAX);
            tracing::warn!(
                "blocks of the marked {} that have begun hold checkpoints until they end: {bytes} bytes of device memory for what is saved of it are not \
                 there; leave some free",
                flight.name()
            );
            Some(found)
        };
        let Some((stopped, capacity)) = room(flight.frames).or_else(without) else { return Ok(()) };
        stage.from = Some(std::mem::replace(&mut stage.stopped, stopped));
        stage.capacity = capacity;
        flight.submit(&mut stage)
    }

    /// Those that are half-way; the gate is closed and the device idle.
    pub(crate) fn half_way_records(&self) -> Vec<HalfWayRecord> {
        self.flights().iter().filter_map(|flight| flight.record()).collect()
    }
}

impl HalfWay {
    /// Says why a kernel is launched as it is, each reason once.
    fn tell(&self, function: &Function, why: &AsItIs) {
        let mut told = lock(&self.told);
        let told = told.entry(discriminant(why)).or_default();
        if !told.contains(&function.name) {
            told.insert(function.name.clone());
            tracing::warn!(
                "the marked {} is launched as it is, and a checkpoint waits for its end: {why}",
                cpt::in_source(&function.name)
            );
        }
    }

    fn add(&self, board: &mut Board, flight: Arc<Flight>) {
        board.flights.push(flight);
        self.count.store(board.flights.len(), Ordering::Release);
    }

    /// Takes out those that are such, and answers them.
    fn remove(&self, board: &mut Board, is_such: impl Fn(&Arc<Flight>) -> bool) -> Vec<Arc<Flight>> {
        let gone = board.flights.extract_if(.., |flight| is_such(flight)).collect();
        self.count.store(board.flights.len(), Ordering::Release);
        gone
    }
}
