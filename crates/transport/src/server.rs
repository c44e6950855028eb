//! The server's side of a session.

use crate::callbacks::CallbackSender;
use crate::control::{Control, RingState};
use crate::fence::Fence;
use crate::layout::{Ring, RingIndex, SESSION_BYTES, STAGING_BYTES};
use crate::map::{Mapping, SessionMap};
use crate::ring::{Consumer, Dependency, Message, any_pending, is_done};
use crate::staging::Slot;
use crate::sync::Patience;
use crate::trace::{Side, TraceKind};
use crate::{Result, TransportError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The files of a session, as the server has them.
pub struct ServerSession {
    map: Arc<SessionMap>,
    staging: Mapping,
}

impl ServerSession {
    /// Makes the files of a new session in `dir`, which must exist. Its state is [`crate::State::Starting`].
    ///
    /// # Errors
    /// When they exist already or cannot be made.
    pub fn create(dir: &Path) -> Result<Arc<Self>> {
        let map = SessionMap::new(Mapping::create(&dir.join("session"), SESSION_BYTES)?);
        map.make_room()?;
        let staging = Mapping::create(&dir.join("staging"), STAGING_BYTES)?;
        Control::new(&map).initialise();
        Ok(Arc::new(Self { map: Arc::new(map), staging }))
    }

    /// Takes over the files of a session whose server is gone, and counts its generation up.
    ///
    /// # Errors
    /// When they are missing or not of this version.
    pub fn attach(dir: &Path) -> Result<Arc<Self>> {
        let path = dir.join("session");
        let map = SessionMap::new(Mapping::open(&path, SESSION_BYTES)?);
        map.make_room()?;
        let control = Control::new(&map);
        control.check(&path)?;
        // What was zeros takes no room in a file that has come back.
        let taken = control.rings().filter(|(_, state)| *state != RingState::Free);
        taken.into_iter().try_for_each(|(index, _)| map.make_ring_room(index))?;
        let staging = Mapping::open(&dir.join("staging"), STAGING_BYTES)?;
        control.next_generation();
        // Whoever read the trace of the session's former life is gone.
        control.set_traced(false);
        control.close_lanes();
        Ok(Arc::new(Self { map: Arc::new(map), staging }))
    }

    /// The control page.
    #[must_use]
    pub fn control(&self) -> Control<'_> {
        Control::new(&self.map)
    }

    /// Waits until the doorbell has rung since it showed `seen`, or until `timeout` has passed; tells what it shows.
    #[must_use]
    pub fn wait_doorbell(&self, seen: u32, timeout: Duration) -> u32 {
        self.control().wait_doorbell(seen, timeout)
    }

    /// The server's end of a ring. One thread at a time may have it.
    #[must_use]
    pub fn reader(self: &Arc<Self>, index: RingIndex) -> RingReader {
        let consumer = Consumer::attach(self.map.ring(index));
        RingReader { session: Arc::clone(self), index, consumer, patience: Patience::new(), prompt: false }
    }

    /// Wakes the thread that waits in [`RingReader::next`] of a ring.
    pub fn wake(&self, index: RingIndex) {
        self.map.ring(index).sleeping.0.unpark();
    }

    /// Whether a dependency is met without further ado.
    ///
    /// # Errors
    /// When it names no ring or a position that is not published.
    pub fn is_done(&self, dependency: Dependency) -> Result<bool> {
        let (ring, index) = self.named(dependency.ring)?;
        is_done(ring, dependency.position).map_err(|error| at(error, index))
    }

    /// Whether `matches` a message that the dependency's ring has not executed and that comes before its position; gets
    /// opcode and body of each. Messages that are executed meanwhile do not count; the one being executed does.
    ///
    /// # Errors
    /// When the dependency names no ring, or the ring holds something impossible.
    pub fn any_pending(
        &self,
        dependency: Dependency,
        matches: impl FnMut(u16, &[u8]) -> bool,
    ) -> Result<bool> {
        let (ring, index) = self.named(dependency.ring)?;
        any_pending(ring, dependency.position, &mut Vec::new(), matches).map_err(|error| at(error, index))
    }

    fn named(&self, ring: u16) -> Result<(&Ring, RingIndex)> {
        let index = RingIndex::new(ring.into())?;
        Ok((self.map.ring(index), index))
    }

    /// A staging slot.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`] when there is no such slot.
    pub fn slot(&self, ring: RingIndex, slot: usize) -> Result<Slot<'_>> {
        Slot::new(&self.staging, ring, slot)
    }

    /// The fence of a ring.
    #[must_use]
    pub fn fence(&self, ring: RingIndex) -> Fence<'_> {
        self.map.fence(ring)
    }

    /// Address and bytes of all fences in this process, whole pages, to be registered with a device.
    #[must_use]
    pub fn fences_range(&self) -> (u64, u64) {
        let fences = &self.map.control().fences;
        ((&raw const *fences) as u64, size_of_val(fences) as u64)
    }

    /// Address and bytes of all staging slots in this process, to be registered with a device.
    #[must_use]
    pub fn staging_range(&self) -> (u64, u64) {
        (self.staging.base().as_ptr() as u64, self.staging.len() as u64)
    }

    #[cfg(test)]
    pub(crate) fn lane(&self, ring: RingIndex, side: Side) -> &crate::layout::LaneShared {
        self.map.lane(ring, side)
    }

    /// The server's end of the callback ring; one at a time may publish.
    #[must_use]
    pub fn callbacks(&self) -> CallbackSender {
        CallbackSender(Arc::clone(&self.map))
    }
}

