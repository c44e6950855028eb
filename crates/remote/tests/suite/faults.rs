//! Connections that end at any moment.

use super::common::{Far, Program, connect, tcp};
use backend::{Backend, Range, StreamArg};
use libtest_mimic::{Failed, Trial};
use remote::{Choice, RemoteBackend, Wires};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::proxy::{Network, between};
use wire::CuError;

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("faults::a_connection_is_cut_anywhere", a_connection_is_cut_anywhere),
        Trial::test(
            "faults::a_far_end_is_killed_under_waiting_calls",
            a_far_end_is_killed_under_waiting_calls,
        ),
        Trial::test("faults::what_a_client_leaves_behind_is_freed", what_a_client_leaves_behind_is_freed),
    ]
}

/// A page of the host's.
#[repr(C, align(4096))]
struct Page([AtomicU32; 1024]);

impl Page {
    fn new() -> Box<Self> {
        Box::new(Self([const { AtomicU32::new(0) }; 1024]))
    }

    fn range(&self) -> Range {
        Range { base: &raw const self.0 as u64, bytes: 4096 }
    }

    fn first(&self) -> u32 {
        self.0[0].load(Ordering::Acquire)
    }
}

/// A little of everything; what it computes is right, or there is an error.
fn everything(backend: &RemoteBackend) -> Result<(), CuError> {
    let program = Program::new(backend)?;
    let mut words: Vec<u32> = (0..200_000).collect();
    let bytes = (words.len() * 4) as u64;
    program.copy(program.at(4096), words.as_ptr() as u64, bytes)?;
    for number in 0..50 {
        program.store(number)?;
    }
    let mut stream = None;
    backend.place(None, &mut || {
        stream = Some(StreamArg::Created(backend.stream_create(program.ctx, 1, 0)?));
        Ok(())
    })?;
    let stream = stream.ok_or(CuError::UNKNOWN)?;
    // A page that a kernel reaches, and an event behind it that another stream waits for.
    let page = Page::new();
    backend.register_host(page.range())?;
    let pointer = [page.range().base];
    program.copy(program.at(2 << 20), pointer.as_ptr() as u64, 8)?;
    program.follow(program.at(2 << 20))?;
    let event = backend.event_create(program.ctx, 2)?;
    backend.event_record(program.ctx, event, StreamArg::Legacy, 0)?;
    backend.stream_wait_event(program.ctx, stream, event, 0)?;
    backend.event_synchronize(program.ctx, event)?;
    assert_eq!(page.first(), 1, "what the kernel wrote is not here");
    backend.event_destroy(program.ctx, event)?;
    backend.unregister_host(page.range())?;
    let called = Arc::new(Mutex::new(false));
    let told = Arc::clone(&called);
    let function = move |status: Result<(), CuError>| *told.lock().unwrap() = status.is_ok();
    backend.host_function(program.ctx, StreamArg::Legacy, Box::new(function))?;
    words.fill(0);
    program.copy(words.as_mut_ptr() as u64, program.at(4096), bytes)?;
    assert!(words.iter().enumerate().all(|(at, word)| at as u32 == *word), "wrong bytes came back");
    assert!(*called.lock().unwrap(), "the host function did not run before what is behind it");
    assert_eq!(program.read()?, 49);
    backend.context_destroy(program.ctx)
}

fn ended(far: &mut Far, within: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < within {
        if far.0.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn a_connection_is_cut_anywhere() -> Result<(), Failed> {
    let whole = {
        let (_far, sockets) = tcp(&[]);
        let (near, traffic) = between(sockets, Network::default())?;
        everything(&connect(Wires::of_tcp(near)?))?;
        traffic.bytes()
    };
    // Densely where it begins, and then all the way.
    let points = (0..24).map(|at| 13 * at).chain((1..40).map(|at| 400 + whole * at / 41));
    for point in points {
        let (mut far, sockets) = tcp(&[]);
        let (near, _) = between(sockets, Network { cut_after: point, ..Network::default() })?;
        let begun = Instant::now();
        if let Ok(backend) = RemoteBackend::connect(Wires::of_tcp(near)?, &Choice::default(), |_| {}) {
            let result = everything(&backend);
            assert_eq!(result, Err(CuError::DEVICE_UNAVAILABLE), "cut after {point} of {whole} bytes");
            assert_eq!(
                backend.stream_query(backend::RawContext(1), StreamArg::Legacy),
                Err(CuError::DEVICE_UNAVAILABLE)
            );
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "cut after {point}: {:?}", begun.elapsed());
        assert!(ended(&mut far, Duration::from_secs(3)), "the far end stays, cut after {point} bytes");
    }
    Ok(())
}

fn a_far_end_is_killed_under_waiting_calls() -> Result<(), Failed> {
    let (mut far, sockets) = tcp(&[]);
    let backend = connect(Wires::of_tcp(sockets)?);
    let program = Program::new(&backend)?;
    program.spin()?;
    std::thread::scope(|scope| {
        let waiting = [
            scope.spawn(|| backend.context_synchronize(program.ctx)),
            scope.spawn(|| backend.stream_synchronize(program.ctx, StreamArg::Legacy)),
            scope.spawn(|| program.copy(vec![0u8; 100_000].as_mut_ptr() as u64, program.at(0), 100_000)),
        ];
        std::thread::sleep(Duration::from_millis(100));
        assert!(waiting.iter().all(|thread| !thread.is_finished()));
        far.0.kill().unwrap();
        let begun = Instant::now();
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Err(CuError::DEVICE_UNAVAILABLE));
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    });
    Ok(())
}

/// Even work that never ends: the far end says so, and its process ends.
fn what_a_client_leaves_behind_is_freed() -> Result<(), Failed> {
    for spins in [false, true] {
        let (mut far, sockets) = tcp(&[]);
        let backend = connect(Wires::of_tcp(sockets)?);
        let program = Program::new(&backend)?;
        if spins {
            program.spin()?;
            assert!(!backend.stream_query(program.ctx, StreamArg::Legacy)?);
        }
        drop(backend);
        assert!(ended(&mut far, Duration::from_secs(2)), "spins: {spins}");
    }
    Ok(())
}
