//! Messages survive the wire, and what is no message is refused without harm.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::ops::RangeInclusive;
use wire::*;

fn encoded(value: &impl Wire) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes
}

fn decoded<T: Wire>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut from = Decoder::new(bytes);
    let value = T::decode(&mut from)?;
    from.finish()?;
    Ok(value)
}

/// Every prefix of an encoding is refused, and so is anything behind it.
fn is_exact<T: Wire + PartialEq + std::fmt::Debug>(value: &T) {
    let mut bytes = encoded(value);
    assert_eq!(&decoded::<T>(&bytes).unwrap(), value);
    for len in 0..bytes.len() {
        assert!(decoded::<T>(&bytes[..len]).is_err(), "{len} of {} bytes of {value:?}", bytes.len());
    }
    bytes.push(0);
    assert_eq!(decoded::<T>(&bytes), Err(DecodeError::Trailing(1)));
}

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>(), 0..20).prop_map(|chars| chars.into_iter().collect())
}

fn stream() -> impl Strategy<Value = Stream> {
    prop_oneof![
        Just(Stream::Legacy),
        Just(Stream::PerThread),
        (1..u32::MAX).prop_map(|id| Stream::Created(StreamId(id))),
    ]
}

fn callee() -> impl Strategy<Value = Callee> {
    (1..u32::MAX, any::<bool>()).prop_map(|(id, kernel)| match kernel {
        true => Callee::Kernel(KernelId(id)),
        false => Callee::Function(FunctionId(id)),
    })
}

fn launch() -> impl Strategy<Value = Launch> {
    let value = any::<[u8; 32]>().prop_map(|half| {
        let mut value = [7; 64];
        value[16..48].copy_from_slice(&half);
        LaunchValue(value)
    });
    let attributes = proptest::collection::vec((any::<u32>(), value), 0..4);
    let params = proptest::collection::vec(any::<u8>(), 0..64);
    (any::<u32>(), stream(), callee(), any::<[u32; 3]>(), any::<[u32; 3]>(), any::<u32>(), attributes, params)
        .prop_map(|(ctx, stream, callee, grid, block, shared, attributes, params)| Launch {
            ctx: ContextId(ctx),
            stream,
            callee,
            grid,
            block,
            shared,
            attributes,
            params: Bytes(params),
        })
}

