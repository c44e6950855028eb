//! The cut and its reversal: gate, capture, restore, rehearsal.
#![allow(clippy::unwrap_used)]

use crate::common::{
    App, BASIC, CTX, HELLO, Images, LONG, SESSION, Thread, VARIABLES, anything_mapped, backend, ends,
    manifest, rehearse, rehearse_on, wait_until,
};
use backend_soft::{Options, SoftBackend};
use image::{ImageId, ObjectKind, SessionId};
use server::capture::Cut;
use server::control::{
    self, Answer, Ask, Cause, CopyBudget, DeviceSet, Fills, Kept, Lines, Origin, Question, Reads, Reply,
    Start,
};
use server::memory::Layout;
use server::restore::RestoreError;
use server::state::SessionState;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::Store;
use wire::*;

const SOON: Duration = Duration::from_millis(200);

/// What a rehearsal says of a session's state after `tamper`: one with a module whose variable the program knows.
fn tampered(tamper: impl FnOnce(&mut SessionState)) -> RestoreError {
    let (mut app, mut thread) = App::with_context();
    let images = Images::new();
    let module = app.load(&mut thread, 2, VARIABLES);
    thread.call(ModuleGetGlobal { module, name: "counter".into() }).unwrap();
    app.session.close_gate(LONG).unwrap();
    let Cut { mut state, images: code } = app.session.cut().unwrap();
    let (_, bytes) = images.capture(&app.session);
    let _files = app.kill();
    rehearse(&bytes).unwrap();
    let full = SoftBackend::new(Options { memory: 16, ..Options::default() });
    let error = rehearse_on(Arc::new(full), &bytes).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    tamper(&mut state);
    let error = rehearse(&state.to_bytes(&code).unwrap()).unwrap_err();
    assert!(error.is_of_the_session() && !error.is_out_of_memory(), "{error}");
    error
}

#[test]
fn the_gate_names_the_kernel_that_holds_it_and_reopens() {
    let (mut app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    thread.launch(wait_for, Stream::Legacy, 1, &[address, address + 4], &[]);
    thread.call(StreamQuery { ctx: CTX, stream: Stream::Legacy }).unwrap();
    let holders = app.session.close_gate(SOON).unwrap_err();
    assert!(holders.iter().any(|holder| holder.contains("wait_for")), "{holders:?}");
    // The job runs on.
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: Stream::Legacy }), Ok(false));
    ours.word(0).store(1, Ordering::Release);
    thread.synchronize().unwrap();
    app.session.close_gate(LONG).unwrap();
    app.session.open_gate();
}

#[test]
fn the_gate_names_a_callback_that_does_not_return() {
    let (app, mut thread) = App::with_context();
    thread.send(HostFunction { ctx: CTX, stream: Stream::Legacy, callback: CallbackId(0x77) });
    let callbacks = app.client.callbacks();
    callbacks.next(LONG).unwrap().unwrap();
    let holders = app.session.close_gate(SOON).unwrap_err();
    assert!(holders.iter().any(|holder| holder.contains("callback 0xd8000000770")), "{holders:?}");
    callbacks.acknowledge();
    app.session.close_gate(LONG).unwrap();
    app.session.open_gate();
}

#[test]
fn calls_wait_at_the_closed_gate() {
    let (app, mut thread) = App::with_context();
    let memory = thread.alloc(4);
    thread.put(memory, &[1]);
    thread.synchronize().unwrap();
    app.session.close_gate(LONG).unwrap();
    thread.put(memory, &[2]);
    let waiting = std::thread::spawn(move || thread.get(memory, 1));
    std::thread::sleep(SOON);
    assert!(!waiting.is_finished());
    app.session.open_gate();
    assert_eq!(waiting.join().unwrap(), [2]);
}

