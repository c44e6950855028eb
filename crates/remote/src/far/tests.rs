//! The far end and clients that do not keep to anything.

// A test says what it saw by panicking.
#![allow(clippy::unwrap_used)]

use super::{Quota, Together, serve};
use crate::frame::{self, HEADER, MAGIC, PieceHeader, VERSION};
use crate::messages::{self as ask, Call, Hello, Message, Mode, Word};
use crate::{Choice, Patience, Wires, lock};
use backend::{
    BLOCK_GRANULARITY, Backend as _, Fill, MemoryOperation, Range, RawArray, RawBlock, RawContext, RawEvent,
    RawModule, RawPhysical, RawStream, StreamArg,
};
use backend_soft::{Options, SoftBackend};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wire::{Bytes, CuError, Decoder, Wire};

const CTX: RawContext = RawContext(1);
const LEGACY: StreamArg = StreamArg::Legacy;

fn quota() -> Quota {
    Quota { memory: Some(64 << 20), host_memory: 1 << 20, objects: 20, ..Quota::default() }
}

/// A client that says what it is told to.
struct Raw {
    control: UnixStream,
    bulk: UnixStream,
    far: Option<std::thread::JoinHandle<Result<(), super::ServeError>>>,
    next: u64,
}

impl Raw {
    fn new() -> Self {
        Self::with(Patience::default())
    }

    fn with(patience: Patience) -> Self {
        Self::of(patience, Options::default(), quota())
    }

    fn of(patience: Patience, options: Options, quota: Quota) -> Self {
        let (control, far_control) = UnixStream::pair().unwrap();
        let (bulk, far_bulk) = UnixStream::pair().unwrap();
        let wires = Wires { patience, ..Wires::of_unix(vec![far_control, far_bulk]).unwrap() };
        let far = std::thread::spawn(move || serve(wires, Arc::new(SoftBackend::new(options)), quota));
        control.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { control, bulk, far: Some(far), next: 1 }
    }

    fn greeted() -> Self {
        Self::new().greet()
    }

    fn greet(mut self) -> Self {
        assert_eq!(self.hello().kind, "soft");
        self
    }

    fn hello(&mut self) -> Hello {
        self.control.write_all(&MAGIC).unwrap();
        self.control.write_all(&VERSION.to_le_bytes()).unwrap();
        let mut greeting = [0; 12];
        self.control.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..8], &MAGIC);
        let mut body = Vec::new();
        frame::read(&mut self.control, |_| 1 << 20, &mut body).unwrap();
        Hello::decode(&mut Decoder::new(&body)).unwrap()
    }

    fn with_context() -> Self {
        let mut raw = Self::greeted();
        raw.ask(&ask::ContextCreate { ctx: CTX, device: 0, flags: 0, primary: false }).unwrap();
        raw
    }

    fn tell<M: Message>(&mut self, message: &M) {
        let mut bytes = Vec::new();
        frame::append(&mut bytes, M::OPCODE, 0, 0, message);
        self.control.write_all(&bytes).unwrap();
    }

    fn hear(&mut self) -> (u64, Word) {
        let mut body = Vec::new();
        let header =
            frame::read(&mut self.control, |head| Word::limit(head.opcode, || frame::LONG_MAX), &mut body)
                .unwrap();
        (header.call, Word::decode(header.opcode, &body).unwrap())
    }

    fn ask<M: Message>(&mut self, message: &M) -> Result<M::Reply, CuError> {
        self.next += 1;
        let call = self.next;
        let mut bytes = Vec::new();
        frame::append(&mut bytes, M::OPCODE, 0, call, message);
        self.control.write_all(&bytes).unwrap();
        loop {
            if let (number, Word::Reply { error, body, .. }) = self.hear()
                && number == call
            {
                return match CuError::from_code(error) {
                    Some(error) => Err(error),
                    None => Ok(M::Reply::decode(&mut Decoder::new(&body.0)).unwrap()),
                };
            }
        }
    }

    /// What a pipelined call comes to, as far as it fails.
    fn failure<M: Message>(&mut self, message: &M) -> CuError {
        self.tell(message);
        loop {
            match self.hear().1 {
                Word::Failed { error, .. } => return CuError::from_code(error).unwrap(),
                Word::Done { tickets, .. } => return CuError::from_code(tickets[0].1).unwrap(),
                _ => {}
            }
        }
    }

    /// Reserves addresses and maps a block, which is 2, at their beginning.
    fn block(&mut self) -> Range {
        let memory = Range { base: addresses(), bytes: BLOCK_GRANULARITY };
        self.ask(&ask::Reserve { range: Range { bytes: 1 << 30, ..memory } }).unwrap();
        self.ask(&ask::MapBlock { block: RawBlock(2), device: 0, range: memory }).unwrap();
        memory
    }

    fn end(mut self) -> Result<(), super::ServeError> {
        self.control.shutdown(std::net::Shutdown::Both).unwrap();
        self.far.take().unwrap().join().unwrap()
    }
}

