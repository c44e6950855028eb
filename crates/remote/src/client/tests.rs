//! The near end and a device machine that does not keep to anything.

// A test says what it saw by panicking.
#![allow(clippy::unwrap_used)]

use super::progress::Ticket;
use super::transfers::Destination;
use super::{Callback, Choice, RemoteBackend};
use crate::frame::{self, MAGIC, PieceHeader, VERSION};
use crate::messages::{Global, Hello, Message, Word};
use crate::{Wires, lock};
use backend::{Backend, GraphFunction, Range, RawContext, RawModule, StreamArg};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use wire::{Bytes, CuError, Encoder, Wire};

/// What a far end of this version, without devices, begins with.
fn greeting(version: u32) -> Vec<u8> {
    let mut bytes = [MAGIC.as_slice(), &version.to_le_bytes()].concat();
    let hello = Hello {
        kind: "soft".into(),
        on_cores: true,
        describe: "nothing".into(),
        driver_version: 13000,
        driver_release: "580.65.06".into(),
        devices: Vec::new(),
    };
    frame::append(&mut bytes, 0, 0, 0, &hello);
    bytes
}

/// A connection to a far end that says its greeting, the device facts, and then `more`.
fn connected(version: u32, more: Vec<u8>, bulk: Vec<u8>) -> Result<RemoteBackend, super::ConnectError> {
    let (control, mut far_control) = UnixStream::pair().unwrap();
    let (bulk_near, mut far_bulk) = UnixStream::pair().unwrap();
    let bytes = greeting(version);
    far_control.write_all(&bytes).unwrap();
    let mut listening = far_control.try_clone().unwrap();
    std::thread::spawn(move || std::io::copy(&mut listening, &mut std::io::sink()));
    let wires = Wires::of_unix(vec![control, bulk_near]).unwrap();
    let backend = RemoteBackend::connect(wires, &Choice::default(), |_| {});
    let _ = far_bulk.write_all(&bulk);
    let _ = far_control.write_all(&more);
    // The far end is gone when it has said all.
    let _ = far_control.shutdown(std::net::Shutdown::Write);
    backend
}

fn word(call: u64, word: &Word) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::append(&mut bytes, word.opcode(), 0, call, &word.body());
    bytes
}

fn reply(call: u64, body: Vec<u8>) -> Vec<u8> {
    word(call, &Word::Reply { after: vec![], error: 0, detail: String::new(), body: Bytes(body) })
}

/// Every call ends, soon, and once the connection is lost it says so.
fn ends(backend: &RemoteBackend) -> bool {
    let begun = Instant::now();
    let ctx = backend.context_create(0, 0, true).unwrap_or(RawContext(1));
    let _ = backend.memory_info(ctx);
    let _ = backend.stream_create(ctx, 0, 0);
    let _ = backend.reserve(Range { base: 1 << 40, bytes: 1 << 30 });
    let mut page = vec![0u8; 100_000];
    let _ = backend.copy(ctx, StreamArg::Legacy, page.as_mut_ptr() as u64, 1 << 40, 100_000);
    let _ = backend.context_synchronize(ctx);
    while backend.context_limit(ctx, 0) != Err(CuError::DEVICE_UNAVAILABLE) {
        if begun.elapsed() > Duration::from_secs(10) {
            return false;
        }
    }
    begun.elapsed() < Duration::from_secs(10)
}

#[test]
fn another_version_is_refused_by_name() {
    let error = connected(7, Vec::new(), Vec::new()).err().map(|error| error.to_string());
    assert!(error.as_ref().is_some_and(|error| error.contains("version 7")), "{error:?}");
}

#[test]
fn an_answer_that_was_not_asked_for_ends_the_session() {
    for said in [
        reply(40, Vec::new()),
        vec![0xff; frame::HEADER],
        reply(1, vec![0; 100]),
        word(0, &Word::Ack { control: u64::MAX, bulk: 0 }),
        word(0, &Word::Ack { control: 0, bulk: 1 << 30 }),
        word(0, &Word::Done { after: vec![], tickets: vec![(5, 0)] }),
        word(0, &Word::Done { after: vec![0; 20], tickets: vec![] }),
        word(0, &Word::HostCall { after: vec![], call: 1, function: 9, error: 0 }),
    ] {
        assert!(ends(&connected(VERSION, said, Vec::new()).unwrap()));
    }
    for bytes in [0, frame::PIECE + 1, usize::MAX] {
        let mut piece = Vec::new();
        PieceHeader { transfer: 1, offset: 0, bytes }.write(0, &mut piece).unwrap();
        assert!(ends(&connected(VERSION, Vec::new(), piece).unwrap()));
    }
}