/// Launches that were taken together are executed once each, at whichever of them a gate closes; also those that a server has taken and another executes.
#[test]
fn launches_in_hand_are_executed_once_across_gates_and_a_restart() {
    let (mut app, mut thread) = App::with_context();
    let images = Images::new();
    let module = app.load(&mut thread, 2, BASIC);
    let add = thread.function(module, 3, "add_one");
    let memory = thread.alloc(4);
    thread.put(memory, &[0]);
    for _ in 0..20 {
        for _ in 0..100 {
            thread.launch(add, Stream::Legacy, 1, &[memory], &[1]);
        }
        app.session.close_gate(LONG).unwrap();
        app.session.open_gate();
    }
    assert_eq!(thread.get(memory, 1), [2000]);
    app.session.close_gate(LONG).unwrap();
    for _ in 0..100 {
        thread.launch(add, Stream::Legacy, 1, &[memory], &[1]);
    }
    // They are in the hand of a thread that waits at the gate.
    std::thread::sleep(SOON);
    let (id, _) = images.capture(&app.session);
    let (dir, addresses) = app.kill();
    drop(thread);
    let app = App::restore(dir, addresses, SESSION, &images.store.open_image(&id).unwrap());
    let mut thread = app.thread();
    wait_until(|| thread.get(memory, 1) == [2100]);
    thread.synchronize().unwrap();
    assert_eq!(thread.get(memory, 1), [2100]);
}

#[test]
fn what_cannot_be_saved_is_named() {
    let (mut app, mut thread) = App::with_context();
    let launches = ".version 7.0\n.target sm_75\n.address_size 64\n\
        .extern .func (.param .b32 result) cudaLaunchDevice(.param .b64 kernel);\n\
        .visible .entry nothing()\n{\nret;\n}\n";
    app.load(&mut thread, 2, launches);
    app.session.close_gate(LONG).unwrap();
    let refusals = app.session.refusals();
    assert!(
        refusals.iter().any(|each| each.contains("nothing") && each.contains("kernels launch kernels")),
        "{refusals:?}"
    );
}

#[test]
fn a_failed_context_is_refused() {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, BASIC);
    let wild = thread.function(module, 3, "wild");
    thread.launch(wild, Stream::Legacy, 1, &[], &[]);
    assert!(thread.synchronize().is_err());
    app.session.close_gate(LONG).unwrap();
    let refusals = app.session.refusals();
    assert!(refusals.iter().any(|each| each.contains("ILLEGAL_ADDRESS")), "{refusals:?}");
}

