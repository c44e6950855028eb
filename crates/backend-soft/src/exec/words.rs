//! Loads of 32-bit words, which programs execute most, in explicit vector code.
//!
//! Eight lanes at a time: their addresses are consecutive, or all the same, or anything. Values are put together in registers:
//! storing them one by one and reading them back as vectors would stall every following instruction (5 times slower, measured).

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_add_epi64, _mm256_and_si256, _mm256_blendv_epi8, _mm256_cmpeq_epi32,
    _mm256_cmpeq_epi64, _mm256_loadu_si256, _mm256_max_epu32, _mm256_movemask_epi8, _mm256_mullo_epi32,
    _mm256_or_si256, _mm256_set_epi32, _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setr_epi32,
    _mm256_setr_epi64x, _mm256_sllv_epi32, _mm256_srai_epi32, _mm256_storeu_si256,
};

use super::access::{NARROW, resolve};
use super::compute::wide;
use super::spaces::{SHARED, Space};
use super::{Access, Fault, Inst, LANES, Lanes, Row, load};

/// Lanes of a vector.
const EIGHT: usize = 8;

/// A handler that loads 32-bit words, one or more, into 32-bit registers.
pub fn load_words<const SPACE: Space>() -> Access {
    if wide() { fast::<SPACE> } else { load::<SPACE, u32, u32, _>(|a: u32| a) }
}

/// # Safety
/// As [`Access`], on a processor with AVX2.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn fast<const SPACE: Space>(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) -> Result<(), Box<Fault>> {
    // SAFETY: the contract of `Access`.
    unsafe {
        let width = usize::from(inst.width);
        if SPACE == SHARED && width == 1 && inst.mode & NARROW != 0 && shared(lanes, inst, mask) {
            return Ok(());
        }
        let mut at = [0; LANES];
        resolve::<SPACE>(lanes, inst, mask, size_of::<u32>() * width, &mut at)?;
        for element in 0..width {
            let row = lanes.dst(inst.d[element]);
            for (chunk, at) in at.as_chunks::<EIGHT>().0.iter().enumerate() {
                let values = if width == 1 { gather(at) } else { element_of(at, element) };
                commit(row, chunk, values, mask);
            }
        }
    }
    Ok(())
}

/// The words at eight addresses.
///
/// # Safety
/// A word can be read at each.
#[target_feature(enable = "avx2")]
unsafe fn gather(at: &[u64; EIGHT]) -> __m256i {
    // SAFETY: this function's contract; vector loads read the eight words of consecutive addresses.
    unsafe {
        let (low, high) =
            (_mm256_loadu_si256(at.as_ptr().cast()), _mm256_loadu_si256(at.as_ptr().add(4).cast()));
        let first = _mm256_set1_epi64x(at[0] as i64);
        let same = |low_offsets, high_offsets| {
            let low = _mm256_cmpeq_epi64(low, _mm256_add_epi64(first, low_offsets));
            let high = _mm256_cmpeq_epi64(high, _mm256_add_epi64(first, high_offsets));
            _mm256_movemask_epi8(_mm256_and_si256(low, high)) == -1
        };
        let word = |lane: usize| (at[lane] as *const i32).read_volatile();
        if same(_mm256_setr_epi64x(0, 4, 8, 12), _mm256_setr_epi64x(16, 20, 24, 28)) {
            _mm256_loadu_si256(at[0] as *const __m256i)
        } else if same(_mm256_set1_epi64x(0), _mm256_set1_epi64x(0)) {
            _mm256_set1_epi32(word(0))
        } else {
            _mm256_set_epi32(word(7), word(6), word(5), word(4), word(3), word(2), word(1), word(0))
        }
    }
}

/// Of eight vectors in memory, the element with that index.
///
/// # Safety
/// It can be read at each address.
#[target_feature(enable = "avx2")]
unsafe fn element_of(at: &[u64; EIGHT], element: usize) -> __m256i {
    // SAFETY: this function's contract.
    let word = |lane: usize| unsafe { (at[lane] as *const i32).add(element).read_volatile() };
    _mm256_set_epi32(word(7), word(6), word(5), word(4), word(3), word(2), word(1), word(0))
}