/// Addresses that no session of a moment ago had.
fn addresses() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    0x4000_0000_0000 + (NEXT.fetch_add(1, Ordering::Relaxed) % 8192) * (2 << 30)
}

#[test]
fn no_address_of_this_process_is_touched() {
    let mut raw = Raw::with_context();
    let secret = [7u32; 1024];
    let address = secret.as_ptr() as u64;
    let range = raw.block();
    let base = range.base;
    let invalid = CuError::INVALID_VALUE;
    let copy = |dst, src| ask::Copy { ctx: CTX, stream: LEGACY, dst, src, bytes: 16 };
    assert_eq!(raw.failure(&copy(address, base)), invalid);
    assert_eq!(raw.failure(&copy(base, address)), invalid);
    // One byte beyond what is mapped, and what goes round.
    assert_eq!(raw.failure(&copy(range.end() - 15, base)), invalid);
    assert_eq!(raw.failure(&copy(u64::MAX - 3, base)), invalid);
    let fill = Fill { dst: address, pitch: 0, element: 4, value: 1, width: 4, height: 1 };
    assert_eq!(raw.failure(&ask::FillMemory { ctx: CTX, stream: LEGACY, fill }), invalid);
    let fill = Fill { dst: base, pitch: 1 << 40, element: 4, value: 1, width: 4, height: 1 << 40 };
    assert_eq!(raw.failure(&ask::FillMemory { ctx: CTX, stream: LEGACY, fill }), invalid);
    let word = backend::Word { address, value: 0, wide: false };
    let operations = vec![MemoryOperation::Write { word }];
    assert_eq!(raw.failure(&ask::Operations { ctx: CTX, stream: LEGACY, operations }), invalid);
    let data = Bytes(vec![0; 16]);
    assert_eq!(raw.failure(&ask::CopyIn { ctx: CTX, stream: LEGACY, dst: address, data }), invalid);
    let out = ask::CopyOut { ctx: CTX, stream: LEGACY, src: address, bytes: 16, transfer: 9 };
    assert_eq!(raw.failure(&out), invalid);
    let taken = Range { base: address & !4095, bytes: 4096 };
    assert_eq!(raw.ask(&ask::MirrorMake { range: taken }), Err(CuError::OUT_OF_MEMORY));
    assert_eq!(raw.ask(&ask::UnmapPhysical { range: taken }), Err(invalid));
    // A variable of managed memory lies where the client says, and makes nothing its own.
    let ptx = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .attribute(.managed) .align 8 .b8 x[4096];\n";
    let module = backend::RawModule(30);
    let managed = vec![("x".to_owned(), address)];
    let image = Bytes(ptx.as_bytes().to_vec());
    raw.ask(&ask::ModuleLoad { ctx: CTX, module, image, options: Vec::new(), managed }).unwrap();
    let found = raw.ask(&ask::Global { ctx: CTX, module, name: "x".into() });
    assert!(found.is_ok_and(|range| range.base == address));
    assert_eq!(raw.failure(&copy(address, base)), invalid);
    assert_eq!(raw.failure(&copy(base, address)), invalid);
    assert_eq!(secret, [7; 1024]);
    // None of that is an execution error.
    raw.ask(&ask::ContextSynchronize { ctx: CTX }).unwrap();
    raw.end().unwrap();
}

