//! Who reads calls, and who carries them out. One thread does both in turn, which costs nothing. Where a call takes long (the
//! device's queue is full, contents are still to come), a second one goes on reading: what the device may wait for meanwhile (a host
//! function's end, what the host has written) must not wait behind the call that waits for the device.

use super::Session;
use super::work::QUERY_NEXT;
use crate::frame::{self, CONTROL_WINDOW, HEADER, IN_PLACE, LONG_MAX};
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
/// Calls that wait to be carried out, bytes: more than a client that keeps to its window can have there.
const WAITING_MAX: usize = LONG_MAX + 2 * CONTROL_WINDOW as usize;

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
    waiting_bytes: usize,
    /// Since when a call is carried out.
    busy: Option<Instant>,
    ended: bool,
}

/// Whose turn it is.
#[derive(Default)]
pub(super) struct Turns(Mutex<State>, Condvar);

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
        lock(&self.turns.0).ended = true;
        ended
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
                state.waiting_bytes -= item.bytes;
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
        self.has_read(item.bytes);
        let Item { number, call, slow, .. } = item;
        self.settle_held(&call);
        if !matches!(call, Call::Ping(_)) {
            self.called();
        }
        if slow {
            let session = Arc::clone(self);
            self.workers.run(move || session.carry_out(number, call));
        } else {
            self.busy.store(true, Ordering::Release);
            self.carry_out(number, call);
            self.hear();
            self.busy.store(false, Ordering::Release);
        }
    }

    /// The next call that has its turn; what has none is done here.
    fn next(self: &Arc<Self>, reader: &mut Reader) -> io::Result<Option<Item>> {
        let header = frame::read(&mut reader.stream, call_limit, &mut reader.body)?;
        self.hear();
        let bytes = HEADER + reader.body.len();
        let call =
            Call::decode(header.opcode, &reader.body).map_err(|error| frame::invalid(error.to_string()))?;
        let mode = Call::mode(header.opcode);
        if (mode == Some(Mode::Pipelined)) != (header.call == 0) {
            return Err(frame::invalid("a call without a number, or with one that it does not need"));
        }
        if header.flags & IN_PLACE != 0 {
            let place = lock(&self.place).clone();
            if place.is_none_or(|place| place.send((header.call, call)).is_err()) {
                return Err(frame::invalid("a call inside of a place that nobody has begun"));
            }
        } else {
            match call {
                Call::HostDone(ask::HostDone { call }) => drop(lock(&self.hosts).remove(&call)),
                // Of a mirror that has just gone there is nothing to change.
                Call::Changes(ask::Changes { base, runs }) => drop(self.mirrors.apply(base, &runs.0)),
                call => {
                    let slow = mode == Some(Mode::Slow);
                    return Ok(Some(Item { bytes, number: header.call, call, slow }));
                }
            }
        }
        self.has_read(bytes);
        Ok(None)
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
                        state.waiting_bytes += item.bytes;
                        state.waiting.push_back(item);
                        if state.waiting_bytes > WAITING_MAX {
                            break Err(frame::invalid("more calls than the client may be ahead"));
                        }
                        if state.busy.is_none() {
                            state.reader = Some(reader);
                            break Ok(());
                        }
                    }
                    Err(error) => break Err(error),
                }
            };
            if read.is_err() {
                lock(&self.turns.0).ended = true;
                self.turns.1.notify_all();
                return read;
            }
            self.turns.1.notify_all();
        }
    }
}