/// What a ring has for its server thread.
#[derive(Debug)]
pub enum Next<'a> {
    /// A message: advance over it or reply to it before asking for the next.
    Message(Message<'a>),
    /// Nothing within the time given, or somebody called [`ServerSession::wake`].
    Idle,
    /// The application's thread has ended and everything in the ring is executed.
    Closed,
}

/// The server's end of a ring.
pub struct RingReader {
    session: Arc<ServerSession>,
    index: RingIndex,
    consumer: Consumer,
    patience: Patience,
    prompt: bool,
}

impl RingReader {
    /// Which ring this is.
    #[must_use]
    pub fn index(&self) -> RingIndex {
        self.index
    }

    /// The next message, waiting for it up to `timeout`.
    ///
    /// # Errors
    /// [`TransportError::Corrupt`] when the application wrote something impossible: the session must end.
    pub fn next(&mut self, timeout: Duration) -> Result<Next<'_>> {
        let ring = self.session.map.ring(self.index);
        let control = self.session.control();
        let consumer = &self.consumer;
        let closing = || control.ring_state(self.index) == RingState::Closing;
        self.prompt = consumer.has_message(ring);
        if !self.prompt {
            let ready = || consumer.has_message(ring) || closing();
            let once = || {
                ring.sleeping.0.park(timeout, ready);
                false
            };
            self.patience.wait(ready, once);
        }
        // Seen before the ring is polled, so that nothing published before the end is missed.
        let closed = closing();
        match self.consumer.poll(ring) {
            Ok(Some(message)) => Ok(Next::Message(message)),
            Ok(None) if closed => Ok(Next::Closed),
            Ok(None) => Ok(Next::Idle),
            Err(error) => Err(at(error, self.index)),
        }
    }

    /// The message behind those in hand, if it is there and `wanted` makes something of it: then it is in hand too, and advanced over in its turn.
    ///
    /// # Errors
    /// As [`RingReader::next`].
    pub fn follow<T>(&mut self, wanted: impl FnOnce(Message<'_>) -> Option<T>) -> Result<Option<T>> {
        let ring = self.session.map.ring(self.index);
        self.consumer.follow(ring, wanted).map_err(|error| at(error, self.index))
    }

    /// Puts what began at `start_ns` and ends now into the session's trace.
    pub fn trace(&self, kind: TraceKind, code: u16, start_ns: u64) {
        self.session.map.trace((self.index, Side::Server), kind, code, start_ns);
    }

    /// Whether the message in hand was there when it was asked for.
    #[must_use]
    pub fn is_prompt(&self) -> bool {
        self.prompt
    }

    /// The number of the round trip in hand, as its fence counts.
    #[must_use]
    pub fn round_trip(&self) -> u64 {
        self.consumer.round_trip()
    }

    /// The message in hand, the first of them, a pipelined one, is executed.
    pub fn advance(&mut self) {
        self.consumer.advance(self.session.map.ring(self.index));
    }

    /// The message in hand, a round trip, is executed, and this is its answer.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`] when it is longer than [`crate::REPLY_MAX`]; nothing has been sent then.
    pub fn reply(&mut self, bytes: &[u8]) -> Result<()> {
        self.consumer.reply(self.session.map.ring(self.index), bytes)
    }

    /// After [`Next::Closed`]: the ring may serve another thread. Its positions go on.
    pub fn release(self) {
        self.session.control().change_ring(self.index, RingState::Closing, RingState::Free);
    }
}

/// Says in which ring it was.
pub(crate) fn at(error: TransportError, index: RingIndex) -> TransportError {
    match error {
        TransportError::Corrupt { what, value, .. } => {
            TransportError::Corrupt { ring: index.small(), what, value }
        }
        other => other,
    }
}
