//! How far streams and events have come, as far as the far end has told, and the errors that contexts are in.

use crate::{LOST, lock, looks_for};
use backend::{MemoryOperation, Range, RawContext, RawEvent, RawStream, Result, StreamArg};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::CuError;

/// A stream, as it is named here.
pub(super) type Key = (u64, u64);

pub(super) fn key(ctx: RawContext, stream: StreamArg) -> Key {
    let stream = match stream {
        StreamArg::Legacy => 0,
        StreamArg::Created(RawStream(name)) => name,
    };
    (ctx.0, stream)
}

/// Pieces of work, counted from the first.
#[derive(Default, Clone, Copy)]
struct Stream {
    submitted: u64,
    /// Up to where the far end has been asked to tell.
    asked: u64,
    done: u64,
}

#[derive(Default)]
struct Event {
    ctx: u64,
    /// Which record it is.
    record: u64,
    /// Where the last record is, when that is known.
    place: Option<(Key, u64)>,
    asked: bool,
    done: bool,
}

#[derive(Default)]
struct Context {
    /// An execution error, from which no context recovers.
    failed: Option<CuError>,
    /// What a pipelined call has met, to be told once.
    deferred: Option<CuError>,
}

/// What the far end tells when it comes true.
pub(super) enum Ticket {
    /// The stream has come there.
    Stream(Key, u64),
    /// That record of the event is complete.
    Event(u64, u64),
    /// These words are to be written.
    Words(Key, Vec<MemoryOperation>),
    /// The bytes of a transfer have come; whether somebody waits for them rather than for the stream.
    Transfer(Key, bool),
}

#[derive(Default)]
struct State {
    streams: BTreeMap<Key, Stream>,
    events: HashMap<u64, Event>,
    contexts: HashMap<u64, Context>,
    tickets: HashMap<u64, Ticket>,
    /// Of transfers that somebody waits for.
    arrived: HashMap<u64, Result<()>>,
    next: u64,
    lost: bool,
}

