//! The control page.

use crate::layout::{MAGIC, MAX_RINGS, RingIndex, SESSION_BYTES, VERSION};
use crate::map::{Mapping, SessionMap};
use crate::sync::{Ordering, futex_wait, futex_wake};
use crate::{Result, TransportError};
use std::path::Path;
use std::time::Duration;
use wire::CuError;

/// Where a session's life is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The server is not ready yet, or is being restarted.
    Starting,
    /// It takes messages.
    Running,
    /// It is gone; every call fails.
    Dead,
}

/// State of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingState {
    /// Nobody's.
    Free,
    /// An application thread's.
    Active,
    /// Its thread has ended; the server frees it when everything in it is executed.
    Closing,
}

impl RingState {
    const fn word(self) -> u32 {
        match self {
            Self::Free => 0,
            Self::Active => 1,
            Self::Closing => 2,
        }
    }

    fn from_word(word: u32) -> Option<Self> {
        [Self::Free, Self::Active, Self::Closing].into_iter().find(|state| state.word() == word)
    }
}

/// What earlier asynchronous work failed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionError {
    /// The error.
    pub error: CuError,
    /// Whether it stays.
    pub sticky: bool,
}

impl SessionError {
    fn pack(self) -> u64 {
        u64::from(self.error.code()) | u64::from(self.sticky) << 32
    }

    fn unpack(word: u64) -> Option<Self> {
        CuError::from_code(word as u32).map(|error| Self { error, sticky: word >> 32 != 0 })
    }
}

/// What every call of a session answers whose server is gone.
const SERVER_GONE: SessionError = SessionError { error: CuError::DEVICE_UNAVAILABLE, sticky: true };

/// The control page of a mapped session.
#[derive(Clone, Copy)]
pub struct Control<'a>(&'a SessionMap);

impl<'a> Control<'a> {
    pub(crate) fn new(map: &'a SessionMap) -> Self {
        Self(map)
    }

    /// Checks that the file is a session, and of this version.
    pub(crate) fn check(self, path: &Path) -> Result<()> {
        let head = &self.0.control().head.0;
        match (head.magic.load(Ordering::Acquire), head.version.load(Ordering::Acquire)) {
            (MAGIC, VERSION) => Ok(()),
            (MAGIC, version) => Err(TransportError::OtherVersion { version }),
            (value, _) => Err(TransportError::NotASession { path: path.to_owned(), what: "magic", value }),
        }
    }

    /// Makes a file of zeros a session.
    pub(crate) fn initialise(self) {
        let control = self.0.control();
        control.head.0.version.store(VERSION, Ordering::Relaxed);
        control.next_id.0.store(1, Ordering::Relaxed);
        control.head.0.magic.store(MAGIC, Ordering::Release);
    }

    /// Where the session's life is.
    #[must_use]
    pub fn state(self) -> State {
        match self.0.control().head.0.state.load(Ordering::Acquire) {
            0 => State::Starting,
            1 => State::Running,
            _ => State::Dead,
        }
    }

    /// Tells the client, and wakes all its threads when the server is dead.
    pub fn set_state(self, state: State) {
        let word = match state {
            State::Starting => 0,
            State::Running => 1,
            State::Dead => 2,
        };
        self.0.control().head.0.state.store(word, Ordering::Release);
        if state == State::Dead {
            // For calls that the client answers without the server.
            self.note(SERVER_GONE);
            self.0.control().callbacks.0.client.0.unpark();
            for (index, _) in self.rings() {
                self.0.ring(index).waiting.0.unpark();
            }
        }
    }

    /// How often the session has been restarted.
    #[must_use]
    pub fn generation(self) -> u32 {
        self.0.control().head.0.generation.load(Ordering::Acquire)
    }

    /// A new server takes the session over. The files may be from a moment at which the one before was gone already.
    pub(crate) fn next_generation(self) {
        let control = self.0.control();
        control.head.0.generation.fetch_add(1, Ordering::AcqRel);
        let gone = SERVER_GONE.pack();
        // Any other error is the application's.
        let _ = control.error.0.compare_exchange(gone, 0, Ordering::AcqRel, Ordering::Acquire);
        self.set_state(State::Starting);
    }

    /// A number no handle of this session has had; never 0.
    #[must_use]
    pub fn next_id(self) -> u32 {
        loop {
            let id = self.0.control().next_id.0.fetch_add(1, Ordering::Relaxed);
            // `u32::MAX` is the per-thread stream on the wire.
            if id != 0 && id != u32::MAX {
                return id;
            }
        }
    }

    /// What asynchronous work has failed with, if anything; it stays.
    #[must_use]
    pub fn error(self) -> Option<SessionError> {
        SessionError::unpack(self.0.control().error.0.load(Ordering::Acquire))
    }

