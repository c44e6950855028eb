//! A stream of a session, which outlives the connections that carry it.
//!
//! Both ends count its bytes. Whoever writes keeps what the peer has not said to have; whoever reads says so now and then, the other way on the same
//! connection. When a connection ends otherwise than by the peer's word, the next one begins with the count of what has arrived, and what is kept beyond that
//! is written again: nothing is lost, doubled, or out of order, and whoever uses the stream only waits.

use crate::lane::Lane;
use crate::protocol::Role;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use wires::looks_for;

/// The most that is kept for a peer that has not said to have it: about what TCP itself has under way.
const WINDOW: usize = 4 << 20;
/// How much is kept before a writer looks whether the peer has said anything.
const LOOK: usize = 1 << 20;
/// After how many bytes a reader says what it has. A writer that waits for that has sent many times as much.
const TELL: u64 = 256 << 10;
/// The most that is taken at once, so that what is kept and then encrypted is still in the processor's cache.
const STEP: usize = 128 << 10;

/// Why a session is over, once it is.
pub(crate) type Fate = Arc<OnceLock<String>>;

/// A stream, at one of its ends.
pub(crate) struct Line {
    role: Role,
    writes: bool,
    /// Whether it outlives its connections.
    lasts: bool,
    fate: Fate,
    state: Mutex<State>,
    changed: Condvar,
    /// What is known of its connection while somebody uses that. Nobody holds it for long.
    connection: Mutex<Connection>,
}

#[derive(Default)]
struct Connection {
    /// How many it has had.
    count: u64,
    /// To end the last one, while it has it.
    socket: Option<TcpStream>,
    /// Whether the peer, or something on the way, has closed the last one; one that fell silent is not closed.
    closed: bool,
}

#[derive(Default)]
struct State {
    lane: Option<Lane>,
    /// Whether either side has said that this was all.
    finished: bool,
    /// Bytes that whoever uses the stream has given, or been given.
    passed: u64,
    /// Of a writer: the last of them, which the peer may not have.
    kept: VecDeque<u8>,
    /// Of a reader: how many the peer knows of.
    told: u64,
}

impl Line {
    pub fn new(role: Role, writes: bool, lasts: bool, fate: Fate) -> Self {
        let connection = Connection { closed: true, ..Connection::default() };
        Self {
            role,
            writes,
            lasts,
            fate,
            state: Mutex::default(),
            changed: Condvar::new(),
            connection: Mutex::new(connection),
        }
    }

    pub fn role(&self) -> Role {
        self.role
    }

    pub fn writes(&self) -> bool {
        self.writes
    }