/// Everything a session can hold, made, captured, killed, restored, and used again.
#[test]
fn a_session_comes_back_as_it_was() {
    let (mut app, mut thread) = App::with_context();
    let images = Images::new();
    let (ours, shared) = app.pinned(&mut thread, PinnedId(900), 4096);
    ours.word(5).store(55, Ordering::Release);
    // Modules A and B; A goes, C comes, and B's variables are known by address.
    let a = app.load(&mut thread, 10, VARIABLES);
    let b = app.load(&mut thread, 11, VARIABLES);
    let address_of = |thread: &mut Thread, module, name: &str| {
        thread.call(ModuleGetGlobal { module, name: name.into() }).unwrap().0
    };
    let gone = address_of(&mut thread, a, "counter");
    let counter = address_of(&mut thread, b, "counter");
    let scale = address_of(&mut thread, b, "scale");
    thread.call(ModuleUnload { module: a }).unwrap();
    let c = app.load(&mut thread, 12, VARIABLES);
    let late = address_of(&mut thread, c, "counter");
    assert_ne!((gone, late), (counter, counter));
    let step = thread.function(b, 13, "step");
    let library = LibraryId(14);
    let upload = app.upload(BASIC);
    thread.call(LibraryLoad { library, upload, options: vec![] }).unwrap();
    let kernel = KernelId(15);
    thread.call(LibraryGetKernel { ctx: CTX, library, kernel, name: "add_one".into() }).unwrap();
    let add = Callee::Kernel(kernel);
    thread.call(FunctionSetAttribute { ctx: CTX, callee: add, attribute: 8, value: 4096 }).unwrap();
    thread.call(ContextSetLimit { ctx: CTX, limit: 1, value: 2 << 20 }).unwrap();
    // Memory: two small allocations, one of them freed; one large, one with zeros.
    let (small, hole, large, zeros) =
        (thread.alloc(4000), thread.alloc(5000), thread.alloc(5 << 20), thread.alloc(9 << 20));
    let words: Vec<u32> = (0..1000).collect();
    thread.put(small, &words);
    thread.put(hole, &words);
    thread.send(MemFree { address: hole });
    let fill = |dst, value, width| Fill {
        ctx: CTX,
        stream: Stream::PerThread,
        dst,
        pitch: 0,
        element: 4,
        value,
        width,
        height: 1,
    };
    thread.send(fill(large, 0xabcd, (5 << 20) / 4));
    thread.send(fill(zeros, 0, (9 << 20) / 4));
    thread.put(scale, &[4]);
    thread.launch(step, Stream::Legacy, 1, &[small], &[]);
    // Streams and events.
    let [stream] = thread.streams([16]);
    let [start, end, after] = thread.events([17, 18, 19]);
    let record = |event| EventRecord { ctx: CTX, stream: Stream::Created(stream), event, flags: 0 };
    thread.send(record(start));
    thread.call(EventSynchronize { event: start }).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    thread.send(record(end));
    thread.synchronize().unwrap();
    let elapsed = thread.call(EventElapsed { start, end }).unwrap();
    assert!(elapsed >= 19.0);
    // What is printed and not yet delivered.
    let hello = app.load(&mut thread, 20, HELLO);
    let hello = thread.function(hello, 21, "hello");
    thread.launch(hello, Stream::Legacy, 1, &[], &[1]);
    wait_until(|| thread.call(StreamQuery { ctx: CTX, stream: Stream::Legacy }).unwrap());
    let before = std::mem::take(&mut thread.output);

    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    assert!(app.session.cut().unwrap().bytes() >= 14 << 20);
    let (id, state) = images.capture(&app.session);
    // A message in the ring at the cut is executed by whoever comes next.
    thread.launch(step, Stream::Legacy, 1, &[small + 4], &[]);

    let (dir, addresses) = app.kill();
    drop(thread);
    let image = images.store.open_image(&id).unwrap();
    assert!(image.object(&ObjectKind::SessionState { session: SessionId(SESSION.into()) }).is_ok());
    rehearse(&state).unwrap();

    let app = App::restore(dir, addresses, SESSION, &image);
    let mut thread = app.thread();
    thread.synchronize().unwrap();
    let printed = [before, thread.output.clone()].concat();
    assert_eq!(String::from_utf8(printed).unwrap(), "hello 1 of conformance\n");
    wait_until(|| thread.get(small + 4, 1) == [32]);
    let mut expected = words.clone();
    (expected[0], expected[1]) = (28, 32);
    assert_eq!(thread.get(small, 1000), expected);
    assert_eq!(thread.get(large, 1000), vec![0xabcd; 1000]);
    assert_eq!(thread.get(large + (5 << 20) - 4, 1), [0xabcd]);
    assert_eq!(thread.get(zeros + (9 << 20) - 4000, 1000), vec![0; 1000]);
    assert_eq!(
        (thread.get(counter, 1), thread.get(scale, 1), thread.get(late, 1)),
        (vec![9], vec![4], vec![7])
    );
    assert_eq!(address_of(&mut thread, b, "counter"), counter);
    let elsewhere = thread.alloc(5000);
    assert_eq!(elsewhere, hole, "the same calls give the same addresses");
    // Settings.
    let attribute = FunctionGetAttribute { ctx: CTX, callee: add, attribute: 8 };
    assert_eq!(thread.call(attribute), Ok(4096));
    assert_eq!(thread.call(ContextGetLimit { ctx: CTX, limit: 1 }), Ok(2 << 20));
    // Objects work.
    thread.launch(add, Stream::Created(stream), 32, &[small], &[1]);
    thread.launch(add, Stream::PerThread, 1, &[shared + 20], &[1]);
    thread.synchronize().unwrap();
    assert_eq!(thread.get(small, 1), [29]);
    assert_eq!(ours.word(5).load(Ordering::Acquire), 56);
    // The time line goes on.
    assert_eq!(thread.call(EventQuery { event: end }), Ok(true));
    let again = thread.call(EventElapsed { start, end }).unwrap();
    assert!((again - elapsed).abs() < 0.01, "{elapsed} {again}");
    assert_eq!(thread.call(EventElapsed { start, end: after }), Err(CuError::INVALID_HANDLE));
    thread.send(record(after));
    thread.synchronize().unwrap();
    let across = thread.call(EventElapsed { start, end: after }).unwrap();
    let backwards = thread.call(EventElapsed { start: after, end }).unwrap();
    assert!(
        across > elapsed && (across + backwards - elapsed).abs() < 0.01,
        "{across} {backwards} {elapsed}"
    );

    // And once more.
    let (image, _, (dir, addresses)) = app.captured(thread, &images);
    let app = App::restore(dir, addresses, SESSION, &image);
    let mut thread = app.thread();
    assert_eq!(thread.get(small, 1), [29]);
    let third = thread.call(EventElapsed { start, end: after }).unwrap();
    assert!((third - across).abs() < 0.01, "{across} {third}");
    thread.call(ContextDestroy { ctx: CTX }).unwrap();
}

