//! Traces: what an application's calls and waits and the server's work took. Each side of a ring has a *lane* in the session file,
//! a queue of records that it fills while the session is traced and that the supervisor empties ([`TraceReader`]).

use crate::Result;
use crate::control::{Control, RingState};
use crate::layout::{LANE_RECORDS, LaneShared, MAX_RINGS, RingIndex, SESSION_BYTES};
use crate::map::{Mapping, SessionMap};
use crate::sync::Ordering;
use std::path::Path;

/// What took its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceKind {
    /// A call of the application; the code is the function's number.
    Call,
    /// In it, waiting for an answer; the code is the message's opcode.
    AwaitReply,
    /// In it, waiting for room in the ring; the code is the message's opcode.
    AwaitRoom,
    /// The server waited for other rings or for the device before it took a message; the code is its opcode.
    AwaitTurn,
    /// The server executed a message; the code is its opcode.
    Work,
}

impl TraceKind {
    const ALL: [Self; 5] = [Self::Call, Self::AwaitReply, Self::AwaitRoom, Self::AwaitTurn, Self::Work];
}

/// Something that took time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceRecord {
    /// What.
    pub kind: TraceKind,
    /// Of which function or message.
    pub code: u16,
    /// When it began, as [`trace_clock`] counts.
    pub start_ns: u64,
    /// How long it took, ns; at most [`TraceRecord::LONGEST_NS`].
    pub duration_ns: u64,
}

impl TraceRecord {
    /// Longer ones are told as this: 18 minutes.
    pub const LONGEST_NS: u64 = (1 << 40) - 1;

    fn pack(self) -> [u64; 2] {
        let kind = self.kind as u64;
        [self.start_ns, self.duration_ns.min(Self::LONGEST_NS) << 24 | kind << 16 | u64::from(self.code)]
    }

    fn unpack([start_ns, word]: [u64; 2]) -> Option<Self> {
        let kind = *TraceKind::ALL.get((word >> 16 & 0xff) as usize)?;
        Some(Self { kind, code: word as u16, start_ns, duration_ns: word >> 24 })
    }
}

/// The clock of traces, ns: `CLOCK_REALTIME`, which every process of the machine has in common. The monotonic one goes on after a restart where
/// it was, but in the job alone.
#[must_use]
pub fn trace_clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whose lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The application's thread.
    Client,
    /// The server's.
    Server,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Client, Self::Server];

    pub(crate) fn lane(self, ring: RingIndex) -> usize {
        ring.get() + if self == Self::Server { MAX_RINGS } else { 0 }
    }
}

impl SessionMap {
    /// Puts what began at `start_ns` and ends now into a lane, if that is used.
    pub(crate) fn trace(&self, (ring, side): (RingIndex, Side), kind: TraceKind, code: u16, start_ns: u64) {
        if Control::new(self).has_lanes(ring) {
            self.lane(ring, side).put(kind, code, start_ns);
        }
    }
}

