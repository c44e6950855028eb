//! Device memory that all sessions of a client have together: a table in memory that their processes share, in which each has a word of its own.
//!
//! Who wants more writes so there first, and takes it back if the sum is too much then: there is no lock that a process could die with. The word is the
//! front's when its process is gone, and with it what that had. One that knows that its client is gone says so there: what it has will be free in a moment, for which others
//! wait. Sessions of other clients do not see the table.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Words of a table: more than a client has sessions and such that are just ending.
const WORDS: u32 = 4096;
const WORD: u32 = size_of::<AtomicU64>() as u32;
/// In a word: what it counts is about to be free.
const LEAVES: u64 = 1 << 63;
/// How often somebody tries before there is not enough: two who ask at once are in each other's way, though one could have it.
const TRIES: u32 = 4;
/// For how long what is about to be free is waited for, and how often it is looked.
const LEAVING: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);

/// A client's table, as the front has it.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: OwnedFd,
    taken: BTreeSet<u32>,
}

impl Ledger {
    pub(crate) fn new() -> io::Result<Self> {
        let file = memfd_create("dormouse-memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (WORDS * WORD).into())?;
        // One of them could have the others fault.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { file, taken: BTreeSet::new() })
    }

    /// Takes a word that nobody has.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let word = (0..WORDS).find(|word| !self.taken.contains(word))?;
        self.taken.insert(word);
        Some(word)
    }

    /// Its process is gone.
    pub(crate) fn give_back(&mut self, word: u32) -> io::Result<()> {
        rustix::io::pwrite(&self.file, &[0; WORD as usize], (word * WORD).into())?;
        self.taken.remove(&word);
        Ok(())
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.taken.is_empty()
    }
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What a session may have of the device memory that all sessions of its client have together.
#[derive(Debug)]
pub struct MemoryShare {
    table: NonNull<AtomicU64>,
    word: u32,
    most: u64,
}

// SAFETY: the mapping is this value's until it is dropped, and all that is done with it is atomic.
unsafe impl Send for MemoryShare {}
// SAFETY: the same.
unsafe impl Sync for MemoryShare {}

impl MemoryShare {
    /// Of `most` bytes, counted in this word of a table.
    pub(crate) fn new(file: impl AsFd, word: u32, most: u64) -> io::Result<Self> {
        let bytes = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        if word >= WORDS || bytes != u64::from(WORDS * WORD) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (at, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses, as long as the file is and, sealed, stays.
        let table = unsafe { mmap(at, (WORDS * WORD) as usize, protection, MapFlags::SHARED, &file, 0)? };
        let table = NonNull::new(table.cast()).ok_or(io::ErrorKind::InvalidData)?;
        // No word that is within it has another's mark, nor one more amount.
        Ok(Self { table, word, most: most.min(LEAVES / 2) })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many, is aligned to pages, and lives as long as this value does.
        unsafe { std::slice::from_raw_parts(self.table.as_ptr(), WORDS as usize) }
    }

    fn own(&self) -> &AtomicU64 {
        &self.words()[self.word as usize]
    }

    /// What all have, and whether some of that is about to be free.
    fn sum(&self) -> (u64, bool) {
        self.words().iter().fold((0, false), |(sum, leaves), word| {
            let word = word.load(Ordering::SeqCst);
            (sum.saturating_add(word & !LEAVES), leaves | (word & LEAVES != 0))
        })
    }

    /// Takes so many bytes, if that is not more than all may have.
    #[must_use]
    pub fn take(&self, bytes: u64) -> bool {
        if bytes > self.most {
            return false;
        }
        let (asked, mut tries) = (Instant::now(), 0);
        loop {
            // Nothing is written where that cannot do: it would be in others' way.
            let (sum, leaves) = self.sum();
            if sum.saturating_add(bytes) > self.most {
                if !leaves || asked.elapsed() > LEAVING {
                    return false;
                }
                thread::sleep(LOOK);
                continue;
            }
            self.own().fetch_add(bytes, Ordering::SeqCst);
            if self.sum().0 <= self.most {
                return true;
            }
            self.own().fetch_sub(bytes, Ordering::SeqCst);
            tries += 1;
            if tries == TRIES {
                return false;
            }
            // Others wait for another time than this one does.
            thread::sleep(Duration::from_micros(100) * tries * (1 + self.word % 16));
        }
    }

    /// Gives some of them back.
    pub fn give_back(&self, bytes: u64) {
        self.own().fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Says that all of it is about to be free.
    pub fn leaves(&self) {
        self.own().fetch_or(LEAVES, Ordering::SeqCst);
    }

    /// Says that it is not, after all: the client is there again.
    pub(crate) fn stays(&self) {
        self.own().fetch_and(!LEAVES, Ordering::SeqCst);
    }

    /// How many may be taken yet, what is about to be free included.
    #[must_use]
    pub fn left(&self) -> u64 {
        let words = self.words().iter().map(|word| word.load(Ordering::SeqCst));
        let sum = words.filter(|word| word & LEAVES == 0).fold(0, u64::saturating_add);
        self.most.saturating_sub(sum)
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`, in this length, and nobody has a reference into it any more.
        let _ = unsafe { munmap(self.table.as_ptr().cast(), (WORDS * WORD) as usize) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn all_of_a_client_have_so_much_together_and_the_dead_have_nothing() {
        let mut ledger = Ledger::new().unwrap();
        let [first, second] = [(); 2].map(|()| ledger.take().unwrap());
        let [one, other] = [first, second].map(|word| MemoryShare::new(&ledger, word, 100).unwrap());
        assert!(one.take(60) && !other.take(41) && other.take(40) && !one.take(1));
        other.give_back(10);
        assert_eq!((one.left(), other.left()), (10, 10));
        assert!(!one.take(u64::MAX) && one.take(10) && one.left() == 0);
        ledger.give_back(first).unwrap();
        assert_eq!(other.left(), 70);
        assert_eq!((ledger.take(), ledger.is_unused()), (Some(first), false));
        // What is about to be free is waited for.
        other.leaves();
        thread::scope(|scope| {
            let waits = scope.spawn(|| one.take(90));
            thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished() && one.left() == 100);
            ledger.give_back(second).unwrap();
            assert!(waits.join().unwrap());
        });
        assert!(MemoryShare::new(&ledger, WORDS, 1).is_err());
        assert!(ftruncate(&ledger, 8).is_err(), "others would fault");
    }

    #[test]
    fn one_of_many_who_ask_at_once_has_the_last() {
        let mut ledger = Ledger::new().unwrap();
        let words: Vec<u32> = (0..8).map(|_| ledger.take().unwrap()).collect();
        let shares: Vec<_> =
            words.into_iter().map(|word| MemoryShare::new(&ledger, word, 7).unwrap()).collect();
        for _ in 0..100 {
            let had = |share: &MemoryShare| (0..20).filter(|_| share.take(1)).count() as u64;
            let all: Vec<u64> = thread::scope(|scope| {
                let asking: Vec<_> = shares.iter().map(|share| scope.spawn(|| had(share))).collect();
                asking.into_iter().map(|share| share.join().unwrap()).collect()
            });
            assert_eq!(all.iter().sum::<u64>(), 7, "{all:?}");
            shares.iter().zip(&all).for_each(|(share, had)| share.give_back(*had));
        }
    }
}