/// Loads from shared memory with 32-bit addresses. `false` when one of them is wrong, and nothing is done.
///
/// # Safety
/// As [`Access`]; the base register has 32 bits.
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe fn shared(lanes: &mut Lanes<'_>, inst: &Inst, mask: u32) -> bool {
    let (memory, bytes) = lanes.spaces.shared();
    let Some(last) = bytes.checked_sub(size_of::<u32>() as u64) else { return false };
    // SAFETY: the contract of `Access`: the source is one row. Every address is checked against the block's shared memory.
    unsafe {
        let base = lanes.src(inst.s[0]).cast::<u32>();
        let offset = _mm256_set1_epi32(inst.imm as i32);
        // Lanes that are not active follow the first that is.
        let first = (*base.add(mask.trailing_zeros() as usize & (LANES - 1))).wrapping_add(inst.imm as u32);
        let mut at = [_mm256_set1_epi32(0); LANES / EIGHT];
        let (mut highest, mut low_bits) = (_mm256_set1_epi32(0), _mm256_set1_epi32(0));
        for (chunk, at) in at.iter_mut().enumerate() {
            let address = _mm256_add_epi32(_mm256_loadu_si256(base.add(chunk * EIGHT).cast()), offset);
            *at = _mm256_blendv_epi8(_mm256_set1_epi32(first as i32), address, lane_mask(mask, chunk));
            highest = _mm256_max_epu32(highest, *at);
            low_bits = _mm256_or_si256(low_bits, *at);
        }
        let limit = _mm256_set1_epi32(last.min(u64::from(u32::MAX)) as u32 as i32);
        let inside = _mm256_cmpeq_epi32(_mm256_max_epu32(highest, limit), limit);
        let misaligned = _mm256_and_si256(low_bits, _mm256_set1_epi32(3));
        let aligned = _mm256_cmpeq_epi32(misaligned, _mm256_set1_epi32(0));
        if _mm256_movemask_epi8(_mm256_and_si256(inside, aligned)) != -1 {
            return false;
        }
        let row = lanes.dst(inst.d[0]);
        for (chunk, at) in at.iter().enumerate() {
            commit(row, chunk, gather_shared(memory, *at), mask);
        }
    }
    true
}

/// The words at eight offsets.
///
/// # Safety
/// A word can be read at each.
#[target_feature(enable = "avx2")]
unsafe fn gather_shared(memory: *const u8, at: __m256i) -> __m256i {
    let mut offsets = [0u32; EIGHT];
    // SAFETY: this function's contract.
    unsafe {
        _mm256_storeu_si256(offsets.as_mut_ptr().cast(), at);
        let first = _mm256_set1_epi32(offsets[0] as i32);
        let steps = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(4));
        let word = |lane: usize| memory.add(offsets[lane] as usize).cast::<i32>().read_volatile();
        if _mm256_movemask_epi8(_mm256_cmpeq_epi32(at, _mm256_add_epi32(first, steps))) == -1 {
            _mm256_loadu_si256(memory.add(offsets[0] as usize).cast())
        } else if _mm256_movemask_epi8(_mm256_cmpeq_epi32(at, first)) == -1 {
            _mm256_set1_epi32(word(0))
        } else {
            _mm256_set_epi32(word(7), word(6), word(5), word(4), word(3), word(2), word(1), word(0))
        }
    }
}

/// All ones in the lanes of a chunk that are in the mask.
#[target_feature(enable = "avx2")]
fn lane_mask(mask: u32, chunk: usize) -> __m256i {
    // Each lane's bit, moved to the top and spread.
    let up = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    _mm256_srai_epi32::<31>(_mm256_sllv_epi32(_mm256_set1_epi32((mask >> (chunk * EIGHT)) as i32), up))
}

/// Writes the lanes of a chunk that are in the mask.
///
/// # Safety
/// `row` is a row that nothing else refers to.
#[target_feature(enable = "avx2")]
unsafe fn commit(row: *mut Row, chunk: usize, values: __m256i, mask: u32) {
    // SAFETY: this function's contract; a row has four chunks.
    unsafe {
        let to = row.cast::<u32>().add(chunk * EIGHT).cast::<__m256i>();
        let old = _mm256_loadu_si256(to);
        _mm256_storeu_si256(to, _mm256_blendv_epi8(old, values, lane_mask(mask, chunk)));
    }
}