/// A connection to a far end that says its greeting, both its streams, and why the connection is lost.
fn held() -> (RemoteBackend, UnixStream, UnixStream, Receiver<String>) {
    let (control, mut far_control) = UnixStream::pair().unwrap();
    let (bulk, far_bulk) = UnixStream::pair().unwrap();
    far_control.write_all(&greeting(VERSION)).unwrap();
    let mut listening = far_control.try_clone().unwrap();
    std::thread::spawn(move || std::io::copy(&mut listening, &mut std::io::sink()));
    let wires = Wires::of_unix(vec![control, bulk]).unwrap();
    let (sender, why) = channel();
    let lost = move |why: &str| drop(sender.send(why.to_owned()));
    (RemoteBackend::connect(wires, &Choice::default(), lost).unwrap(), far_control, far_bulk, why)
}

#[test]
fn what_is_too_much_is_told_by_name() {
    const MIB: usize = 1 << 20;
    let done = |after: u64, tickets: usize| Word::Done { after: vec![after], tickets: vec![(5, 0); tickets] };
    let transfer = |bytes| Word::Data { transfer: 1, offset: 0, data: Bytes(vec![0; bytes]) };
    for (said, reason) in [
        (word(0, &done(1 << 63, 0)), "more contents"),
        (word(0, &done(1, 0)), "more contents"),
        (word(0, &done(0, MIB)), "too long"),
        (word(0, &Word::Output { data: Bytes(vec![0; 5 * MIB]) }), "too long"),
        (word(0, &transfer(MIB)), "too long"),
        (word(0, &Word::HostCall { after: vec![0; 100], call: 1, function: 9, error: 0 }), "too long"),
        (reply(40, vec![0; 5 * MIB]), "too long"),
    ] {
        let (_backend, mut control, _bulk, why) = held();
        let _ = control.write_all(&said);
        let why = why.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(why.contains(reason), "{why}");
    }
}

