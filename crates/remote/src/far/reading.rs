//! Who reads calls, and who carries them out. One thread does both in turn, which costs nothing. Where a call takes long (the
//! device's queue is full, contents are still to come), a second one goes on reading: what the device may wait for meanwhile (a host
//! function's end, what the host has written) must not wait behind the call that waits for the device.

use super::work::QUERY_NEXT;
use super::{Placed, Session};
use crate::frame::{self, BULK_WINDOW, CONTROL_WINDOW, HEADER, IN_PLACE, INLINE_MAX};
use crate::lock;
use crate::messages::{self as ask, Call, Message as _, Mode, call_limit};
use std::collections::VecDeque;
use std::io::{self, BufReader, Read};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After how long a call takes long, and how often that is looked at.
const LONG: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_millis(5);
/// Calls that wait to be carried out, bytes, before one more: more than a client that keeps to its window has there.
const WAITING_MAX: u64 = 2 * CONTROL_WINDOW;
/// Slow calls of some length that are carried out at a time, bytes, but for one that is longer by itself.
const LONG_CALLS: u64 = BULK_WINDOW;

/// The control stream.
struct Reader {
    stream: BufReader<Box<dyn Read + Send>>,
    body: Vec<u8>,
}

/// A call that has been read.
struct Item {
    bytes: usize,
    number: u64,
    call: Call,
    slow: bool,
}

#[derive(Default)]
struct State {
    /// Nobody reads while it is here.
    reader: Option<Reader>,
    waiting: VecDeque<Item>,
    /// Since when a call is carried out.
    busy: Option<Instant>,
    ended: bool,
    /// Why the second thread reads no more.
    failed: Option<io::Error>,
}

/// Whose turn it is.
#[derive(Default)]
pub(super) struct Turns(Mutex<State>, Condvar);

/// Bytes of long calls that are carried out. Whoever comes with more than there is room for waits.
#[derive(Default)]
pub(super) struct LongCalls(Mutex<u64>, Condvar);

/// Room that such a call has taken, until it is dropped.
struct Room<'a>(&'a LongCalls, u64);

impl LongCalls {
    /// Short ones, which may wait for whatever the client likes, hold no long one up, and none holds them up.
    fn enter(&self, bytes: usize) -> Option<Room<'_>> {
        let taken = Some(bytes as u64).filter(|bytes| *bytes > INLINE_MAX as u64)?;
        let full = |under_way: &mut u64| *under_way > 0 && *under_way + taken > LONG_CALLS;
        let under_way = self.1.wait_while(lock(&self.0), full);
        *under_way.unwrap_or_else(PoisonError::into_inner) += taken;
        Some(Room(self, taken))
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        *lock(&self.0.0) -= self.1;
        self.0.1.notify_all();
    }
}

enum Turn {
    Read(Reader),
    CarryOut(Item),
}

impl Session {
    /// Reads calls and carries them out, until the connection ends.
    pub(super) fn read_calls(self: &Arc<Self>, stream: Box<dyn Read + Send>) -> io::Result<()> {
        let stream = BufReader::with_capacity(256 << 10, stream);
        lock(&self.turns.0).reader = Some(Reader { stream, body: Vec::new() });
        let ended = self.take_turns();
        let mut state = lock(&self.turns.0);
        state.ended = true;
        state.failed.take().map_or(ended, Err)
    }

    fn take_turns(self: &Arc<Self>) -> io::Result<()> {
        while !self.is_lost() {
            let item = match self.turn() {
                None => return Ok(()),
                Some(Turn::CarryOut(item)) => {
                    self.more_calls.store(true, Ordering::Release);
                    QUERY_NEXT.set(false);
                    item
                }
                Some(Turn::Read(mut reader)) => {
                    let item = loop {
                        if let Some(item) = self.next(&mut reader)? {
                            break item;
                        }
                    };
                    let more = reader.stream.buffer();
                    self.more_calls.store(!more.is_empty(), Ordering::Release);
                    let next = frame::first(more).map(|header| (header.opcode, header.flags));
                    QUERY_NEXT.set(next == Some((ask::Query::OPCODE, 0)));
                    let mut state = lock(&self.turns.0);
                    state.reader = Some(reader);
                    state.busy = Some(Instant::now());
                    item
                }
            };
            self.begin(item);
            lock(&self.turns.0).busy = None;
        }
        Ok(())
    }

