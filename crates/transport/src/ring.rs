//! The two ends of one ring, on any memory that holds a [`RingShared`].
//!
//! A message is a run of 8-byte words: a header (`u32` length in bytes without padding, `u16` opcode, `u16` number of
//! dependencies), two words for each dependency (ring, position), the body. It never crosses the end of the area: where it
//! would, a wrap record fills what is left.

use crate::layout::{MESSAGE_MAX, RingShared};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::{Result, TransportError};
use std::collections::VecDeque;

/// Opcode of a wrap record.
const WRAP: u16 = u16::MAX;

/// What must be done before a message: everything of another ring up to a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dependency {
    /// Number of the other ring; not yet checked.
    pub ring: u16,
    /// Its `async_tail` when the message was submitted.
    pub position: u64,
}

/// A message as the server sees it: a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Where it begins.
    pub position: u64,
    /// Which message it is.
    pub opcode: u16,
    /// What must be done first.
    pub dependencies: &'a [Dependency],
    /// Its encoded fields.
    pub body: &'a [u8],
}

/// What a message needs of the ring, and how it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Pipelined,
    RoundTrip,
}

const fn area<const S: usize>() -> u64 {
    (S * 8) as u64
}

/// The longest message of a ring: half its area at most, so that one fits whatever a wrap record takes.
const fn message_max<const S: usize>() -> usize {
    if S * 4 < MESSAGE_MAX { S * 4 } else { MESSAGE_MAX }
}

const fn word_of<const S: usize>(position: u64) -> usize {
    (position % area::<S>()) as usize / 8
}

/// Writes bytes, in any pieces, as words.
struct WordWriter<'a> {
    words: &'a [AtomicU64],
    /// Bytes not yet a whole word, in the low end.
    pending: u64,
    filled: usize,
}

impl<'a> WordWriter<'a> {
    fn new(words: &'a [AtomicU64]) -> Self {
        Self { words, pending: 0, filled: 0 }
    }

    fn word(&mut self, value: u64) {
        if let Some((first, rest)) = self.words.split_first() {
            first.store(value, Ordering::Relaxed);
            self.words = rest;
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            let value = u64::from_le_bytes(word);
            if self.filled == 0 {
                self.word(value);
            } else {
                self.word(self.pending | value << (8 * self.filled));
                self.pending = value >> (64 - 8 * self.filled);
            }
        }
        for byte in chunks.remainder() {
            self.pending |= u64::from(*byte) << (8 * self.filled);
            self.filled += 1;
            if self.filled == 8 {
                self.word(self.pending);
                (self.pending, self.filled) = (0, 0);
            }
        }
    }

    fn finish(mut self) {
        if self.filled != 0 {
            self.word(self.pending);
        }
    }
}

/// Copies `len` bytes out of words.
fn read_bytes(words: &[AtomicU64], len: usize, to: &mut Vec<u8>) {
    to.resize(len.next_multiple_of(8), 0);
    for (chunk, word) in to.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    to.truncate(len);
}

/// Lines of the next message to fetch ahead: a launch with some parameters.
const PREFETCHED: usize = 4;
/// Words of a cache line.
const LINE: usize = 8;

/// How far behind a message others lie that are taken when all that are in hand have been executed, bytes: 16 launches with some parameters.
const FAR: u64 = 2048;

/// Has the front of `words` brought into the cache.
fn prefetch(words: &[AtomicU64]) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    for word in words.iter().step_by(LINE).take(PREFETCHED) {
        // SAFETY: a hint that reads nothing; the address is that of a word of the ring.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>((&raw const *word).cast())
        };
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = words;
}

/// How far ahead of a message the application's side takes lines for those to come, words: two launches with some parameters.
const AHEAD: usize = 32;

/// Has the lines of the first `count` of `words` taken from the server's cache, which has read them, so that writing them does not wait.
fn own(words: &[AtomicU64], count: usize) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    for word in words.iter().take(count.min(PREFETCHED * LINE)).step_by(LINE) {
        // SAFETY: a hint that changes nothing, and does nothing where a processor does not know it; the address is that of a word of the ring.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = (words, count);
}

/// The application thread's end.
pub(crate) struct Producer {
    tail: u64,
    /// How far the server was when there was last no room: looking again costs a cache miss.
    head: u64,
    /// How much room was wanted then.
    wanted: u64,
    calls: u64,
}

impl Producer {
    /// Goes on where the ring's last owner stopped.
    pub(crate) fn attach<const S: usize, const R: usize>(ring: &RingShared<S, R>) -> Self {
        Self {
            tail: ring.client.0.tail.load(Ordering::Acquire),
            head: ring.server.0.head.load(Ordering::Acquire),
            wanted: 0,
            calls: ring.client.0.reply_wanted.load(Ordering::Acquire),
        }
    }

