//! What is to be told, or done, when work is complete. One thread looks at the head of each stream's list, as long as there is any.
//!
//! What is complete at a moment is found in two looks: what the first finds complete was behind what the second finds complete at
//! the latest, in whatever stream that was. So the bytes that were copied to the host are on their way, and what was written to
//! mirrors is sent, before anything behind it is told.

use super::Session;
use super::staging::Buffer;
use crate::frame::{INLINE_MAX, PieceHeader};
use crate::lanes::Piece as _;
use crate::messages::{TICKETS_MAX, Word};
use crate::{lock, looks_for};
use backend::{RawContext, RawEvent, Result};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::{Bytes, CuError};

/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;
/// How long the thread looks again at once before it takes its time.
const EAGER: Duration = Duration::from_micros(200);
/// How long the thread that reads calls waits for a stream itself, when it has nothing else to do.
const SOON: Duration = Duration::from_micros(40);
/// Watched events that are looked at in one go.
const LOOSE_MAX: usize = 64;

/// What is waited for at a time, more than a client has objects: each takes a little memory.
const PENDING_MAX: usize = 1 << 20;

/// How it is seen that something is complete.
pub(super) enum Probe {
    /// An event of ours, to be used again.
    Ours(RawContext, RawEvent),
    /// An event of the client's.
    Theirs(RawContext, RawEvent),
    /// It is.
    Now(Result<()>),
}

/// What is to be done then.
pub(super) enum Effect {
    /// Tells a ticket.
    Ticket(u64),
    /// Sends a piece of a transfer.
    Send { transfer: u64, offset: u64, buffer: Buffer },
    /// A buffer that the client's bytes were in is free.
    Release(Buffer),
    /// The same of a buffer whose bytes came with the call.
    Keep(Buffer),
    /// Answers a call.
    Reply { call: u64, error: u32, detail: String, body: Vec<u8> },
    /// Answers a question about a stream, which has been looked at.
    Looked(u64),
    /// Has the client run a host function.
    Host { call: u64, function: u64, error: u32 },
}

/// Something to be seen.
pub(super) struct Entry {
    /// The client's name of the context, and what is in order: a stream's name, or nothing.
    pub(super) ctx: u64,
    pub(super) stream: Option<u64>,
    pub(super) probe: Probe,
    pub(super) effects: Vec<Effect>,
}

#[derive(Default)]
struct Incoming {
    entries: Vec<Entry>,
    /// What is not looked at any more, and where that is told.
    forgotten: Vec<(Gone, std::sync::mpsc::Sender<Vec<Entry>>)>,
    ended: bool,
}

/// What goes while the thread may look at it.
#[derive(Clone, Copy)]
enum Gone {
    Context(u64),
    Event(RawEvent),
}

/// What the thread is given.
#[derive(Default)]
pub(super) struct Completions {
    incoming: Mutex<Incoming>,
    more: Condvar,
    spare: Mutex<HashMap<u64, Vec<RawEvent>>>,
    /// Events of the client's that are looked at, and how often.
    watched: Mutex<HashMap<RawEvent, usize>>,
    idle: AtomicBool,
    /// Entries that the thread has or is about to have, but for those that only keep something.
    pending: AtomicUsize,
}

/// Of effects that tell nobody of anything none need wait for its turn.
fn count(effects: &[Effect]) -> usize {
    usize::from(!effects.iter().all(|effect| matches!(effect, Effect::Keep(_))))
}

type Done = Vec<(Result<()>, Vec<Effect>)>;

/// What the thread looks at.
#[derive(Default)]
struct Lists {
    streams: BTreeMap<(u64, u64), VecDeque<Entry>>,
    loose: VecDeque<Entry>,
}

impl Completions {
    pub(super) fn push(&self, entry: Entry) {
        if let Probe::Theirs(_, event) = entry.probe {
            *lock(&self.watched).entry(event).or_default() += 1;
        }
        self.pending.fetch_add(count(&entry.effects), Ordering::AcqRel);
        lock(&self.incoming).entries.push(entry);
        if self.idle.swap(false, Ordering::AcqRel) {
            self.more.notify_one();
        }
    }