/// What one client has, another cannot name, nor reach by its address. (Here they share a process, which they never do in life.)
#[test]
fn what_another_client_has_is_not_there() {
    let mut one = Raw::with_context();
    let memory = one.block();
    let (stream, event, array) = (backend::RawStream(3), backend::RawEvent(4), RawArray(5));
    let (module, function) = (backend::RawModule(6), backend::RawFunction(7));
    one.ask(&ask::StreamCreate { ctx: CTX, stream, flags: 0, priority: 0 }).unwrap();
    one.tell(&ask::EventCreate { ctx: CTX, event, flags: 0 });
    let desc = wire::ArrayDesc { width: 64, height: 4, depth: 0, format: 1, channels: 1, flags: 0 };
    one.ask(&ask::ArrayCreate { ctx: CTX, array, desc }).unwrap();
    let ptx = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n";
    let image = Bytes(ptx.as_bytes().to_vec());
    one.ask(&ask::ModuleLoad { ctx: CTX, module, image, options: Vec::new(), managed: Vec::new() }).unwrap();
    one.ask(&ask::Function { ctx: CTX, module, name: "nothing".into(), function }).unwrap();
    let secret = Bytes(vec![42; 16]);
    one.tell(&ask::CopyIn { ctx: CTX, stream: LEGACY, dst: memory.base, data: secret.clone() });
    one.ask(&ask::ContextSynchronize { ctx: CTX }).unwrap();

    let mut other = Raw::greeted();
    assert_eq!(other.ask(&ask::ContextSynchronize { ctx: CTX }), Err(CuError::INVALID_CONTEXT));
    let ctx = RawContext(11);
    other.ask(&ask::ContextCreate { ctx, device: 0, flags: 0, primary: false }).unwrap();
    let handle = Err(CuError::INVALID_HANDLE);
    assert_eq!(other.ask(&ask::UnmapBlock { block: RawBlock(2) }), handle);
    assert_eq!(other.ask(&ask::StreamSynchronize { ctx, stream: StreamArg::Created(stream) }), handle);
    assert_eq!(other.ask(&ask::ArrayDestroy { ctx, array }), handle);
    assert_eq!(other.ask(&ask::ModuleUnload { ctx, module }), handle);
    assert!(other.ask(&ask::FunctionAsk { ctx, function }).is_err());
    assert_eq!(
        other.failure(&ask::EventRecord { ctx, event, stream: LEGACY, flags: 0 }),
        CuError::INVALID_HANDLE
    );
    let (at, stream) = (memory.base, LEGACY);
    let mine = other.block().base;
    assert_eq!(other.ask(&ask::UnmapPhysical { range: memory }), Err(CuError::INVALID_VALUE));
    assert!(
        other.ask(&ask::SetAccess { device: 0, range: memory, access: backend::Access::ReadWrite }).is_err()
    );
    let invalid = CuError::INVALID_VALUE;
    assert_eq!(other.failure(&ask::Copy { ctx, stream, dst: mine, src: at, bytes: 16 }), invalid);
    assert_eq!(other.failure(&ask::Copy { ctx, stream, dst: at, src: mine, bytes: 16 }), invalid);
    assert_eq!(other.failure(&ask::CopyIn { ctx, stream, dst: at, data: Bytes(vec![0; 16]) }), invalid);
    assert_eq!(other.failure(&ask::CopyOut { ctx, stream, src: at, bytes: 16, transfer: 9 }), invalid);
    let fill = Fill { dst: at, pitch: 0, element: 4, value: 1, width: 4, height: 1 };
    assert_eq!(other.failure(&ask::FillMemory { ctx, stream, fill }), invalid);
    let word = backend::Word { address: at, value: 0, wide: false };
    let operations = vec![MemoryOperation::Write { word }];
    assert_eq!(other.failure(&ask::Operations { ctx, stream, operations }), invalid);
    other.end().unwrap();

    one.tell(&ask::CopyOut { ctx: CTX, stream, src: at, bytes: 16, transfer: 9 });
    loop {
        if let Word::Data { data, .. } = one.hear().1 {
            assert_eq!(data, secret);
            break;
        }
    }
    one.end().unwrap();
}

