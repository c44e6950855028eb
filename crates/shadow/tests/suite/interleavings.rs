//! Random programs: threads that read and write managed memory, kernels, copies and host functions in streams, which may be destroyed with their work in them, all at once and all
//! in the same pages. No two touch the same byte without a synchronisation between, so what each byte has to be is known at any time; or, when the device has failed for
//! good, that a thread is told so before it takes a byte for something else.

use crate::support::{Kept, Model, Shadow, Stream, file_on, in_another_process, keep_for, memory, tmpfs};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shadow::{Device, Keeper, PAGE, Range, Scope};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, RwLock};

/// A generator whose numbers any thread can have for itself.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Some length up to `most`, short ones often.
    fn length(&mut self, most: usize) -> usize {
        let order = 1 + self.below(usize::BITS as usize - most.leading_zeros() as usize);
        1 + self.below(most.min(1 << order))
    }
}

/// A part of a region that one thread has for itself, and what is in it.
struct Piece {
    region: usize,
    at: usize,
    expected: Vec<u8>,
    /// The stream that may be busy with it; or has failed in the middle of that, and nobody knows what is in it.
    stream: Option<usize>,
}

/// What is answered; nothing where the device has failed, which alone may be a reason.
fn answered<T>(device: &Model, answer: shadow::Result<T>) -> Option<T> {
    answer.map_err(|error| assert!(device.has_failed(), "{error}")).ok()
}

/// Whether a part of a region is as it has to be.
fn compare((region, at): (usize, usize), read: &[u8], expected: &[u8]) {
    if let Some(wrong) = std::iter::zip(read, expected).position(|(is, should)| is != should) {
        panic!("byte {:#x} of region {region} is {}, not {}", at + wrong, read[wrong], expected[wrong]);
    }
}

/// What a thread's calls go through, one after the other, as a ring's do.
type Call = Box<dyn FnOnce() + Send>;

/// What they are executed with.
#[derive(Clone)]
struct Server {
    keeper: Arc<Keeper>,
    model: Arc<Model>,
    /// Had by each call while it is executed, and by one alone that wants none.
    gate: Arc<RwLock<()>>,
    /// Whether a call of the thread's has failed that answers nothing.
    failed: Arc<AtomicBool>,
}

impl Server {
    /// Gives work to a stream that reaches so much.
    fn submit(&self, scope: Scope<'_>, stream: &Stream, work: impl FnOnce(&Model) + Send + 'static) {
        let _pass = self.gate.read().unwrap();
        match answered(&self.model, self.keeper.reach(scope)) {
            Some(_reach) => stream.submit(work),
            None => self.failed.store(true, Ordering::SeqCst),
        }
    }

    /// Answers whether all is done, and can be seen, that was waited for.
    fn settle(&self, is_done: bool) -> bool {
        let _pass = self.gate.read().unwrap();
        let settled = answered(&self.model, self.keeper.settle());
        is_done && settled.is_some() && !self.failed.load(Ordering::SeqCst)
    }
}

struct Thread<'a> {
    random: Random,
    server: Server,
    shadows: &'a Arc<[Shadow]>,
    pieces: Vec<Piece>,
    streams: [Arc<Stream>; 2],
    /// What streams were busy with that have been destroyed, and who tells when they are over.
    dying: Vec<(Vec<Piece>, Receiver<bool>)>,
    /// Whether it knows that the device has failed: then it gives that no more work.
    is_told: bool,
    ring: Sender<Call>,
    given: Receiver<Piece>,
    others: Vec<Sender<Piece>>,
    /// The longest pause of a kernel between two bytes.
    pause: u64,
    /// Of how many in eight kernels it is known what they reach.
    told: usize,
    /// Whether most of what it does are sweeps, in which pages stay.
    sweeps_often: bool,
    /// Whether system calls may read and write regions.
    by_calls: bool,
    /// Whether regions may become coherent: then they are all there at once.
    may_cohere: bool,
}

