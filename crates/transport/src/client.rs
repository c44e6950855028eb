//! The application's side of a session.

use crate::callbacks::CallbackReceiver;
use crate::control::{Control, RingState, State};
use crate::layout::{MAX_RINGS, Ring, RingIndex, SESSION_BYTES, SLOT_BYTES, STAGING_BYTES};
use crate::map::{Mapping, SessionMap};
use crate::ring::{Dependency, Kind, Producer, promised};
use crate::room::Room;
use crate::server::at;
use crate::staging::{self, Slot};
use crate::sync::{NAP, Patience};
use crate::trace::{Side, TraceKind, trace_clock};
use crate::{Result, TransportError};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The files of a session, as the application has them. No descriptor stays open.
pub struct ClientSession {
    map: Arc<SessionMap>,
    staging: Mapping,
    dir: PathBuf,
}

impl ClientSession {
    /// Maps the files of the session in `dir`. A child of this process will not have the mappings.
    ///
    /// # Errors
    /// When they are missing or not of this version.
    pub fn open(dir: &Path) -> Result<Arc<Self>> {
        let path = dir.join("session");
        let map = SessionMap::new(Mapping::open(&path, SESSION_BYTES)?);
        Control::new(&map).check(&path)?;
        map.mapping().keep_private(&path)?;
        let path = dir.join("staging");
        let staging = Mapping::open(&path, STAGING_BYTES)?;
        staging.keep_private(&path)?;
        Ok(Arc::new(Self { map: Arc::new(map), staging, dir: dir.to_owned() }))
    }

    /// The control page.
    #[must_use]
    pub fn control(&self) -> Control<'_> {
        Control::new(&self.map)
    }

    /// Takes a ring for the calling thread and tells the server.
    ///
    /// # Errors
    /// [`TransportError::NoRing`] when all but the last are taken, [`TransportError::NoRoom`] when there is no memory for another.
    pub fn take_ring(self: &Arc<Self>) -> Result<ClientRing> {
        self.take_from(RingIndex::all().take(MAX_RINGS - 1))
    }

    /// Takes the last ring, which threads that get no ring of their own have to share.
    ///
    /// # Errors
    /// [`TransportError::NoRing`] when it is taken, [`TransportError::NoRoom`].
    pub fn take_last_ring(self: &Arc<Self>) -> Result<ClientRing> {
        self.take_from(RingIndex::all().skip(MAX_RINGS - 1))
    }

    fn take_from(self: &Arc<Self>, rings: impl Iterator<Item = RingIndex>) -> Result<ClientRing> {
        let control = self.control();
        for index in rings.filter(|index| control.ring_state(*index) == RingState::Free) {
            // Before it is anybody's: the server reads whatever is taken.
            self.map.make_ring_room(index)?;
            if control.is_traced() {
                control.open_lanes(index);
            }
            if control.change_ring(index, RingState::Free, RingState::Active) {
                control.ring_taken(index);
                let producer = Producer::attach(self.map.ring(index));
                control.ring_doorbell();
                let (session, patience) = (Arc::clone(self), Patience::new());
                return Ok(ClientRing { session, index, producer, patience, dependencies: Vec::new() });
            }
        }
        Err(TransportError::NoRing)
    }

    /// The client's end of the callback ring; one thread may use it.
    #[must_use]
    pub fn callbacks(&self) -> CallbackReceiver {
        CallbackReceiver(Arc::clone(&self.map))
    }
}

/// How long a thread that finds no room rests before it looks again.
const ROOM: Duration = Duration::from_micros(20);

/// An application thread's ring. Dropping it gives it back.
pub struct ClientRing {
    session: Arc<ClientSession>,
    index: RingIndex,
    producer: Producer,
    patience: Patience,
    dependencies: Vec<Dependency>,
}

impl ClientRing {
    /// Which ring this is.
    #[must_use]
    pub fn index(&self) -> RingIndex {
        self.index
    }

    /// Publishes a pipelined message, given in pieces; waits only for room.
    ///
    /// # Errors
    /// [`TransportError::Dead`], or [`TransportError::Corrupt`] when the server wrote something impossible.
    pub fn submit(&mut self, opcode: u16, body: &[&[u8]]) -> Result<()> {
        self.publish(Kind::Pipelined, opcode, body)
    }

    /// Publishes a round trip, given in pieces, waits for its answer and puts that in `reply`.
    ///
    /// # Errors
    /// As [`ClientRing::submit`].
    pub fn call(&mut self, opcode: u16, body: &[&[u8]], reply: &mut Vec<u8>) -> Result<()> {
        self.publish(Kind::RoundTrip, opcode, body)?;
        self.await_answer(opcode, |_| false)?;
        self.read_reply(reply)
    }