/// What is asked about a stream goes with the answer to what was asked for before; whatever else comes between, nothing is forgotten.
#[test]
fn questions_are_answered_with_what_is_before_them() {
    let other = StreamArg::Created(RawStream(3));
    let mut raw = Raw::with_context();
    let at = raw.block().base;
    raw.ask(&ask::StreamCreate { ctx: CTX, stream: RawStream(3), flags: 0, priority: 0 }).unwrap();
    let asked = |between: &[u8], stream: StreamArg| {
        let mut bytes = Vec::new();
        let copy = ask::CopyOut { ctx: CTX, stream: LEGACY, src: at, bytes: 16, transfer: 7 };
        frame::append(&mut bytes, ask::CopyOut::OPCODE, 0, 0, &copy);
        bytes.extend_from_slice(between);
        frame::append(&mut bytes, ask::Query::OPCODE, 0, 90, &ask::Query { ctx: CTX, stream, ticket: 8 });
        bytes
    };
    let mut ping = Vec::new();
    frame::append(&mut ping, ask::Ping::OPCODE, 0, 0, &ask::Ping {});
    let unknown = StreamArg::Created(RawStream(4));
    for (between, stream) in [(&[][..], LEGACY), (&ping, LEGACY), (&[], other), (&[], unknown)] {
        raw.control.write_all(&asked(between, stream)).unwrap();
        let (mut data, mut told, mut answered) = (0, Vec::new(), 0);
        while told.len() < 2 || answered < 1 {
            match raw.hear() {
                (_, Word::Data { transfer: 7, .. }) => data += 1,
                (_, Word::Done { tickets, .. }) => {
                    assert!(data == 1 || tickets.iter().all(|(ticket, _)| *ticket == 8), "{tickets:?}");
                    told.extend(tickets);
                }
                (90, Word::Reply { error: 0, .. }) => answered += 1,
                (_, Word::Ping | Word::Ack { .. }) => {}
                more => panic!("{more:?}"),
            }
        }
        told.sort_unstable();
        let error = if stream == unknown { CuError::INVALID_HANDLE.code() } else { 0 };
        assert_eq!((data, told, answered), (1, vec![(7, 0), (8, error)], 1));
    }
    raw.end().unwrap();
}

/// However often it says that it is there.
#[test]
fn a_client_that_asks_for_nothing_is_left() {
    let (silence, idle) = (Duration::from_secs(4), Some(Duration::from_millis(600)));
    let mut raw = Raw::with(Patience { silence, idle }).greet();
    let begun = std::time::Instant::now();
    let create = ask::ContextCreate { ctx: CTX, device: 0, flags: 0, primary: false };
    raw.ask(&create).unwrap();
    while begun.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(100));
        raw.ask(&ask::MemoryInfo { ctx: CTX }).unwrap();
    }
    let asked = std::time::Instant::now();
    let mut bytes = Vec::new();
    frame::append(&mut bytes, ask::Ping::OPCODE, 0, 0, &ask::Ping {});
    while raw.control.write_all(&bytes).is_ok() {
        assert!(asked.elapsed() < Duration::from_secs(10), "it is still served");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(asked.elapsed() >= Duration::from_millis(500));
}

#[test]
fn names_that_nobody_has_given_are_refused() {
    let mut raw = Raw::with_context();
    let other = RawContext(77);
    assert_eq!(raw.ask(&ask::ContextSynchronize { ctx: other }), Err(CuError::INVALID_CONTEXT));
    assert_eq!(raw.ask(&ask::PhysicalRelease { physical: RawPhysical(5) }), Err(CuError::INVALID_HANDLE));
    assert_eq!(raw.ask(&ask::ArrayDestroy { ctx: CTX, array: RawArray(5) }), Err(CuError::INVALID_HANDLE));
    assert_eq!(raw.ask(&ask::TextureDestroy { ctx: CTX, texture: 5 }), Err(CuError::INVALID_HANDLE));
    let again = ask::ContextCreate { ctx: CTX, device: 0, flags: 0, primary: false };
    assert_eq!(raw.ask(&again), Err(CuError::INVALID_VALUE), "the name is given");
    let stream = StreamArg::Created(RawStream(5));
    assert_eq!(raw.failure(&ask::Mark { ctx: CTX, stream, ticket: 3 }), CuError::INVALID_HANDLE);
    raw.end().unwrap();
}

