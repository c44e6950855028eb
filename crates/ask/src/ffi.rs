//! The C functions of `include/dormouse.h`, which says what each does; `tests/header.rs` holds the two together.

use crate::callbacks::{self, Callback, Event, Registration};
use crate::{Answer, Options, Refusal};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `DORMOUSE_API_VERSION`.
pub const API_VERSION: c_int = 2;

/// What calls answer.
mod code {
    use super::c_int;

    pub const OK: c_int = 0;
    pub const RESTARTED: c_int = 1;
    pub const TAKEN: c_int = 2;
    pub const USAGE: c_int = -2;
    pub const NOT_HERE: c_int = -100;
}

/// `DORMOUSE_NO_WAIT`, `DORMOUSE_STOP`
const NO_WAIT: c_uint = 1;
const STOP: c_uint = 2;

/// `DORMOUSE_BEFORE` and its like
const EVENTS: [(c_int, Event); 3] = [(1, Event::Before), (2, Event::After), (3, Event::Restarted)];

/// `dormouse_outcome`
#[repr(C)]
pub struct Outcome {
    size: usize,
    code: i32,
    reserved: u32,
    ticket: u64,
    image: [c_char; 40],
    text: [c_char; 968],
}

type CCallback = unsafe extern "C" fn(*const Outcome, *mut c_void);

impl Outcome {
    fn of(ended: &Result<Option<Answer>, Refusal>) -> Self {
        let mut outcome = Self {
            size: size_of::<Self>(),
            code: code::OK,
            reserved: 0,
            ticket: 0,
            image: [0; 40],
            text: [0; 968],
        };
        match ended {
            Ok(None) => {}
            Ok(Some(Answer::Published { image })) => copy(&mut outcome.image, image),
            Ok(Some(Answer::Taken { ticket })) => {
                (outcome.code, outcome.ticket) = (code::TAKEN, *ticket);
            }
            Ok(Some(Answer::Restarted { image })) => {
                outcome.code = code::RESTARTED;
                copy(&mut outcome.image, image);
            }
            Err(Refusal::NotHere) => {
                outcome.code = code::NOT_HERE;
                copy(&mut outcome.text, "the program does not run under Dormouse");
            }
            Err(Refusal::Failed { code, text }) => {
                // An exit code, which is small.
                outcome.code = i32::try_from(*code).map_or(-1, |code| -code.clamp(1, 99));
                copy(&mut outcome.text, text);
            }
        }
        outcome
    }

    /// Writes as much as the caller has room for.
    ///
    /// # Safety
    /// `to` is null, or leads to as many bytes as its first field says.
    unsafe fn write(&self, to: *mut Self) -> c_int {
        if to.is_null() {
            return self.code;
        }
        // SAFETY: the caller's `size` is readable, and so many bytes are writable.
        unsafe {
            let room = (&raw const (*to).size).read();
            let skipped = size_of::<usize>();
            let bytes = room.min(size_of::<Self>()).saturating_sub(skipped);
            let from = std::ptr::from_ref(self).cast::<u8>().add(skipped);
            from.copy_to(to.cast::<u8>().add(skipped), bytes);
        }
        self.code
    }
}

/// A text with an end, as much of it as there is room for.
fn copy(to: &mut [c_char], text: &str) {
    let mut end = text.len().min(to.len() - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    to.fill(0);
    for (to, from) in to.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = *from as c_char;
    }
}

/// `dormouse_api_version`
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_api_version() -> c_int {
    API_VERSION
}

/// `dormouse_available`
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_available() -> c_int {
    crate::is_available().into()
}

/// `dormouse_checkpoint`
///
/// # Safety
/// `outcome` is null or a `dormouse_outcome` whose size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_checkpoint(flags: c_uint, outcome: *mut Outcome) -> c_int {
    let ended = match flags & !(NO_WAIT | STOP) {
        0 => {
            let options = Options { no_wait: flags & NO_WAIT != 0, stop: flags & STOP != 0 };
            crate::checkpoint(options).map(Some)
        }
        other => Err(Refusal::usage(format!("there is no flag {other:#x}"))),
    };
    // SAFETY: as the caller says.
    unsafe { Outcome::of(&ended).write(outcome) }
}

