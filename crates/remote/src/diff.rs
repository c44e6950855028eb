//! What has changed in memory that both ends see: runs of changed bytes. Nothing that is unchanged travels, so that the two ends
//! can write neighbouring bytes at the same time.

use crate::area::PAGE;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offset and length, before a run's bytes.
const HEAD: usize = 12;

/// Appends the bytes of memory at `memory` that differ from `known`, which then holds them.
///
/// # Safety
/// `memory` is readable for the length of `known`. It may be written meanwhile.
pub(crate) unsafe fn collect(memory: *const u8, known: &mut [u8], to: &mut Vec<u8>) {
    let mut page = [0u8; PAGE];
    for (number, known) in known.chunks_mut(PAGE).enumerate() {
        let found = &mut page[..known.len()];
        // SAFETY: the page lies inside of what the caller vouches for.
        unsafe { std::ptr::copy_nonoverlapping(memory.add(number * PAGE), found.as_mut_ptr(), found.len()) };
        if found != known {
            runs(number * PAGE, found, known, to);
            known.copy_from_slice(found);
        }
    }
}

fn runs(offset: usize, found: &[u8], known: &[u8], to: &mut Vec<u8>) {
    let mut at = 0;
    while at < found.len() {
        let Some(begin) = (at..found.len()).find(|at| found[*at] != known[*at]) else { return };
        let end = (begin..found.len()).find(|at| found[*at] == known[*at]).unwrap_or(found.len());
        to.extend_from_slice(&((offset + begin) as u64).to_le_bytes());
        to.extend_from_slice(&((end - begin) as u32).to_le_bytes());
        to.extend_from_slice(&found[begin..end]);
        at = end;
    }
}

/// Writes runs to memory and to what is known of it; `None` when they are none, or lie outside, and then nothing is guaranteed of
/// the rest.
///
/// # Safety
/// `memory` is a multiple of 8, and writable for the length of `known`, itself a multiple of 8. It may be read and written meanwhile.
pub(crate) unsafe fn apply(memory: *mut u8, known: &mut [u8], mut runs: &[u8]) -> Option<()> {
    while !runs.is_empty() {
        let (head, rest) = runs.split_at_checked(HEAD)?;
        let offset = usize::try_from(u64::from_le_bytes(head[..8].try_into().ok()?)).ok()?;
        let bytes = u32::from_le_bytes(head[8..].try_into().ok()?) as usize;
        let (found, rest) = rest.split_at_checked(bytes)?;
        known.get_mut(offset..offset.checked_add(bytes)?)?.copy_from_slice(found);
        // SAFETY: the run lies inside of `known`, and so inside of what the caller vouches for.
        unsafe { put(memory, offset, found) };
        runs = rest;
    }
    Some(())
}

/// Writes bytes a word at a time, so that whoever polls a word sees the old one or the new one, and leaves the bytes beside alone.
///
/// # Safety
/// As [`apply`]; the bytes lie inside.
unsafe fn put(memory: *mut u8, mut offset: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let within = offset % 8;
        let (now, rest) = bytes.split_at(bytes.len().min(8 - within));
        let (mut value, mut mask) = ([0u8; 8], [0u8; 8]);
        value[within..within + now.len()].copy_from_slice(now);
        mask[within..within + now.len()].fill(0xff);
        let (value, mask) = (u64::from_ne_bytes(value), u64::from_ne_bytes(mask));
        // SAFETY: an aligned word of the memory that the caller vouches for.
        let word = unsafe { AtomicU64::from_ptr(memory.add(offset - within).cast()) };
        if mask == u64::MAX {
            word.store(value, Ordering::Release);
        } else {
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(old & !mask | value));
        }
        offset += now.len();
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[repr(align(8))]
    struct Memory([u8; 8192]);

    proptest! {
        #[test]
        fn what_changes_at_either_end_arrives_at_the_other(
            here in proptest::collection::vec((0usize..4096, any::<u8>()), 0..50),
            there in proptest::collection::vec((4096usize..8192, any::<u8>()), 0..50),
        ) {
            let (mut near, mut far) = (Memory([0; 8192]), Memory([0; 8192]));
            let (mut near_known, mut far_known) = ([0u8; 8192], [0u8; 8192]);
            here.iter().for_each(|(at, value)| near.0[*at] = *value);
            there.iter().for_each(|(at, value)| far.0[*at] = *value);
            let mut runs = Vec::new();
            // SAFETY: arrays of that length, aligned.
            unsafe {
                collect(near.0.as_ptr(), &mut near_known, &mut runs);
                prop_assert!(apply(far.0.as_mut_ptr(), &mut far_known, &runs).is_some());
                runs.clear();
                collect(far.0.as_ptr(), &mut far_known, &mut runs);
                prop_assert!(apply(near.0.as_mut_ptr(), &mut near_known, &runs).is_some());
            }
            prop_assert_eq!(&near.0[..], &far.0[..]);
            prop_assert_eq!(&near_known[..], &far_known[..]);
            prop_assert_eq!(&near_known[..], &near.0[..]);
        }

        #[test]
        fn garbage_stays_inside(runs in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (mut memory, mut known) = (Memory([0; 8192]), [0u8; 8192]);
            // SAFETY: arrays of that length, aligned.
            let _ = unsafe { apply(memory.0.as_mut_ptr(), &mut known, &runs) };
        }
    }
}
