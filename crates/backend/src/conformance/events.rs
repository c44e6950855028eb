use super::rig::{BASIC, Rig, Shared, params, wait_until};
use crate::{Backend, RawEvent, StreamArg};
use std::time::{Duration, Instant};
use wire::CuError;

/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;

fn record(rig: &Rig<'_>, event: RawEvent, stream: StreamArg) {
    rig.backend.event_record(rig.ctx, event, stream, 0).unwrap();
}

pub(super) fn events_mark_a_place(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let stream = StreamArg::Created(rig.stream(0));
    let wait_for = rig.kernel(BASIC, "wait_for");
    let (before, after) =
        (backend.event_create(rig.ctx, 0).unwrap(), backend.event_create(rig.ctx, UNTIMED).unwrap());
    record(&rig, before, stream);
    rig.launch(wait_for, 1, stream, &params(&[shared.address(0), shared.address(1)], &[]));
    record(&rig, after, stream);
    wait_until(|| backend.event_query(rig.ctx, before).unwrap());
    assert!(!backend.event_query(rig.ctx, after).unwrap());
    shared.set(0, 1);
    backend.event_synchronize(rig.ctx, after).unwrap();
    assert!(backend.event_query(rig.ctx, after).unwrap());
    assert_eq!(shared.get(1), 1);
    for event in [before, after] {
        backend.event_destroy(rig.ctx, event).unwrap();
    }
}

pub(super) fn events_hold_streams_back(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    // Neither is ordered with anything else.
    let (one, two) = (StreamArg::Created(rig.stream(1)), StreamArg::Created(rig.stream(1)));
    let (wait_for, store) = (rig.kernel(BASIC, "wait_for"), rig.kernel(BASIC, "store"));
    rig.launch(store, 1, two, &params(&[shared.address(9)], &[1]));
    rig.wait(two);
    let event = backend.event_create(rig.ctx, UNTIMED).unwrap();
    rig.launch(wait_for, 1, one, &params(&[shared.address(0), shared.address(1)], &[]));
    record(&rig, event, one);
    backend.stream_wait_event(rig.ctx, two, event, 0).unwrap();
    rig.launch(store, 1, two, &params(&[shared.address(8)], &[1]));
    // What is recorded later does not change what is waited for.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(shared.get(8), 0);
    shared.set(0, 1);
    rig.wait(two);
    assert_eq!((shared.get(1), shared.get(8)), (1, 1));
}

pub(super) fn times_are_taken(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let event = || backend.event_create(rig.ctx, 0).unwrap();
    let (start, end, never) = (event(), event(), event());
    record(&rig, start, StreamArg::Legacy);
    backend.event_synchronize(rig.ctx, start).unwrap();
    let begun = Instant::now();
    std::thread::sleep(Duration::from_millis(30));
    record(&rig, end, StreamArg::Legacy);
    backend.event_synchronize(rig.ctx, end).unwrap();
    let ms = backend.event_elapsed(start, end).unwrap();
    let most = begun.elapsed().as_secs_f32() * 1e3 + 100.0;
    assert!((29.0..most).contains(&ms), "{ms} ms");
    assert!(backend.event_elapsed(start, start).unwrap().abs() < 1e-3);
    assert_eq!(backend.event_elapsed(start, never), Err(CuError::INVALID_HANDLE));
}

pub(super) fn untimed_events_tell_no_time(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let (timed, untimed) =
        (backend.event_create(rig.ctx, 0).unwrap(), backend.event_create(rig.ctx, UNTIMED).unwrap());
    record(&rig, timed, StreamArg::Legacy);
    record(&rig, untimed, StreamArg::Legacy);
    backend.context_synchronize(rig.ctx).unwrap();
    assert_eq!(backend.event_elapsed(timed, untimed), Err(CuError::INVALID_HANDLE));
}

pub(super) fn an_event_never_recorded_is_complete(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let event = backend.event_create(rig.ctx, 0).unwrap();
    assert!(backend.event_query(rig.ctx, event).unwrap());
    backend.event_synchronize(rig.ctx, event).unwrap();
    backend.stream_wait_event(rig.ctx, StreamArg::Legacy, event, 0).unwrap();
    rig.wait(StreamArg::Legacy);
}
