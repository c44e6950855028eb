//! An application that sends what no shim would: the server answers, and lives.
#![allow(clippy::unwrap_used)]

mod common;

use common::{App, BASIC, CTX};
use proptest::prelude::*;
use wire::*;

/// A number that is likely to hit something: ids of objects that exist, sizes at borders, addresses of this session.
fn likely(memory: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        0..8u64,
        Just(memory),
        Just(memory + 0xfff),
        (0..64u32).prop_map(|bit| 1 << bit),
        (0..64u32).prop_map(|bit| (1u64 << bit).wrapping_sub(1)),
        any::<u64>(),
    ]
}

/// A body of little fields.
fn body(memory: u64) -> impl Strategy<Value = Vec<u8>> {
    let field = prop_oneof![
        4 => (0..6u32).prop_map(|id| id.to_le_bytes().to_vec()),
        2 => likely(memory).prop_map(|value| value.to_le_bytes().to_vec()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ];
    prop::collection::vec(field, 0..10).prop_map(|fields| fields.concat())
}

/// Any opcode but those that ask the device for hours of honest work or end the context that the test asks at the end.
fn opcode() -> impl Strategy<Value = u16> {
    prop_oneof![2 => 0..100u16, 1 => 200..240u16, 1 => any::<u16>()]
        .prop_filter("a wrap record is the transport's", |op| *op != u16::MAX)
}

/// Sends raw bytes as the message they claim to be: pipelined ones are not waited for.
fn send(thread: &mut common::Thread, opcode: u16, body: &[u8]) {
    let pipelined = Request::decode(opcode, body).is_ok_and(|request| request.is_pipelined());
    if pipelined {
        thread.ring.submit(opcode, &[body]).unwrap();
    } else {
        let mut reply = Vec::new();
        thread.ring.call(opcode, &[body], &mut reply).unwrap();
        assert!(reply.len() >= 8, "{reply:?}");
    }
}

#[test]
fn no_message_brings_the_server_down() {
    let (mut app, mut thread) = App::with_context();
    let memory = thread.alloc(4096);
    let module = app.load(&mut thread, 2, BASIC);
    thread.function(module, 3, "store");
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let messages = prop::collection::vec((opcode(), body(memory)), 1..20);
    let thread = std::cell::RefCell::new(thread);
    runner
        .run(&messages, |messages| {
            for (opcode, body) in messages {
                send(&mut thread.borrow_mut(), opcode, &body);
            }
            Ok(())
        })
        .unwrap();
    // Somebody else is served as before, whatever state the first has got itself into.
    let mut other = app.thread();
    other.call(GetFacts {}).unwrap();
    let _ = other.call(ContextDestroy { ctx: CTX });
    let fresh = ContextId(0x7000_0000);
    other.call(ContextCreate { ctx: fresh, device: Device(0), flags: 0, primary: false }).unwrap();
    let address = other.call(MemAlloc { ctx: fresh, bytes: 64 }).unwrap();
    let data = Bytes(vec![3; 64]);
    other.send(CopyFromInline { ctx: fresh, stream: Stream::Legacy, dst: address, data: data.clone() });
    let back =
        other.call(CopyToInline { ctx: fresh, stream: Stream::Legacy, src: address, bytes: 64 }).unwrap();
    assert_eq!(back, data);
    assert!(!app.session.is_ending());
}

#[test]
fn memory_of_the_server_cannot_be_named() {
    let (app, mut thread) = App::with_context();
    let memory = thread.alloc(100);
    let secret = Box::new([7u32; 16]);
    let address = std::ptr::from_ref(&*secret) as u64;
    let stream = Stream::Legacy;
    let refused = Err(CuError::INVALID_VALUE);
    assert_eq!(thread.call(CopyToInline { ctx: CTX, stream, src: address, bytes: 64 }).map(drop), refused);
    assert_eq!(thread.call(CopyWait { ctx: CTX, stream, dst: memory, src: address, bytes: 64 }), refused);
    assert_eq!(thread.call(CopyWait { ctx: CTX, stream, dst: address, src: memory, bytes: 64 }), refused);
    assert_eq!(thread.call(CopyWait { ctx: CTX, stream, dst: memory, src: memory, bytes: 101 }), refused);
    thread.put(address, &[1]);
    thread.synchronize().unwrap();
    assert_eq!(app.client.control().take_error(), Some(CuError::INVALID_VALUE));
    assert_eq!(*secret, [7; 16]);
}

#[test]
fn a_link_in_place_of_an_upload_is_not_followed() {
    let (app, mut thread) = App::with_context();
    let target = app.dir.path().join("target");
    std::fs::write(&target, BASIC).unwrap();
    std::os::unix::fs::symlink(&target, app.dir.path().join("upload-5")).unwrap();
    let load = ModuleLoad { ctx: CTX, module: ModuleId(2), upload: UploadId(5), options: vec![] };
    assert_eq!(thread.call(load), Err(CuError::INVALID_IMAGE));
    std::os::unix::fs::symlink(&target, app.dir.path().join("pinned-6")).unwrap();
    assert!(thread.call(PinnedAlloc { ctx: CTX, pinned: PinnedId(6), bytes: 1, flags: 0 }).is_err());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), BASIC);
}