    /// Nothing is left half-done by whoever panics with it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> io::Result<()> {
        self.fate.get().map_or(Ok(()), |why| Err(io::Error::other(why.clone())))
    }

    /// Something happened to its connection: it has none from now on. An error when that is the end of it.
    fn break_off(&self, state: &mut State, error: io::Error) -> io::Result<()> {
        state.lane = None;
        self.end_connection(Some(!is_silence(&error)));
        if !self.lasts {
            let _ = self.fate.set(error.to_string());
        }
        self.changed.notify_all();
        if self.lasts { Ok(()) } else { Err(error) }
    }

    /// Ends its connection, while somebody uses that; whether it was closed there, where that is known.
    pub fn end_connection(&self, closed: Option<bool>) {
        let mut connection = self.connection();
        if let Some(socket) = connection.socket.take() {
            let _ = socket.shutdown(Shutdown::Both);
            connection.closed = closed.unwrap_or(connection.closed);
        }
    }

    /// As [`Read::read`]: 0 when the peer has said that this was all.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut guard = self.state();
        loop {
            self.check()?;
            let state = &mut *guard;
            match &mut state.lane {
                None if state.finished => return Ok(0),
                None => guard = self.wait(guard),
                Some(lane) => match lane.read(buffer) {
                    Ok(0) if !buffer.is_empty() => {
                        (state.finished, state.lane) = (true, None);
                        self.end_connection(Some(true));
                    }
                    Ok(bytes) => {
                        state.passed += bytes as u64;
                        if self.lasts && state.passed - state.told >= TELL {
                            state.told = state.passed;
                            // Where this does not arrive, the next connection begins with it.
                            let _ = lane.write_all(&state.passed.to_le_bytes());
                        }
                        return Ok(bytes);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => self.break_off(state, error)?,
                },
            }
        }
    }

    /// As [`Write::write`]. What is taken arrives, unless the session is lost; without a connection it is kept until there is one.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut guard = self.state();
        while guard.kept.len() >= WINDOW {
            self.check()?;
            if guard.lane.is_none() {
                guard = self.wait(guard);
            } else if let Err(error) = guard.listen(true) {
                self.break_off(&mut guard, error)?;
            }
        }
        self.check()?;
        let state = &mut *guard;
        let taken = &bytes[..bytes.len().min(STEP).min(WINDOW - state.kept.len())];
        state.passed += taken.len() as u64;
        if self.lasts {
            state.kept.extend(taken);
        }
        let sent = state.lane.as_mut().map_or(Ok(()), |lane| lane.write_all(taken));
        let sent = sent.and_then(|()| if state.kept.len() >= LOOK { state.listen(false) } else { Ok(()) });
        sent.or_else(|error| self.break_off(state, error))?;
        Ok(taken.len())
    }

    /// Whoever uses it needs it no more. Of a writer's end its peer is told: a reader can tell it from a line that was cut. Nobody waits until what was
    /// written has arrived: a process that ends then has to know that by itself.
    pub fn finish(&self) {
        let mut state = self.state();
        state.finished = true;
        match &mut state.lane {
            Some(lane) if self.writes => lane.farewell(),
            _ => self.end_connection(Some(true)),
        }
        self.changed.notify_all();
    }

    /// How many bytes have arrived; those that it writes itself do not count.
    pub fn arrived(&self) -> u64 {
        if self.writes { 0 } else { self.state().passed }
    }

    /// Goes on with another connection. `greet` is told how many bytes have arrived here, and says how many have there.
    pub fn resume(
        &self,
        mut lane: Lane,
        silence: Option<Duration>,
        greet: impl FnOnce(&mut Lane, u64) -> io::Result<u64>,
    ) -> io::Result<()> {
        // Whoever uses the last one lets go of it.
        self.end_connection(None);
        let mut guard = self.state();
        let state = &mut *guard;
        if state.finished || self.connection().count > 0 && !self.lasts {
            return Err(io::Error::other("its stream has ended"));
        }
        state.lane = None;
        let there = greet(&mut lane, if self.writes { 0 } else { state.passed })?;
        lane.settle(silence.filter(|_| self.lasts && !self.writes))?;
        if self.role.is_control() {
            // Somebody waits for what comes there, and it may come soon.
            lane.look_for(looks_for());
        }
        self.connection().socket = Some(lane.socket()?);
        // Whoever ended the session before has not seen that socket.
        let resumed = self.check().and_then(|()| {
            if self.writes {
                state.forget(there)?;
                let (first, second) = state.kept.as_slices();
                lane.write_all(first)?;
                lane.write_all(second)?;
            }
            Ok(())
        });
        if resumed.is_err() {
            self.end_connection(None);
            return resumed;
        }
        (state.told, state.lane) = (state.passed, Some(lane));
        let mut connection = self.connection();
        connection.count += 1;
        connection.closed = false;
        self.changed.notify_all();
        Ok(())
    }

    /// Does something with the connection, which nobody uses yet.
    pub fn with_lane<T>(&self, act: impl FnOnce(&mut Lane) -> io::Result<T>) -> io::Result<T> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        act(self.state().lane.as_mut().ok_or_else(gone)?)
    }

    /// Waits for a connection after so many, and gives its number and, unless it is gone already, its socket. `None` when there will be none.
    pub fn connection_after(&self, count: u64) -> Option<(u64, Option<TcpStream>)> {
        let mut state = self.state();
        loop {
            if self.fate.get().is_some() || state.finished {
                return None;
            }
            let connection = self.connection();
            if connection.count > count {
                let socket = connection.socket.as_ref();
                return Some((connection.count, socket.and_then(|socket| socket.try_clone().ok())));
            }
            drop(connection);
            state = self.wait(state);
        }
    }

    /// Waits for so long at most; `false` when there is none by then.
    pub fn has_connection_after(&self, count: u64, within: Duration) -> bool {
        let is_missing = |_: &mut State| self.connection().count <= count;
        drop(self.changed.wait_timeout_while(self.state(), within, is_missing));
        self.connection().count > count
    }

    /// The connection of this number has ended. What has arrived on it is still read.
    pub fn has_ended(&self, count: u64, error: io::Error) {
        {
            let mut connection = self.connection();
            if connection.count == count && connection.socket.is_some() {
                connection.closed |= !is_silence(&error);
            }
        }
        if self.writes {
            let mut state = self.state();
            if self.connection().count == count && state.lane.is_some() {
                // Who writes next is told.
                let _ = self.break_off(&mut state, error);
            }
        }
    }

    /// Waits until whoever uses the stream has let go of its connection: whether another is wanted.
    pub fn wants_another(&self) -> bool {
        let mut state = self.state();
        while state.lane.is_some() && self.fate.get().is_none() {
            state = self.wait(state);
        }
        self.fate.get().is_none() && !state.finished
    }

    /// How many connections it has had, and whether the last one was closed.
    pub fn closed(&self) -> (u64, bool) {
        let connection = self.connection();
        (connection.count, connection.closed)
    }

    /// Tells everybody who uses it that the session is over.
    pub fn end(&self) {
        // Of one word on the way out the peer learns it at once.
        if self.role.is_control()
            && self.writes
            && let Ok(mut state) = self.state.try_lock()
            && let Some(lane) = &mut state.lane
        {
            lane.farewell();
        }
        self.end_connection(Some(true));
        drop(self.state());
        self.changed.notify_all();
    }
}

impl State {
    /// Takes what the peer says to have; waits until it says something, or does not.
    fn listen(&mut self, mut waits: bool) -> io::Result<()> {
        while let Some(lane) = &mut self.lane
            && (waits || lane.has_input()?)
        {
            let mut there = [0; 8];
            lane.read_exact(&mut there)?;
            self.forget(u64::from_le_bytes(there))?;
            waits = false;
        }
        Ok(())
    }

    /// Keeps no more what has arrived there.
    fn forget(&mut self, there: u64) -> io::Result<()> {
        let begin = self.passed - self.kept.len() as u64;
        let arrived = there.checked_sub(begin).and_then(|bytes| usize::try_from(bytes).ok());
        let arrived = arrived.filter(|bytes| *bytes <= self.kept.len());
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "the peer has what it was not sent");
        self.kept.drain(..arrived.ok_or_else(nonsense)?);
        Ok(())
    }
}

/// Whether a connection has ended without anybody's having closed it.
fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | HostUnreachable | NetworkUnreachable | NetworkDown)
}