    /// Whether nothing is waited for.
    pub(super) fn are_all_told(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Whether more is waited for than a client that keeps to its objects can have asked for.
    pub(super) fn are_too_many(&self) -> bool {
        self.pending.load(Ordering::Acquire) > PENDING_MAX
    }

    pub(super) fn wake(&self) {
        drop(lock(&self.incoming));
        self.more.notify_one();
    }

    pub(super) fn end(&self) {
        lock(&self.incoming).ended = true;
        self.more.notify_one();
    }

    /// Takes out everything of a context that is about to go; its buffers are still used by its work.
    pub(super) fn forget(&self, ctx: u64) -> Vec<Entry> {
        let entries = self.take_out(Gone::Context(ctx));
        lock(&self.spare).remove(&ctx);
        entries
    }

    /// An event is about to go: whoever watches it is told that it has come.
    pub(super) fn event_gone(&self, event: RawEvent) {
        if lock(&self.watched).remove(&event).is_some() {
            for entry in self.take_out(Gone::Event(event)) {
                self.push(Entry { probe: Probe::Now(Ok(())), ..entry });
            }
        }
    }

    fn take_out(&self, gone: Gone) -> Vec<Entry> {
        let (sender, receiver) = std::sync::mpsc::channel::<Vec<Entry>>();
        {
            let mut incoming = lock(&self.incoming);
            if incoming.ended {
                return Vec::new();
            }
            incoming.forgotten.push((gone, sender));
        }
        self.more.notify_one();
        let entries = receiver.recv().unwrap_or_default();
        let counts = entries.iter().map(|entry| count(&entry.effects));
        self.pending.fetch_sub(counts.sum(), Ordering::AcqRel);
        entries
    }
}

impl Session {
    /// An event of ours, recorded in a stream.
    pub(super) fn record(
        &self,
        name: u64,
        ctx: RawContext,
        stream: backend::StreamArg,
    ) -> Result<(RawContext, RawEvent)> {
        let spare = lock(&self.completions.spare).get_mut(&name).and_then(Vec::pop);
        let event = match spare {
            Some(event) => event,
            None => self.backend.event_create(ctx, UNTIMED)?,
        };
        match self.backend.event_record(ctx, event, stream, 0) {
            Ok(()) => Ok((ctx, event)),
            Err(error) => {
                lock(&self.completions.spare).entry(name).or_default().push(event);
                Err(error)
            }
        }
    }

    /// Whether nothing is pending that would have to be told before.
    pub(super) fn is_alone(&self) -> bool {
        self.completions.are_all_told() && self.mirrors.is_empty()
    }

    /// Waits a moment for a stream or an event, and does at once what is to be done when it has come: where nothing else is pending the thread
    /// need not be woken. Gives the effects back where it takes longer.
    pub(super) fn soon(
        &self,
        query: impl Fn() -> Result<bool>,
        effects: Vec<Effect>,
    ) -> std::result::Result<(), Vec<Effect>> {
        if !self.is_alone() || self.more_calls.load(Ordering::Acquire) {
            return Err(effects);
        }
        let begun = Instant::now();
        loop {
            match query() {
                Ok(false) | Err(CuError::NOT_READY) if begun.elapsed() < SOON => {
                    if looks_for().is_zero() {
                        std::thread::yield_now()
                    } else {
                        std::hint::spin_loop()
                    }
                }
                Ok(false) | Err(CuError::NOT_READY) => return Err(effects),
                Ok(true) => break self.tell(&mut vec![(Ok(()), effects)], &mut Vec::new()),
                Err(error) => break self.tell(&mut vec![(Err(error), effects)], &mut Vec::new()),
            }
        }
        Ok(())
    }

