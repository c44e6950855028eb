//! An application that sends what no shim would: the server answers, and lives.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, LONG, encoded};
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

/// Any opcode, those that there are more often; but none that has a stream wait for a word, as whoever asks for it wants.
fn opcode() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 0..256u16, 1 => any::<u16>()]
        .prop_filter("a wrap record is the transport's", |op| *op != u16::MAX)
        .prop_filter("nobody writes the word", |op| *op != MemoryOperations::OPCODE)
}

/// A message as it travels.
type Sent = (u16, Vec<u8>);

fn sent<M: Message>(message: M) -> Sent {
    (M::OPCODE, encoded(&message))
}

fn ctx() -> impl Strategy<Value = ContextId> {
    prop_oneof![8 => Just(CTX), 1 => (0..6u32).prop_map(ContextId)]
}

fn stream() -> impl Strategy<Value = Stream> {
    prop_oneof![
        Just(Stream::Legacy),
        Just(Stream::PerThread),
        (0..6u32).prop_map(StreamId).prop_map(Stream::Created)
    ]
}

/// The side of an array: small, so that nobody waits for honest work; sometimes none that there can be.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![16 => 0..20u64, 1 => (40..64u32).prop_map(|bit| 1 << bit), 1 => any::<u64>()]
}

fn array() -> impl Strategy<Value = ArrayId> {
    (0..6u32).prop_map(ArrayId)
}

fn mipmap() -> impl Strategy<Value = MipmapId> {
    (0..3u32).prop_map(MipmapId)
}

fn array_desc() -> impl Strategy<Value = ArrayDesc> {
    let format =
        prop_oneof![8 => prop::sample::select(vec![1u32, 2, 3, 8, 9, 10, 16, 32]), 1 => any::<u32>()];
    let flags = prop_oneof![4 => prop::sample::select(vec![0u32, 1, 2, 4, 5, 8]), 1 => any::<u32>()];
    ([size(), size(), size()], format, 0..6u32, flags).prop_map(
        |([width, height, depth], format, channels, flags)| ArrayDesc {
            width,
            height,
            depth,
            format,
            channels,
            flags,
        },
    )
}

fn side(memory: u64) -> impl Strategy<Value = CopySide> {
    let pitched = (likely(memory), size(), size());
    prop_oneof![
        pitched.prop_map(|(address, pitch, rows)| CopySide::Memory(Pitched { address, pitch, rows })),
        (array(), [size(), size(), size()]).prop_map(|(array, at)| CopySide::Array(array, at)),
        (0..20u32).prop_map(CopySide::Slot),
    ]
}

fn arrays(memory: u64) -> BoxedStrategy<Sent> {
    let copy = (ctx(), stream(), side(memory), side(memory), [size(), size(), size()]);
    prop_oneof![
        (ctx(), array(), array_desc()).prop_map(|(ctx, array, desc)| sent(ArrayCreate { ctx, array, desc })),
        array().prop_map(|array| sent(ArrayDestroy { array })),
        (ctx(), mipmap(), array_desc(), 0..6u32).prop_map(|(ctx, mipmap, desc, levels)| sent(MipmapCreate {
            ctx,
            mipmap,
            desc,
            levels
        })),
        (mipmap(), 0..6u32, array()).prop_map(|(mipmap, level, array)| sent(MipmapLevel {
            mipmap,
            level,
            array
        })),
        mipmap().prop_map(|mipmap| sent(MipmapDestroy { mipmap })),
        copy.prop_map(|(ctx, stream, dst, src, [width, height, depth])| sent(CopyBox {
            ctx,
            stream,
            dst,
            src,
            width,
            height,
            depth
        })),
    ]
    .boxed()
}

