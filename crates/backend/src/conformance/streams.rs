//! Order within and between streams.

use super::rig::{HostPages, Rig};
use crate::{RawStream, StreamArg};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use wire::CuError;

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;

/// Steps the counter by `adds` one after the other tell exactly one number.
fn after(begin: u64, adds: &[u64]) -> u64 {
    adds.iter().fold(begin, |value, add| value.wrapping_mul(5).wrapping_add(*add))
}

fn step(rig: &Rig<'_>, stream: StreamArg, add: u64) {
    rig.launch(stream, "step", [1, 1], &add.to_le_bytes()).expect("a launch");
}

fn stream(rig: &Rig<'_>, flags: u32) -> RawStream {
    rig.backend.stream_create(rig.ctx, flags, 0).expect("a stream")
}

/// Host memory that a kernel waits for.
struct Gate<'a>(HostPages, &'a Rig<'a>);

impl<'a> Gate<'a> {
    fn new(rig: &'a Rig<'a>) -> Self {
        let pages = HostPages::new(4096);
        rig.backend.register_host(pages.range()).expect("registered");
        Self(pages, rig)
    }

    fn hold(&self, stream: StreamArg) {
        self.1.launch(stream, "await", [1, 1], &self.0.range().base.to_le_bytes()).expect("a launch");
    }

    fn open(&mut self) {
        let word = self.0.slice().as_mut_ptr().cast::<u32>();
        // SAFETY: aligned memory of ours that only a kernel reads meanwhile.
        unsafe { word.write_volatile(1) };
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.open();
        self.1.wait();
        self.1.backend.unregister_host(self.0.range()).expect("unregistered");
    }
}

pub fn a_stream_runs_in_order(rig: &Rig<'_>) {
    let begin = rig.read_u64(rig.counter());
    let stream = stream(rig, NON_BLOCKING);
    let adds: Vec<u64> = (1..200).collect();
    adds.iter().for_each(|add| step(rig, StreamArg::Created(stream), *add));
    rig.backend.stream_synchronize(rig.ctx, StreamArg::Created(stream)).expect("idle");
    assert_eq!(rig.read_u64(rig.counter()), after(begin, &adds));
    rig.backend.stream_destroy(rig.ctx, stream).expect("destroyed");
}

pub fn the_legacy_stream_waits_for_blocking_streams(rig: &Rig<'_>) {
    let begin = rig.read_u64(rig.counter());
    let streams = [stream(rig, 0), stream(rig, 0)].map(StreamArg::Created);
    let mut gate = Gate::new(rig);
    gate.hold(streams[0]);
    step(rig, streams[0], 1);
    step(rig, StreamArg::Legacy, 2);
    step(rig, streams[1], 3);
    assert_eq!(rig.backend.stream_query(rig.ctx, streams[1]), Ok(false), "behind the legacy stream");
    gate.open();
    drop(gate);
    assert_eq!(rig.read_u64(rig.counter()), after(begin, &[1, 2, 3]));
}

pub fn events_order_streams(rig: &Rig<'_>) {
    let begin = rig.read_u64(rig.counter());
    let streams = [stream(rig, NON_BLOCKING), stream(rig, NON_BLOCKING)].map(StreamArg::Created);
    let event = rig.backend.event_create(rig.ctx, DISABLE_TIMING).expect("an event");
    assert_eq!(rig.backend.event_query(rig.ctx, event), Ok(true), "never recorded");
    let mut gate = Gate::new(rig);
    gate.hold(streams[0]);
    step(rig, streams[0], 1);
    rig.backend.event_record(rig.ctx, event, streams[0], 0).expect("recorded");
    rig.backend.stream_wait_event(rig.ctx, streams[1], event, 0).expect("waits");
    step(rig, streams[1], 2);
    assert_eq!(rig.backend.event_query(rig.ctx, event), Ok(false));
    assert_eq!(rig.backend.stream_query(rig.ctx, streams[1]), Ok(false));
    gate.open();
    rig.backend.event_synchronize(rig.ctx, event).expect("complete");
    drop(gate);
    assert_eq!(rig.read_u64(rig.counter()), after(begin, &[1, 2]));
    rig.backend.event_destroy(rig.ctx, event).expect("destroyed");
}

