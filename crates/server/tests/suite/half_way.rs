//! Marked kernels: a cut stops them, and nobody sees that.
#![allow(clippy::unwrap_used)]

mod room;
mod told;

use crate::common::{App, BASIC, CTX, Images, LONG, SESSION, Thread, backend, rehearse};
use server::memory::Managed;
use server::restore::{Patience, Prepared};
use server::session::Session;
use server::sharing::Sharing;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use tracing::{Event, Level, Metadata, Subscriber, field, span};
use wire::*;

/// What has been warned of, in all sessions of this process.
static WARNED: Mutex<Vec<String>> = Mutex::new(vec![]);

struct Listener;

struct Message<'a>(&'a mut Vec<String>);

impl field::Visit for Message<'_> {
    fn record_debug(&mut self, field: &field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(&mut WARNED.lock().unwrap()));
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// From here on what is warned of is kept.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Listener).unwrap());
}

/// What has been warned of that says this.
fn warned(what: &str) -> Vec<String> {
    WARNED.lock().unwrap().iter().filter(|said| said.contains(what)).cloned().collect()
}

/// A kernel of two parameters: `body` changes a number of each thread, in `%r4`, and is told in `%r0` how often.
fn kernel(name: &str, body: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 out, .param .u32 count)
{{
.reg .u32 %r<8>;
.reg .u64 %a<7>;
.reg .pred %p;
ld.param.u64 %a0, [out];
ld.param.u32 %r0, [count];
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %ntid.x;
mov.u32 %r3, %tid.x;
mad.lo.u32 %r1, %r1, %r2, %r3;
mul.wide.u32 %a1, %r1, 4;
add.u64 %a0, %a0, %a1;
ld.global.u32 %r4, [%a0];
{body}st.global.u32 [%a0], %r4;
ret;
}}
"
    )
}
/// A module with such kernels.
fn module(kernels: &str) -> String {
    format!(".version 7.0\n.target sm_75\n.address_size 64\n{kernels}")
}

/// Each thread for itself.
const MIX: &str = r#"loop:
.pragma "cpt";
mad.lo.u32 %r4, %r4, 1664525, 1013904223;
sub.u32 %r0, %r0, 1;
setp.ne.u32 %p, %r0, 0;
@%p bra loop;
"#;

/// The same, with 50,000 rounds from one mark to the next.
const SELDOM: &str = r#"again:
.pragma "cpt";
mov.u32 %r5, 50000;
loop:
mad.lo.u32 %r4, %r4, 1664525, 1013904223;
sub.u32 %r5, %r5, 1;
setp.ne.u32 %p, %r5, 0;
@%p bra loop;
sub.u32 %r0, %r0, 1;
setp.ne.u32 %p, %r0, 0;
@%p bra again;
"#;

/// The threads of a block hand their numbers round.
const PASS: &str = r#".shared .b8 numbers[256];
add.u32 %r5, %r3, 1;
rem.u32 %r5, %r5, %r2;
mov.u64 %a2, numbers;
mul.wide.u32 %a5, %r3, 4;
add.u64 %a3, %a2, %a5;
mul.wide.u32 %a6, %r5, 4;
add.u64 %a4, %a2, %a6;
st.shared.u32 [%a3], %r4;
bar.sync 0;
loop:
.pragma "cpt";
ld.shared.u32 %r6, [%a4];
bar.sync 0;
mad.lo.u32 %r6, %r6, 1664525, 1013904223;
st.shared.u32 [%a3], %r6;
bar.sync 0;
sub.u32 %r0, %r0, 1;
setp.ne.u32 %p, %r0, 0;
@%p bra loop;
ld.shared.u32 %r4, [%a3];
"#;

/// What stands in front of [`MIX`] in a kernel that rounds an address of shared memory up.
const ROUND: &str = r#".shared .b8 word[32];
mov.u32 %r5, word;
add.u32 %r5, %r5, 15;
and.b32 %r5, %r5, -16;
st.shared.u32 [%r5], %r0;
"#;