impl Thread<'_> {
    fn run(mut self, steps: usize) -> Vec<Piece> {
        for _ in 0..steps {
            self.pieces.extend(self.given.try_iter());
            match self.random.below(16) {
                0..8 if self.sweeps_often => self.sweeps(),
                0..5 => self.read(),
                5..10 => self.write(),
                10..13 => self.work(),
                13 => {
                    let stream = self.random.below(2);
                    match self.random.below(4) {
                        0 => self.destroy(stream),
                        _ => self.synchronise(stream),
                    }
                }
                14 if self.random.below(3) == 0 => self.bury(),
                14 => self.give(),
                _ => match self.random.below(8) {
                    0 => self.checkpoint(),
                    1 => self.cycles(),
                    2..5 => self.change(),
                    5 => self.comes_and_goes(),
                    6 if self.random.below(3) == 0 => self.sweeps(),
                    _ => {}
                },
            }
        }
        (0..2).for_each(|stream| self.synchronise(stream));
        while !self.dying.is_empty() {
            self.bury();
        }
        drop(self.others);
        self.pieces.extend(self.given.iter());
        self.pieces
    }

    /// What a checkpoint does before all stands still, which may come to nothing; and then.
    fn checkpoint(&mut self) {
        let Server { keeper, model, .. } = &self.server;
        answered(model, keeper.write_ahead());
        if self.random.below(2) == 0 {
            answered(model, keeper.write_back());
        }
    }

    /// What is expected to go on, once it has for a while.
    fn cycles(&mut self) {
        for _ in 0..self.random.below(12) {
            self.work();
            (0..2).for_each(|stream| self.synchronise(stream));
            (0..self.random.below(3)).for_each(|_| self.read());
            (0..self.random.below(3)).for_each(|_| self.write());
        }
    }

    /// Reads all that is this thread's after each kernel, and writes it for a while.
    fn sweeps(&mut self) {
        let (turns, writes) = (self.random.below(12), self.random.below(12));
        for turn in 0..turns {
            for _ in 0..self.random.below(4) {
                self.work();
                self.read();
                self.write();
            }
            (0..2).for_each(|stream| self.synchronise(stream));
            for index in 0..self.pieces.len() {
                if self.pieces[index].stream.is_some() {
                    continue;
                }
                let all = 0..self.pieces[index].expected.len();
                self.read_part(index, all.clone());
                if turn < writes {
                    self.write_part(index, all);
                }
            }
        }
    }

    /// Makes a region coherent, or none, if no work is in flight.
    fn change(&mut self) {
        let region = self.random.below(self.shadows.len());
        let coheres = self.random.below(3) > 0 && self.may_cohere;
        let Server { keeper, model, gate, .. } = self.server.clone();
        let base = self.shadows[region].address();
        self.call(move || {
            let _alone = gate.write().unwrap();
            if model.is_busy() {
                return;
            }
            let done = keeper.settle().and_then(|()| match coheres {
                true => keeper.cohere(base).map(drop),
                false => keeper.separate(),
            });
            answered(&model, done);
        });
    }

    /// A region of this thread's alone, while others have work in flight: both sides write it, and it goes again.
    fn comes_and_goes(&mut self) {
        let bytes = (1 + self.random.below(20)) * PAGE;
        let shadow = Shadow::new(memory(bytes), bytes);
        let range = Range { base: shadow.address(), bytes: bytes as u64 };
        self.server.model.add(range);
        self.alone(move |keeper, file| keeper.add(range, file).unwrap(), shadow.file());
        let value = self.random.next() as u8;
        let at = self.random.below(bytes);
        shadow.write(at, &[value]);
        let stream = self.random.below(2);
        let (server, given) = (self.server.clone(), self.streams[stream].clone());
        let (address, other) = (range.base + at as u64, range.base + ((at + bytes / 2) % bytes) as u64);
        self.call(move || {
            server.submit(Scope::All, &given, move |device| {
                let seen = device.load(address, 1);
                device.store(other, &[seen[0].wrapping_add(1)]);
            });
        });
        self.synchronise(stream);
        assert_eq!(shadow.read(at, 1), [value], "of a region that comes and goes");
        if !self.is_told {
            let read = shadow.read((at + bytes / 2) % bytes, 1);
            assert_eq!(read, [value.wrapping_add(1)], "of a region that comes and goes");
        }
        self.alone(move |keeper, _| keeper.remove(range.base).unwrap(), shadow.file());
        self.server.model.remove(range.base);
    }

    /// Has something done with the keeper in a call of its own, and waits for that.
    fn alone(&self, what: impl FnOnce(&Keeper, OwnedFd) + Send + 'static, file: OwnedFd) {
        let (server, (done, wait)) = (self.server.clone(), channel());
        self.call(move || {
            let _pass = server.gate.read().unwrap();
            what(&server.keeper, file);
            done.send(()).unwrap();
        });
        wait.recv().unwrap();
    }

    /// A piece that no stream has, and some of its bytes.
    fn draw(&mut self) -> Option<(usize, std::ops::Range<usize>)> {
        let index = self.random.below(self.pieces.len().max(1));
        let piece = self.pieces.get(index).filter(|piece| piece.stream.is_none())?;
        let bytes = self.random.length(piece.expected.len());
        let begin = self.random.below(piece.expected.len() - bytes + 1);
        Some((index, begin..begin + bytes))
    }

    fn read(&mut self) {
        if let Some((index, part)) = self.draw() {
            self.read_part(index, part);
        }
    }

    fn read_part(&mut self, index: usize, part: std::ops::Range<usize>) {
        let piece = &self.pieces[index];
        let shadow = &self.shadows[piece.region];
        let (at, bytes) = (piece.at + part.start, part.len());
        let read = match self.random.below(4) {
            0 if self.by_calls => shadow.read_by_call(at, bytes),
            _ => shadow.read(at, bytes),
        };
        compare((piece.region, at), &read, &piece.expected[part]);
    }

    fn write(&mut self) {
        if let Some((index, part)) = self.draw() {
            self.write_part(index, part);
        }
    }

    fn write_part(&mut self, index: usize, part: std::ops::Range<usize>) {
        let by_call = part.len() <= PAGE && self.random.below(4) == 0 && self.by_calls;
        let value = self.random.next() as u8;
        let piece = &mut self.pieces[index];
        let shadow = &self.shadows[piece.region];
        let at = piece.at + part.start;
        piece.expected[part.clone()].iter_mut().enumerate().for_each(|(byte, expected)| {
            *expected = value.wrapping_add(byte as u8);
        });
        match by_call {
            true => shadow.write_by_call(at, &piece.expected[part]),
            false => shadow.write(at, &piece.expected[part]),
        }
    }

    /// Gives a stream something to do.
    fn work(&mut self) {
        let stream = self.random.below(2);
        let is_ours = |piece: &Piece| piece.stream.is_none_or(|other| other == stream);
        let ours: Vec<usize> = (0..self.pieces.len()).filter(|index| is_ours(&self.pieces[*index])).collect();
        match self.random.below(4) {
            _ if ours.is_empty() || self.is_told => {}
            0 => self.host_function(stream, &ours),
            _ => self.launch(stream, &ours),
        }
    }

    /// A host function that adds something to each byte of a piece: the stream comes to it, and waits for the processor. What is behind it may have been announced before.
    fn host_function(&mut self, stream: usize, ours: &[usize]) {
        let (index, add) = (ours[self.random.below(ours.len())], self.random.next() as u8);
        let piece = &mut self.pieces[index];
        let before = piece.expected.clone();
        piece.expected.iter_mut().for_each(|byte| *byte = byte.wrapping_add(add));
        let (region, at, after) = (piece.region, piece.at, piece.expected.clone());
        piece.stream = Some(stream);
        let (shadows, server, stream) = (self.shadows.clone(), self.server.clone(), &self.streams[stream]);
        let (stream, keeper) = (stream.clone(), server.keeper.clone());
        let function = move |device: &Model| {
            // As the server has it (`Callbacks::run_now`). What cannot be shown to a function it is not run for.
            if answered(device, keeper.settle()).is_some() {
                compare((region, at), &shadows[region].read(at, before.len()), &before);
                shadows[region].write(at, &after);
            }
            answered(device, keeper.write_back());
        };
        self.call(move || {
            let _pass = server.gate.read().unwrap();
            stream.submit(function);
        });
    }

    /// A kernel that adds something to each byte of a piece, or a copy from one to another.
    fn launch(&mut self, stream: usize, ours: &[usize]) {
        let [to, from] = [(); 2].map(|()| ours[self.random.below(ours.len())]);
        let is_copy = to != from && self.random.below(3) == 0;
        let bytes = self.pieces[to].expected.len().min(if is_copy {
            self.pieces[from].expected.len()
        } else {
            usize::MAX
        });
        let add = if is_copy { 0 } else { self.random.next() as u8 };
        let source = if is_copy { from } else { to };
        let values: Vec<u8> =
            self.pieces[source].expected[..bytes].iter().map(|byte| byte.wrapping_add(add)).collect();
        self.pieces[to].expected[..bytes].copy_from_slice(&values);
        self.pieces[to].stream = Some(stream);
        self.pieces[source].stream = Some(stream);
        let ranges = [to, source].map(|index| {
            let piece = &self.pieces[index];
            Range { base: self.shadows[piece.region].address() + piece.at as u64, bytes: bytes as u64 }
        });
        let (seed, pause, is_told) = (self.random.next(), self.pause, self.random.below(8) < self.told);
        let kernel = move |device: &Model| {
            let mut random = Random(seed);
            let mut done = 0;
            while done < bytes && !device.has_failed() {
                let now = random.length(bytes - done);
                let [to, from] = ranges.map(|range| range.base + done as u64);
                let mut values = device.load(from, now);
                values.iter_mut().for_each(|byte| *byte = byte.wrapping_add(add));
                device.store(to, &values);
                done += now;
                crate::support::pause(random.next(), pause);
            }
        };
        let (server, stream) = (self.server.clone(), self.streams[stream].clone());
        self.call(move || {
            let scope = if is_told { Scope::Ranges(&ranges) } else { Scope::All };
            server.submit(scope, &stream, kernel);
        });
    }

    fn synchronise(&mut self, stream: usize) {
        let waited = self.streams[stream].clone();
        if self.settle(move || waited.wait()) {
            let busy = self.pieces.iter_mut().filter(|piece| piece.stream == Some(stream));
            busy.for_each(|piece| piece.stream = None);
        }
    }

    /// Settles behind a wait, which answers whether what it waits for is done. Answers whether all of it can be seen.
    fn settle(&mut self, wait: impl FnOnce() -> bool + Send + 'static) -> bool {
        let (server, (done, answer)) = (self.server.clone(), channel());
        self.call(move || {
            let is_done = wait();
            done.send(server.settle(is_done)).unwrap();
        });
        let is_seen = answer.recv().unwrap();
        self.is_told |= !is_seen;
        is_seen
    }

    /// Destroys a stream with all that is in it, an event at its end, and takes another one.
    fn destroy(&mut self, stream: usize) {
        let new = Arc::new(Stream::new(&self.server.model));
        let destroyed = std::mem::replace(&mut self.streams[stream], new);
        let busy = self.pieces.extract_if(.., |piece| piece.stream == Some(stream)).collect();
        let (told, event) = channel();
        self.call(move || destroyed.tell(told));
        self.dying.push((busy, event));
    }

    /// Waits for the event at the end of a stream that was destroyed.
    fn bury(&mut self) {
        let Some((mut pieces, event)) = self.dying.pop() else { return };
        if self.settle(move || event.recv().unwrap()) {
            pieces.iter_mut().for_each(|piece| piece.stream = None);
        }
        self.pieces.extend(pieces);
    }

    /// Gives a piece to another thread.
    fn give(&mut self) {
        let Some((index, _)) = self.draw() else { return };
        let other = self.random.below(self.others.len());
        // One that has done all its steps takes no more before its end.
        let piece = self.pieces.swap_remove(index);
        if let Err(kept) = self.others[other].send(piece) {
            self.pieces.push(kept.0);
        }
    }

    fn call(&self, call: impl FnOnce() + Send + 'static) {
        self.ring.send(Box::new(call)).unwrap();
    }
}