fn facts() -> impl Strategy<Value = FunctionFacts> {
    let params = proptest::collection::vec((any::<u32>(), any::<u32>()), 0..4);
    let attributes = proptest::collection::vec((any::<i32>(), any::<i32>()), 0..4);
    (text(), params, attributes).prop_map(|(name, params, attributes)| FunctionFacts {
        name,
        params: params.into_iter().map(|(offset, size)| Param { offset, size }).collect(),
        attributes,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn launches_are_exact(launch in launch()) {
        is_exact(&launch);
        let request = Request::decode(Launch::OPCODE, &encoded(&launch)).unwrap();
        prop_assert_eq!(request.name(), "Launch");
        prop_assert!(request.is_pipelined());
        prop_assert_eq!(request, Request::Launch(launch));
    }

    #[test]
    fn replies_are_exact(facts in facts(), output in proptest::collection::vec(any::<u8>(), 0..40), code in 1..1000u32, why in text()) {
        let output = Output { from: u64::from(code), bytes: Bytes(output), more: code % 2 == 0 };
        is_exact(&Reply { output: output.clone(), result: Ok(facts) });
        let error = CuError::from_code(code).unwrap();
        is_exact(&Reply::<FunctionFacts> { output, result: Err((error, why)) });
    }

    #[test]
    fn greetings_are_exact(protocol in any::<u32>(), session in any::<u32>(), reason in text()) {
        is_exact(&Greeting::Hello { protocol, visible: None });
        is_exact(&Greeting::Hello { protocol, visible: Some(reason.clone()) });
        is_exact(&Greeting::Welcome { session });
        is_exact(&Greeting::Refused { reason: reason.clone() });
        is_exact(&Greeting::NotAsked { code: session, reason });
        is_exact(&Greeting::Devices { protocol });
        is_exact(&Greeting::Still { protocol, thread: session });
        is_exact(&Greeting::Stilled);
        for question in [Question::Now { stop: false }, Question::Now { stop: true }, Question::AtPoint, Question::HasPoints] {
            is_exact(&Greeting::Ask { version: protocol, question });
        }
        is_exact(&Greeting::Asked { ticket: u64::from(session) << 32 });
    }

    /// A graph that is understood waits for nothing that comes later, whatever the bytes.
    #[test]
    fn arbitrary_bytes_are_a_graph_or_an_error(
        bytes in proptest::collection::vec(prop_oneof![4 => 0..3u8, 1 => any::<u8>()], 0..300),
    ) {
        if let Ok(plan) = GraphPlan::decode(&mut Decoder::new(&bytes)) {
            for (at, node) in plan.nodes.iter().enumerate() {
                prop_assert!(node.after.iter().all(|edge| (edge.from as usize) < at));
            }
        }
        let _ = Vec::<GraphChange>::decode(&mut Decoder::new(&bytes));
    }

    /// Any bytes under any opcode: a message of exactly their length, or an error; never more memory than there are bytes.
    #[test]
    fn arbitrary_bytes_are_a_message_or_an_error(
        opcode in 0..256u16,
        bytes in proptest::collection::vec(prop_oneof![4 => 0..3u8, 1 => any::<u8>()], 0..300),
    ) {
        match Request::decode(opcode, &bytes) {
            Ok(request) => prop_assert_eq!(Request::decode(opcode, &bytes).unwrap(), request),
            Err(DecodeError::Trailing(rest)) => {
                let exact = &bytes[..bytes.len() - rest];
                prop_assert!(Request::decode(opcode, exact).is_ok());
            }
            Err(_) => {}
        }
    }
}

/// Bytes that are understood are what is written for it.
fn comes_back<T: Wire>(bytes: &[u8]) {
    let mut from = Decoder::new(bytes);
    if let Ok(value) = T::decode(&mut from) {
        assert_eq!(encoded(&value), bytes[..bytes.len() - from.remaining()]);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_a_reply_or_an_error(
        bytes in proptest::collection::vec(prop_oneof![4 => 0..3u8, 1 => any::<u8>()], 0..300),
    ) {
        comes_back::<Greeting>(&bytes);
        comes_back::<Greeting>(&[b"DORM", &bytes[..]].concat());
        comes_back::<Reply<()>>(&bytes);
        comes_back::<Reply<Bytes>>(&bytes);
        comes_back::<Reply<Names>>(&bytes);
        comes_back::<Reply<SessionFacts>>(&bytes);
        comes_back::<Reply<FunctionFacts>>(&bytes);
    }
}

#[test]
fn a_count_that_lies_is_refused_before_anything_is_allocated() {
    let lie = [0xff, 0xff, 0xff, 0x7f, 1, 2, 3];
    assert!(matches!(decoded::<Vec<u32>>(&lie), Err(DecodeError::TooLong(_))));
    assert!(matches!(decoded::<Vec<()>>(&[0xff, 0xff, 0x0f, 0]), Err(DecodeError::TooLong(_))));
    assert!(matches!(decoded::<Bytes>(&lie), Err(DecodeError::Truncated { .. })));
    assert!(matches!(decoded::<String>(&lie), Err(DecodeError::Truncated { .. })));
    assert_eq!(decoded::<String>(&[1, 0, 0, 0, 0xff]), Err(DecodeError::NotUtf8));
    assert!(matches!(decoded::<bool>(&[2]), Err(DecodeError::Invalid { what: "flag", value: 2 })));
}

#[test]
fn handles_tell_their_kind() {
    let stream = StreamId(7);
    assert_eq!(StreamId::from_handle(stream.handle()), Some(stream));
    assert_eq!(EventId::from_handle(stream.handle()), None);
    assert_eq!(stream.handle() % 16, 0, "as a pointer's would be");
    for other in [0, 1, 2, 0xd2 << 36, stream.handle() | 1, stream.handle() | 1 << 44, u64::MAX, 0xdead_beef]
    {
        assert_eq!(StreamId::from_handle(other), None, "{other:#x}");
    }
}

#[test]
fn opcodes_are_what_the_document_says() {
    assert_eq!(Request::decode(GetFacts::OPCODE, &[]), Ok(Request::GetFacts(GetFacts {})));
    assert!(matches!(Request::decode(u16::MAX, &[]), Err(DecodeError::Invalid { what: "opcode", .. })));
    assert!(matches!(Request::decode(0, &[]), Err(DecodeError::Invalid { what: "opcode", .. })));
}

#[test]
fn graphs_are_exact() {
    let ctx = ContextId(3);
    let side = |address| Pitched { address, pitch: 16, rows: 4 };
    let kernel = GraphKernel {
        ctx,
        callee: Callee::Function(FunctionId(9)),
        grid: [1, 2, 3],
        block: [4, 5, 6],
        shared: 7,
        attributes: vec![(8, LaunchValue([9; 64]))],
        params: Bytes(vec![1, 2, 3]),
    };
    let works = [
        GraphWork::Empty,
        GraphWork::Kernel(kernel),
        GraphWork::Copy(GraphCopy {
            ctx,
            dst: CopySide::Memory(side(1)),
            src: CopySide::Array(ArrayId(2), [3, 4, 5]),
            width: 3,
            height: 4,
            depth: 5,
        }),
        GraphWork::Fill(GraphFill { ctx, dst: 1, pitch: 2, element: 4, value: 5, width: 6, height: 7 }),
        GraphWork::Host(CallbackId(10)),
        GraphWork::EventRecord(EventId(11)),
        GraphWork::EventWait(EventId(12)),
        GraphWork::Operations(GraphOperations {
            ctx,
            operations: vec![
                MemoryOperation::Write { word: Word { address: 16, value: 7, wide: true } },
                MemoryOperation::Barrier { gpu: false },
            ],
        }),
    ];
    let mut nodes = Vec::new();
    for (at, work) in works.into_iter().enumerate() {
        is_exact(&GraphChange { node: at as u32, work: work.clone() });
        let after =
            (0..at as u32).map(|from| GraphEdge { from, from_port: 1, to_port: 0, kind: 1 }).collect();
        nodes.push(GraphNode { work, after });
    }
    let mut plan = GraphPlan { nodes };
    is_exact(&plan);
    is_exact(&GraphData::Inline(Bytes(encoded(&plan))));
    is_exact(&GraphData::Upload(UploadId(13)));
    plan.nodes[2].after[0].from = 2;
    let refused = decoded::<GraphPlan>(&encoded(&plan));
    assert_eq!(refused, Err(DecodeError::Invalid { what: "dependency", value: 2 }));
}

#[test]
fn bodies_of_conditional_nodes_are_apart() {
    use ConditionKind::{If, Switch, While};
    let node = |work, after: &[u32]| GraphNode {
        work,
        after: after
            .iter()
            .map(|from| GraphEdge { from: *from, from_port: 0, to_port: 0, kind: 0 })
            .collect(),
    };
    let empty = |after: &[u32]| node(GraphWork::Empty, after);
    let choice = |kind, bodies: &[u32], after: &[u32]| {
        let bodies = bodies.to_vec();
        node(GraphWork::Conditional(GraphConditional { ctx: ContextId(1), handle: 2, kind, bodies }), after)
    };
    let nodes = vec![
        empty(&[]),
        choice(If, &[3, 1], &[0]),
        empty(&[]),
        choice(While, &[1], &[2]),
        empty(&[]),
        empty(&[]),
        empty(&[0, 1]),
        choice(Switch, &[0, 0], &[6]),
    ];
    let plan = GraphPlan { nodes };
    is_exact(&plan);
    assert_eq!((plan.behind(0), plan.behind(1), plan.behind(3), plan.behind(7)), (1, 6, 5, 8));
    let refused = |at: usize, with: GraphNode| {
        let mut plan = plan.clone();
        plan.nodes[at] = with;
        assert!(decoded::<GraphPlan>(&encoded(&plan)).is_err(), "{:?}", plan.nodes[at]);
    };
    // Into a body, out of one, from one to the other, and from behind into one.
    refused(2, empty(&[0]));
    refused(4, empty(&[2]));
    refused(5, empty(&[2]));
    refused(6, empty(&[5]));
    // Longer than what is around it, and of kinds that there are not.
    refused(3, choice(While, &[2], &[2]));
    refused(7, choice(Switch, &[1], &[6]));
    refused(7, choice(Switch, &[], &[6]));
    refused(7, choice(If, &[0, 0, 0], &[6]));
    refused(7, choice(While, &[0, 0], &[6]));
    refused(1, choice(Switch, &[u32::MAX, u32::MAX], &[0]));
    // Too deep.
    let nested =
        |depth: u32| GraphPlan { nodes: (0..depth).rev().map(|left| choice(While, &[left], &[])).collect() };
    is_exact(&nested(GRAPH_DEPTH_MAX as u32));
    assert!(decoded::<GraphPlan>(&encoded(&nested(GRAPH_DEPTH_MAX as u32 + 1))).is_err());
}

/// The messages of this version; what comes later, an older program does not send.
const OPCODES: [RangeInclusive<u16>; 10] =
    [1..=11, 19..=42, 50..=62, 70..=91, 100..=108, 140..=151, 200..=206, 210..=210, 220..=230, 240..=256];

/// Folds what bytes mean to decoders: which value, of how many of them, or that they are none.
struct Meaning(u64);

impl Meaning {
    fn add(&mut self, value: u64) {
        // FNV-1a
        for byte in value.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn add_value(&mut self, value: &impl std::fmt::Debug, rest: usize) {
        self.add(rest as u64);
        format!("{value:?}").bytes().for_each(|byte| self.add(byte.into()));
    }

    fn of<T: Wire + std::fmt::Debug>(&mut self, bytes: &[u8]) {
        let mut from = Decoder::new(bytes);
        match T::decode(&mut from) {
            Ok(value) => self.add_value(&value, from.remaining()),
            Err(_) => self.add(u64::MAX),
        }
    }

    fn of_messages(&mut self, bytes: &[u8]) {
        for opcode in OPCODES.into_iter().flatten() {
            let Err(DecodeError::Trailing(rest)) = Request::decode(opcode, bytes) else {
                self.add(u64::MAX);
                continue;
            };
            let request = Request::decode(opcode, &bytes[..bytes.len() - rest]).unwrap();
            self.add(u64::from(request.is_pipelined()));
            self.add_value(&request, rest);
        }
    }
}

/// A program that was begun by one build, and is in an image, is served by another one that says the same version.
#[test]
fn what_bytes_mean_has_a_version() {
    let (mut meaning, mut state) = (Meaning(0xcbf2_9ce4_8422_2325), 1u64);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..400 {
        // Small numbers of any width are counts, and kinds that there are.
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < 600 {
            let number = next();
            let width = [1, 2, 4, 4, 4, 8][(number >> 8) as usize % 6];
            let small = if number >> 61 == 0 { number } else { (number >> 32) % 5 };
            bytes.extend(&small.to_le_bytes()[..width]);
        }
        meaning.of_messages(&bytes);
        meaning.of::<Reply<()>>(&bytes);
        meaning.of::<Bytes>(&bytes);
        meaning.of::<Claim>(&bytes);
        meaning.of::<FunctionFacts>(&bytes);
        meaning.of::<LaunchValue>(&bytes);
        meaning.of::<ManagedVariables>(&bytes);
        meaning.of::<Names>(&bytes);
        meaning.of::<PinnedPlace>(&bytes);
        meaning.of::<SessionFacts>(&bytes);
        meaning.of::<Vec<SmCount>>(&bytes);
        meaning.of::<TensorMap>(&bytes);
        meaning.of::<GraphPlan>(&bytes);
        meaning.of::<Vec<GraphChange>>(&bytes);
        meaning.of::<Greeting>(&[b"DORM", &bytes[..]].concat());
    }
    assert_eq!(
        (PROTOCOL_VERSION, format!("{:x}", meaning.0).as_str()),
        (6, "34722b42fb17353d"),
        "messages or answers have changed: raise PROTOCOL_VERSION, here too, so that programs of older images are refused by name; or, if only what they \
         are called has, the second number alone"
    );
}
