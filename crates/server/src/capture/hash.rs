//! The hash by which the device tells that a chunk of its memory is as it was (`hash.ptx`).
//!
//! Of any two contents of one length, whoever chose them, the two numbers agree for one key in 2<sup>103</sup> at most, if whoever chose them does not know the key. For one number: where they differ in a word
//! of a thread's, sums with one r in 2<sup>58</sup> agree at most, since the others' say what it has to be; polynomials of degree 63 that are not the same have the same value at 63 of 2<sup>58</sup> places k at most; and sums over threads
//! agree for one q in 2<sup>58</sup>. Together that is less than 2<sup>-51.9</sup>, and the numbers have keys of their own. That q is random is the one thing that is assumed: it comes out of a generator (SplitMix64) whose seed is.

use backend::LinkInput;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt::Write;

use super::changes::PTX;

/// The hash of a chunk; 0 if that is all zeros.
pub(super) type Hash = [u64; 2];

/// Threads of a block, which hashes a chunk.
pub(super) const THREADS: u32 = 1024;

/// Bits of a key's numbers.
const BITS: u32 = 58;
/// How many r a key has.
const SUMMED: usize = 8;
/// Words of one of the two keys: k, r, and seed.
const WORDS: usize = SUMMED + 2;

/// Two keys, as the kernel is given them.
#[derive(Clone, Copy)]
pub(super) struct Key([[u64; WORDS]; 2]);

impl Key {
    /// Draws one; none without random bytes.
    pub(super) fn draw() -> Option<Self> {
        let mut bytes = [[[0; size_of::<u64>()]; WORDS]; 2];
        let whole = bytes.as_flattened_mut().as_flattened_mut();
        let is_drawn =
            getrandom(&mut *whole, GetRandomFlags::empty()).is_ok_and(|count| count == whole.len());
        is_drawn.then(|| Self::of(bytes.map(|key| key.map(u64::from_ne_bytes))))
    }

    fn of(mut random: [[u64; WORDS]; 2]) -> Self {
        const HALF: u32 = BITS / 2;
        let lower = |number: u64, bits: u32| number & ((1 << bits) - 1);
        for [k, r @ .., _seed] in &mut random {
            *k = lower(*k, BITS);
            r.iter_mut().for_each(|r| *r = lower(*r, HALF) | lower(*r >> HALF, HALF) << 32);
        }
        Self(random)
    }

    /// The kernel's parameters.
    pub(super) fn params(&self, base: u64, bytes: u64, out: u64) -> Vec<u8> {
        let words = [base, bytes, out].into_iter().chain(self.0.into_iter().flatten());
        words.flat_map(u64::to_ne_bytes).collect()
    }
}

/// The kernel's text.
pub(super) fn code() -> String {
    let mut text = String::new();
    for line in include_str!("hash.ptx").lines() {
        let expanded = match line.trim().split_once(' ') {
            Some(("MIX", step)) => Some(mix(step)),
            Some(("ADD", hash)) => hash.parse().ok().map(add),
            Some(("SUM", hash)) => hash.parse().ok().map(sum),
            _ => None,
        };
        // A `String` takes everything.
        let _ = writeln!(text, "{}", expanded.as_deref().unwrap_or(line));
    }
    text
}

/// What compiles it.
pub(super) fn input(code: &str) -> LinkInput<'_> {
    LinkInput { kind: PTX, name: "hash.ptx", data: code.as_bytes() }
}

/// `%v`, less than 2^64, becomes at most 2^61 + 7, and is the same modulo P.
const FOLD: &str = "shr.u64 %u, %v, 61;\nand.b64 %v, %v, 0x1fffffffffffffff;\nadd.u64 %v, %v, %u;\n";

/// `%v` becomes a product of two numbers, modulo P: less than 2^62, if one is at most 2^61 + 7 and the other less than 2^58.
fn product(of: &str, and: &str) -> String {
    format!(
        "mul.lo.u64 %v, {of}, {and};\nmul.hi.u64 %h, {of}, {and};\nshl.b64 %h, %h, 3;\nshr.u64 %u, %v, 61;\nor.b64 %h, %h, %u;
and.b64 %v, %v, 0x1fffffffffffffff;\nadd.u64 %v, %v, %h;\n"
    )
}