pub fn events_measure_time(rig: &Rig<'_>) {
    let event = |flags| rig.backend.event_create(rig.ctx, flags).expect("an event");
    let (start, end, plain) = (event(0), event(0), event(DISABLE_TIMING));
    let record = |event| rig.backend.event_record(rig.ctx, event, StreamArg::Legacy, 0).expect("recorded");
    assert_eq!(rig.backend.event_elapsed(start, end), Err(CuError::INVALID_HANDLE), "never recorded");
    record(start);
    let mut gate = Gate::new(rig);
    gate.hold(StreamArg::Legacy);
    record(end);
    record(plain);
    assert_eq!(rig.backend.event_elapsed(start, end), Err(CuError::NOT_READY));
    std::thread::sleep(Duration::from_millis(30));
    gate.open();
    drop(gate);
    let elapsed = rig.backend.event_elapsed(start, end).expect("a time");
    assert!((25.0..5000.0).contains(&elapsed), "{elapsed} ms");
    assert_eq!(rig.backend.event_elapsed(start, plain), Err(CuError::INVALID_HANDLE));
}

pub fn host_functions_run_in_their_place(rig: &Rig<'_>) {
    let stream = StreamArg::Created(stream(rig, NON_BLOCKING));
    let (tell, told) = mpsc::channel();
    let (release, held) = mpsc::channel();
    let begin = rig.read_u64(rig.counter());
    step(rig, stream, 1);
    let first = tell.clone();
    let function = Box::new(move |state| {
        let _ = first.send(("first", state));
        let _ = held.recv_timeout(Duration::from_secs(10));
    });
    rig.backend.host_function(rig.ctx, stream, function).expect("queued");
    step(rig, stream, 2);
    let second = Box::new(move |state| drop(tell.send(("second", state))));
    rig.backend.host_function(rig.ctx, stream, second).expect("queued");
    assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(("first", Ok(()))));
    assert_eq!(rig.backend.stream_query(rig.ctx, stream), Ok(false), "the stream waits for its host function");
    assert!(told.try_recv().is_err());
    release.send(()).expect("the host function waits");
    assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(("second", Ok(()))));
    rig.backend.stream_synchronize(rig.ctx, stream).expect("idle");
    assert_eq!(rig.read_u64(rig.counter()), after(begin, &[1, 2]));
}

pub fn queries_tell_what_is_under_way(rig: &Rig<'_>) {
    let busy = StreamArg::Created(stream(rig, NON_BLOCKING));
    let idle = StreamArg::Created(stream(rig, NON_BLOCKING));
    let mut gate = Gate::new(rig);
    gate.hold(busy);
    assert_eq!(rig.backend.stream_query(rig.ctx, busy), Ok(false));
    assert_eq!(rig.backend.stream_query(rig.ctx, idle), Ok(true));
    gate.open();
    rig.backend.stream_synchronize(rig.ctx, busy).expect("idle");
    assert_eq!(rig.backend.stream_query(rig.ctx, busy), Ok(true));
}

pub fn mapped_host_memory_is_seen_by_running_kernels(rig: &Rig<'_>) {
    let busy = StreamArg::Created(stream(rig, NON_BLOCKING));
    let mut gate = Gate::new(rig);
    gate.hold(busy);
    std::thread::sleep(Duration::from_millis(5));
    gate.open();
    let until = Instant::now() + Duration::from_secs(10);
    while rig.backend.stream_query(rig.ctx, busy) == Ok(false) {
        assert!(Instant::now() < until, "the kernel does not see the host's write");
        std::thread::yield_now();
    }
}