#[test]
fn nobody_has_more_than_the_quota() {
    let mut raw = Raw::with_context();
    let (free, total) = raw.ask(&ask::MemoryInfo { ctx: CTX }).unwrap();
    assert_eq!((free, total), (64 << 20, 64 << 20));
    let base = addresses();
    raw.ask(&ask::Reserve { range: Range { base, bytes: 1 << 30 } }).unwrap();
    let create = |name, bytes| ask::PhysicalCreate {
        physical: RawPhysical(name),
        device: 0,
        bytes,
        compressible: false,
    };
    assert_eq!(raw.ask(&create(2, 66 << 20)), Err(CuError::OUT_OF_MEMORY));
    raw.ask(&create(2, 60 << 20)).unwrap();
    let block = |name| {
        let range = Range { base: base + (128 << 20), bytes: 6 << 20 };
        ask::MapBlock { block: RawBlock(name), device: 0, range }
    };
    assert_eq!(raw.ask(&block(3)), Err(CuError::OUT_OF_MEMORY));
    assert_eq!(raw.ask(&ask::MemoryInfo { ctx: CTX }).unwrap(), (4 << 20, 64 << 20));
    // A mapping keeps the memory when its handle is gone.
    let range = Range { base, bytes: 60 << 20 };
    raw.ask(&ask::MapPhysical { physical: RawPhysical(2), range }).unwrap();
    raw.ask(&ask::PhysicalRelease { physical: RawPhysical(2) }).unwrap();
    assert_eq!(raw.ask(&block(3)), Err(CuError::OUT_OF_MEMORY));
    raw.ask(&ask::UnmapPhysical { range }).unwrap();
    raw.ask(&block(3)).unwrap();
    let mirror = Range { base: addresses(), bytes: 2 << 20 };
    assert_eq!(raw.ask(&ask::MirrorMake { range: mirror }), Err(CuError::OUT_OF_MEMORY));
    raw.ask(&ask::MirrorMake { range: Range { bytes: 4096, ..mirror } }).unwrap();
    let event = |name| ask::EventCreate { ctx: CTX, event: backend::RawEvent(name), flags: 0 };
    (10..28).for_each(|name| raw.tell(&event(name)));
    assert_eq!(raw.failure(&event(28)), CuError::OUT_OF_MEMORY);
    raw.end().unwrap();
}

/// What sessions have together, in one process.
#[derive(Debug, Default)]
struct Pool(Mutex<u64>);

impl Together for Pool {
    fn take(&self, bytes: u64) -> bool {
        let mut left = lock(&self.0);
        left.checked_sub(bytes).map(|rest| *left = rest).is_some()
    }

    fn give_back(&self, bytes: u64) {
        *lock(&self.0) += bytes;
    }

    fn leaves(&self) {}

    fn left(&self) -> u64 {
        *lock(&self.0)
    }
}

#[test]
fn sessions_have_no_more_together_than_all_may_have() {
    let pool = Arc::new(Pool(Mutex::new(80 << 20)));
    let session = || {
        let quota = Quota { together: Some(pool.clone()), ..quota() };
        let mut raw = Raw::of(Patience::default(), Options::default(), quota).greet();
        raw.ask(&ask::ContextCreate { ctx: CTX, device: 0, flags: 0, primary: false }).unwrap();
        raw
    };
    let create = |name, bytes| ask::PhysicalCreate {
        physical: RawPhysical(name),
        device: 0,
        bytes,
        compressible: false,
    };
    let (mut one, mut other) = (session(), session());
    one.ask(&create(2, 60 << 20)).unwrap();
    assert_eq!(other.ask(&create(2, 22 << 20)), Err(CuError::OUT_OF_MEMORY));
    let (free, total) = other.ask(&ask::MemoryInfo { ctx: CTX }).unwrap();
    assert_eq!((free, total), (20 << 20, 64 << 20));
    other.ask(&create(2, 20 << 20)).unwrap();
    one.ask(&ask::PhysicalRelease { physical: RawPhysical(2) }).unwrap();
    assert_eq!(other.ask(&ask::MemoryInfo { ctx: CTX }).unwrap().0, 44 << 20);
    // What one session may have it may not have more of, though there is more.
    assert_eq!(other.ask(&create(3, 46 << 20)), Err(CuError::OUT_OF_MEMORY));
    assert_eq!(pool.left(), 60 << 20);
    one.end().unwrap();
    other.end().unwrap();
}

#[test]
fn devices_that_are_not_for_a_client_are_not_there() {
    let devices = Choice { only: None, visible: Some("2,0".to_owned()) };
    let options = Options { devices: 3, ..Options::default() };
    let uuids: Vec<_> =
        SoftBackend::new(options.clone()).devices().iter().map(|device| device.uuid).collect();
    let mut raw = Raw::of(Patience::default(), options, Quota { devices, ..quota() });
    let hello = raw.hello();
    let there: Vec<_> = hello.devices.iter().map(|device| device.uuid).collect();
    assert_eq!(there, [uuids[2], uuids[0]]);
    let context = |ctx, device| ask::ContextCreate { ctx: RawContext(ctx), device, flags: 0, primary: false };
    raw.ask(&context(1, 1)).unwrap();
    for (call, device) in [(2, 2), (3, u32::MAX)] {
        assert_eq!(raw.ask(&context(call, device)), Err(CuError::INVALID_DEVICE));
    }
    let range = Range { base: addresses(), bytes: BLOCK_GRANULARITY };
    raw.ask(&ask::Reserve { range }).unwrap();
    let block = ask::MapBlock { block: RawBlock(2), device: 2, range };
    assert_eq!(raw.ask(&block), Err(CuError::INVALID_DEVICE));
    let asked = ask::CanAccessPeer { device: 0, peer: 2 };
    assert_eq!(raw.ask(&asked), Err(CuError::INVALID_DEVICE));
    raw.end().unwrap();
}