    /// Publishes a message; `false` when there is no room for it yet.
    pub(crate) fn publish<const S: usize, const R: usize>(
        &mut self,
        ring: &RingShared<S, R>,
        kind: Kind,
        opcode: u16,
        dependencies: &[Dependency],
        body: &[&[u8]],
    ) -> Result<bool> {
        let len = 8 + 16 * dependencies.len() + body.iter().map(|part| part.len()).sum::<usize>();
        let count = u16::try_from(dependencies.len()).unwrap_or(u16::MAX);
        if len > message_max::<S>() || opcode == WRAP || usize::from(count) != dependencies.len() {
            return Err(TransportError::OutOfBounds { what: "message length", value: len });
        }
        let padded = len.next_multiple_of(8) as u64;
        let to_end = area::<S>() - self.tail % area::<S>();
        let skip = if padded > to_end { to_end } else { 0 };
        if !self.has_room::<S>(skip + padded)? {
            self.head = ring.server.0.head.load(Ordering::Acquire);
            if !self.has_room::<S>(skip + padded)? {
                self.wanted = skip + padded;
                return Ok(false);
            }
        }
        // Whoever reads the old bytes of this area after these stores also sees the head that allowed them (`any_pending`).
        fence(Ordering::Release);
        if skip != 0 {
            let header = skip | u64::from(WRAP) << 32;
            ring.submission.0[word_of::<S>(self.tail)].store(header, Ordering::Relaxed);
        }
        let start = word_of::<S>(self.tail + skip);
        let mut to = WordWriter::new(&ring.submission.0[start..]);
        to.word(len as u64 | u64::from(opcode) << 32 | u64::from(count) << 48);
        for dependency in dependencies {
            to.word(dependency.ring.into());
            to.word(dependency.position);
        }
        body.iter().for_each(|part| to.bytes(part));
        to.finish();

        self.tail += skip + padded;
        if kind == Kind::RoundTrip {
            self.calls += 1;
            ring.client.0.reply_wanted.store(self.calls, Ordering::Relaxed);
        }
        ring.client.0.tail.store(self.tail, Ordering::Release);
        if kind == Kind::Pipelined {
            ring.client.0.async_tail.store(self.tail, Ordering::Release);
        }
        ring.sleeping.0.unpark();
        let ahead = start + (padded as usize) / 8 + AHEAD;
        own(ring.submission.0.get(ahead..).unwrap_or_default(), padded as usize / 8);
        Ok(true)
    }

    /// Whether there is room for `bytes` more, as far as is known.
    fn has_room<const S: usize>(&self, bytes: u64) -> Result<bool> {
        match self.tail.checked_sub(self.head) {
            Some(used) if used <= area::<S>() => Ok(used + bytes <= area::<S>()),
            _ => Err(TransportError::Corrupt { ring: 0, what: "head", value: self.head }),
        }
    }

    /// What is published so far has returned to the application: whoever calls next comes behind it.
    pub(crate) fn promise<const S: usize, const R: usize>(&self, ring: &RingShared<S, R>) {
        ring.client.0.async_tail.store(self.tail, Ordering::Release);
    }

    /// The number of the last round trip.
    pub(crate) fn round_trip(&self) -> u64 {
        self.calls
    }

    /// Whether the last round trip has been answered.
    pub(crate) fn answered<const S: usize, const R: usize>(&self, ring: &RingShared<S, R>) -> bool {
        ring.reply_seq.0.load(Ordering::Acquire) >= self.calls
    }

    /// Whether there is room for the message for which [`Producer::publish`] found none, and for many more: between a full ring and one message
    /// less the two sides would take turns at each.
    pub(crate) fn has_drained<const S: usize, const R: usize>(&self, ring: &RingShared<S, R>) -> bool {
        let used = self.tail.saturating_sub(ring.server.0.head.load(Ordering::Acquire));
        used + self.wanted.max(area::<S>() / 4) <= area::<S>()
    }

    /// Copies the answer out; only when it is there.
    pub(crate) fn read_reply<const S: usize, const R: usize>(
        &self,
        ring: &RingShared<S, R>,
        to: &mut Vec<u8>,
    ) -> Result<()> {
        let seq = ring.reply_seq.0.load(Ordering::Acquire);
        if seq != self.calls {
            return Err(TransportError::Corrupt { ring: 0, what: "reply number", value: seq });
        }
        let len = ring.reply.0[0].load(Ordering::Relaxed);
        if len > (R as u64 - 1) * 8 {
            return Err(TransportError::Corrupt { ring: 0, what: "reply length", value: len });
        }
        read_bytes(&ring.reply.0[1..], len as usize, to);
        Ok(())
    }
}