fn marked() -> String {
    let round = format!("{ROUND}{MIX}");
    let kernels = [("mix", MIX), ("seldom", SELDOM), ("pass", PASS), ("round", &round)]
        .map(|(name, body)| kernel(name, body));
    module(&kernels.concat())
}

/// Blocks, and threads of each.
const SHAPE: (u32, u32) = (6, 32);
const COUNT: u32 = SHAPE.0 * SHAPE.1;

fn step(number: u32) -> u32 {
    number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
}

fn first() -> Vec<u32> {
    (0..COUNT).collect()
}

fn mixed(numbers: &[u32], rounds: u32) -> Vec<u32> {
    numbers.iter().map(|number| (0..rounds).fold(*number, |number, _| step(number))).collect()
}

fn passed(numbers: &[u32], rounds: u32) -> Vec<u32> {
    let threads = SHAPE.1 as usize;
    let of_block =
        |block: &[u32]| (0..threads).map(|at| block[(at + rounds as usize) % threads]).collect::<Vec<_>>();
    mixed(&numbers.chunks(threads).flat_map(of_block).collect::<Vec<_>>(), rounds)
}

fn launch(thread: &mut Thread, callee: Callee, stream: Stream, memory: u64, rounds: u32) {
    launch_as((SHAPE, vec![]), thread, callee, stream, memory, rounds);
}

/// The same, of so many blocks and threads of each, with attributes.
fn launch_as(
    ((blocks, threads), attributes): ((u32, u32), Vec<(u32, LaunchValue)>),
    thread: &mut Thread,
    callee: Callee,
    stream: Stream,
    memory: u64,
    rounds: u32,
) {
    let params = [&memory.to_le_bytes()[..], &rounds.to_le_bytes()].concat();
    thread.send(Launch {
        ctx: CTX,
        stream,
        callee,
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        shared: 0,
        attributes,
        params: Bytes(params),
    });
}

/// A program with both kernels and some numbers.
struct Program {
    app: App,
    thread: Thread,
    mix: Callee,
    pass: Callee,
    memory: u64,
}

impl Program {
    fn new() -> Self {
        Self::on(App::with_context())
    }

    fn on((mut app, mut thread): (App, Thread)) -> Self {
        let module = app.load(&mut thread, 2, &marked());
        let [mix, pass] = [(3, "mix"), (4, "pass")].map(|(id, name)| thread.function(module, id, name));
        let memory = thread.alloc(u64::from(COUNT) * 4);
        thread.put(memory, &first());
        thread.synchronize().unwrap();
        Self { app, thread, mix, pass, memory }
    }

    fn is_done(&mut self) -> bool {
        self.thread.call(StreamQuery { ctx: CTX, stream: Stream::Legacy }).unwrap()
    }

    fn numbers(&mut self) -> Vec<u32> {
        self.thread.get(self.memory, COUNT)
    }

    /// Stops and lets go until the kernel is done; how often it was half-way.
    fn disturb(&mut self) -> usize {
        let mut half_way = 0;
        while !self.is_done() {
            self.app.session.close_gate(LONG).unwrap();
            let state = self.app.session.cut().unwrap().state;
            half_way += state.half_way.len();
            let live = state.arenas[0].as_ref().unwrap().allocations.len();
            assert_eq!(
                live,
                1 + 2 * state.half_way.len(),
                "the numbers, a kernel's context, what has stopped"
            );
            self.app.session.open_gate();
            std::thread::sleep(Duration::from_millis(5));
        }
        half_way
    }
}

/// Rounds that take a second or so.
const MIXING: u32 = 1_500_000;
const PASSING: u32 = 300_000;

#[test]
fn a_marked_kernel_does_not_hold_a_cut() {
    let mut program = Program::new();
    let callees =
        [(program.mix, MIXING, mixed as fn(&[u32], u32) -> Vec<u32>), (program.pass, PASSING, passed)];
    for (callee, rounds, expected) in callees {
        launch(&mut program.thread, callee, Stream::Legacy, program.memory, rounds);
        assert!(program.disturb() > 3, "it is over too soon");
        assert!(program.numbers() == expected(&first(), rounds));
        program.thread.put(program.memory, &first());
    }
    let free = program.thread.call(MemInfo { ctx: CTX }).unwrap();
    program.app.session.close_gate(LONG).unwrap();
    assert!(program.app.session.cut().unwrap().state.half_way.is_empty(), "{free:?}");
    program.app.session.open_gate();
}