#[test]
fn who_waits_for_contents_holds_nobody_up_for_ever() {
    let mut raw = Raw::with_context();
    let base = raw.block().base;
    for round in 0..5u8 {
        let (bytes, transfer) = (20_000, 50 + u64::from(round));
        raw.tell(&ask::CopyInBulk { ctx: CTX, stream: LEGACY, dst: base, bytes, transfer });
        // Long enough for the second thread to read on; what comes now waits for its turn.
        std::thread::sleep(Duration::from_millis(30));
        let out = 200 + u64::from(round);
        raw.tell(&ask::CopyOut { ctx: CTX, stream: LEGACY, src: base + 19_990, bytes: 10, transfer: out });
        raw.tell(&ask::Ping {});
        std::thread::sleep(Duration::from_millis(10));
        PieceHeader { transfer, offset: 0, bytes: 20_000 }.write(0, &mut raw.bulk).unwrap();
        raw.bulk.write_all(&vec![round; 20_000]).unwrap();
        loop {
            if let Word::Data { transfer, data, .. } = raw.hear().1 {
                assert_eq!((transfer, data), (out, Bytes(vec![round; 10])));
                break;
            }
        }
        raw.ask(&ask::ContextSynchronize { ctx: CTX }).unwrap();
    }
    raw.end().unwrap();
}

#[test]
fn another_version_is_refused_by_name() {
    let mut raw = Raw::new();
    raw.control.write_all(&MAGIC).unwrap();
    raw.control.write_all(&9u32.to_le_bytes()).unwrap();
    let error = raw.end().unwrap_err().to_string();
    assert!(error.contains("version 9"), "{error}");
    let mut raw = Raw::new();
    raw.control.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = raw.end().unwrap_err().to_string();
    assert!(error.contains("something else"), "{error}");
}

#[test]
fn a_length_that_is_a_lie_takes_no_memory() {
    for (opcode, bytes) in [
        (ask::Launch::OPCODE, u32::MAX),
        (ask::Copy::OPCODE, frame::SHORT_MAX as u32 + 1),
        (ask::CopyIn::OPCODE, frame::INLINE_MAX as u32 + 257),
        (ask::ModuleLoad::OPCODE, frame::LONG_MAX as u32 + 1),
    ] {
        let mut raw = Raw::greeted();
        let mut head = vec![0; HEADER];
        head[..4].copy_from_slice(&bytes.to_le_bytes());
        head[4..6].copy_from_slice(&opcode.to_le_bytes());
        raw.control.write_all(&head).unwrap();
        let error = raw.far.take().unwrap().join().unwrap().unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
    }
    for bytes in [0, frame::PIECE + 1, usize::MAX] {
        let mut raw = Raw::greeted();
        PieceHeader { transfer: 1, offset: 0, bytes }.write(0, &mut raw.bulk).unwrap();
        let _ = raw.far.take().unwrap().join().unwrap();
    }
}

/// Pages of this process that are in memory, bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Whatever a client names of code that is refused, that has not got it, or that has gone: nothing of it stays.
#[test]
fn names_of_variables_take_no_memory() {
    const MANAGED: &str =
        ".version 8.0\n.target sm_75\n.address_size 64\n.global .attribute(.managed) .u32 mine;\0";
    let mut raw = Raw::with_context();
    let (module, before) = (RawModule(9), resident());
    let secret = [7u32; 4];
    let address = secret.as_ptr() as u64;
    for (round, image) in ["garbage", MANAGED].repeat(3).into_iter().enumerate() {
        // So much that it goes back to the system when it is freed.
        let long = char::from(b'a' + round as u8).to_string().repeat(40 << 20);
        let managed = vec![("mine".to_owned(), address), (long, 0)];
        let image = Bytes(image.as_bytes().to_vec());
        let loaded = raw.ask(&ask::ModuleLoad { ctx: CTX, module, image, options: Vec::new(), managed });
        assert_eq!(loaded.is_ok(), round % 2 == 1, "{loaded:?}");
        if loaded.is_ok() {
            // It lies where the client says, and is none the more the client's.
            raw.ask(&ask::Global { ctx: CTX, module, name: "mine".into() }).unwrap();
            let copy = ask::Copy { ctx: CTX, stream: LEGACY, dst: address, src: address, bytes: 4 };
            assert_eq!(raw.failure(&copy), CuError::INVALID_VALUE);
            raw.ask(&ask::ContextDestroy { ctx: CTX }).unwrap();
            raw.ask(&ask::ContextCreate { ctx: CTX, device: 0, flags: 0, primary: false }).unwrap();
        }
    }
    let more = resident().saturating_sub(before);
    assert!(more < 60 << 20, "{more} bytes stay");
    raw.end().unwrap();
}

