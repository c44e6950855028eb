//! Marked kernels take turns with other work of their session (`--preempt-after`).

use super::flight::{Fate, Flight};
use crate::session::Session;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The least time between two looks, and the time between them while a kernel is on its way out.
const LOOK: Duration = Duration::from_millis(1);

/// How long a marked kernel may have a device that others wait for.
///
/// A device does not tell which kernel it works on, or which of them waits for room. So of a device's marked kernels the one is stopped that was launched longest ago, no earlier than
/// a turn after the last one was; launched again it is the one that was launched last.
pub(in crate::session) struct Turns {
    length: Duration,
    /// When the last turn of each device was over.
    over: BTreeMap<u32, Instant>,
    /// Whether a kernel was told to stop of which it is not known what became of it.
    asked: bool,
}

impl Turns {
    /// Turns of such a length.
    pub(in crate::session) fn of(length: Duration) -> Self {
        Self { length, over: BTreeMap::new(), asked: false }
    }

    /// How long to wait before the next look, `most` at most.
    pub(in crate::session) fn pause(&self, most: Duration) -> Duration {
        let pause = if self.asked { LOOK } else { self.length / 4 };
        pause.clamp(LOOK, most)
    }
}

impl Session {
    /// Stops a marked kernel whose turn is over, and launches it again behind what other streams have been given meanwhile; while messages are taken.
    pub(in crate::session) fn take_turns(&self, turns: &mut Turns) {
        if !self.has_half_way() {
            turns.asked = false;
            return;
        }
        if turns.asked {
            self.end_turns(turns);
        }
        let mut oldest: BTreeMap<u32, (Instant, Arc<Flight>)> = BTreeMap::new();
        for flight in self.flights() {
            let (device, Some(begun)) = (flight.stream.ctx.record.device, flight.begun()) else { continue };
            if oldest.get(&device).is_none_or(|(oldest, _)| begun < *oldest) {
                oldest.insert(device, (begun, flight));
            }
        }
        for (device, (begun, flight)) in oldest {
            let since = turns.over.get(&device).map_or(begun, |over| begun.max(*over));
            if flight.is_asked() || since.elapsed() < turns.length || !self.is_waited_for(&flight) {
                continue;
            }
            match flight.ask() {
                Ok(()) if flight.is_asked() => {
                    tracing::debug!("kernel {} makes room for other streams' work", flight.name());
                    turns.asked = true;
                }
                Ok(()) => {}
                Err(failure) => tracing::debug!("kernel {} is not told to stop: {failure}", flight.name()),
            }
        }
    }

    /// Launches those again that have stopped, and forgets those that were done before they did.
    fn end_turns(&self, turns: &mut Turns) {
        let asked: Vec<_> = self.flights().into_iter().filter(|flight| flight.is_asked()).collect();
        for flight in asked.iter().filter(|flight| !matches!(flight.fate(), Ok(Fate::Runs))) {
            turns.over.insert(flight.stream.ctx.record.device, Instant::now());
        }
        self.resume_half_way();
        turns.asked = self.flights().iter().any(|flight| flight.is_asked());
    }

    /// Whether another stream of its device has work, which may wait for room there.
    fn is_waited_for(&self, flight: &Flight) -> bool {
        let device = flight.stream.ctx.record.device;
        self.busy_streams()
            .iter()
            .any(|stream| stream.ctx.record.device == device && stream.record.key != flight.stream.record.key)
    }
}