/// Divides regions among threads, in so many pieces of any length at most.
fn divide(random: &mut Random, regions: &[usize], threads: usize, most: usize) -> Vec<Vec<Piece>> {
    let mut pieces: Vec<Vec<Piece>> = (0..threads).map(|_| Vec::new()).collect();
    for (region, pages) in regions.iter().enumerate() {
        let (mut at, end) = (0, pages * PAGE);
        for left in (0..most).rev() {
            let bytes =
                if left == 0 { end - at } else { random.length((end - at).min(PAGE * pages / 4 + 99)) };
            let piece = Piece { region, at, expected: vec![0; bytes], stream: None };
            pieces[random.below(threads)].push(piece);
            at += bytes;
            if at == end {
                break;
            }
        }
    }
    pieces
}

/// What the programs do mostly.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// Anything.
    None,
    /// Sweeps, in which pages stay.
    Sweeps,
    /// The same, each region by one thread, so that pages come back.
    Whole,
}

/// Where the device `fails`, with so many transfers and pieces of work, the process may be ended by name. Answers how often pages have come back.
fn check(
    seed: u64,
    regions: &[usize],
    threads: usize,
    (kept, is_scarce, habit): (Kept, bool, Habit),
    (pause, steps, told, fails): (u64, usize, usize, usize),
) -> usize {
    let mut random = Random(seed);
    let model = Model::delayed(seed, pause);
    model.fails_at.store(fails, Ordering::SeqCst);
    let by_calls = kept.all_faults;
    let (pages, mut count) = (regions.iter().sum::<usize>(), 0);
    // Room for a third of all pages, in common.
    let scarce = is_scarce.then(|| tmpfs((pages / 3).max(64) * PAGE));
    let file = |bytes| {
        count += 1;
        scarce.as_ref().map_or_else(|| memory(bytes), |room| file_on(room, &count.to_string(), bytes))
    };
    let (keeper, shadows) = keep_for(&model, regions, kept, file);
    let (keeper, gate, shadows) = (Arc::new(keeper), Arc::default(), Arc::from(shadows));
    let (gifts, given): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel()).unzip();
    let most = if habit == Habit::Whole { 1 } else { 40 };
    let divided = divide(&mut random, regions, threads, most);
    let left: Vec<Piece> = std::thread::scope(|scope| {
        let threads: Vec<_> = std::iter::zip(divided, given)
            .map(|(pieces, given)| {
                let (ring, calls): (_, Receiver<Call>) = channel();
                scope.spawn(move || calls.into_iter().for_each(|call| call()));
                let thread = Thread {
                    random: Random(random.next()),
                    server: Server {
                        keeper: Arc::clone(&keeper),
                        model: Arc::clone(&model),
                        gate: Arc::clone(&gate),
                        failed: Arc::default(),
                    },
                    shadows: &shadows,
                    pieces,
                    streams: [(); 2].map(|()| Arc::new(Stream::new(&model))),
                    dying: Vec::new(),
                    is_told: false,
                    ring,
                    given,
                    others: gifts.clone(),
                    pause,
                    told,
                    sweeps_often: habit != Habit::None,
                    by_calls,
                    may_cohere: !is_scarce,
                };
                scope.spawn(move || thread.run(steps))
            })
            .collect();
        drop(gifts);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(
        left.iter().map(|piece| piece.expected.len()).sum::<usize>(),
        regions.iter().sum::<usize>() * PAGE,
        "every byte is somebody's"
    );
    let (known, lost): (Vec<_>, Vec<_>) = left.into_iter().partition(|piece| piece.stream.is_none());
    for piece in &known {
        let shadow = &shadows[piece.region];
        assert!(shadow.read(piece.at, piece.expected.len()) == piece.expected, "as the processor sees it");
    }
    assert!(lost.is_empty() || model.has_failed(), "nobody has been told of a failure that there was not");
    let written = keeper.separate().and_then(|()| keeper.write_back());
    let returned = model.returned.load(Ordering::Relaxed);
    if answered(&model, written).is_none() || model.has_failed() {
        return returned;
    }
    for piece in &known {
        let address = shadows[piece.region].address() + piece.at as u64;
        assert!(model.load(address, piece.expected.len()) == piece.expected, "as the device sees it");
    }
    returned
}

fn region() -> impl Strategy<Value = usize> {
    prop_oneof![
        120 => 1..4usize,
        60 => 4..60usize,
        60 => 65..200usize,
        30 => 1000..1200usize,
        30 => 2100..2200usize,
        // More than one part has: a few of them take as long as all others.
        1 => 16_384..16_500usize
    ]
}

/// As many as `PROPTEST_CASES` says, others each time; few, and the same, where nobody waits for more.
pub fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let (cases, rng_seed) = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => (default.cases, default.rng_seed),
        None => (120, RngSeed::Fixed(4)),
    };
    // A failure is the schedule's as much as the program's: what shrinks it would try a different one each time.
    ProptestConfig { cases, rng_seed, failure_persistence: None, max_shrink_iters: 0, ..default }
}