impl LaneShared {
    /// Puts a record, of which `start_ns` is known and the end is now; counts it as lost where there is no room. One thread at a time may.
    pub(crate) fn put(&self, kind: TraceKind, code: u16, start_ns: u64) {
        let duration_ns = trace_clock().saturating_sub(start_ns);
        let [first, second] = TraceRecord { kind, code, start_ns, duration_ns }.pack();
        let tail = self.writer.0.tail.load(Ordering::Relaxed);
        if tail.wrapping_sub(self.head.0.load(Ordering::Acquire)) >= LANE_RECORDS as u64 {
            self.writer.0.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let place = &self.records.0[(tail % LANE_RECORDS as u64) as usize];
        place[0].store(first, Ordering::Relaxed);
        place[1].store(second, Ordering::Relaxed);
        self.writer.0.tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Takes all records that there are, and the count of those lost.
    fn take(&self, each: &mut impl FnMut(TraceRecord)) -> u64 {
        let tail = self.writer.0.tail.load(Ordering::Acquire);
        let head = self.head.0.load(Ordering::Relaxed);
        // Whatever was written there, no more is read than a lane holds.
        let there = tail.wrapping_sub(head).min(LANE_RECORDS as u64);
        for position in (0..there).map(|back| tail.wrapping_sub(there - back)) {
            let place = &self.records.0[(position % LANE_RECORDS as u64) as usize];
            let words = [place[0].load(Ordering::Relaxed), place[1].load(Ordering::Relaxed)];
            TraceRecord::unpack(words).into_iter().for_each(&mut *each);
        }
        self.head.0.store(tail, Ordering::Release);
        self.writer.0.lost.swap(0, Ordering::Relaxed)
    }
}

/// The supervisor's end of a session's lanes. While it lives, the session is traced.
pub struct TraceReader(SessionMap);

impl TraceReader {
    /// Has the session in `dir` traced from now on. One at a time may.
    ///
    /// # Errors
    /// When the session file cannot be mapped or is not one.
    pub fn begin(dir: &Path) -> Result<Self> {
        let path = dir.join("session");
        let reader = Self(SessionMap::new(Mapping::open(&path, SESSION_BYTES)?));
        let control = Control::new(&reader.0);
        control.check(&path)?;
        // Rings that are taken from now on bring lanes along.
        control.set_traced(true);
        for (ring, state) in control.rings() {
            if state != RingState::Free {
                control.open_lanes(ring);
            }
        }
        // What an earlier reader has left is not of this trace.
        reader.take(|_, _, _| {});
        Ok(reader)
    }

    /// Takes the records that there are; answers how many were lost since the last time, because nobody took them soon enough.
    pub fn take(&self, mut each: impl FnMut(RingIndex, Side, TraceRecord)) -> u64 {
        let control = Control::new(&self.0);
        let mut lost = 0u64;
        for (ring, _) in control.rings().filter(|(ring, _)| control.has_lanes(*ring)) {
            for side in Side::ALL {
                let more = self.0.lane(ring, side).take(&mut |record| each(ring, side, record));
                // The application may say anything.
                lost = lost.saturating_add(more);
            }
        }
        lost
    }
}

impl Drop for TraceReader {
    fn drop(&mut self) {
        Control::new(&self.0).set_traced(false);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{ClientSession, ServerSession};

    #[test]
    fn records_are_words_and_back() {
        for (kind, code, duration_ns) in [
            (TraceKind::Call, 0, 0),
            (TraceKind::AwaitTurn, u16::MAX, 17),
            (TraceKind::Work, 301, TraceRecord::LONGEST_NS),
        ] {
            let record = TraceRecord { kind, code, start_ns: u64::MAX - 5, duration_ns };
            assert_eq!(TraceRecord::unpack(record.pack()), Some(record));
        }
        let long = TraceRecord { kind: TraceKind::Work, code: 1, start_ns: 0, duration_ns: u64::MAX };
        assert_eq!(TraceRecord::unpack(long.pack()).unwrap().duration_ns, TraceRecord::LONGEST_NS);
        assert_eq!(TraceRecord::unpack([0, 200 << 16]), None);
    }

    #[test]
    fn each_side_of_a_ring_fills_its_own_lane_while_there_is_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let server = ServerSession::create(dir.path()).unwrap();
        let client = ClientSession::open(dir.path()).unwrap();
        let ring = client.take_ring().unwrap();
        let reader = server.reader(ring.index());
        assert!(!client.control().is_traced() && !server.control().is_traced());
        ring.trace(TraceKind::Call, 1, trace_clock());
        let trace = TraceReader::begin(dir.path()).unwrap();
        assert!(client.control().is_traced() && server.control().is_traced());
        ring.trace(TraceKind::Call, 7, trace_clock());
        reader.trace(TraceKind::Work, 9, trace_clock());
        let mut seen = Vec::new();
        assert_eq!(trace.take(|ring, side, record| seen.push((ring, side, record.kind, record.code))), 0);
        let index = ring.index();
        let both = [(index, Side::Client, TraceKind::Call, 7), (index, Side::Server, TraceKind::Work, 9)];
        assert_eq!(seen, both);
        drop(trace);
        assert!(!client.control().is_traced());
    }

    #[test]
    fn a_full_lane_counts_what_it_loses() {
        let dir = tempfile::tempdir().unwrap();
        let _server = ServerSession::create(dir.path()).unwrap();
        let client = ClientSession::open(dir.path()).unwrap();
        let ring = client.take_ring().unwrap();
        let trace = TraceReader::begin(dir.path()).unwrap();
        for round in 0..3u64 {
            (0..LANE_RECORDS as u64 + round).for_each(|n| ring.trace(TraceKind::Call, n as u16, n));
            let mut next = 0;
            let lost = trace.take(|_, _, record| {
                assert_eq!(record.start_ns, next);
                next += 1;
            });
            assert_eq!((next, lost), (LANE_RECORDS as u64, round));
        }
    }

    #[test]
    fn a_lane_that_says_nonsense_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let server = ServerSession::create(dir.path()).unwrap();
        let client = ClientSession::open(dir.path()).unwrap();
        let ring = client.take_ring().unwrap();
        let trace = TraceReader::begin(dir.path()).unwrap();
        let lane = server.lane(ring.index(), Side::Client);
        lane.writer.0.tail.store(u64::MAX / 2, Ordering::Relaxed);
        for side in Side::ALL {
            server.lane(ring.index(), side).writer.0.lost.store(u64::MAX - 1, Ordering::Relaxed);
        }
        lane.records.0.iter().for_each(|record| record[1].store(u64::MAX, Ordering::Relaxed));
        let mut count = 0;
        assert_eq!(trace.take(|_, _, _| count += 1), u64::MAX);
        assert_eq!(count, 0);
        ring.trace(TraceKind::Call, 3, 0);
        trace.take(|_, _, _| count += 1);
        assert_eq!(count, 1);
    }
}
