//! Where modules lie: recorded, and given again on restore.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::module::Spot;
use backend::Range;
use wire::CuError;

#[derive(Default)]
struct Recording {
    /// Whether an object is made again, whatever it took at first.
    again: bool,
    replay: VecDeque<Range>,
    told: Vec<Range>,
}

/// What [`Backend::place`](backend::Backend::place) needs.
#[derive(Default)]
pub struct Placement {
    /// Whether what is made again was made by another device library at first.
    foreign: AtomicBool,
    one_at_a_time: Mutex<()>,
    recording: Mutex<Option<(std::thread::ThreadId, Recording)>>,
}

impl Placement {
    /// Runs `make` with the ranges to use again, and tells those it used.
    ///
    /// # Errors
    /// What `make` answers.
    pub fn run(
        &self,
        replay: Option<&[Range]>,
        make: &mut dyn FnMut() -> Result<(), CuError>,
    ) -> Result<Vec<Range>, CuError> {
        let _one = self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let recording = Recording {
            again: replay.is_some(),
            replay: replay.unwrap_or_default().iter().copied().collect(),
            told: Vec::new(),
        };
        *self.recording() = Some((std::thread::current().id(), recording));
        let made = make();
        let told = self.recording().take().map(|(_, recording)| recording.told).unwrap_or_default();
        made.map(|()| match replay {
            // What another device library had taken for it stays its own: there it may be made again.
            Some(replay) if told.is_empty() => replay.to_vec(),
            _ => told,
        })
    }

    /// Says whether what is made again was made by another device library at first.
    pub fn note_foreign(&self, foreign: bool) {
        self.foreign.store(foreign, Ordering::Relaxed);
    }

    /// Whether this thread makes an object again that another device library had made.
    pub fn makes_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed) && self.makes_again()
    }

    /// Where to put the variables of a module that take so many bytes side by side.
    pub fn spot(&self, bytes: u64) -> Spot {
        match self.wanted(bytes) {
            Some(base) => Spot::At(base),
            None if self.makes_again() => Spot::AsNamed,
            None => Spot::Anywhere,
        }
    }

    /// Whether this thread makes an object again.
    fn makes_again(&self) -> bool {
        let recording = self.recording();
        let own = recording.as_ref().filter(|(thread, _)| *thread == std::thread::current().id());
        own.is_some_and(|(_, recording)| recording.again)
    }

    /// The address to use for `bytes` bytes, if this thread replays an object that had as many.
    pub fn wanted(&self, bytes: u64) -> Option<u64> {
        let mut recording = self.recording();
        let (_, recording) =
            recording.as_mut().filter(|(thread, _)| *thread == std::thread::current().id())?;
        let next = recording.replay.front().filter(|range| range.bytes == bytes)?.base;
        recording.replay.pop_front();
        Some(next)
    }

    /// Notes what was used.
    pub fn tell(&self, range: Range) {
        if let Some((thread, recording)) = self.recording().as_mut()
            && *thread == std::thread::current().id()
        {
            recording.told.push(range);
        }
    }

    fn recording(&self) -> MutexGuard<'_, Option<(std::thread::ThreadId, Recording)>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