proptest! {
    #![proptest_config(config())]

    /// Nothing that is written is lost, and nothing stale is read.
    #[test]
    fn memory_is_what_was_written(
        seed in any::<u64>(),
        regions in prop::collection::vec(region(), 1..6),
        threads in 1..5usize,
        servers in 1..4usize,
        maps_protected in prop::bool::weighted(0.8),
        all_faults in prop::bool::weighted(0.8),
        is_scarce in prop::bool::weighted(0.2),
        pause in prop_oneof![Just(0u64), Just(20), Just(300)],
        // Work that may reach everything hides what is wrong with work that does not.
        told in prop_oneof![Just(8usize), Just(7), Just(4)],
    ) {
        let kept = Kept { threads: servers, maps_protected, all_faults, ..Kept::default() };
        check(seed, &regions, threads, (kept, is_scarce, Habit::None), (pause, 300, told, 0));
    }
}

/// The same where large regions are written from end to end again and again, so that their pages come back by themselves, beside all else that happens to them.
#[test]
fn pages_that_come_back_are_as_they_should_be() {
    let returned: usize = (0..(u64::from(config().cases) / 20).max(1))
        .map(|seed| {
            let mut random = Random(seed);
            let regions: Vec<_> = (0..1 + random.below(3))
                .map(|_| 512 + random.below(200) + 2048 * (random.below(4) / 3))
                .collect();
            let kept = Kept { threads: 1 + random.below(3), ..Kept::default() };
            let (threads, is_scarce) = (1 + random.below(2), random.below(4) == 0);
            let pause = [0, 20, 300][random.below(3)];
            check(random.next(), &regions, threads, (kept, is_scarce, Habit::Whole), (pause, 30, 8, 0))
        })
        .sum();
    assert!(returned > 0, "none has come back");
    println!("{returned} times");
}

