//! Random programs: threads that read and write managed memory, kernels and copies in streams, all at once and all in the same pages. No two
//! touch the same byte without a synchronisation between, so what each byte has to be is known at any time.

use crate::support::{Kept, Model, Shadow, Stream, file_on, keep_for, memory, tmpfs};
use proptest::prelude::*;
use shadow::{Device, Keeper, PAGE, Range, Scope};
use std::os::fd::OwnedFd;
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
    /// The stream that may be busy with it.
    stream: Option<usize>,
}

/// What a thread's calls go through, one after the other, as a ring's do.
type Call = Box<dyn FnOnce() + Send>;

struct Thread<'a> {
    random: Random,
    keeper: &'a Arc<Keeper>,
    model: &'a Arc<Model>,
    /// Had by each call while it is executed, and by one alone that wants none.
    gate: &'a Arc<RwLock<()>>,
    shadows: &'a [Shadow],
    pieces: Vec<Piece>,
    streams: [Arc<Stream>; 2],
    ring: Sender<Call>,
    given: Receiver<Piece>,
    others: Vec<Sender<Piece>>,
    /// The longest pause of a kernel between two bytes.
    pause: u64,
    /// Of how many in eight kernels it is known what they reach.
    told: usize,
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
                0..5 => self.read(),
                5..10 => self.write(),
                10..13 => self.launch(),
                13 => {
                    let stream = self.random.below(2);
                    self.synchronise(stream);
                }
                14 => self.give(),
                _ => match self.random.below(8) {
                    0 => self.keeper.write_back().unwrap(),
                    1 => self.cycles(),
                    2..5 => self.change(),
                    5 => self.comes_and_goes(),
                    6 if self.random.below(3) == 0 => self.sweeps(),
                    _ => {}
                },
            }
        }
        (0..2).for_each(|stream| self.synchronise(stream));
        drop(self.others);
        self.pieces.extend(self.given.iter());
        self.pieces
    }

    /// What is expected to go on, once it has for a while.
    fn cycles(&mut self) {
        for _ in 0..self.random.below(12) {
            self.launch();
            (0..2).for_each(|stream| self.synchronise(stream));
            (0..self.random.below(3)).for_each(|_| self.read());
            (0..self.random.below(3)).for_each(|_| self.write());
        }
    }

    /// Reads all that is this thread's after each kernel, and writes it for a while.
    fn sweeps(&mut self) {
        let (turns, writes) = (self.random.below(12), self.random.below(12));
        for turn in 0..turns {
            self.launch();
            (0..2).for_each(|stream| self.synchronise(stream));
            for index in 0..self.pieces.len() {
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
        let (keeper, model, gate) = (self.keeper.clone(), self.model.clone(), self.gate.clone());
        let base = self.shadows[region].address();
        self.call(move || {
            let _alone = gate.write().unwrap();
            if model.is_busy() {
                return;
            }
            keeper.settle().unwrap();
            match coheres {
                true => drop(keeper.cohere(base).unwrap()),
                false => keeper.separate().unwrap(),
            }
        });
    }

    /// A region of this thread's alone, while others have work in flight: both sides write it, and it goes again.
    fn comes_and_goes(&mut self) {
        let bytes = (1 + self.random.below(20)) * PAGE;
        let shadow = Shadow::new(memory(bytes), bytes);
        let range = Range { base: shadow.address(), bytes: bytes as u64 };
        self.model.add(range);
        self.alone(move |keeper, file| keeper.add(range, file).unwrap(), shadow.file());
        let value = self.random.next() as u8;
        let at = self.random.below(bytes);
        shadow.write(at, &[value]);
        let stream = self.random.below(2);
        let (keeper, given, gate) = (self.keeper.clone(), self.streams[stream].clone(), self.gate.clone());
        let (address, other) = (range.base + at as u64, range.base + ((at + bytes / 2) % bytes) as u64);
        self.call(move || {
            let _pass = gate.read().unwrap();
            let _reach = keeper.reach(Scope::All).unwrap();
            given.submit(move |device| {
                let seen = device.load(address, 1);
                device.store(other, &[seen[0].wrapping_add(1)]);
            });
        });
        self.synchronise(stream);
        let read = shadow.read((at + bytes / 2) % bytes, 1);
        assert_eq!(read, [value.wrapping_add(1)], "of a region that comes and goes");
        self.alone(move |keeper, _| keeper.remove(range.base).unwrap(), shadow.file());
        self.model.remove(range.base);
    }

    /// Has something done with the keeper in a call of its own, and waits for that.
    fn alone(&self, what: impl FnOnce(&Keeper, OwnedFd) + Send + 'static, file: OwnedFd) {
        let (keeper, gate, (done, wait)) = (self.keeper.clone(), self.gate.clone(), channel());
        self.call(move || {
            let _pass = gate.read().unwrap();
            what(&keeper, file);
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
        let expected = &piece.expected[part][..read.len()];
        if let Some(wrong) = (0..read.len()).find(|byte| read[*byte] != expected[*byte]) {
            let (is, should) = (read[wrong], expected[wrong]);
            panic!("byte {:#x} of region {} is {is}, not {should}", at + wrong, piece.region);
        }
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

    /// A kernel that adds something to each byte of a piece, or a copy from one to another.
    fn launch(&mut self) {
        let stream = self.random.below(2);
        let is_ours = |piece: &Piece| piece.stream.is_none_or(|other| other == stream);
        let ours: Vec<usize> = (0..self.pieces.len()).filter(|index| is_ours(&self.pieces[*index])).collect();
        if ours.is_empty() {
            return;
        }
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
            while done < bytes {
                let now = random.length(bytes - done);
                let [to, from] = ranges.map(|range| range.base + done as u64);
                let mut values = device.load(from, now);
                values.iter_mut().for_each(|byte| *byte = byte.wrapping_add(add));
                device.store(to, &values);
                done += now;
                crate::support::pause(random.next(), pause);
            }
        };
        let (keeper, stream) = (self.keeper.clone(), self.streams[stream].clone());
        let gate = self.gate.clone();
        self.call(move || {
            let _pass = gate.read().unwrap();
            let scope = if is_told { Scope::Ranges(&ranges) } else { Scope::All };
            let _reach = keeper.reach(scope).unwrap();
            stream.submit(kernel);
        });
    }

    fn synchronise(&mut self, stream: usize) {
        let (done, wait) = channel();
        let (keeper, waited) = (self.keeper.clone(), self.streams[stream].clone());
        let gate = self.gate.clone();
        self.call(move || {
            waited.wait();
            let _pass = gate.read().unwrap();
            keeper.settle().unwrap();
            done.send(()).unwrap();
        });
        wait.recv().unwrap();
        self.pieces
            .iter_mut()
            .filter(|piece| piece.stream == Some(stream))
            .for_each(|piece| piece.stream = None);
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

/// Divides regions among threads, in pieces of any length.
fn divide(random: &mut Random, regions: &[usize], threads: usize) -> Vec<Vec<Piece>> {
    let mut pieces: Vec<Vec<Piece>> = (0..threads).map(|_| Vec::new()).collect();
    for (region, pages) in regions.iter().enumerate() {
        let (mut at, end) = (0, pages * PAGE);
        for left in (0..40).rev() {
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

fn check(
    seed: u64,
    regions: &[usize],
    threads: usize,
    (kept, is_scarce): (Kept, bool),
    (pause, steps, told): (u64, usize, usize),
) {
    let mut random = Random(seed);
    let model = Model::delayed(seed, pause);
    let by_calls = kept.all_faults;
    let (pages, mut count) = (regions.iter().sum::<usize>(), 0);
    // Room for a third of all pages, in common.
    let scarce = is_scarce.then(|| tmpfs((pages / 3).max(64) * PAGE));
    let file = |bytes| {
        count += 1;
        scarce.as_ref().map_or_else(|| memory(bytes), |room| file_on(room, &count.to_string(), bytes))
    };
    let (keeper, shadows) = keep_for(&model, regions, kept, file);
    let (keeper, gate) = (Arc::new(keeper), Arc::default());
    let (gifts, given): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel()).unzip();
    let divided = divide(&mut random, regions, threads);
    let left: Vec<Piece> = std::thread::scope(|scope| {
        let threads: Vec<_> = std::iter::zip(divided, given)
            .map(|(pieces, given)| {
                let (ring, calls): (_, Receiver<Call>) = channel();
                scope.spawn(move || calls.into_iter().for_each(|call| call()));
                let thread = Thread {
                    random: Random(random.next()),
                    keeper: &keeper,
                    model: &model,
                    gate: &gate,
                    shadows: &shadows,
                    pieces,
                    streams: [(); 2].map(|()| Arc::new(Stream::new(&model))),
                    ring,
                    given,
                    others: gifts.clone(),
                    pause,
                    told,
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
    for piece in &left {
        let shadow = &shadows[piece.region];
        assert!(shadow.read(piece.at, piece.expected.len()) == piece.expected, "as the processor sees it");
    }
    keeper.separate().unwrap();
    keeper.write_back().unwrap();
    for piece in &left {
        let address = shadows[piece.region].address() + piece.at as u64;
        assert!(model.load(address, piece.expected.len()) == piece.expected, "as the device sees it");
    }
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

/// As many as `PROPTEST_CASES` says; few where nobody waits for more.
pub fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { 150 };
    // A failure is the schedule's as much as the program's: what shrinks it would try a different one each time.
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 0, ..default }
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
        check(seed, &regions, threads, (kept, is_scarce), (pause, 300, told));
    }
}
