//! Operations on words of memory: writes, waits, barriers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use wire::{CuError, MemoryOperation, Word};

use crate::memory::Memory;

/// Looks at a word before the stream's thread sleeps between two of them.
const SPINS: u32 = 200;
/// Between two looks.
const SLEEP: Duration = Duration::from_micros(20);

/// Whether the words of all operations are there now, each at a multiple of its size.
///
/// # Errors
/// When one is not.
pub fn validate(memory: &Memory, operations: &[MemoryOperation]) -> Result<(), CuError> {
    let extents = memory.extents();
    let bad = |word: &Word| {
        !word.address.is_multiple_of(word.bytes()) || extents.find(word.address, word.bytes()).is_none()
    };
    let any = operations.iter().filter_map(MemoryOperation::word).any(bad);
    if any { Err(CuError::INVALID_VALUE) } else { Ok(()) }
}

/// Carries the operations out, one after the other; `give_up` ends a wait.
///
/// # Errors
/// When a word is not there any more.
pub fn run(
    memory: &Memory,
    operations: &[MemoryOperation],
    give_up: impl Fn() -> bool,
) -> Result<(), CuError> {
    for operation in operations {
        match operation {
            MemoryOperation::Write { word, .. } => write(memory, word)?,
            MemoryOperation::Wait { word, until } => {
                let mut failed = Ok(());
                wait(|| {
                    let held = read(memory, word).map(|value| until.holds(value, word));
                    let over = *held.as_ref().unwrap_or(&true) || give_up();
                    failed = held.map(drop);
                    over
                });
                failed?;
            }
            MemoryOperation::Barrier { .. } => fence(Ordering::SeqCst),
        }
    }
    Ok(())
}

/// Waits until `over`, patiently.
pub fn wait(mut over: impl FnMut() -> bool) {
    let mut looks = 0;
    while !over() {
        looks += 1;
        if looks < SPINS { std::hint::spin_loop() } else { std::thread::sleep(SLEEP) }
    }
}

fn write(memory: &Memory, word: &Word) -> Result<(), CuError> {
    let extents = memory.extents();
    extents.find(word.address, word.bytes()).ok_or(CuError::ILLEGAL_ADDRESS)?;
    // SAFETY: the word was found above, is aligned (`validate`) and stays while the extents are held; whoever else uses it
    // does so as a device does, or by atomics.
    unsafe {
        if word.wide {
            (*(word.address as *const AtomicU64)).store(word.value, Ordering::Release);
        } else {
            (*(word.address as *const AtomicU32)).store(word.value as u32, Ordering::Release);
        }
    }
    Ok(())
}

fn read(memory: &Memory, word: &Word) -> Result<u64, CuError> {
    // Held for one look only: giving memory back waits for it.
    let extents = memory.extents();
    extents.find(word.address, word.bytes()).ok_or(CuError::ILLEGAL_ADDRESS)?;
    // SAFETY: as in `write`.
    Ok(unsafe {
        if word.wide {
            (*(word.address as *const AtomicU64)).load(Ordering::Acquire)
        } else {
            (*(word.address as *const AtomicU32)).load(Ordering::Acquire).into()
        }
    })
}