/// `dormouse_wait`
///
/// # Safety
/// As [`dormouse_checkpoint`]'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_wait(ticket: u64, outcome: *mut Outcome) -> c_int {
    // SAFETY: as the caller says.
    unsafe { Outcome::of(&crate::wait(ticket).map(Some)).write(outcome) }
}

/// `dormouse_convenient_point`
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_convenient_point() -> c_int {
    match crate::convenient_point() {
        Ok(None) => code::OK,
        Err(Refusal::NotHere) => code::NOT_HERE,
        ended => Outcome::of(&ended).code,
    }
}

/// `dormouse_exclude`
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_exclude(address: *const c_void, size: usize) -> c_int {
    Outcome::of(&crate::exclude(address as usize, size).map(|()| None)).code
}

/// `dormouse_include`
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_include(address: *const c_void, size: usize) -> c_int {
    Outcome::of(&crate::include(address as usize, size).map(|()| None)).code
}

/// `dormouse_restarts`
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_restarts() -> c_uint {
    crate::restarts()
}

/// `dormouse_image`
///
/// # Safety
/// `buffer` leads to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_image(buffer: *mut c_char, size: usize) -> c_int {
    let image = crate::image().unwrap_or_default();
    if buffer.is_null() || size <= image.len() {
        return code::USAGE;
    }
    // SAFETY: there are that many bytes, and one more.
    unsafe {
        image.as_ptr().cast::<c_char>().copy_to(buffer, image.len());
        buffer.add(image.len()).write(0);
    }
    c_int::try_from(image.len()).unwrap_or(code::USAGE)
}

/// What C programs have registered: the event, the function, its data, and under what.
static REGISTERED: Mutex<Vec<(c_int, usize, usize, Registration)>> = Mutex::new(Vec::new());

fn registered() -> MutexGuard<'static, Vec<(c_int, usize, usize, Registration)>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `dormouse_on`
///
/// # Safety
/// `callback` is a function that may be called with `data` by any thread that takes a checkpoint, until it is removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_on(event: c_int, callback: Option<CCallback>, data: *mut c_void) -> c_int {
    let which = EVENTS.iter().find(|(number, _)| *number == event);
    let (Some((_, which)), Some(callback)) = (which, callback) else { return code::USAGE };
    if !crate::is_available() {
        return code::NOT_HERE;
    }
    let address = data as usize;
    let call: Callback = Arc::new(move |ended| {
        let outcome = ended.map(|ended| Outcome::of(&ended.clone().map(Some)));
        let outcome = outcome.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: as whoever registered it has said.
        unsafe { callback(outcome, address as *mut c_void) }
    });
    registered().push((event, callback as usize, address, callbacks::on(*which, call)));
    code::OK
}

/// `dormouse_off`
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_off(event: c_int, callback: Option<CCallback>, data: *mut c_void) -> c_int {
    if !crate::is_available() {
        return code::NOT_HERE;
    }
    let function = callback.map_or(0, |callback| callback as usize);
    let mut all = registered();
    let is_it =
        |each: &(c_int, usize, usize, _)| (each.0, each.1, each.2) == (event, function, data as usize);
    let Some(at) = all.iter().position(is_it) else { return code::USAGE };
    all.remove(at).3.remove();
    code::OK
}

/// `ckptInit`
#[unsafe(no_mangle)]
pub extern "C" fn ckptInit() -> c_int {
    if crate::is_available() { code::OK } else { code::NOT_HERE }
}

/// `ckptSelf`
#[unsafe(no_mangle)]
pub extern "C" fn ckptSelf() -> c_int {
    // SAFETY: nothing is to be written.
    unsafe { dormouse_checkpoint(0, std::ptr::null_mut()) }
}

