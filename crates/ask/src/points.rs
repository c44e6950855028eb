//! Points that suit the program: they cost two loads, unless a checkpoint is wanted.

use crate::{Answer, Refusal, answer, callbacks, job};
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use wire::Question;

/// The word that says whether a checkpoint is wanted; null before the first point.
static WANTED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// That word where there is no Dormouse.
static NEVER: AtomicU32 = AtomicU32::new(0);

/// When it was last tried to say that there are such points. It is never waited for: a forked child may have it locked for ever.
static TRIED: Mutex<Option<Instant>> = Mutex::new(None);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
}

/// A forked child says for itself that it has such points.
fn forget_in_children() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn forget() {
        WANTED.store(std::ptr::null_mut(), Ordering::Release);
    }
    if !ONCE.swap(true, Ordering::Relaxed) {
        // SAFETY: what is called in a child stores a word, which every child may do. Where it fails, for want of memory, children are not known to have
        // points.
        unsafe { pthread_atfork(None, None, Some(forget)) };
    }
}

/// Takes a checkpoint here if one is wanted: when `dormouse checkpoint` or a regular one waits for such a point. It goes on as soon as the
/// checkpoint is taken. `None` when none is.
///
/// # Errors
/// [`Refusal`].
#[inline]
pub fn convenient_point() -> Result<Option<Answer>, Refusal> {
    let wanted = WANTED.load(Ordering::Acquire);
    // SAFETY: it is null, or one of `NEVER` and the board's word, which are never unmapped; both are only read.
    match unsafe { wanted.as_ref() } {
        Some(word) if word.load(Ordering::Relaxed) != 0 => at_point(),
        Some(_) if !std::ptr::eq(wanted, &raw const NEVER) => Ok(None),
        Some(_) => Err(Refusal::NotHere),
        None => first(),
    }
}

/// Whether [`convenient_point`] would do more than look: a checkpoint is wanted, or it is the first one.
#[inline]
#[must_use]
pub fn is_wanted() -> bool {
    // SAFETY: as above.
    unsafe { WANTED.load(Ordering::Acquire).as_ref() }.is_none_or(|word| word.load(Ordering::Relaxed) != 0)
}

/// Says that there are such points.
#[cold]
fn first() -> Result<Option<Answer>, Refusal> {
    let Some(job) = job::here() else {
        WANTED.store((&raw const NEVER).cast_mut(), Ordering::Release);
        return Err(Refusal::NotHere);
    };
    // Whoever does not get through has no less of it, and tries again after a while.
    let Ok(mut tried) = TRIED.try_lock() else { return Ok(None) };
    if tried.is_some_and(|tried| tried.elapsed() < PAUSE) {
        return Ok(None);
    }
    *tried = Some(Instant::now());
    forget_in_children();
    if job.ask(Question::HasPoints).is_err() {
        return Ok(None);
    }
    *tried = None;
    drop(tried);
    let word: *const AtomicU32 = job.board.wanted();
    WANTED.store(word.cast_mut(), Ordering::Release);
    if job.board.wanted().load(Ordering::Relaxed) != 0 { at_point() } else { Ok(None) }
}

#[cold]
fn at_point() -> Result<Option<Answer>, Refusal> {
    let job = job::here().ok_or(Refusal::NotHere)?;
    callbacks::around_wanted(|| {
        let ticket = job.ask(Question::AtPoint).map_err(Refusal::of)?;
        answer(job, ticket, true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn fork() -> c_int;
        fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
        fn _exit(code: c_int) -> !;
    }

    #[test]
    fn a_forked_child_says_for_itself_that_it_has_points() {
        WANTED.store((&raw const NEVER).cast_mut(), Ordering::Release);
        forget_in_children();
        // SAFETY: the child looks at a word and ends.
        let child = unsafe { fork() };
        if child == 0 {
            let is_forgotten = WANTED.load(Ordering::Acquire).is_null();
            // SAFETY: it runs nothing of ours.
            unsafe { _exit(c_int::from(!is_forgotten)) }
        }
        let mut status = -1;
        // SAFETY: it is our own child, and the status is written to a word of ours.
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(!WANTED.load(Ordering::Acquire).is_null());
    }
}