/// A server process's control loop, as the supervisor sees it.
struct Supervisor {
    to: UnixStream,
    from: Lines<UnixStream>,
    asked: u64,
    server: std::thread::JoinHandle<()>,
    device: std::sync::Weak<dyn backend::Backend>,
}

impl Supervisor {
    fn start(dir: &std::path::Path, session: u32, start: &Start) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let dir = dir.to_owned();
        let opened = backend();
        let device = std::sync::Arc::downgrade(&opened);
        let server = std::thread::spawn(move || {
            let layout = Layout::of_session(session);
            server::serve_on(ends(theirs), &dir, session, layout, || Ok(opened)).unwrap();
        });
        let from = Lines::of(ours.try_clone().unwrap());
        control::say(&ours, start).unwrap();
        Self { from, to: ours, asked: 0, server, device }
    }

    /// Waits for what the end of a server's process would be: its threads let go of the device, whose addresses the next
    /// server in this process is to have.
    fn ended(self) {
        self.server.join().unwrap();
        wait_until(|| self.device.strong_count() == 0 && !anything_mapped());
    }

    fn say(&mut self, ask: &Ask) {
        self.asked += 1;
        control::say(&self.to, &Question { number: self.asked, ask: ask.clone() }).unwrap();
    }

    fn answer(&mut self) -> Answer {
        loop {
            let Reply { number, answer } = self.from.receive().unwrap().expect("the server is gone");
            assert_eq!(number, self.asked);
            if !matches!(answer, Answer::Progress { .. }) {
                return answer;
            }
        }
    }

    fn ask(&mut self, ask: &Ask) -> Answer {
        self.say(ask);
        self.answer()
    }
}

fn raw(path: &std::path::Path) -> image::RawPath {
    path.into()
}

fn prepare(store: &Store, draft: ImageId) -> Ask {
    Ask::Prepare {
        store: store.access(),
        draft: draft.to_string(),
        compress: image::Compress::Lz4,
        memory: 64 << 20,
        threads: 1,
        pack_len: 256 << 20,
        reread: false,
        reads: Reads::Changed,
        copies: Some(CopyBudget { on_devices: DeviceSet::ALL, on_host: 0 }),
    }
}