/// The header of a message, checked against the area and against what is published.
struct Header {
    opcode: u16,
    dependencies: usize,
    len: usize,
}

impl Header {
    /// Reads the header at `position`; `end` is the position behind what is published.
    fn read<const S: usize>(area_words: &[AtomicU64; S], position: u64, end: u64) -> Result<Self> {
        let word = area_words[word_of::<S>(position)].load(Ordering::Relaxed);
        let len = word & 0xffff_ffff;
        let (opcode, dependencies) = ((word >> 32) as u16, (word >> 48) as usize);
        let room = (area::<S>() - position % area::<S>()).min(end - position);
        let max = if opcode == WRAP { area::<S>() } else { message_max::<S>() as u64 };
        let fits = len >= 8 + 16 * dependencies as u64 && len <= max && len.next_multiple_of(8) <= room;
        // A wrap record reaches exactly to the end of the area.
        let wraps = opcode != WRAP || (position + len).is_multiple_of(area::<S>());
        if fits && wraps {
            Ok(Self { opcode, dependencies, len: len as usize })
        } else {
            Err(TransportError::Corrupt { ring: 0, what: "message header", value: word })
        }
    }

    fn next(&self, position: u64) -> u64 {
        position + self.len.next_multiple_of(8) as u64
    }

    fn is_wrap(&self) -> bool {
        self.opcode == WRAP
    }

    /// Copies the body out.
    fn read_body<const S: usize>(&self, area_words: &[AtomicU64; S], position: u64, to: &mut Vec<u8>) {
        let skip = 1 + 2 * self.dependencies;
        read_bytes(&area_words[word_of::<S>(position) + skip..], self.len - 8 * skip, to);
    }
}

/// How much a ring's client has published beyond `head`, checked.
fn published<const S: usize, const R: usize>(ring: &RingShared<S, R>, head: u64) -> Result<u64> {
    let tail = ring.client.0.tail.load(Ordering::Acquire);
    match tail.checked_sub(head) {
        Some(used) if used <= area::<S>() && tail.is_multiple_of(8) => Ok(tail),
        _ => Err(TransportError::Corrupt { ring: 0, what: "tail", value: tail }),
    }
}

/// The server thread's end.
pub(crate) struct Consumer {
    head: u64,
    /// How much was published when nothing was left: looking again costs a cache miss.
    tail: u64,
    replies: u64,
    /// Positions behind the messages in hand.
    in_hand: VecDeque<u64>,
    dependencies: Vec<Dependency>,
    body: Vec<u8>,
}