    /// The thread.
    pub(super) fn watch(self: &Arc<Self>) {
        let mut lists = Lists::default();
        let mut next = Done::new();
        let mut last = Instant::now();
        let mut mirrored = (Instant::now(), Duration::ZERO);
        loop {
            if !self.take_incoming(&mut lists, &next) {
                return;
            }
            let mut done = std::mem::take(&mut next);
            self.look(&mut lists, &mut done);
            if done.is_empty() {
                self.step_mirrors(&mut mirrored);
                if last.elapsed() < EAGER {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(Duration::from_micros(20));
                }
                continue;
            }
            if !self.take_incoming(&mut lists, &done) {
                return;
            }
            self.look(&mut lists, &mut next);
            let told = done.iter().map(|(_, effects)| count(effects)).sum();
            self.tell(&mut done, &mut next);
            self.completions.pending.fetch_sub(told, Ordering::AcqRel);
            last = Instant::now();
        }
    }

    /// Waits until there is something to look at; `false` at the end.
    fn take_incoming(&self, lists: &mut Lists, done: &Done) -> bool {
        let completions = &self.completions;
        let mut incoming = lock(&completions.incoming);
        loop {
            for entry in incoming.entries.drain(..) {
                match entry.stream {
                    Some(stream) => lists.streams.entry((entry.ctx, stream)).or_default().push_back(entry),
                    None => lists.loose.push_back(entry),
                }
            }
            for (gone, to) in incoming.forgotten.drain(..) {
                let _ = to.send(lists.forget(gone));
            }
            if incoming.ended {
                incoming.entries.clear();
                return false;
            }
            if !lists.is_empty() || !done.is_empty() {
                return true;
            }
            completions.idle.store(true, Ordering::Release);
            let patience =
                if self.mirrors.is_empty() { Duration::from_secs(1) } else { Duration::from_millis(2) };
            let waited = completions.more.wait_timeout(incoming, patience);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            incoming = back;
            if timeout.timed_out() && !self.mirrors.is_empty() {
                // Work that nobody asks for writes to mirrors too.
                drop(incoming);
                let begun = Instant::now();
                self.send_changes();
                std::thread::sleep((begun.elapsed() * 30).min(Duration::from_millis(500)));
                incoming = lock(&completions.incoming);
            }
        }
    }

    /// Carries over what kernels that run write to mirrors, for a small part of the time.
    fn step_mirrors(&self, (last, cost): &mut (Instant, Duration)) {
        if last.elapsed() > (*cost * 30).max(Duration::from_millis(1)) && !self.mirrors.is_empty() {
            let begun = Instant::now();
            self.send_changes();
            (*last, *cost) = (Instant::now(), begun.elapsed());
        }
    }

    pub(super) fn send_changes(&self) {
        let mut words = Vec::new();
        let _turn = lock(&self.changing);
        self.mirrors.collect(&mut words);
        for word in &words {
            self.say(0, word);
        }
    }

    fn look(&self, lists: &mut Lists, done: &mut Done) {
        lists.streams.retain(|_, list| {
            while let Some(result) = list.front().and_then(|entry| self.probe(&entry.probe)) {
                done.extend(list.pop_front().map(|entry| self.take(entry, result)));
            }
            !list.is_empty()
        });
        // A client may watch thousands of events. No bytes wait for them, so they can take turns.
        for _ in 0..lists.loose.len().min(LOOSE_MAX) {
            let Some(entry) = lists.loose.pop_front() else { break };
            match self.probe(&entry.probe) {
                Some(result) => done.push(self.take(entry, result)),
                None => lists.loose.push_back(entry),
            }
        }
    }

    fn probe(&self, probe: &Probe) -> Option<Result<()>> {
        match probe {
            Probe::Now(result) => Some(*result),
            Probe::Ours(ctx, event) | Probe::Theirs(ctx, event) => {
                match self.backend.event_query(*ctx, *event) {
                    Ok(false) | Err(CuError::NOT_READY) => None,
                    Ok(true) => Some(Ok(())),
                    Err(error) => Some(Err(error)),
                }
            }
        }
    }

    fn take(&self, entry: Entry, result: Result<()>) -> (Result<()>, Vec<Effect>) {
        if let Probe::Theirs(_, event) = entry.probe {
            let mut watched = lock(&self.completions.watched);
            if let Some(count) = watched.get_mut(&event) {
                *count -= 1;
                if *count == 0 {
                    watched.remove(&event);
                }
            }
        }
        if let Probe::Ours(_, event) = entry.probe {
            lock(&self.completions.spare).entry(entry.ctx).or_default().push(event);
        }
        (result, entry.effects)
    }