    /// As [`ClientRing::call`], for a round trip that waits for work and has nothing to tell but that it is done: the device may tell that itself,
    /// by the ring's fence. Tells whether there is a reply.
    ///
    /// # Errors
    /// As [`ClientRing::submit`].
    pub fn call_or_fence(&mut self, opcode: u16, body: &[&[u8]], reply: &mut Vec<u8>) -> Result<bool> {
        self.publish(Kind::RoundTrip, opcode, body)?;
        let (index, number) = (self.index, self.producer.round_trip());
        self.await_answer(opcode, |session| session.map.fence(index).is_at(number))?;
        let ring = self.session.map.ring(self.index);
        // What the server has to say comes first: it may be an error.
        if !self.producer.answered(ring) {
            // The server still has the message in hand.
            self.producer.promise(ring);
            return Ok(false);
        }
        self.read_reply(reply).map(|()| true)
    }

    /// Waits until the last round trip is answered, or `fenced`.
    fn await_answer(&mut self, opcode: u16, fenced: impl Fn(&ClientSession) -> bool) -> Result<()> {
        let ring = self.session.map.ring(self.index);
        let began = self.session.control().is_traced().then(trace_clock);
        let ready = || self.producer.answered(ring) || fenced(&self.session);
        wait(&self.session, ring, &mut self.patience, ready)?;
        if let Some(began) = began {
            self.trace(TraceKind::AwaitReply, opcode, began);
        }
        Ok(())
    }

    fn read_reply(&self, reply: &mut Vec<u8>) -> Result<()> {
        self.producer
            .read_reply(self.session.map.ring(self.index), reply)
            .map_err(|error| at(error, self.index))
    }

    /// Puts what began at `start_ns` and ends now into the session's trace.
    pub fn trace(&self, kind: TraceKind, code: u16, start_ns: u64) {
        self.session.map.trace((self.index, Side::Client), kind, code, start_ns);
    }

    /// Makes room for staging slots of this ring; a restart may undo that. Those behind the first are not worth the last room there is.
    ///
    /// # Errors
    /// [`TransportError::NoRoom`]; [`TransportError::OutOfBounds`] when there are no such slots.
    pub fn make_slots(&self, slots: Range<usize>) -> Result<()> {
        let bytes = slots.len().saturating_mul(SLOT_BYTES) as u64;
        let room = rustix::fs::statvfs(&self.session.dir);
        if slots.start > 0 && room.is_ok_and(|room| !Room::from(room).can_spare(bytes)) {
            return Err(TransportError::NoRoom);
        }
        staging::make_room(&self.session.staging, self.index, slots)
    }

    /// How often the session has been restarted.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.session.control().generation()
    }

    /// A staging slot of this ring, for which room has been made.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`] when there is no such slot.
    pub fn slot(&self, slot: usize) -> Result<Slot<'_>> {
        Slot::new(&self.session.staging, self.index, slot)
    }

    fn publish(&mut self, kind: Kind, opcode: u16, body: &[&[u8]]) -> Result<()> {
        let session = &self.session;
        let ring = session.map.ring(self.index);
        if session.control().state() == State::Dead {
            return Err(TransportError::Dead);
        }
        self.dependencies.clear();
        collect_dependencies(session, self.index, &mut self.dependencies);
        loop {
            if self
                .producer
                .publish(ring, kind, opcode, &self.dependencies, body)
                .map_err(|error| at(error, self.index))?
            {
                return Ok(());
            }
            let began = session.control().is_traced().then(trace_clock);
            // There is much to do before the server comes to what was published last: a little later is early enough.
            while !self.producer.has_drained(ring) {
                if session.control().state() == State::Dead {
                    return Err(TransportError::Dead);
                }
                std::thread::sleep(ROOM);
            }
            if let Some(began) = began {
                session.map.trace((self.index, Side::Client), TraceKind::AwaitRoom, opcode, began);
            }
        }
    }
}

impl Drop for ClientRing {
    fn drop(&mut self) {
        let control = self.session.control();
        control.change_ring(self.index, RingState::Active, RingState::Closing);
        self.session.map.ring(self.index).sleeping.0.unpark();
        control.ring_doorbell();
    }
}

/// What every other ring has promised and not yet done: a pipelined call that has returned must come before this one.
fn collect_dependencies(session: &ClientSession, own: RingIndex, to: &mut Vec<Dependency>) {
    // A free ring has nothing left to do, and a ring that a returned call went through is seen to be taken.
    let others =
        session.control().rings().filter(|(index, state)| *index != own && *state != RingState::Free);
    for (index, _) in others {
        if let Some(position) = promised(session.map.ring(index)) {
            to.push(Dependency { ring: index.small(), position });
        }
    }
}

/// Waits until `ready`, or until the server is dead.
fn wait(
    session: &ClientSession,
    ring: &Ring,
    patience: &mut Patience,
    ready: impl Fn() -> bool,
) -> Result<()> {
    let is_dead = || session.control().state() == State::Dead;
    let sleep = || {
        ring.waiting.0.park(NAP, || ready() || is_dead());
        !is_dead()
    };
    if patience.await_answer(&ready, sleep) { Ok(()) } else { Err(TransportError::Dead) }
}