#[test]
fn a_server_answers_its_supervisor() {
    let dir = tempfile::tempdir().unwrap();
    let images = Images::new();
    let mut supervisor = Supervisor::start(dir.path(), 60, &Start::Fresh);
    assert!(matches!(supervisor.answer(), Answer::Ready { .. }));
    let client = transport::ClientSession::open(dir.path()).unwrap();
    let mut thread = Thread { ring: client.take_ring().unwrap(), output: vec![], more: false };
    thread.call(ContextCreate { ctx: CTX, device: Device(0), flags: 0, primary: true }).unwrap();
    let memory = thread.alloc(3 << 20);
    thread.put(memory, &[1, 2, 3]);
    thread.synchronize().unwrap();
    assert_eq!(supervisor.ask(&Ask::Ungate { keep: false }), Answer::Done, "nothing changes");
    let states = tempfile::tempdir().unwrap();
    let (capture, write) = (Ask::Capture, Ask::Write { states: raw(states.path()) });
    let leave = Ask::Leave { states: raw(states.path()) };
    let draft = images.store.begin().unwrap();
    assert_eq!(supervisor.ask(&prepare(&images.store, draft.id())), Answer::Done);
    let early = supervisor.ask(&capture);
    assert!(matches!(early, Answer::Failed { .. }), "the gate is open");
    assert_eq!(supervisor.ask(&prepare(&images.store, draft.id())), Answer::Done);
    let idle = supervisor.ask(&Ask::Gate { deadline_ms: 20_000 });
    let Answer::Idle { refusals, table_changed, bytes } = idle else { panic!("{idle:?}") };
    assert_eq!((refusals.len(), table_changed, bytes), (0, true, 3 << 20));
    let late = supervisor.ask(&prepare(&images.store, draft.id()));
    assert!(matches!(late, Answer::Failed { .. }), "the indexes are read before the gate closes");
    let captured = supervisor.ask(&capture);
    let Answer::Captured { kept, devices, .. } = captured else { panic!("{captured:?}") };
    assert!(
        matches!(supervisor.ask(&capture), Answer::Failed { .. }),
        "a draft has one part of each session"
    );
    assert_eq!(
        (kept, devices.len()),
        (Kept { on_device: 2 << 20, unchanged: 1 << 20, ..Kept::default() }, 1)
    );
    assert_eq!(devices[0].backend, "soft");
    // The program goes on, and what it writes and allocates is not in the image.
    assert_eq!(supervisor.ask(&Ask::Ungate { keep: true }), Answer::Done);
    thread.put(memory, &[4, 5, 6]);
    thread.synchronize().unwrap();
    let left = supervisor.ask(&leave);
    assert!(matches!(left, Answer::Left { free } if free > 1 << 20 && free < 1 << 50), "{left:?}");
    let written = supervisor.ask(&write);
    let Answer::Written { receipt_bytes } = written else { panic!("{written:?}") };
    for late in [&write, &leave] {
        assert!(matches!(supervisor.ask(late), Answer::Failed { .. }), "it is written");
    }
    let receipt = std::fs::read(control::receipt_file(states.path(), 60)).unwrap();
    assert_eq!(receipt.len() as u64, receipt_bytes);
    let receipt = store::Receipt::from_bytes(&receipt).unwrap();
    let described = manifest(draft.id());
    let id = draft.publish(described, vec![receipt]).unwrap().id;
    assert_eq!(supervisor.ask(&Ask::Ungate { keep: false }), Answer::Done);
    thread.put(memory, &[9]);
    assert_eq!(thread.get(memory, 1), [9]);
    let idle = supervisor.ask(&Ask::Gate { deadline_ms: 20_000 });
    assert!(matches!(idle, Answer::Idle { table_changed: false, .. }), "{idle:?}");
    assert_eq!(supervisor.ask(&Ask::Ungate { keep: false }), Answer::Done);
    // Addresses of its own are something that a rehearsal has yet to try.
    thread.call(AddressReserve { bytes: 2 << 20, alignment: 0, wanted: 0 }).unwrap();
    let idle = supervisor.ask(&Ask::Gate { deadline_ms: 20_000 });
    assert!(matches!(idle, Answer::Idle { table_changed: true, .. }), "{idle:?}");
    assert_eq!(supervisor.ask(&Ask::Ungate { keep: false }), Answer::Done);
    assert_eq!(supervisor.ask(&Ask::End), Answer::Ended);
    supervisor.ended();
    assert!(client.control().state() == transport::State::Dead);
    drop(thread);

    let state = control::state_file(states.path(), 60);
    assert_eq!(rehearsed_by_a_server(state), Answer::Done);

    wait_until(|| std::fs::metadata(dir.path().join("session")).is_ok());
    // The image is of session 60; another has nothing in it.
    let (store, image) = (images.store.access(), id.to_string());
    let start = Start::Restore { store, image, fills: Fills::Before, origin: Origin::Store };
    let mut restored = Supervisor::start(dir.path(), 60, &start);
    let ready = restored.answer();
    assert!(matches!(ready, Answer::Ready { .. }), "{ready:?}");
    assert_eq!(restored.ask(&Ask::Ungate { keep: false }), Answer::Done);
    let client = transport::ClientSession::open(dir.path()).unwrap();
    let mut thread = Thread { ring: client.take_ring().unwrap(), output: vec![], more: false };
    assert_eq!(thread.get(memory, 3), [1, 2, 3]);
    assert_eq!(restored.ask(&Ask::End), Answer::Ended);
    restored.ended();
}