#[test]
fn a_marked_kernel_goes_on_from_an_image() {
    let mut program = Program::new();
    let images = Images::new();
    let kernels = [(MIXING, mixed as fn(&[u32], u32) -> Vec<u32>), (PASSING, passed)];
    for (kernel, (rounds, expected)) in kernels.into_iter().enumerate() {
        let callee = [program.mix, program.pass][kernel];
        launch(&mut program.thread, callee, Stream::Legacy, program.memory, rounds);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(30));
            assert!(!program.is_done(), "it is over too soon");
            let Program { app, thread, mix, pass, memory } = program;
            let (image, state, (dir, addresses)) = app.captured(thread, &images);
            rehearse(&state).unwrap();
            let app = App::restore(dir, addresses, SESSION, &image);
            let thread = app.thread();
            program = Program { app, thread, mix, pass, memory };
        }
        assert!(program.numbers() == expected(&first(), rounds));
        program.thread.put(program.memory, &first());
    }
}

/// Why a session does not go on from an image.
fn refused(dir: &tempfile::TempDir, image: &store::Image) -> String {
    let link = transport::ServerSession::attach(dir.path()).unwrap();
    let config = (dir.path().to_owned(), Sharing::alone(), Managed::Coherent);
    let prepared = Prepared::of(image, SESSION).unwrap();
    let all = Patience::All(&|_| {});
    let refused = Session::restore(backend(), link, config, prepared, image, all).err().unwrap();
    format!("{refused} {:?}", std::error::Error::source(&refused).map(ToString::to_string))
}

/// Images that tests make say nothing of their devices.
#[test]
fn a_kernel_that_is_bound_to_its_device_goes_on_on_no_other() {
    let mut program = Program::new();
    let module = program.app.load(&mut program.thread, 20, &marked());
    let round = program.thread.function(module, 21, "round");
    let images = Images::new();
    launch(&mut program.thread, round, Stream::Legacy, program.memory, MIXING);
    std::thread::sleep(Duration::from_millis(30));
    assert!(!program.is_done(), "it is over too soon");
    let Program { app, thread, .. } = program;
    let (image, _, (dir, _addresses)) = app.captured(thread, &images);
    let said = refused(&dir, &image);
    assert!(said.contains("kernel round") && said.contains("addresses of shared or local memory"), "{said}");
}

/// What is half-way is in the registers of one code: another one, of the same name, would go on with numbers that mean something else.
#[test]
fn a_kernel_goes_on_in_no_other_code_than_it_stopped_in() {
    let mut program = Program::new();
    let images = Images::new();
    launch(&mut program.thread, program.mix, Stream::Legacy, program.memory, MIXING);
    std::thread::sleep(Duration::from_millis(30));
    let Program { app, thread, .. } = program;
    app.session.close_gate(LONG).unwrap();
    let id = images.capture_changed(&app.session, |state| state.half_way[0].code[31] ^= 1);
    let (dir, _addresses) = app.kill();
    drop(thread);
    let said = refused(&dir, &images.store.open_image(&id).unwrap());
    assert!(said.contains("kernel mix, which is half-way in"), "{said}");
    assert!(said.contains("another version of Dormouse made the code"), "{said}");
}