/// A thread's next two pieces of 16 bytes.
fn mix(pieces: &str) -> String {
    let mut text = String::new();
    for (number, piece) in pieces.split(' ').enumerate() {
        for (half, words) in ["x", "y"].into_iter().enumerate() {
            let first = 4 * number + 2 * half;
            let _ = writeln!(
                text,
                "or.b64 %any, %any, %{words}{piece};\nmov.b64 {{%word{first}, %word{}}}, %{words}{piece};",
                first + 1
            );
        }
    }
    for hash in 0..2 {
        text += &product(&format!("%s{hash}"), &format!("%k{hash}"));
        // Eight products of 32 and 29 bits each; the upper ones stand 29 bits higher.
        for (sum, half) in [("%l", "low"), ("%h", "high")] {
            let _ = writeln!(text, "mul.wide.u32 {sum}, %word0, %{half}{};", SUMMED * hash);
            for word in 1..SUMMED {
                let r = SUMMED * hash + word;
                let _ = writeln!(text, "mad.wide.u32 {sum}, %word{word}, %{half}{r}, {sum};");
            }
        }
        text += "shr.u64 %u, %l, 61;\nadd.u64 %v, %v, %u;\nand.b64 %l, %l, 0x1fffffffffffffff;\nadd.u64 %v, %v, %l;
shr.u64 %u, %h, 32;\nadd.u64 %v, %v, %u;\nand.b64 %h, %h, 0xffffffff;\nshl.b64 %h, %h, 29;\nadd.u64 %v, %v, %h;\n";
        let _ = writeln!(text, "{FOLD}mov.u64 %s{hash}, %v;");
    }
    text
}

/// A thread's part, added to the block's; `%d0` tells threads apart.
fn add(hash: usize) -> String {
    let (seed, sums) = (size_of::<u64>() * (WORDS * hash + WORDS - 1), 12 * hash);
    let product = product(&format!("%s{hash}"), "%q");
    format!(
        "ld.param.u64 %q, [keys + {seed}];
add.u64 %q, %q, %d0;
shr.u64 %u, %q, 30;
xor.b64 %q, %q, %u;
mul.lo.u64 %q, %q, 0xbf58476d1ce4e5b9;
shr.u64 %u, %q, 27;
xor.b64 %q, %q, %u;
mul.lo.u64 %q, %q, 0x94d049bb133111eb;
shr.u64 %u, %q, 31;
xor.b64 %q, %q, %u;
and.b64 %q, %q, 0x3ffffffffffffff;
{product}{FOLD}shr.u64 %u, %v, 42;
cvt.u32.u64 %part2, %u;
shr.u64 %u, %v, 21;
and.b64 %u, %u, 0x1fffff;
cvt.u32.u64 %part1, %u;
and.b64 %v, %v, 0x1fffff;
cvt.u32.u64 %part0, %v;
red.shared.add.u32 [sums + {sums}], %part0;
red.shared.add.u32 [sums + {}], %part1;
red.shared.add.u32 [sums + {}], %part2;
",
        sums + 4,
        sums + 8
    )
}

