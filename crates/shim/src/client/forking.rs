//! What a fork means for registered memory. Its pages are a file's, which a child would share with its parent; natively it has a copy of
//! its own. So the pages are private memory while the process forks, and the file's again afterwards: what the processor has changed
//! meanwhile is written into it, byte by byte, so that what the device has changed stays.

use std::ptr::{copy_nonoverlapping, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use cuda_abi::CuResult;

use super::fork;
use super::moving::{Aside, Pages, on_a_thread, open, stillness};
use super::registered::Place;
use super::session::{SESSION, Session};

/// Whether this process is about to fork, or has just done so: nothing is moved then.
static FORKING: AtomicBool = AtomicBool::new(false);
/// Whether something is private for that.
static IS_PARTED: AtomicBool = AtomicBool::new(false);
/// What is private meanwhile.
static PARTED: Mutex<Vec<Parted>> = Mutex::new(Vec::new());
/// The longest that a call waits for a fork: another handler of the program's may wait for that very call.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often who waits looks whether it is over.
const LOOK: Duration = Duration::from_micros(50);

/// Pages that are private for a moment.
struct Parted {
    pages: Pages,
    /// The file that they are otherwise.
    file: Aside,
    /// What was in them.
    before: Aside,
}

/// Has every fork of this process from now on take care of registered memory.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers stay as long as this library, which is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(after), Some(child));
    });
}

/// Waits while this process forks: what the device writes is not seen in registered memory then.
#[inline]
pub(super) fn settled() {
    if IS_PARTED.load(Ordering::Acquire) {
        wait();
    }
}

#[cold]
fn wait() {
    let until = Instant::now() + PATIENCE;
    while IS_PARTED.load(Ordering::Acquire) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// Held by whoever moves memory; nobody forks meanwhile. Where nothing is parted this, too, waits no longer than a call.
pub(super) fn moving(session: &Session) -> MutexGuard<'_, ()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let guard = session.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let is_given_up = !IS_PARTED.load(Ordering::Acquire) && Instant::now() >= until;
        if !FORKING.load(Ordering::Acquire) || is_given_up {
            return guard;
        }
        drop(guard);
        std::thread::sleep(LOOK);
    }
}

fn parted() -> MutexGuard<'static, Vec<Parted>> {
    PARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before() {
    let Some(session) = SESSION.get().filter(|_| !fork::is_child()) else { return };
    let _moving = moving(session);
    // The lock is left before the fork, and this is not.
    FORKING.store(true, Ordering::Release);
    let moved = session.memory.moved();
    if moved.is_empty() {
        return;
    }
    IS_PARTED.store(true, Ordering::Release);
    // One whose file cannot be mapped, for want of memory, is shared with the child; the log says so.
    let _ = on_a_thread(|| {
        let mut all = Vec::new();
        for (pages, id) in moved {
            let place = Place::of(&session.folder, id)?;
            let file = Aside::of(Some(&open(&place.file)?), pages.bytes())?;
            let (own, before) = (Aside::of(None, pages.bytes())?, Aside::of(None, pages.bytes())?);
            all.push((own, Parted { pages, file, before }));
        }
        let hello = session.folder.with_file_name("hello.sock");
        // Without it a write of another thread may be lost; without the copy both processes would write the same memory.
        let still = stillness(&hello).ok();
        let mut moved = Ok(());
        for (own, Parted { pages, before, .. }) in &mut all {
            // SAFETY: the pages are mapped, the copies as long; nobody writes meanwhile.
            unsafe {
                copy_nonoverlapping(pages.address().cast::<u8>(), own.address().cast(), pages.bytes());
                copy_nonoverlapping(own.address().cast::<u8>(), before.address().cast(), pages.bytes());
            }
            moved = moved.and(own.replace(*pages));
        }
        drop(still);
        parted().extend(all.into_iter().map(|(_, parted)| parted));
        moved.map_err(|_| cuda_abi::CuError::MAP_FAILED)
    });
}

extern "C" fn after() {
    if let Some(session) = SESSION.get().filter(|_| IS_PARTED.load(Ordering::Acquire)) {
        join(session);
        IS_PARTED.store(false, Ordering::Release);
    }
    FORKING.store(false, Ordering::Release);
}

/// Has what is private be the files' again.
fn join(session: &Session) {
    let mut all = std::mem::take(&mut *parted());
    let _ = on_a_thread(|| -> CuResult {
        let still = stillness(&session.folder.with_file_name("hello.sock")).ok();
        let mut moved = Ok(());
        for Parted { pages, file, before } in &mut all {
            // SAFETY: all three are mapped, and as long; nobody but the device writes meanwhile, and that to the file.
            unsafe {
                merge(pages.start() as usize, before.address().addr(), file.address().addr(), pages.bytes())
            };
            moved = moved.and(file.replace(*pages));
        }
        drop(still);
        moved.map_err(|_| cuda_abi::CuError::MAP_FAILED)
    });
}

/// The child's copy is its own; it has no use for the rest.
extern "C" fn child() {
    drop(std::mem::take(&mut *parted()));
    IS_PARTED.store(false, Ordering::Release);
    FORKING.store(false, Ordering::Release);
}

/// Writes what `now` has and `before` had not to `to`.
///
/// # Safety
/// At all three there are `bytes` bytes, whole words; `to` may be written.
unsafe fn merge(now: usize, before: usize, to: usize, bytes: usize) {
    const WORD: usize = size_of::<u64>();
    for at in (0..bytes).step_by(WORD) {
        let word = |base: usize| with_exposed_provenance::<[u8; WORD]>(base + at);
        // SAFETY: as the caller says.
        let (new, old) = unsafe { (word(now).read(), word(before).read()) };
        if new == old {
            continue;
        }
        for (byte, (new, old)) in new.iter().zip(old).enumerate() {
            if *new != old {
                // SAFETY: the same.
                unsafe { with_exposed_provenance_mut::<u8>(to + at + byte).write(*new) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_written() {
        let before = [[1u8; 8]; 3];
        let mut now = before;
        (now[0][3], now[2][7]) = (9, 0);
        // The device has written meanwhile.
        let mut to = [[5u8; 8]; 3];
        let address = |words: &[[u8; 8]; 3]| words.as_ptr().expose_provenance();
        let target = to.as_mut_ptr().expose_provenance();
        // SAFETY: arrays of this test, as long as is said.
        unsafe { merge(address(&now), address(&before), target, 24) };
        assert_eq!(to, [[5, 5, 5, 9, 5, 5, 5, 5], [5; 8], [5, 5, 5, 5, 5, 5, 5, 0]]);
    }
}