/// When the device has failed for good, nothing stale is read by who has not been told so: a thread reads what is right, or the program is ended by name; so each is another process.
#[test]
fn a_device_that_fails_is_told_of() {
    const SEED: &str = "SHADOW_TEST_FAILS";
    if let Some(seed) = std::env::var_os(SEED) {
        let mut random = Random(seed.to_str().unwrap().parse().unwrap());
        let regions: Vec<_> = (0..1 + random.below(3)).map(|_| random.length(200)).collect();
        let (threads, servers) = (1 + random.below(2), 1 + random.below(3));
        let kept = Kept { threads: servers, maps_protected: random.below(5) > 0, ..Kept::default() };
        let pause = [0, 20, 300][random.below(3)];
        let (told, fails) = ([8, 7, 4][random.below(3)], 1 + random.below(600));
        // There it has to be found out that pages are not what they should be.
        let habit = Habit::Sweeps;
        check(random.next(), &regions, threads, (kept, false, habit), (pause, 100, told, fails));
        return;
    }
    let ended_by_name = (0..u64::from(config().cases)).filter(|seed| {
        let test = "interleavings::a_device_that_fails_is_told_of";
        let (ended, said) = in_another_process(test, SEED, &seed.to_string());
        let is_named = ended.signal() == Some(rustix::process::Signal::ABORT.as_raw())
            && said.contains("of managed memory cannot be ");
        assert!((ended.success() || is_named) && !said.contains("panicked"), "{seed}: {said}");
        is_named
    });
    assert!(ended_by_name.count() > 0, "somebody touches what is not there any more");
}
