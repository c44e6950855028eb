//! Points that suit the program: they cost two loads, unless a checkpoint is wanted.

use crate::{Answer, Refusal, answer, callbacks, job};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use wire::Question;

/// The word that says whether a checkpoint is wanted; null before the first point.
static WANTED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// That word where there is no Dormouse.
static NEVER: AtomicU32 = AtomicU32::new(0);

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
    // Whoever does not get through tries again at the next point.
    job.ask(Question::HasPoints).map_err(Refusal::of)?;
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