/// Constants and offsets in the order in which a test asks the C compiler for them.
#[doc(hidden)]
#[must_use]
pub fn layout() -> String {
    use std::mem::offset_of;
    let codes = [API_VERSION, code::OK, code::RESTARTED, code::TAKEN, code::USAGE, code::NOT_HERE];
    let flags = [NO_WAIT, STOP];
    let events = EVENTS.map(|(number, _)| number);
    let offsets = [
        size_of::<Outcome>(),
        offset_of!(Outcome, code),
        offset_of!(Outcome, ticket),
        offset_of!(Outcome, image),
        offset_of!(Outcome, text),
    ];
    format!("{}\n{}\n{}\n{}\n", words(&codes), words(&flags), words(&events), words(&offsets))
}

fn words(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn text(of: &[c_char]) -> String {
        // SAFETY: it has an end.
        unsafe { CStr::from_ptr(of.as_ptr()) }.to_str().unwrap().to_owned()
    }

    fn empty() -> Outcome {
        Outcome::of(&Ok(None))
    }

    /// Tests do not run under Dormouse.
    #[test]
    fn without_dormouse_every_call_says_so() {
        let mut outcome = empty();
        // SAFETY: the outcome's size is set; the callback is never called.
        unsafe {
            assert_eq!(dormouse_checkpoint(0, std::ptr::null_mut()), code::NOT_HERE);
            assert_eq!(dormouse_checkpoint(NO_WAIT | STOP, &raw mut outcome), code::NOT_HERE);
            assert_eq!(outcome.code, code::NOT_HERE);
            assert!(text(&outcome.text).contains("not run under"));
            assert_eq!(dormouse_checkpoint(4, &raw mut outcome), code::USAGE);
            assert_eq!(dormouse_wait(1, &raw mut outcome), code::NOT_HERE);
            assert_eq!(dormouse_on(1, Some(never), std::ptr::null_mut()), code::NOT_HERE);
            assert_eq!(dormouse_on(4, Some(never), std::ptr::null_mut()), code::USAGE);
            assert_eq!(dormouse_on(1, None, std::ptr::null_mut()), code::USAGE);
            for call in [dormouse_exclude, dormouse_include] {
                assert_eq!(call((&raw const outcome).cast(), 8), code::NOT_HERE);
            }
            let mut image = [1; 33];
            assert_eq!((dormouse_image(image.as_mut_ptr(), 33), image[0]), (0, 0));
            assert_eq!(dormouse_image(image.as_mut_ptr(), 0), code::USAGE);
        }
        assert_eq!(dormouse_off(1, Some(never), std::ptr::null_mut()), code::NOT_HERE);
        for _ in 0..3 {
            assert_eq!(dormouse_convenient_point(), code::NOT_HERE);
        }
        assert_eq!((dormouse_available(), dormouse_restarts(), ckptInit()), (0, 0, code::NOT_HERE));
        assert_eq!(ckptSelf(), code::NOT_HERE);
    }

    unsafe extern "C" fn never(_: *const Outcome, _: *mut c_void) {
        panic!("nothing happens");
    }

    #[test]
    fn no_more_is_written_than_the_caller_has_room_for() {
        let refused = Err(Refusal::Failed { code: 10, text: "ü".repeat(900) });
        let mut outcome = empty();
        // SAFETY: the size is set, to no more than there is.
        unsafe {
            assert_eq!(Outcome::of(&refused).write(&raw mut outcome), -10);
            assert!(text(&outcome.text).chars().all(|each| each == 'ü') && text(&outcome.text).len() > 960);
            let mut small = Outcome { size: 16, ..empty() };
            assert_eq!(
                Outcome::of(&Ok(Some(Answer::Taken { ticket: 5 }))).write(&raw mut small),
                code::TAKEN
            );
            assert_eq!((small.code, small.ticket, small.size), (code::TAKEN, 0, 16));
            let mut none = Outcome { size: 0, ..empty() };
            Outcome::of(&refused).write(&raw mut none);
            assert_eq!(none.code, 0);
        }
    }
}