/// Calls that wait for a worker, or for the thread of a place, count as ones that the client is ahead.
#[test]
fn calls_that_wait_are_as_many_as_the_window_lets() {
    let load = ask::ModuleLoad {
        ctx: CTX,
        module: RawModule(9),
        image: Bytes(vec![b'x'; 2 << 20]),
        options: Vec::new(),
        managed: Vec::new(),
    };
    for flags in [0, frame::IN_PLACE] {
        let mut raw = Raw::with_context();
        // It never returns.
        raw.tell(&ask::HostFunction { ctx: CTX, stream: LEGACY, function: 1 });
        if flags == frame::IN_PLACE {
            raw.ask(&ask::PlaceBegin { replay: None }).unwrap();
        }
        let mut bytes = Vec::new();
        let wait = ask::StreamSynchronize { ctx: CTX, stream: LEGACY };
        for call in 100..100 + crate::workers::THREADS_MAX as u64 {
            frame::append(&mut bytes, ask::StreamSynchronize::OPCODE, flags, call, &wait);
        }
        raw.control.write_all(&bytes).unwrap();
        let told = std::thread::spawn({
            let mut control = raw.control.try_clone().unwrap();
            move || {
                let (mut body, mut told) = (Vec::new(), 0);
                let most = |head: &frame::Header| Word::limit(head.opcode, || frame::LONG_MAX);
                while let Ok(header) = frame::read(&mut control, most, &mut body) {
                    if let Ok(Word::Ack { control, .. }) = Word::decode(header.opcode, &body) {
                        told = control;
                    }
                }
                told
            }
        });
        let mut sent = 0;
        while sent < 64 << 20 {
            bytes.clear();
            frame::append(&mut bytes, ask::ModuleLoad::OPCODE, flags, 900, &load);
            if raw.control.write_all(&bytes).is_err() {
                break;
            }
            sent += bytes.len();
        }
        let ended = raw.far.take().unwrap().join().unwrap().unwrap_err().to_string();
        assert!(ended.contains("more calls than the client may be ahead"), "{ended}");
        assert!(sent < 16 << 20, "{sent} bytes were taken");
        assert!(told.join().unwrap() < 1 << 20, "the client was told that there is room for more");
    }
}

/// What a long call waits for comes behind it.
#[test]
fn who_waits_behind_a_long_call_is_heard() {
    let mut raw = Raw::with_context();
    raw.tell(&ask::HostFunction { ctx: CTX, stream: LEGACY, function: 1 });
    let mut bytes = Vec::new();
    let wait = ask::StreamSynchronize { ctx: CTX, stream: LEGACY };
    for call in 100..100 + crate::workers::THREADS_MAX as u64 {
        frame::append(&mut bytes, ask::StreamSynchronize::OPCODE, 0, call, &wait);
    }
    let (module, image) = (RawModule(9), Bytes(vec![b'x'; 20 << 20]));
    let load = ask::ModuleLoad { ctx: CTX, module, image, options: Vec::new(), managed: Vec::new() };
    frame::append(&mut bytes, ask::ModuleLoad::OPCODE, 0, 900, &load);
    raw.control.write_all(&bytes).unwrap();
    let called = loop {
        if let Word::HostCall { call, .. } = raw.hear().1 {
            break call;
        }
    };
    raw.tell(&ask::HostDone { call: called });
    while !matches!(raw.hear(), (900, Word::Reply { .. })) {}
    raw.end().unwrap();
}