/// What waits for contents that do not come takes so much memory, and then nothing more is read; when they come, all goes on.
#[test]
fn words_that_wait_for_contents_are_few() {
    let (backend, mut control, mut bulk, why) = held();
    let link = &backend.link;
    let mut memory = vec![0u8; 100_000];
    let to = Destination::linear(memory.as_mut_ptr() as u64, 100_000);
    link.transfers.begin(7, to);
    // The tickets of a context that is not there.
    let told = |stream: u64| {
        let tickets = vec![(link.progress.ticket(Ticket::Stream((1, stream), 0)), 0)];
        word(0, &Word::Done { after: vec![1], tickets })
    };
    let words: Vec<u8> = (0..60_000).flat_map(told).collect();
    let writing = std::thread::spawn(move || control.write_all(&words));
    std::thread::sleep(Duration::from_millis(600));
    let held = link.held.bytes();
    assert!((1 << 20..=8 << 20).contains(&held), "{held} bytes");
    assert!(!writing.is_finished(), "no more is read");
    PieceHeader { transfer: 7, offset: 0, bytes: 100_000 }.write(0, &mut bulk).unwrap();
    bulk.write_all(&[3; 100_000]).unwrap();
    writing.join().unwrap().unwrap();
    let begun = Instant::now();
    while link.held.bytes() > 0 || !link.progress.is_told() {
        assert!(begun.elapsed() < Duration::from_secs(10), "they are not believed");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(link.transfers.end(7) && memory == [3; 100_000]);
    assert!(why.try_recv().is_err());
}

#[test]
fn what_is_printed_and_called_back_is_bounded() {
    let (backend, mut control, _bulk, why) = held();
    let output = word(0, &Word::Output { data: Bytes(vec![b'x'; 1 << 20]) });
    (0..70).for_each(|_| control.write_all(&output).unwrap());
    let (release, waits) = channel::<()>();
    let waits = Mutex::new(waits);
    let function = move |_| {
        let _ = lock(&waits).recv();
    };
    lock(&backend.link.callbacks).insert(3, Callback::Graph(GraphFunction(Arc::new(function))));
    let call = word(0, &Word::HostCall { after: vec![], call: 1, function: 3, error: 0 });
    let _ = control.write_all(&call.repeat(6000));
    let why = why.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(why.contains("host functions of graphs"), "{why}");
    assert_eq!(backend.take_output().len(), 64 << 20);
    drop(release);
}

/// A far end by which every variable lies in the same place.
fn with_variables(at: Range) -> RemoteBackend {
    let (control, mut far_control) = UnixStream::pair().unwrap();
    let (bulk, far_bulk) = UnixStream::pair().unwrap();
    far_control.write_all(&greeting(VERSION)).unwrap();
    std::thread::spawn(move || {
        let _open = far_bulk;
        let mut head = [0; frame::HEADER];
        far_control.read_exact(&mut head[..MAGIC.len() + 4])?;
        while far_control.read_exact(&mut head).is_ok() {
            let length = u32::from_le_bytes(head[..4].try_into().unwrap());
            std::io::copy(&mut (&far_control).take(length.into()), &mut std::io::sink())?;
            let call = u64::from_le_bytes(head[8..].try_into().unwrap());
            let mut body = Vec::new();
            if head[4..6] == Global::OPCODE.to_le_bytes() {
                at.encode(&mut Encoder::new(&mut body));
            }
            if call != 0 {
                far_control.write_all(&reply(call, body))?;
            }
        }
        std::io::Result::Ok(())
    });
    RemoteBackend::connect(Wires::of_unix(vec![control, bulk]).unwrap(), &Choice::default(), |_| {}).unwrap()
}

/// What a program is told is a variable, it may copy: a copy at an address that nobody knows to be the device's would be one of this
/// process's own memory.
#[test]
fn a_variable_lies_where_it_can_be_told_from_the_hosts_memory() {
    const BASE: u64 = 0x7000_0000_0000;
    let global = |backend: &RemoteBackend, name| backend.global(RawContext(1), RawModule(2), name);
    let backend = with_variables(Range { base: BASE, bytes: 64 });
    for name in ["one", "the same"] {
        assert_eq!(global(&backend, name), Ok(Range { base: BASE, bytes: 64 }));
    }
    backend.module_unload(RawContext(1), RawModule(2)).unwrap();
    assert!(global(&backend, "another at its place").is_ok());

    for (base, bytes) in [(0, 8), (8, u64::MAX), (u64::MAX - 7, 8), (BASE - 8, 16), (BASE + 1, 1)] {
        let backend = with_variables(Range { base, bytes });
        backend.reserve(Range { base: BASE, bytes: 4096 }).unwrap();
        assert_eq!(global(&backend, "nowhere"), Err(CuError::DEVICE_UNAVAILABLE), "{base:#x}, {bytes:#x}");
    }
}

#[test]
fn a_silent_far_end_is_lost() {
    let (control, mut far_control) = UnixStream::pair().unwrap();
    let (bulk, _far_bulk) = UnixStream::pair().unwrap();
    let bytes = greeting(VERSION);
    far_control.write_all(&bytes).unwrap();
    let mut wires = Wires::of_unix(vec![control, bulk]).unwrap();
    wires.patience.silence = Duration::from_millis(400);
    let backend = RemoteBackend::connect(wires, &Choice::default(), |_| {}).unwrap();
    let begun = Instant::now();
    assert_eq!(backend.context_limit(RawContext(1), 0), Err(CuError::DEVICE_UNAVAILABLE));
    assert!(begun.elapsed() < Duration::from_secs(3));
    // What was asked is in the socket.
    let mut asked = [0; 12];
    far_control.read_exact(&mut asked).unwrap();
    assert_eq!(asked[..8], MAGIC);
}

/// So many, or as many as the environment says.
fn cases(some: u32) -> ProptestConfig {
    let told = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    if told { default } else { ProptestConfig { cases: some, ..default } }
}

proptest! {
    #![proptest_config(cases(100))]
    #[test]
    fn nothing_that_a_far_end_says_harms(
        said in proptest::collection::vec((1u16..11, 0u64..12, proptest::collection::vec(prop_oneof![3 => 0u8..3, 1 => any::<u8>()], 0..80)), 0..30),
        bulk in proptest::collection::vec(prop_oneof![3 => 0u8..3, 1 => any::<u8>()], 0..200),
    ) {
        let mut bytes = Vec::new();
        for (opcode, call, body) in said {
            bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&opcode.to_le_bytes());
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(&call.to_le_bytes());
            bytes.extend_from_slice(&body);
        }
        let backend = connected(VERSION, bytes, bulk).unwrap();
        prop_assert!(ends(&backend));
    }
}