    fn turn(&self) -> Option<Turn> {
        let mut state = lock(&self.turns.0);
        loop {
            if let Some(item) = state.waiting.pop_front() {
                state.busy = Some(Instant::now());
                return Some(Turn::CarryOut(item));
            }
            if let Some(reader) = state.reader.take() {
                return Some(Turn::Read(reader));
            }
            if state.ended {
                return None;
            }
            state = self.turns.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has a call carried out, here or in a thread of its own.
    fn begin(self: &Arc<Self>, item: Item) {
        let Item { bytes, number, call, slow } = item;
        self.settle_held(&call);
        if !matches!(call, Call::Ping(_)) {
            self.called();
        }
        if slow {
            let session = Arc::clone(self);
            self.workers.run(move || {
                let _room = session.long_calls.enter(bytes);
                // Not before: the client is told that there is room for more.
                session.has_read(bytes);
                session.carry_out(number, call);
            });
        } else {
            self.has_read(bytes);
            self.busy.store(true, Ordering::Release);
            self.carry_out(number, call);
            self.hear();
            self.busy.store(false, Ordering::Release);
        }
    }

    /// The next call that has its turn; what has none is done here.
    fn next(self: &Arc<Self>, reader: &mut Reader) -> io::Result<Option<Item>> {
        let header = frame::read(&mut reader.stream, |header| call_limit(header.opcode), &mut reader.body)?;
        self.hear();
        let bytes = HEADER + reader.body.len();
        let come = self.come.fetch_add(bytes as u64, Ordering::AcqRel);
        let call =
            Call::decode(header.opcode, &reader.body).map_err(|error| frame::invalid(error.to_string()))?;
        let mode = Call::mode(header.opcode);
        if (mode == Some(Mode::Pipelined)) != (header.call == 0) {
            return Err(frame::invalid("a call without a number, or with one that it does not need"));
        }
        if header.flags & IN_PLACE != 0 {
            self.may_wait(come)?;
            let place = lock(&self.place).clone();
            if place.is_none_or(|place| place.send(Placed { bytes, number: header.call, call }).is_err()) {
                return Err(frame::invalid("a call inside of a place that nobody has begun"));
            }
            return Ok(None);
        }
        match call {
            Call::HostDone(ask::HostDone { call }) => drop(lock(&self.hosts).remove(&call)),
            // Of a mirror that has just gone there is nothing to change.
            Call::Changes(ask::Changes { base, runs }) => drop(self.mirrors.apply(base, &runs.0)),
            call => {
                self.may_wait(come)?;
                let slow = mode == Some(Mode::Slow);
                return Ok(Some(Item { bytes, number: header.call, call, slow }));
            }
        }
        self.has_read(bytes);
        Ok(None)
    }

    /// Whether a call may wait for its turn behind all that has come before it. What never waits comes however much that is.
    fn may_wait(&self, come: u64) -> io::Result<()> {
        if come.saturating_sub(self.read.load(Ordering::Acquire)) > WAITING_MAX {
            return Err(frame::invalid("more calls than the client may be ahead"));
        }
        if self.completions.are_too_many() {
            return Err(frame::invalid("more is to be told than the client can have asked for"));
        }
        Ok(())
    }

    /// The second thread: reads on where a call takes long, until the first has caught up.
    pub(super) fn read_on(self: &Arc<Self>) -> io::Result<()> {
        loop {
            let mut reader = {
                let mut state = lock(&self.turns.0);
                loop {
                    if state.ended {
                        return Ok(());
                    }
                    if state.busy.is_some_and(|since| since.elapsed() > LONG)
                        && let Some(reader) = state.reader.take()
                    {
                        break reader;
                    }
                    let waited = self.turns.1.wait_timeout(state, LOOK);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            };
            let read = loop {
                match self.next(&mut reader) {
                    Ok(None) => {}
                    Ok(Some(item)) => {
                        let mut state = lock(&self.turns.0);
                        state.waiting.push_back(item);
                        if state.busy.is_none() {
                            state.reader = Some(reader);
                            break Ok(());
                        }
                    }
                    Err(error) => break Err(error),
                }
            };
            if let Err(error) = read {
                let kind = error.kind();
                let mut state = lock(&self.turns.0);
                (state.ended, state.failed) = (true, Some(error));
                self.turns.1.notify_all();
                return Err(kind.into());
            }
            self.turns.1.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn long_calls_take_turns() {
        let calls = LongCalls::default();
        let longer = calls.enter(2 * LONG_CALLS as usize).unwrap();
        assert!(calls.enter(INLINE_MAX).is_none(), "a short one goes on");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(calls.enter(INLINE_MAX + 1)));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            drop(longer);
            waiting.join().unwrap();
        });
        let both = [calls.enter(1 << 20), calls.enter(1 << 20)];
        assert!(both.iter().all(Option::is_some));
    }
}