impl Consumer {
    /// Goes on where the last server stopped.
    pub(crate) fn attach<const S: usize, const R: usize>(ring: &RingShared<S, R>) -> Self {
        let head = ring.server.0.head.load(Ordering::Acquire);
        Self {
            head,
            tail: head,
            replies: ring.reply_seq.0.load(Ordering::Acquire),
            in_hand: VecDeque::new(),
            dependencies: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn has_message<const S: usize, const R: usize>(&self, ring: &RingShared<S, R>) -> bool {
        self.tail != self.head || ring.client.0.tail.load(Ordering::Acquire) != self.head
    }

    /// Copies the next message out, if one is published. It stays the next one until it is advanced over or answered.
    pub(crate) fn poll<const S: usize, const R: usize>(
        &mut self,
        ring: &RingShared<S, R>,
    ) -> Result<Option<Message<'_>>> {
        self.in_hand.clear();
        loop {
            if self.tail == self.head {
                self.tail = published(ring, self.head)?;
            }
            if self.tail == self.head {
                return Ok(None);
            }
            let header = Header::read(&ring.submission.0, self.head, self.tail)?;
            self.in_hand.push_back(header.next(self.head));
            if header.is_wrap() {
                self.advance(ring);
                continue;
            }
            return self.copy_out(ring, &header, self.head).map(Some);
        }
    }

    /// Copies out the message behind those in hand, if it is known to be published; if `wanted` makes something of it, it is in hand too, to be advanced
    /// over in its turn.
    pub(crate) fn follow<const S: usize, const R: usize, T>(
        &mut self,
        ring: &RingShared<S, R>,
        wanted: impl FnOnce(Message<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(position) = self.in_hand.back().copied().filter(|position| *position != self.tail) else {
            return Ok(None);
        };
        let header = Header::read(&ring.submission.0, position, self.tail)?;
        if header.is_wrap() {
            return Ok(None);
        }
        let taken = wanted(self.copy_out(ring, &header, position)?);
        if taken.is_some() {
            self.in_hand.push_back(header.next(position));
        }
        Ok(taken)
    }

    fn copy_out<const S: usize, const R: usize>(
        &mut self,
        ring: &RingShared<S, R>,
        header: &Header,
        position: u64,
    ) -> Result<Message<'_>> {
        let words = &ring.submission.0;
        self.dependencies.clear();
        let first = word_of::<S>(position) + 1;
        for pair in words[first..first + 2 * header.dependencies].chunks_exact(2) {
            let number = pair[0].load(Ordering::Relaxed);
            let number = u16::try_from(number).map_err(|_| TransportError::Corrupt {
                ring: 0,
                what: "dependency",
                value: number,
            })?;
            self.dependencies.push(Dependency { ring: number, position: pair[1].load(Ordering::Relaxed) });
        }
        header.read_body(words, position, &mut self.body);
        // What comes next, and what comes when all in hand are executed, crosses from the client's cache meanwhile.
        let next = header.next(position);
        for ahead in [next, next + FAR].into_iter().filter(|ahead| *ahead < self.tail) {
            prefetch(&words[word_of::<S>(ahead)..]);
        }
        Ok(Message { position, opcode: header.opcode, dependencies: &self.dependencies, body: &self.body })
    }

    /// The number of the round trip in hand, if it is one.
    pub(crate) fn round_trip(&self) -> u64 {
        self.replies + 1
    }

    /// The message in hand, the first of them, is executed.
    pub(crate) fn advance<const S: usize, const R: usize>(&mut self, ring: &RingShared<S, R>) {
        if let Some(next) = self.in_hand.pop_front() {
            self.head = next;
            ring.server.0.head.store(next, Ordering::Release);
        }
    }

    /// The message in hand is executed, and this is the answer.
    pub(crate) fn reply<const S: usize, const R: usize>(
        &mut self,
        ring: &RingShared<S, R>,
        bytes: &[u8],
    ) -> Result<()> {
        if bytes.len() > (R - 1) * 8 {
            return Err(TransportError::OutOfBounds { what: "reply length", value: bytes.len() });
        }
        let mut to = WordWriter::new(&ring.reply.0);
        to.word(bytes.len() as u64);
        to.bytes(bytes);
        to.finish();
        self.advance(ring);
        self.replies += 1;
        ring.reply_seq.0.store(self.replies, Ordering::Release);
        ring.waiting.0.unpark();
        Ok(())
    }
}

/// The position that a message submitted to another ring now must come after: this ring's pipelined calls have returned.
pub(crate) fn promised<const S: usize, const R: usize>(ring: &RingShared<S, R>) -> Option<u64> {
    let position = ring.client.0.async_tail.load(Ordering::Acquire);
    (ring.server.0.head.load(Ordering::Acquire) < position).then_some(position)
}

/// Whether the ring has executed everything up to `position`.
///
/// # Errors
/// When the position was never published: nobody may wait for that.
pub(crate) fn is_done<const S: usize, const R: usize>(
    ring: &RingShared<S, R>,
    position: u64,
) -> Result<bool> {
    if ring.server.0.head.load(Ordering::Acquire) >= position {
        return Ok(true);
    }
    if position > ring.client.0.tail.load(Ordering::Acquire) {
        return Err(TransportError::Corrupt { ring: 0, what: "dependency", value: position });
    }
    Ok(false)
}

/// Whether `matches` one of the messages that the ring has not yet executed and that begin before `until`. Called by other
/// threads than the ring's own; what is executed meanwhile no longer counts.
pub(crate) fn any_pending<const S: usize, const R: usize>(
    ring: &RingShared<S, R>,
    until: u64,
    buffer: &mut Vec<u8>,
    mut matches: impl FnMut(u16, &[u8]) -> bool,
) -> Result<bool> {
    let words = &ring.submission.0;
    let mut position = ring.server.0.head.load(Ordering::Acquire);
    while position < until {
        let header = published(ring, position).and_then(|tail| {
            let header = (tail != position).then(|| Header::read(words, position, tail)).transpose()?;
            if let Some(header) = header.as_ref().filter(|header| !header.is_wrap()) {
                header.read_body(words, position, buffer);
            }
            Ok(header)
        });
        // If the message was executed meanwhile, the client may have reused the bytes: what was read of them means nothing.
        fence(Ordering::Acquire);
        let head = ring.server.0.head.load(Ordering::Acquire);
        if head > position {
            position = head;
            continue;
        }
        let Some(header) = header? else { return Ok(false) };
        if !header.is_wrap() && matches(header.opcode, buffer) {
            return Ok(true);
        }
        position = header.next(position);
    }
    Ok(false)
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