    /// Has the bytes of everything that is complete on their way, then what was written to mirrors, and then tells what was found
    /// first.
    pub(super) fn tell(&self, first: &mut Done, second: &mut Done) {
        let mut data = Vec::new();
        let mut freed = 0;
        for (result, effects) in first.iter_mut().chain(second.iter_mut()) {
            for effect in
                effects.extract_if(.., |each| matches!(each, Effect::Send { .. } | Effect::Release(_)))
            {
                match effect {
                    Effect::Send { transfer, offset, buffer } if result.is_ok() => {
                        let bytes = buffer.bytes().len();
                        if bytes <= INLINE_MAX {
                            data.push(Word::Data { transfer, offset, data: Bytes(buffer.bytes().to_vec()) });
                        } else {
                            self.lanes.give(PieceHeader { transfer, offset, bytes }, Box::new(buffer));
                        }
                    }
                    Effect::Release(buffer) => {
                        drop(buffer);
                        freed += 1;
                    }
                    _ => {}
                }
            }
        }
        if freed > 0 {
            self.staging.used(freed);
            self.ack();
        }
        if !self.mirrors.is_empty() {
            self.send_changes();
        }
        // Only what has waited has output to be complete; whoever marks a stream of kernels that print waits too.
        if first.iter().flat_map(|(_, effects)| effects).any(|effect| matches!(effect, Effect::Reply { .. }))
        {
            let output = self.backend.take_output();
            data.extend(output.chunks(INLINE_MAX).map(|data| Word::Output { data: Bytes(data.to_vec()) }));
        }
        let after = self.lanes.counts();
        let mut tickets = Vec::new();
        let mut words = Vec::new();
        for (result, effects) in first.drain(..) {
            let met = result.err().map_or(0, CuError::code);
            for effect in effects {
                match effect {
                    Effect::Ticket(ticket) => tickets.push((ticket, met)),
                    Effect::Reply { call, error, detail, body } => {
                        let error = if error == 0 { met } else { error };
                        let after = after.clone();
                        words.push((call, Word::Reply { after, error, detail, body: Bytes(body) }));
                    }
                    Effect::Looked(call) => {
                        let after = after.clone();
                        words.push((
                            call,
                            Word::Reply { after, error: 0, detail: String::new(), body: Bytes::default() },
                        ));
                    }
                    Effect::Host { call, function, error } => {
                        let after = after.clone();
                        words.push((0, Word::HostCall { after, call, function, error }));
                    }
                    Effect::Keep(buffer) => drop(buffer),
                    Effect::Send { .. } | Effect::Release(_) => {}
                }
            }
        }
        let told = |tickets: &[_]| Word::Done { after: after.clone(), tickets: tickets.to_vec() };
        data.extend(tickets.chunks(TICKETS_MAX).map(told));
        let mut all: Vec<(u64, Word)> = data.into_iter().map(|word| (0, word)).collect();
        all.append(&mut words);
        self.say_all(&all);
    }
}

impl Lists {
    fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.loose.is_empty()
    }

    fn forget(&mut self, gone: Gone) -> Vec<Entry> {
        let of = |entry: &mut Entry| match gone {
            Gone::Context(ctx) => entry.ctx == ctx,
            Gone::Event(event) => matches!(entry.probe, Probe::Theirs(_, watched) if watched == event),
        };
        let mut loose: Vec<Entry> = std::mem::take(&mut self.loose).into();
        let mut entries: Vec<Entry> = loose.extract_if(.., of).collect();
        self.loose = loose.into();
        if let Gone::Context(ctx) = gone {
            let names: Vec<(u64, u64)> =
                self.streams.range((ctx, 0)..=(ctx, u64::MAX)).map(|(key, _)| *key).collect();
            entries.extend(names.iter().filter_map(|name| self.streams.remove(name)).flatten());
        }
        entries
    }
}