    /// Takes the error: a sticky one stays, any other is answered once.
    #[must_use]
    pub fn take_error(self) -> Option<CuError> {
        let word = &self.0.control().error.0;
        let mut seen = word.load(Ordering::Acquire);
        loop {
            let found = SessionError::unpack(seen)?;
            if found.sticky {
                return Some(found.error);
            }
            match word.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(found.error),
                Err(now) => seen = now,
            }
        }
    }

    /// Records what a pipelined message failed with. The first error stands, but a sticky one replaces one that is not, and
    /// outlives the context it came from: the driver answers it in every context of the process from then on, new ones
    /// included, whatever cuda.h says (seen on an H200 with driver 580 for 700, 710, 716 and 719).
    pub fn set_error(self, error: CuError) {
        self.note(SessionError { error, sticky: error.is_sticky() });
    }

    fn note(self, new: SessionError) {
        let word = &self.0.control().error.0;
        let mut seen = word.load(Ordering::Acquire);
        while SessionError::unpack(seen).is_none_or(|old| new.sticky && !old.sticky) {
            match word.compare_exchange(seen, new.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Whether somebody reads what the session puts into its trace.
    #[inline]
    #[must_use]
    pub fn is_traced(self) -> bool {
        self.0.control().traced.0.load(Ordering::Relaxed) != 0
    }

    /// Whether managed memory that cannot have shadow pages is to be refused.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        self.0.control().exclusive.0.load(Ordering::Relaxed) != 0
    }

    /// Says so, or not.
    pub fn set_exclusive(self, exclusive: bool) {
        self.0.control().exclusive.0.store(exclusive.into(), Ordering::Relaxed);
    }

    pub(crate) fn set_traced(self, traced: bool) {
        self.0.control().traced.0.store(traced.into(), Ordering::Relaxed);
    }

    /// Whether a ring's lanes can be used.
    pub(crate) fn has_lanes(self, index: RingIndex) -> bool {
        self.0.control().lanes.0[index.get()].load(Ordering::Acquire) != 0
    }

    /// Makes room for a ring's lanes, and has them used, if there is some: a trace may lack what a ring has to tell, but nobody may die of it.
    pub(crate) fn open_lanes(self, index: RingIndex) {
        let open = self.has_lanes(index) || self.0.make_lane_room(index).is_ok();
        self.0.control().lanes.0[index.get()].store(open.into(), Ordering::Release);
    }

    /// The files have come back, and with them no room for what was zeros.
    pub(crate) fn close_lanes(self) {
        self.0.control().lanes.0.iter().for_each(|lanes| lanes.store(0, Ordering::Release));
    }

    /// State of a ring; a word that means nothing counts as free.
    #[must_use]
    pub fn ring_state(self, index: RingIndex) -> RingState {
        RingState::from_word(self.0.control().rings.0[index.get()].load(Ordering::Acquire))
            .unwrap_or(RingState::Free)
    }

    /// Whether the ring was in the state `from` and is now in the state `to`.
    pub(crate) fn change_ring(self, index: RingIndex, from: RingState, to: RingState) -> bool {
        self.0.control().rings.0[index.get()]
            .compare_exchange(from.word(), to.word(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Every ring that has ever been taken, and its state.
    pub fn rings(self) -> impl Iterator<Item = (RingIndex, RingState)> + use<'a> {
        let ever = self.0.control().head.0.next_ring.load(Ordering::Acquire) as usize;
        RingIndex::all().take(ever.min(MAX_RINGS)).map(move |index| (index, self.ring_state(index)))
    }

    pub(crate) fn ring_taken(self, index: RingIndex) {
        self.0.control().head.0.next_ring.fetch_max(u32::from(index.small()) + 1, Ordering::AcqRel);
    }

    /// Rings the doorbell: a ring has changed its state.
    pub fn ring_doorbell(self) {
        let bell = &self.0.control().doorbell.0;
        bell.fetch_add(1, Ordering::AcqRel);
        futex_wake(bell);
    }

    /// Waits until the doorbell has rung since it showed `seen`, or until `timeout` has passed; tells what it shows.
    #[must_use]
    pub fn wait_doorbell(self, seen: u32, timeout: Duration) -> u32 {
        let bell = &self.0.control().doorbell.0;
        if bell.load(Ordering::Acquire) == seen {
            futex_wait(bell, seen, timeout);
        }
        bell.load(Ordering::Acquire)
    }
}

/// Declares the session in `dir` dead and wakes everybody who waits for it: for the supervisor, when it has reaped a server.
///
/// # Errors
/// When the session file cannot be mapped or is not one.
pub fn mark_dead(dir: &Path) -> Result<()> {
    let path = dir.join("session");
    let map = SessionMap::new(Mapping::open(&path, SESSION_BYTES)?);
    let control = Control::new(&map);
    control.check(&path)?;
    control.set_state(State::Dead);
    Ok(())
}