/// Whatever is to be told when an event comes takes memory until then.
#[test]
fn questions_that_wait_are_bounded() {
    let mut raw = Raw::with_context();
    let event = RawEvent(4);
    raw.tell(&ask::EventCreate { ctx: CTX, event, flags: 0 });
    // It never returns.
    raw.tell(&ask::HostFunction { ctx: CTX, stream: LEGACY, function: 1 });
    raw.tell(&ask::EventRecord { ctx: CTX, event, stream: LEGACY, flags: 0 });
    let mut bytes = Vec::new();
    for ticket in 0..25_000 {
        frame::append(&mut bytes, ask::Watch::OPCODE, 0, 0, &ask::Watch { ctx: CTX, event, ticket });
    }
    frame::append(&mut bytes, ask::MemoryInfo::OPCODE, 0, 9, &ask::MemoryInfo { ctx: CTX });
    // It keeps to its window.
    let (most, mut body) = (|head: &frame::Header| Word::limit(head.opcode, || 100), Vec::new());
    let mut is_answered = || {
        raw.control.write_all(&bytes).ok()?;
        while frame::read(&mut raw.control, most, &mut body).ok()?.call != 9 {}
        Some(())
    };
    let taken = (0..80).take_while(|_| is_answered().is_some()).count();
    let ended = raw.far.take().unwrap().join().unwrap().unwrap_err().to_string();
    assert!(ended.contains("more is to be told"), "{ended}");
    assert!((40..45).contains(&taken), "{taken} times 25,000 were taken");
}

/// Stands for the address of the client's memory.
const SOMEWHERE: u64 = 0x5fff_0000_0000;

/// A number as a client might send it that knows what there is.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..6,
        2 => Just(SOMEWHERE),
        1 => Just(BLOCK_GRANULARITY),
        1 => 0u64..100_000,
        1 => any::<u64>(),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let field = prop_oneof![
        3 => number().prop_map(|value| value.to_le_bytes().to_vec()),
        1 => (0u32..5).prop_map(|value| value.to_le_bytes().to_vec()),
        1 => any::<u8>().prop_map(|value| vec![value]),
    ];
    proptest::collection::vec(field, 0..20).prop_map(|fields| fields.concat())
}

/// So many, or as many as the environment says.
fn cases(some: u32) -> ProptestConfig {
    let told = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    if told { default } else { ProptestConfig { cases: some, ..default } }
}

proptest! {
    #![proptest_config(cases(150))]
    /// Whatever is said: no panic, no hang, and everything is given back.
    #[test]
    fn nothing_that_a_client_says_harms(calls in proptest::collection::vec((0u16..140, any::<bool>(), body()), 1..200)) {
        static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                lock(&PANICS).push(info.to_string());
                before(info);
            }));
        });
        let mut raw = Raw::with_context();
        // Something of most kinds is there, under the names that calls most often have.
        let base = raw.block().base;
        raw.ask(&ask::StreamCreate { ctx: CTX, stream: backend::RawStream(3), flags: 0, priority: 0 }).unwrap();
        raw.tell(&ask::EventCreate { ctx: CTX, event: backend::RawEvent(4), flags: 0 });
        let desc = wire::ArrayDesc { width: 64, height: 4, depth: 0, format: 1, channels: 1, flags: 0 };
        raw.ask(&ask::ArrayCreate { ctx: CTX, array: RawArray(5), desc }).unwrap();
        let mut answers = raw.control.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            let _ = std::io::copy(&mut answers, &mut std::io::sink());
        });
        for (number, (opcode, garbage, body)) in calls.iter().enumerate() {
            let pipelined = Call::mode(*opcode) == Some(Mode::Pipelined);
            let call = u64::from(!pipelined) * (number as u64 + 9);
            let mut body = body.clone();
            for at in 0..body.len().saturating_sub(7) {
                if body[at..at + 8] == SOMEWHERE.to_le_bytes() {
                    body[at..at + 8].copy_from_slice(&base.to_le_bytes());
                }
            }
            // Mostly as much of it as is such a call; what is none ends the session. A stream may wait for a word for ever.
            let decodes = |bytes: &usize| Call::decode(*opcode, &body[..*bytes]).is_ok();
            match (0..=body.len()).find(decodes) {
                _ if *opcode == ask::Operations::OPCODE => continue,
                Some(bytes) => body.truncate(bytes),
                None if *garbage && number % 8 == 7 => {}
                None => continue,
            }
            let mut bytes = Vec::new();
            bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&opcode.to_le_bytes());
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(&call.to_le_bytes());
            bytes.extend_from_slice(&body);
            if raw.control.write_all(&bytes).is_err() {
                break;
            }
        }
        let ended = raw.end();
        reader.join().unwrap();
        prop_assert!(!matches!(ended, Err(super::ServeError::Stuck)), "{ended:?}");
        let panics = lock(&PANICS).clone();
        prop_assert!(panics.is_empty(), "{panics:?}");
    }
}
