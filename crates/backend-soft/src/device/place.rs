//! Where modules lie: recorded, and given again on restore.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use backend::Range;
use wire::CuError;

#[derive(Default)]
struct Recording {
    replay: VecDeque<Range>,
    told: Vec<Range>,
}

/// What [`Backend::place`](backend::Backend::place) needs.
#[derive(Default)]
pub struct Placement {
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
        let recording =
            Recording { replay: replay.unwrap_or_default().iter().copied().collect(), told: Vec::new() };
        *self.recording() = Some((std::thread::current().id(), recording));
        let made = make();
        let told = self.recording().take().map(|(_, recording)| recording.told);
        made.map(|()| told.unwrap_or_default())
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
