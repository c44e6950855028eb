use super::rig::{BASIC, Rig, Shared, params, wait_until};
use crate::{Backend, StreamArg};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use wire::LaunchValue;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// Long enough for a stream to do what it should not.
const A_WHILE: Duration = Duration::from_millis(50);

/// Has a stream wait until `shared[flag]` is set, and then set `shared[flag + 1]`.
fn hold(rig: &Rig<'_>, shared: &Shared<'_>, flag: usize, stream: StreamArg) {
    let wait_for = rig.kernel(BASIC, "wait_for");
    rig.launch(wait_for, 1, stream, &params(&[shared.address(flag), shared.address(flag + 1)], &[]));
}

pub(super) fn a_stream_keeps_its_order(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let stream = StreamArg::Created(rig.stream(0));
    let add = rig.kernel(BASIC, "add_one");
    let store = rig.kernel(BASIC, "store");
    for round in 0..200u32 {
        rig.launch(store, 1, stream, &params(&[rig.at(0)], &[round]));
        rig.launch(add, 1, stream, &params(&[rig.at(0)], &[1]));
        backend.copy(rig.ctx, stream, rig.at(4096 + u64::from(round) * 4), rig.at(0), 4).unwrap();
    }
    backend.stream_synchronize(rig.ctx, stream).unwrap();
    assert_eq!(rig.get(rig.at(4096), 200), (1..=200).collect::<Vec<_>>());
}

pub(super) fn a_busy_stream_is_told(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let stream = StreamArg::Created(rig.stream(0));
    assert!(backend.stream_query(rig.ctx, stream).unwrap());
    hold(&rig, &shared, 0, stream);
    assert!(!backend.stream_query(rig.ctx, stream).unwrap());
    shared.set(0, 1);
    rig.wait(stream);
    assert_eq!(shared.get(1), 1);
    backend.stream_synchronize(rig.ctx, stream).unwrap();
}

pub(super) fn the_legacy_stream_waits_for_blocking_ones(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let (one, two) = (StreamArg::Created(rig.stream(0)), StreamArg::Created(rig.stream(0)));
    let store = rig.kernel(BASIC, "store");
    hold(&rig, &shared, 0, one);
    rig.launch(store, 1, StreamArg::Legacy, &params(&[shared.address(8)], &[1]));
    rig.launch(store, 1, two, &params(&[shared.address(9)], &[1]));
    std::thread::sleep(A_WHILE);
    assert_eq!(shared.get(8), 0, "the legacy stream did not wait for a blocking stream");
    assert_eq!(shared.get(9), 0, "a blocking stream did not wait for the legacy stream");
    shared.set(0, 1);
    rig.wait(two);
    assert_eq!((shared.get(1), shared.get(8), shared.get(9)), (1, 1, 1));
}

pub(super) fn non_blocking_streams_go_on(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let free = StreamArg::Created(rig.stream(NON_BLOCKING));
    let store = rig.kernel(BASIC, "store");
    // Code may be loaded at its first launch, and that may wait.
    rig.launch(store, 1, free, &params(&[shared.address(7)], &[1]));
    rig.wait(free);
    hold(&rig, &shared, 0, StreamArg::Legacy);
    rig.launch(store, 1, free, &params(&[shared.address(8)], &[1]));
    rig.wait(free);
    assert_eq!((shared.get(1), shared.get(8)), (0, 1));
    shared.set(0, 1);
    rig.wait(StreamArg::Legacy);
}

pub(super) fn a_destroyed_stream_finishes(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    let stream = rig.stream(0);
    hold(&rig, &shared, 0, StreamArg::Created(stream));
    shared.set(0, 1);
    backend.stream_destroy(rig.ctx, stream).unwrap();
    wait_until(|| shared.get(1) == 1);
}

pub(super) fn host_functions_run_in_turn(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let stream = StreamArg::Created(rig.stream(0));
    let shared = Shared::new(backend);
    let store = rig.kernel(BASIC, "store");
    let seen = Arc::new(AtomicU32::new(u32::MAX));
    let (sender, receiver) = mpsc::channel::<()>();
    rig.launch(store, 1, stream, &params(&[shared.address(0)], &[5]));
    let (address, told) = (shared.address(0) as usize, Arc::clone(&seen));
    let function = move |status: Result<(), wire::CuError>| {
        assert_eq!(status, Ok(()));
        // SAFETY: the page outlives the stream's work, and every access to it is atomic.
        told.store(unsafe { &*(address as *const AtomicU32) }.load(Ordering::Acquire), Ordering::Release);
        // The stream waits for this function.
        receiver.recv().unwrap();
    };
    backend.host_function(rig.ctx, stream, Box::new(function)).unwrap();
    rig.launch(store, 1, stream, &params(&[shared.address(1)], &[6]));
    wait_until(|| seen.load(Ordering::Acquire) == 5);
    std::thread::sleep(A_WHILE);
    assert!(!backend.stream_query(rig.ctx, stream).unwrap());
    assert_eq!(shared.get(1), 0, "the stream went on before its host function had returned");
    sender.send(()).unwrap();
    rig.wait(stream);
    assert_eq!(shared.get(1), 6);
}

pub(super) fn attributes_are_kept(backend: &dyn Backend) {
    /// `CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW`, `_SYNCHRONIZATION_POLICY`.
    const WINDOW: u32 = 1;
    const SYNCHRONIZATION: u32 = 3;
    let rig = Rig::new(backend);
    let (one, other) = (StreamArg::Created(rig.stream(0)), StreamArg::Created(rig.stream(0)));
    let get = |stream, attribute| backend.stream_attribute(rig.ctx, stream, attribute).unwrap().0;
    let before = get(one, SYNCHRONIZATION);
    let mut yielding = [0; 64];
    // `CU_SYNC_POLICY_YIELD`.
    yielding[0] = 3;
    backend.stream_set_attribute(rig.ctx, one, SYNCHRONIZATION, LaunchValue(yielding)).unwrap();
    assert_eq!(get(one, SYNCHRONIZATION)[..4], yielding[..4]);
    assert_eq!(get(other, SYNCHRONIZATION)[..4], before[..4], "streams are apart");
    assert_eq!(get(other, WINDOW)[8..16], [0; 8], "no window");
    assert!(backend.stream_attribute(rig.ctx, one, 4).is_err(), "a cluster is a launch's");
}