/// Work behind a marked kernel, in its stream or behind its event, waits for its true end; other work does not.
#[test]
fn what_comes_behind_a_marked_kernel_waits_for_its_end() {
    let mut program = Program::new();
    let other = program.thread.alloc(u64::from(COUNT) * 4);
    program.thread.put(other, &first());
    let [one, two] = program.thread.streams([7, 8]);
    let [event] = program.thread.events([9]);
    program.thread.synchronize().unwrap();
    let (thread, session) = (&mut program.thread, &program.app.session);
    launch(thread, program.mix, Stream::Created(two), other, MIXING);
    launch(thread, program.mix, Stream::Created(one), program.memory, MIXING);
    launch(thread, program.pass, Stream::Created(one), program.memory, 5);
    thread.send(EventRecord { ctx: CTX, stream: Stream::Created(one), event, flags: 0 });
    thread.send(StreamWaitEvent { ctx: CTX, stream: Stream::Created(two), event, flags: 0 });
    launch(thread, program.mix, Stream::Created(two), program.memory, 7);
    let begun = Instant::now();
    let mut both = 0;
    while begun.elapsed() < Duration::from_millis(300) {
        session.close_gate(LONG).unwrap();
        both += u32::from(session.cut().unwrap().state.half_way.len() == 2);
        session.open_gate();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(both > 3, "two kernels are half-way at once");
    program.thread.synchronize().unwrap();
    assert!(program.numbers() == mixed(&passed(&mixed(&first(), MIXING), 5), 7));
    assert!(program.thread.get(other, COUNT) == mixed(&first(), MIXING));
}

#[test]
fn twins_are_not_seen() {
    let mut program = Program::new();
    let module = ModuleId(2);
    let names = program.thread.call(ModuleListFunctions { module, first: 0, most: 100 }).unwrap();
    assert_eq!(names.names, ["mix", "seldom", "pass", "round"]);
    let twin =
        program.thread.call(ModuleGetFunction { module, function: FunctionId(20), name: "cpt_mix".into() });
    assert_eq!(twin.unwrap_err(), CuError::NOT_FOUND);
}

/// Something else does not get idle in time: kernels that have stopped for the cut go on without it.
#[test]
fn a_marked_kernel_goes_on_when_a_cut_is_given_up() {
    let mut program = Program::new();
    let (thread, app) = (&mut program.thread, &mut program.app);
    let (ours, address) = app.pinned(thread, PinnedId(900), 4096);
    let module = app.load(thread, 5, BASIC);
    let wait_for = thread.function(module, 6, "wait_for");
    let [one, two] = thread.streams([7, 8]);
    thread.synchronize().unwrap();
    launch(thread, program.pass, Stream::Created(one), program.memory, PASSING);
    thread.launch(wait_for, Stream::Created(two), 1, &[address, address + 4], &[]);
    let busy = thread.call(StreamQuery { ctx: CTX, stream: Stream::Created(two) });
    assert_eq!(busy, Ok(false));
    for _ in 0..3 {
        let holders = app.session.close_gate(Duration::from_millis(50)).unwrap_err();
        assert!(holders.iter().any(|holder| holder.contains("wait_for")), "{holders:?}");
    }
    ours.word(0).store(1, Ordering::Release);
    thread.synchronize().unwrap();
    assert!(program.numbers() == passed(&first(), PASSING));
}

#[test]
fn a_marked_kernel_goes_on_when_its_memory_is_filled() {
    let mut program = Program::new();
    let images = Images::new();
    launch(&mut program.thread, program.mix, Stream::Legacy, program.memory, MIXING);
    let Program { app, thread, memory, .. } = program;
    let (image, _, files) = app.captured(thread, &images);
    let app = App::restore_lazily(files, SESSION, &image, || {});
    let mut thread = app.thread();
    thread.synchronize().unwrap();
    assert!(thread.get(memory, COUNT) == mixed(&first(), MIXING));
}

/// A kernel that did not come to a mark in time stops for the next cut all the same.
#[test]
fn a_cut_that_is_given_up_is_not_in_the_way_of_the_next() {
    let mut program = Program::new();
    let seldom = program.thread.function(ModuleId(2), 30, "seldom");
    launch(&mut program.thread, seldom, Stream::Legacy, program.memory, 20);
    let (mut given_up, mut half_way) = (0, 0);
    while !program.is_done() {
        given_up += u32::from(program.app.session.close_gate(Duration::from_millis(1)).is_err());
        program.app.session.close_gate(LONG).unwrap();
        half_way += program.app.session.cut().unwrap().state.half_way.len();
        program.app.session.open_gate();
    }
    assert!(given_up > 0 && half_way > 3, "{given_up} given up, {half_way} half-way");
    assert!(program.numbers() == mixed(&first(), 20 * 50_000));
}

/// What another thread does in the same stream comes before a marked kernel or behind it, never in its middle.
#[test]
fn two_threads_use_one_stream() {
    const LAUNCHES: usize = 12;
    let mut program = Program::new();
    let rounds = MIXING / 20;
    let states: Vec<_> = std::iter::successors(Some(first()), |numbers| Some(mixed(numbers, rounds)))
        .take(LAUNCHES + 1)
        .collect();
    let mut other = program.app.thread();
    let session = std::sync::Arc::clone(&program.app.session);
    let memory = program.memory;
    let looking = std::thread::spawn(move || {
        let mut at = 0;
        while at < LAUNCHES {
            let seen = other.get(memory, COUNT);
            at = states.iter().position(|state| *state == seen).expect("in the middle of a kernel");
        }
    });
    for _ in 0..LAUNCHES {
        launch(&mut program.thread, program.mix, Stream::Legacy, memory, rounds);
        session.close_gate(LONG).unwrap();
        session.open_gate();
        std::thread::sleep(Duration::from_millis(3));
    }
    while !looking.is_finished() {
        session.close_gate(LONG).unwrap();
        session.open_gate();
        std::thread::sleep(Duration::from_millis(3));
    }
    looking.join().unwrap();
}

/// Marked kernels in two streams make room for each other and for a third one's, which has short work all the time, and cuts come between.
#[test]
fn marked_kernels_take_turns_with_others() {
    let mut program = Program::on(App::with_turns(Duration::from_millis(2)));
    let other = program.thread.alloc(u64::from(COUNT) * 4);
    program.thread.put(other, &first());
    let [one, two, three] = program.thread.streams([7, 8, 9]);
    let module = program.app.load(&mut program.thread, 5, BASIC);
    let wait_for = program.thread.function(module, 6, "wait_for");
    let (ours, address) = program.app.pinned(&mut program.thread, PinnedId(900), 4096);
    ours.word(0).store(1, Ordering::Release);
    program.thread.synchronize().unwrap();
    let mut beside = program.app.thread();
    launch(&mut program.thread, program.mix, Stream::Created(one), program.memory, MIXING);
    launch(&mut program.thread, program.pass, Stream::Created(two), other, PASSING);
    let begun = Instant::now();
    let mut half_way = 0;
    // On a busy machine it takes longer.
    while begun.elapsed() < Duration::from_millis(400) || half_way <= 3 && begun.elapsed() < LONG {
        beside.launch(wait_for, Stream::Created(three), 1, &[address, address + 4], &[]);
        beside.call(StreamSynchronize { ctx: CTX, stream: Stream::Created(three) }).unwrap();
        program.app.session.close_gate(LONG).unwrap();
        half_way += program.app.session.cut().unwrap().state.half_way.len();
        program.app.session.open_gate();
        std::thread::sleep(Duration::from_millis(9));
    }
    assert!(half_way > 3, "{half_way}");
    program.thread.synchronize().unwrap();
    assert!(program.numbers() == mixed(&first(), MIXING));
    assert!(program.thread.get(other, COUNT) == passed(&first(), PASSING));
}

/// A value of a launch attribute that begins so; behind that there may be anything.
fn value(begin: &[u8]) -> LaunchValue {
    let mut value = [0xA5; 64];
    value[..begin.len()].copy_from_slice(begin);
    LaunchValue(value)
}

const COOPERATIVE: u32 = 2;
const CLUSTER: u32 = 4;
const EARLY: u32 = 6;
const PRIORITY: u32 = 8;
const PREFERRED_CLUSTER: u32 = 11;

/// Attributes that change nothing stop nobody from stopping; others are told by name, once.
#[test]
fn a_marked_kernel_stops_with_attributes_that_change_nothing() {
    listen();
    let mut program = Program::new();
    let alone = value(&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    let harmless = vec![
        (PRIORITY, value(&[0; 4])),
        (COOPERATIVE, value(&[1, 0, 0, 0])),
        (EARLY, value(&[1, 0, 0, 0])),
        (CLUSTER, alone),
        (PREFERRED_CLUSTER, alone),
    ];
    let grouped = vec![(PREFERRED_CLUSTER, value(&[2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]))];
    let mut expected = first();
    for (attributes, stops) in [(harmless, true), (grouped.clone(), false), (grouped, false)] {
        let how = (SHAPE, attributes);
        launch_as(how, &mut program.thread, program.mix, Stream::Legacy, program.memory, MIXING / 4);
        assert_eq!(program.disturb() > 0, stops);
        expected = mixed(&expected, MIXING / 4);
        assert!(program.numbers() == expected);
    }
    let told = warned("PREFERRED_CLUSTER_DIMENSION");
    assert!(matches!(&told[..], [once] if once.contains("the marked mix is launched as it is")), "{told:?}");
}

/// Where a grid is on the device as a whole its blocks may wait for one another: it is launched as it is if not all of the twin's are there at a time, or could stop.
#[test]
fn a_grid_of_which_the_twin_does_not_fit_is_launched_as_it_is() {
    listen();
    let mut program = Program::new();
    // Ten numbers more that live over the mark: what saves them takes more registers.
    let more = |line: &str| (0..10).map(|number| line.replace('$', &number.to_string())).collect::<String>();
    let wide = format!(
        ".reg .u32 %m<10>;\n{}{MIX}{}",
        more("ld.global.u32 %m$, [%a0];\n"),
        more("xor.b32 %r4, %r4, %m$;\n")
    );
    // Of these there is room for 67 blocks of 32 threads that have stopped.
    let large = format!(".local .b8 large[500000];\n{MIX}");
    let kernels = [("wide", &wide), ("large", &large)].map(|(name, body)| kernel(name, body));
    let module = program.app.load(&mut program.thread, 40, &module(&kernels.concat()));
    let [wide, large] =
        [(41, "wide"), (42, "large")].map(|(id, name)| program.thread.function(module, id, name));
    let question = OccupancyBlocks { ctx: CTX, callee: wide, block: 256, shared: 0, flags: 0 };
    let most = 16 * program.thread.call(question).unwrap() as u32;
    let memory = program.thread.alloc(u64::from(2 * most * 256) * 4);
    let session = std::sync::Arc::clone(&program.app.session);
    let mut stops = |callee, shape: (u32, u32), rounds| {
        let width = u64::from(shape.0 * shape.1);
        let (ctx, stream) = (CTX, Stream::Legacy);
        program.thread.send(Fill {
            ctx,
            stream,
            dst: memory,
            pitch: 0,
            element: 4,
            value: 7,
            width,
            height: 1,
        });
        launch_as((shape, vec![]), &mut program.thread, callee, Stream::Legacy, memory, rounds);
        let mut half_way = 0;
        while !program.is_done() {
            session.close_gate(LONG).unwrap();
            half_way += session.cut().unwrap().state.half_way.len();
            session.open_gate();
            std::thread::sleep(Duration::from_millis(5));
        }
        let expected = mixed(&[7], rounds)[0];
        // As many as one message has, of the last blocks.
        let seen = (shape.0 * shape.1).min(16384);
        let last = program.thread.get(memory + (width - u64::from(seen)) * 4, seen);
        assert!(last.iter().all(|number| *number == expected));
        half_way > 0
    };
    assert!(stops(wide, (most / 2, 256), 2000), "the twin fits");
    assert!(!stops(wide, (most, 256), 2000), "the kernel fits, and not the twin");
    assert!(!stops(wide, (most, 256), 2000), "the same once more");
    assert!(stops(wide, (2 * most, 256), 1000), "neither fits");
    assert!(!stops(large, (100, 32), 2000), "there is no room for what is saved");
    for name in ["wide", "large"] {
        let told = warned(&format!("the marked {name} is launched as it is"));
        assert!(matches!(&told[..], [once] if once.contains("may wait for one another")), "{told:?}");
    }
}