fn textures(memory: u64) -> BoxedStrategy<Sent> {
    let numbers = (0..40u32, 0..6u32, size(), size(), size());
    let resource = prop_oneof![
        array().prop_map(Resource::Array),
        mipmap().prop_map(Resource::Mipmap),
        (likely(memory), numbers).prop_map(
            |(address, (format, channels, width, height, pitch))| match height {
                0 => Resource::Linear { address, format, channels, bytes: width },
                _ => Resource::Pitch2D { address, format, channels, width, height, pitch },
            }
        ),
    ];
    let sampling = ([0..5u32, 0..5, 0..5], 0..3u32, any::<u32>(), any::<f32>(), any::<f32>()).prop_map(
        |(address, filter, flags, level, border)| Sampling {
            address,
            filter,
            flags: flags % 64,
            max_anisotropy: flags >> 16,
            mipmap_filter: filter,
            level_bias: level,
            min_level: -level,
            max_level: level,
            border: [border; 4],
        },
    );
    let view = (0..40u32, [size(), size(), size()], [0..4u32, 0..4, 0..4, 0..4]).prop_map(
        |(format, [width, height, depth], [a, b, c, d])| ResourceView {
            format,
            width,
            height,
            depth,
            levels: (a, b),
            layers: (c, d),
        },
    );
    prop_oneof![
        3 => (ctx(), resource, sampling, prop::option::of(view)).prop_map(|(ctx, resource, sampling, view)| {
            sent(TextureCreate { ctx, texture: TextureDesc { resource, sampling, view } })
        }),
        1 => (ctx(), 0..6u64).prop_map(|(ctx, texture)| sent(TextureDestroy { ctx, texture })),
        1 => (ctx(), array()).prop_map(|(ctx, array)| sent(SurfaceCreate { ctx, array })),
        1 => (ctx(), 0..6u64).prop_map(|(ctx, surface)| sent(SurfaceDestroy { ctx, surface })),
    ]
    .boxed()
}

fn graphs(memory: u64) -> BoxedStrategy<Sent> {
    let kernel = (ctx(), 0..6u32, 0..4u32, likely(memory)).prop_map(|(ctx, function, blocks, word)| {
        GraphWork::Kernel(GraphKernel {
            ctx,
            callee: Callee::Function(FunctionId(function)),
            grid: [blocks, 1, 1],
            block: [1; 3],
            shared: 0,
            attributes: vec![],
            params: Bytes([word.to_le_bytes(), word.to_le_bytes()].concat()[..12].to_vec()),
        })
    });
    let fill = (ctx(), likely(memory), 0..6u8, [size(), size(), size()]).prop_map(
        |(ctx, dst, element, [pitch, width, height])| {
            GraphWork::Fill(GraphFill { ctx, dst, pitch, element, value: 3, width, height })
        },
    );
    let event = (0..6u32).prop_map(|event| GraphWork::EventRecord(EventId(event)));
    let write = (ctx(), likely(memory), any::<bool>()).prop_map(|(ctx, address, wide)| {
        let write = MemoryOperation::Write { word: Word { address, value: 1, wide } };
        GraphWork::Operations(GraphOperations { ctx, operations: vec![write] })
    });
    // As the software device calls the first of its conditions.
    let handle = (0..4u64).prop_map(|number| 0xc0de << 48 | number);
    // Nothing that could go on for ever.
    let kind = prop_oneof![Just(ConditionKind::If), Just(ConditionKind::Switch)];
    let choice = (ctx(), handle, kind, prop::collection::vec(0..3u32, 0..3)).prop_map(
        |(ctx, handle, kind, bodies)| GraphWork::Conditional(GraphConditional { ctx, handle, kind, bodies }),
    );
    let work = prop_oneof![kernel, fill, event, write, choice].boxed();
    let edge = (0..8u32).prop_map(|from| GraphEdge { from, from_port: 0, to_port: 0, kind: 0 });
    let node = (work.clone(), prop::collection::vec(edge, 0..3));
    let node = node.prop_map(|(work, after)| GraphNode { work, after });
    let exec = || (0..6u32).prop_map(GraphExecId);
    let template = || (0..3u32).prop_map(GraphTemplateId);
    let inline = |bytes: Vec<u8>| GraphData::Inline(Bytes(bytes));
    let plan = prop::collection::vec(node, 0..6).prop_map(move |nodes| inline(encoded(&GraphPlan { nodes })));
    let changes = prop::collection::vec((0..8u32, work), 0..3).prop_map(move |changes| {
        let change = |(node, work)| GraphChange { node, work };
        inline(encoded(&changes.into_iter().map(change).collect::<Vec<_>>()))
    });
    prop_oneof![
        3 => (ctx(), exec(), prop::option::of(template()), 0..16u64, plan).prop_map(
            |(ctx, exec, template, flags, plan)| sent(GraphInstantiate { ctx, exec, template, flags, plan })
        ),
        2 => (ctx(), template(), prop::option::of(0..4u32))
            .prop_map(|(ctx, template, initial)| sent(GraphCondition { ctx, template, initial })),
        1 => template().prop_map(|template| sent(GraphTemplateDestroy { template })),
        1 => (exec(), changes).prop_map(|(exec, changes)| sent(GraphUpdate { exec, changes })),
        1 => (exec(), 0..8u32, any::<bool>())
            .prop_map(|(exec, node, enabled)| sent(GraphNodeEnable { exec, node, enabled })),
        2 => (ctx(), stream(), exec(), any::<bool>())
            .prop_map(|(ctx, stream, exec, wide)| sent(GraphLaunch { ctx, stream, exec, wide })),
        1 => exec().prop_map(|exec| sent(GraphExecDestroy { exec })),
    ]
    .boxed()
}