/// The block's sum, reduced: `%s` with the hash's number.
fn sum(hash: usize) -> String {
    let sums = 12 * hash;
    format!(
        "ld.shared.u32 %part0, [sums + {sums}];
ld.shared.u32 %part1, [sums + {}];
ld.shared.u32 %part2, [sums + {}];
cvt.u64.u32 %v, %part0;
cvt.u64.u32 %u, %part1;
shl.b64 %u, %u, 21;
add.u64 %v, %v, %u;
cvt.u64.u32 %u, %part2;
shr.u64 %h, %u, 19;
add.u64 %v, %v, %h;
and.b64 %u, %u, 0x7ffff;
shl.b64 %u, %u, 42;
add.u64 %v, %v, %u;
{FOLD}setp.ge.u64 %p1, %v, 0x1fffffffffffffff;
@%p1 sub.u64 %v, %v, 0x1fffffffffffffff;
mov.u64 %s{hash}, %v;
",
        sums + 4,
        sums + 8
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::buffers::BufferPool;
    use crate::capture::changes::{launch, of_bytes, read};
    use backend::{Backend, RawContext, RawFunction};
    use image::CHUNK_SIZE;
    use proptest::prelude::*;
    use std::sync::Arc;

    const P: u128 = (1 << 61) - 1;

    /// What `hash.ptx` says it does, by a key as it is drawn.
    fn hash(bytes: &[u8], random: [[u64; WORDS]; 2]) -> Hash {
        let (words, _) = bytes.as_chunks::<4>();
        let words: Vec<u128> = words.iter().map(|word| u128::from(u32::from_le_bytes(*word))).collect();
        if words.iter().all(|word| *word == 0) {
            return Hash::default();
        }
        let threads = u64::from(THREADS);
        let [first, second] = random.map(|[k, r @ .., seed]| {
            let below = |number: u64| u128::from(number & ((1 << BITS) - 1));
            let r: [u64; SUMMED] = r;
            let r = r.map(below);
            let sums = (0..threads).map(|thread| {
                let own = words.chunks(4).skip(thread as usize).step_by(THREADS as usize);
                let own: Vec<u128> = own.flatten().copied().collect();
                let s = own.chunks(SUMMED).fold(0, |s, words| {
                    let sum: u128 = words.iter().zip(r).map(|(word, r)| word * r % P).sum();
                    (s * below(k) + sum) % P
                });
                let mut q = seed.wrapping_add((thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                q = (q ^ q >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                q = (q ^ q >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                s * below(q ^ q >> 31) % P
            });
            (sums.sum::<u128>() % P) as u64
        });
        [first | 1 << 63, second]
    }

    fn noise(seed: u64) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(seed), |seed| {
            Some(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        })
        .map(|state| state ^ state >> 31)
        .skip(1)
    }

    fn contents(seed: u64, words: usize) -> Vec<u8> {
        noise(seed).take(2 * words).flat_map(u64::to_le_bytes).collect()
    }

    fn random(seed: u64) -> [[u64; WORDS]; 2] {
        let mut noise = noise(seed);
        [(); 2].map(|()| [(); WORDS].map(|()| noise.next().unwrap()))
    }

    /// The kernel on the software device.
    struct Rig {
        backend: Arc<dyn Backend>,
        ctx: RawContext,
        kernel: RawFunction,
    }

    impl Rig {
        fn new() -> Self {
            let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
            let ctx = backend.context_create(0, 0, true).unwrap();
            let linked = backend.link(ctx, &[input(&code())], &[]).unwrap().code;
            let module = backend.module_load(ctx, &linked, &[], &[]).unwrap().code;
            let kernel = backend.function(ctx, module, "hash").unwrap();
            Self { backend, ctx, kernel }
        }

        fn hash(&self, bytes: &[u8], random: [[u64; WORDS]; 2]) -> Vec<Hash> {
            let pool = BufferPool::new(&self.backend);
            let count = bytes.len().div_ceil(CHUNK_SIZE);
            let (memory, out) = (pool.take(count).unwrap(), pool.take(1).unwrap());
            assert!(memory.write(0, bytes));
            let params = Key::of(random).params(memory.range().base, bytes.len() as u64, out.range().base);
            self.backend.launch(self.ctx, &launch(self.kernel, count as u32, &params)).unwrap();
            self.backend.context_synchronize(self.ctx).unwrap();
            read(&out, 0, count)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn the_device_hashes_as_the_processor_does(
            words in 1_usize..=5000, second in 0_usize..300, fill in 0..3, key in any::<u64>(), seed in any::<u64>(),
        ) {
            // Of one chunk, or of a second one behind the first; zeros, all that can be carried, or anything.
            let words = if second > 0 { CHUNK_SIZE / 16 + second } else { words };
            let bytes = match fill {
                0 => vec![0; words * 16],
                1 => vec![0xff; words * 16],
                _ => contents(seed, words),
            };
            let key = if fill == 1 { [[u64::MAX; WORDS]; 2] } else { random(key) };
            let found = Rig::new().hash(&bytes, key);
            let wanted: Vec<Hash> = bytes.chunks(CHUNK_SIZE).map(|chunk| hash(chunk, key)).collect();
            prop_assert_eq!(found, wanted);
        }
    }

    /// Whatever is behind the last 64 KiB, and in each piece of it.
    #[test]
    fn chunks_of_any_length_are_hashed_to_their_end() {
        const ROW: usize = 16 * THREADS as usize;
        let rig = Rig::new();
        let lengths = [
            16,
            ROW - 16,
            ROW,
            ROW + 16,
            2 * ROW,
            2 * ROW + 16,
            3 * ROW - 16,
            3 * ROW + 16,
            4 * ROW + 16,
            5 * ROW,
        ];
        for bytes in lengths {
            let key = random(bytes as u64);
            let mut content = contents(bytes as u64, bytes / 16);
            let before = hash(&content, key);
            assert_eq!(rig.hash(&content, key), [before], "{bytes}");
            for at in (0..bytes).step_by(ROW).flat_map(|piece| [piece + 4, piece + 12]).chain([bytes - 1]) {
                content[at] ^= 1;
                let changed = hash(&content, key);
                assert_eq!(rig.hash(&content, key), [changed], "{bytes}, at {at}");
                assert_ne!(changed, before, "{bytes}, at {at}");
                content[at] ^= 1;
            }
        }
    }

    /// Changes of which each undoes the other in a hash that multiplies by odd numbers, rotates and adds: upper bits of words a thread reads one behind the other.
    #[test]
    fn no_few_bits_undo_one_another() {
        let rig = Rig::new();
        let next = 16 * THREADS as usize;
        let flips: [&[(usize, u64)]; 5] = [
            &[(0, 1 << 63), (next, 1 << 63 | 1 << 31), (next + 8, 1 << 22 | 1 << 54)],
            &[(0, 1 << 63), (next, 1 << 63)],
            &[(8, 1 << 63), (next + 8, 1 << 63)],
            &[(0, 1 << 31), (4, 1 << 31)],
            // Two threads change places.
            &[(0, u64::MAX), (16, u64::MAX)],
        ];
        for seed in 0..8 {
            let bytes = contents(seed, 3 * THREADS as usize);
            let before = rig.hash(&bytes, random(seed + 100));
            for flips in flips {
                let mut changed = bytes.clone();
                for (at, bits) in flips {
                    let word: &mut [u8; 8] = (&mut changed[*at..*at + 8]).try_into().unwrap();
                    *word = (u64::from_le_bytes(*word) ^ bits).to_le_bytes();
                }
                assert_ne!(rig.hash(&changed, random(seed + 100)), before, "{flips:?}");
            }
        }
    }

    #[test]
    fn what_changes_places_is_seen() {
        let rig = Rig::new();
        let bytes = contents(7, 2 * THREADS as usize);
        let before = rig.hash(&bytes, random(1));
        for (one, other) in [(0, 16), (0, 4), (4, 8), (0, 16 * THREADS as usize)] {
            let mut changed = bytes.clone();
            (0..4).for_each(|byte| changed.swap(one + byte, other + byte));
            assert_ne!(rig.hash(&changed, random(1)), before, "{one} and {other}");
        }
    }

    #[test]
    fn a_key_is_drawn_anew() {
        let params = [(); 2].map(|()| Key::draw().unwrap().params(1, 2, 3));
        assert_eq!(params[0].len(), 24 + 160);
        assert_ne!(params[0], params[1]);
        assert_eq!(of_bytes(params[0][..16].try_into().unwrap()), [1, 2]);
    }
}
