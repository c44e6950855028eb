//! Marked kernels take turns with other work of their session (`--preempt-after`).

use super::flight::{Fate, Flight};
use crate::objects::{Marker, Stream, StreamKey};
use crate::session::Session;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between two looks while a kernel is on its way out, and the least otherwise.
const LOOK: Duration = Duration::from_millis(1);

/// How long a marked kernel may have a device that others wait for.
///
/// A device does not tell which kernel it works on, and which of them waits for room. So a kernel's turn begins when it was launched, behind the last turn of its device; and where it was
/// launched again, when what other streams had been given before that is complete.
pub(in crate::session) struct Turns {
    length: Duration,
    /// When the last turn of each device was over.
    over: BTreeMap<u32, Instant>,
    /// Kernels that were launched again, by where their contexts lie.
    again: BTreeMap<u64, Again>,
    /// Whether a kernel was told to stop of which it is not known what became of it.
    asked: bool,
}

/// A kernel that has made room and was launched again.
struct Again {
    /// Behind what other streams had been given before.
    ahead: Vec<Marker>,
    /// When that was seen to be complete.
    since: Option<Instant>,
}

impl Turns {
    /// Turns of such a length.
    pub(in crate::session) fn of(length: Duration) -> Self {
        Self { length, over: BTreeMap::new(), again: BTreeMap::new(), asked: false }
    }

    /// How long to wait before the next look.
    pub(in crate::session) fn pause(&self) -> Duration {
        if self.asked { LOOK } else { (self.length / 4).max(LOOK) }
    }

    /// Since when a kernel has its turn, if it has.
    fn since(&mut self, flight: &Flight, now: Instant) -> Option<Instant> {
        let launched = flight.stoppable_since()?;
        let begun = match self.again.get_mut(&flight.control.base) {
            None => launched,
            Some(Again { since: Some(since), .. }) => *since,
            Some(again) if again.ahead.iter().all(Marker::is_complete) => *again.since.insert(now),
            Some(_) => return None,
        };
        Some(self.over.get(&device_of(&flight.stream)).map_or(begun, |over| begun.max(*over)))
    }
}

fn device_of(stream: &Stream) -> u32 {
    stream.ctx.record.device
}

impl Session {
    /// Stops marked kernels whose turn is over, one of each device at a time, and launches those again that have stopped; while messages are taken.
    pub(in crate::session) fn take_turns(&self, turns: &mut Turns) {
        if !self.has_half_way() || self.is_filling() {
            turns.asked = false;
            return;
        }
        for flight in self.flights().iter().filter(|flight| flight.is_asked()) {
            self.end_turn(turns, flight);
        }
        let flights = self.flights();
        turns.again.retain(|at, _| flights.iter().any(|flight| flight.control.base == *at));
        let asked = flights.iter().filter(|flight| flight.is_asked());
        let asked: BTreeSet<u32> = asked.map(|flight| device_of(&flight.stream)).collect();
        turns.asked = !asked.is_empty();
        let now = Instant::now();
        let mut first: BTreeMap<u32, (Instant, &Arc<Flight>)> = BTreeMap::new();
        for flight in &flights {
            let Some(since) = turns.since(flight, now) else { continue };
            let first = first.entry(device_of(&flight.stream)).or_insert((since, flight));
            if since < first.0 {
                *first = (since, flight);
            }
        }
        for (device, (since, flight)) in first {
            let is_over = !asked.contains(&device) && now - since >= turns.length;
            if !is_over || self.streams_beside(flight).next().is_none() {
                continue;
            }
            match flight.ask() {
                Ok(()) => {
                    tracing::debug!("kernel {} makes room for other streams' work", flight.name());
                    turns.asked = true;
                }
                Err(failure) => tracing::debug!("kernel {} is not told to stop: {failure}", flight.name()),
            }
        }
    }

    /// Launches one again that was told to stop and has, behind what other streams were given meanwhile.
    fn end_turn(&self, turns: &mut Turns, flight: &Arc<Flight>) {
        match self.settle(flight) {
            Ok(Fate::Runs) => return,
            Ok(Fate::Done) => {}
            Ok(Fate::Stopped) => {
                let ahead = self.streams_beside(flight).filter_map(|stream| {
                    // A marker there would itself be waited for by others.
                    let is_legacy = matches!(stream.record.key, StreamKey::Legacy(_));
                    if is_legacy { None } else { stream.ctx.mark(stream.arg()).ok() }
                });
                turns.again.insert(flight.control.base, Again { ahead: ahead.collect(), since: None });
                self.go_on(flight);
            }
            // Whoever tidies says so.
            Err(_) => return,
        }
        turns.over.insert(device_of(&flight.stream), Instant::now());
    }

    /// The program's other streams of its device that have work, which may wait for room there.
    fn streams_beside(&self, flight: &Flight) -> impl Iterator<Item = Arc<Stream>> {
        let (device, own) = (device_of(&flight.stream), flight.stream.record.key);
        let is_beside = move |stream: &Arc<Stream>| {
            let key = stream.record.key;
            let is_ours = matches!(key, StreamKey::Gather(_) | StreamKey::Shadows(_) | StreamKey::Stops(_));
            device_of(stream) == device && key != own && !is_ours
        };
        self.busy_streams().into_iter().filter(is_beside)
    }
}