fn links() -> BoxedStrategy<Sent> {
    let input = (0..8u32, (UPLOADS, "[a-z\\x00]{0,4}"));
    let input = input.prop_map(|(kind, (upload, name))| (kind, (UploadId(upload), name)));
    let options = prop::collection::vec((0..40u32, any::<u64>()), 0..2);
    (ctx(), prop::collection::vec(input, 0..3), options, UPLOADS)
        .prop_map(|(ctx, inputs, options, output)| {
            sent(Link { ctx, inputs, options, output: UploadId(output) })
        })
        .boxed()
}

/// Files that there are, until somebody takes them.
const UPLOADS: std::ops::Range<u32> = 100..140;

/// A message: of some opcode with some fields, or one that might be meant.
fn message(memory: u64) -> impl Strategy<Value = Sent> {
    prop_oneof![
        6 => (opcode(), body(memory)),
        2 => arrays(memory),
        2 => textures(memory),
        2 => graphs(memory),
        1 => links(),
    ]
}

/// Sends raw bytes as the message they claim to be: pipelined ones are not waited for.
fn send(thread: &mut crate::common::Thread, opcode: u16, body: &[u8]) {
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
    for upload in UPLOADS {
        std::fs::write(app.dir.path().join(format!("upload-{upload}")), [BASIC.as_bytes(), b"\0"].concat())
            .unwrap();
    }
    let messages = prop::collection::vec(message(memory), 1..20);
    let thread = std::cell::RefCell::new(thread);
    let client = std::sync::Arc::clone(&app.client);
    // Whatever callback is asked for returns.
    std::thread::spawn(move || {
        while let Ok(callback) = client.callbacks().next(LONG) {
            if callback.is_some() {
                client.callbacks().acknowledge();
            }
        }
    });
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
    let load = ModuleLoad { ctx: CTX, module: ModuleId(2), upload: UploadId(5), options: vec![], managed: 0 };
    assert_eq!(thread.call(load), Err(CuError::INVALID_IMAGE));
    std::os::unix::fs::symlink(&target, app.dir.path().join("pinned-6")).unwrap();
    assert!(thread.pin(6, 2 << 20).is_err());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), BASIC);
}