/// However much a session holds, what a server says of it fits on a line: the rest is in files.
#[test]
fn an_answer_does_not_grow_with_the_session() {
    let dir = tempfile::tempdir().unwrap();
    let images = Images::new();
    let mut supervisor = Supervisor::start(dir.path(), 61, &Start::Fresh);
    assert!(matches!(supervisor.answer(), Answer::Ready { .. }));
    let client = transport::ClientSession::open(dir.path()).unwrap();
    let mut thread = Thread { ring: client.take_ring().unwrap(), output: vec![], more: false };
    thread.call(ContextCreate { ctx: CTX, device: Device(0), flags: 0, primary: true }).unwrap();
    let states = tempfile::tempdir().unwrap();
    let mut capture = |memory: u32| {
        for each in 0..memory {
            let address = thread.alloc(1 << 20);
            thread.put(address, &[each + 1]);
        }
        thread.synchronize().unwrap();
        let draft = images.store.begin().unwrap();
        assert_eq!(supervisor.ask(&prepare(&images.store, draft.id())), Answer::Done);
        assert!(matches!(supervisor.ask(&Ask::Gate { deadline_ms: 20_000 }), Answer::Idle { .. }));
        let captured = supervisor.ask(&Ask::Capture);
        assert!(matches!(captured, Answer::Captured { .. }), "{captured:?}");
        let written = supervisor.ask(&Ask::Write { states: raw(states.path()) });
        assert_eq!(supervisor.ask(&Ask::Ungate { keep: false }), Answer::Done);
        let Answer::Written { receipt_bytes } = written else { panic!("{written:?}") };
        let answers = [captured, written].map(|answer| serde_json::to_vec(&answer).unwrap().len());
        (receipt_bytes, answers.iter().sum::<usize>())
    };
    let (small, answer) = capture(1);
    let (large, same) = capture(64);
    assert!(large > 10 * small, "each chunk is in the receipt: {small}, {large}");
    assert!(same < answer + 16, "{answer}, {same}");
    assert_eq!(supervisor.ask(&Ask::End), Answer::Ended);
    supervisor.ended();
}

/// What a server that rehearses says of a file.
fn rehearsed_by_a_server(state: std::path::PathBuf) -> Answer {
    let spare = tempfile::tempdir().unwrap();
    let mut rehearsal = Supervisor::start(spare.path(), 0, &Start::Rehearsal);
    assert!(matches!(rehearsal.answer(), Answer::Ready { .. }));
    let answer = rehearsal.ask(&Ask::Rehearse { state: raw(&state) });
    rehearsal.ended();
    answer
}

#[test]
fn a_rehearsal_that_cannot_be_tried_is_not_put_down_to_the_session() {
    let states = tempfile::tempdir().unwrap();
    let folder = states.path().join(std::ffi::OsStr::from_bytes(b"no\xfftext"));
    std::fs::create_dir(&folder).unwrap();
    let state = control::state_file(&folder, 1);
    let cause = |answer| match answer {
        Answer::Failed { cause, message } => (cause, message),
        other => panic!("{other:?}"),
    };
    let (missing, message) = cause(rehearsed_by_a_server(state.clone()));
    assert_eq!(missing, Cause::Other, "{message}");
    assert!(message.contains("session-1"), "{message}");
    std::fs::write(&state, b"no object table").unwrap();
    let (damaged, message) = cause(rehearsed_by_a_server(state));
    assert_eq!(damaged, Cause::Differs, "{message}");
}

#[test]
fn a_rehearsal_names_what_is_elsewhere() {
    let mut recorded = 0;
    let error = tampered(|state| {
        let mut variables = state.modules[0].variables.iter_mut();
        let counter = variables.find(|variable| variable.name == "counter").unwrap();
        recorded = counter.range.base;
        counter.range.base += 64;
    });
    let message = error.to_string();
    for part in ["counter", "module 0xd4000000020", &format!("{recorded:#x}")] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_rehearsal_names_an_object_whose_ranges_differ() {
    // As recorded by a device library that needed one range more, in which the program's variables do not lie.
    let extra = backend::Range { base: 0x3000_4000_0000, bytes: 2 << 20 };
    let error = tampered(|state| state.modules[0].record.placement.ranges.push(extra));
    let message = error.to_string();
    for part in ["Module(ModuleId(2))", "has to take", &extra.to_string()] {
        assert!(message.contains(part), "{message}");
    }
}