impl State {
    /// What a call that submits or waits answers before anything else.
    fn check(&mut self, ctx: u64) -> Result<()> {
        if self.lost {
            return Err(LOST);
        }
        let context = self.contexts.get_mut(&ctx).ok_or(CuError::INVALID_CONTEXT)?;
        match context.failed.or_else(|| context.deferred.take()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// What a question answers before anything else, and what the server does for itself: what a call before it has met is left for the
    /// program's next one that submits or waits.
    fn check_alive(&self, ctx: u64) -> Result<()> {
        if self.lost {
            return Err(LOST);
        }
        let context = self.contexts.get(&ctx).ok_or(CuError::INVALID_CONTEXT)?;
        context.failed.map_or(Ok(()), Err)
    }

    fn met(&mut self, ctx: u64, error: CuError) {
        if let Some(context) = self.contexts.get_mut(&ctx) {
            let place = if error.is_sticky() { &mut context.failed } else { &mut context.deferred };
            place.get_or_insert(error);
        }
    }

    fn ticket(&mut self, ticket: Ticket) -> u64 {
        self.next += 1;
        self.tickets.insert(self.next, ticket);
        self.next
    }
}

/// What a question about progress comes to.
pub(super) enum Asked {
    /// It is complete.
    Complete,
    /// The far end is to be asked to tell, by this ticket.
    Ask(u64),
    /// It has been.
    Waiting,
}

/// The client's view of all streams and events.
#[derive(Default)]
pub(super) struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

impl Progress {
    pub(super) fn check(&self, ctx: RawContext) -> Result<()> {
        lock(&self.state).check(ctx.0)
    }

    /// The same without what calls before have met.
    pub(super) fn check_alive(&self, ctx: RawContext) -> Result<()> {
        lock(&self.state).check_alive(ctx.0)
    }

    /// Waits until no word of a range is still to be written when a stream comes there.
    pub(super) fn wait_words(&self, range: Range) {
        let is_there = |ticket: &Ticket| match ticket {
            Ticket::Words(_, operations) => {
                let mut words = operations.iter().filter_map(MemoryOperation::word);
                words.any(|word| word.address < range.end() && range.base < word.address + word.bytes())
            }
            _ => false,
        };
        // Where the connection is lost there is nothing to wait for.
        let _ = self.wait(|state| (!state.tickets.values().any(is_there)).then_some(Ok(())));
    }

    pub(super) fn context_made(&self, ctx: RawContext) {
        lock(&self.state).contexts.insert(ctx.0, Context::default());
    }

    pub(super) fn context_gone(&self, ctx: RawContext) {
        let mut state = lock(&self.state);
        state.contexts.remove(&ctx.0);
        state.streams.retain(|key, _| key.0 != ctx.0);
        state.events.retain(|_, event| event.ctx != ctx.0);
    }

    /// A piece of work has been given to a stream; its number. It counts once it has been pushed, so that whoever asks for it asks
    /// behind it.
    pub(super) fn submitted(&self, key: Key) -> u64 {
        let mut state = lock(&self.state);
        // The legacy stream is complete only when what it is ordered with is: a mark in it waits for that.
        if key.1 != 0 {
            state.streams.entry((key.0, 0)).or_default().submitted += 1;
        }
        let stream = state.streams.entry(key).or_default();
        stream.submitted += 1;
        stream.submitted
    }

    pub(super) fn stream_gone(&self, key: Key) {
        lock(&self.state).streams.remove(&key);
    }

    pub(super) fn event_made(&self, ctx: RawContext, event: RawEvent) {
        let made = Event { ctx: ctx.0, done: true, ..Event::default() };
        lock(&self.state).events.insert(event.0, made);
    }

    pub(super) fn event_gone(&self, event: RawEvent) {
        lock(&self.state).events.remove(&event.0);
    }

    /// The event has been recorded, at that piece of work of the stream.
    pub(super) fn recorded(&self, event: RawEvent, place: Option<(Key, u64)>) {
        if let Some(event) = lock(&self.state).events.get_mut(&event.0) {
            event.record += 1;
            (event.place, event.asked, event.done) = (place, false, false);
        }
    }

    pub(super) fn ticket(&self, ticket: Ticket) -> u64 {
        lock(&self.state).ticket(ticket)
    }

    pub(super) fn ask_stream(&self, key: Key) -> Result<Asked> {
        let mut state = lock(&self.state);
        state.check_alive(key.0)?;
        let Some(stream) = state.streams.get_mut(&key) else { return Ok(Asked::Complete) };
        let upto = stream.submitted;
        if stream.done >= upto {
            return Ok(Asked::Complete);
        }
        if stream.asked >= upto {
            return Ok(Asked::Waiting);
        }
        stream.asked = upto;
        Ok(Asked::Ask(state.ticket(Ticket::Stream(key, upto))))
    }

    pub(super) fn ask_event(&self, event: RawEvent) -> Result<Asked> {
        let mut state = lock(&self.state);
        let State { events, streams, .. } = &mut *state;
        let known = events.get_mut(&event.0).ok_or(CuError::INVALID_HANDLE)?;
        let (ctx, record) = (known.ctx, known.record);
        let passed =
            known.place.is_some_and(|(key, at)| streams.get(&key).is_some_and(|stream| stream.done >= at));
        known.done |= passed;
        let (done, asked) = (known.done, known.asked);
        state.check_alive(ctx)?;
        if done {
            return Ok(Asked::Complete);
        }
        if asked {
            return Ok(Asked::Waiting);
        }
        if let Some(known) = state.events.get_mut(&event.0) {
            known.asked = true;
        }
        Ok(Asked::Ask(state.ticket(Ticket::Event(event.0, record))))
    }

    /// What a stream has been given so far.
    pub(super) fn given_to(&self, key: Key) -> u64 {
        lock(&self.state).streams.get(&key).map_or(0, |stream| stream.submitted)
    }

    /// Waits until a stream has come there. `NOT_READY` when it is to be asked for again.
    pub(super) fn wait_stream(&self, key: Key, upto: u64) -> Result<()> {
        self.wait(|state| {
            let Some(stream) = state.streams.get(&key).copied() else { return Some(state.check(key.0)) };
            match state.check(key.0) {
                Ok(()) if stream.done >= upto => Some(Ok(())),
                Ok(()) if stream.asked < upto => Some(Err(CuError::NOT_READY)),
                Ok(()) => None,
                failed => Some(failed),
            }
        })
    }

    /// Waits until the record that the event has now is complete. `NOT_READY` when it is to be asked for again.
    pub(super) fn wait_event(&self, event: RawEvent) -> Result<()> {
        let mut record = None;
        self.wait(|state| {
            let Some(known) = state.events.get(&event.0) else { return Some(Err(CuError::INVALID_HANDLE)) };
            let (ctx, asked) = (known.ctx, known.asked);
            let done = known.done || known.record > *record.get_or_insert(known.record);
            match state.check(ctx) {
                Ok(()) if done => Some(Ok(())),
                Ok(()) if !asked => Some(Err(CuError::NOT_READY)),
                Ok(()) => None,
                failed => Some(failed),
            }
        })
    }

    /// Waits for the bytes of a transfer.
    pub(super) fn wait_transfer(&self, transfer: u64) -> Result<()> {
        self.wait(|state| state.arrived.remove(&transfer))
    }

    fn wait(&self, mut ready: impl FnMut(&mut State) -> Option<Result<()>>) -> Result<()> {
        let begun = Instant::now();
        let mut state = lock(&self.state);
        loop {
            if state.lost {
                return Err(LOST);
            }
            if let Some(result) = ready(&mut state) {
                return result;
            }
            if begun.elapsed() < looks_for() {
                drop(state);
                std::hint::spin_loop();
                state = lock(&self.state);
                continue;
            }
            let waited = self.changed.wait_timeout(state, Duration::from_secs(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What has come true; `words` writes words of memory, `ended` hears of transfers. `false` for a ticket that nobody holds.
    pub(super) fn done(
        &self,
        tickets: &[(u64, u32)],
        words: impl Fn(&MemoryOperation),
        mut ended: impl FnMut(u64, bool),
    ) -> bool {
        let mut state = lock(&self.state);
        for (number, error) in tickets {
            let result = CuError::from_code(*error).map_or(Ok(()), Err);
            let Some(ticket) = state.tickets.remove(number) else { return false };
            let reached = |state: &mut State, key: Key, upto| {
                match (state.streams.get_mut(&key), result) {
                    (Some(stream), Ok(())) => stream.done = stream.done.max(upto),
                    // Whoever still waits asks again.
                    (Some(stream), Err(_)) => stream.asked = stream.done,
                    (None, _) => {}
                }
            };
            let ctx = match ticket {
                Ticket::Stream(key, upto) => {
                    reached(&mut state, key, upto);
                    key.0
                }
                Ticket::Event(name, record) => {
                    let State { events, .. } = &mut *state;
                    let Some(event) = events.get_mut(&name) else { continue };
                    if event.record == record {
                        (event.done, event.asked) = (result.is_ok(), result.is_ok());
                        let place = event.place;
                        let ctx = event.ctx;
                        if let Some((key, at)) = place {
                            reached(&mut state, key, at);
                        }
                        ctx
                    } else {
                        event.ctx
                    }
                }
                Ticket::Words(key, operations) => {
                    if result.is_ok() {
                        operations.iter().for_each(&words);
                    }
                    key.0
                }
                Ticket::Transfer(key, awaited) => {
                    ended(*number, result.is_ok());
                    if awaited {
                        state.arrived.insert(*number, result);
                        if result.is_err_and(|error| !error.is_sticky()) {
                            continue;
                        }
                    }
                    key.0
                }
            };
            if let Err(error) = result {
                state.met(ctx, error);
            }
        }
        self.changed.notify_all();
        true
    }

    /// Everything that these streams had been given is complete.
    pub(super) fn all_done(&self, upto: &[(Key, u64)]) {
        let mut state = lock(&self.state);
        for (key, upto) in upto {
            if let Some(stream) = state.streams.get_mut(key) {
                stream.done = stream.done.max(*upto);
            }
        }
        self.changed.notify_all();
    }

    /// Whether a stream is known to have come there.
    pub(super) fn has_passed(&self, (key, at): (Key, u64)) -> bool {
        lock(&self.state).streams.get(&key).is_some_and(|stream| stream.done >= at)
    }

    /// What the streams of a context have been given.
    pub(super) fn given(&self, ctx: RawContext) -> Vec<(Key, u64)> {
        let state = lock(&self.state);
        let streams = state.streams.range((ctx.0, 0)..=(ctx.0, u64::MAX));
        streams.map(|(key, stream)| (*key, stream.submitted)).collect()
    }

    /// A pipelined call of a context has failed, or its work.
    pub(super) fn failed(&self, ctx: RawContext, error: CuError) {
        lock(&self.state).met(ctx.0, error);
        self.changed.notify_all();
    }

    #[cfg(test)]
    pub(super) fn is_told(&self) -> bool {
        lock(&self.state).tickets.is_empty()
    }

    pub(super) fn lose(&self) {
        lock(&self.state).lost = true;
        self.changed.notify_all();
    }
}
