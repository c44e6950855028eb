//! What the program wants done before and after a checkpoint, and after a restart. It is run by the thread that asks, around its own
//! checkpoint.

use crate::{Answer, Refusal, moment};
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// When something is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Before a checkpoint; what was registered last comes first.
    Before,
    /// After one, in the run that goes on, however it went.
    After,
    /// In the run that was restarted from it.
    Restarted,
}

/// Which of the latter two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The run goes on.
    Ended,
    /// It was restarted.
    Restarted,
}

/// What is done. It is told how the checkpoint went, where it has gone.
pub type Callback = Arc<dyn Fn(Option<&Result<Answer, Refusal>>) + Send + Sync>;

struct Registered {
    number: u64,
    event: Event,
    callback: Callback,
}

struct Registry {
    next: u64,
    callbacks: Vec<Registered>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { next: 1, callbacks: Vec::new() });

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A registered callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration(u64);

impl Registration {
    /// It is not called any more; whether it would have been.
    pub fn remove(self) -> bool {
        let mut registry = registry();
        let before = registry.callbacks.len();
        registry.callbacks.retain(|each| each.number != self.0);
        registry.callbacks.len() < before
    }
}

/// Has `callback` called at each `event` from now on.
pub fn on(event: Event, callback: Callback) -> Registration {
    let mut registry = registry();
    let number = registry.next;
    registry.next += 1;
    registry.callbacks.push(Registered { number, event, callback });
    Registration(number)
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn registered(event: Event) -> Vec<Callback> {
    let registry = registry();
    let those = registry.callbacks.iter().filter(|each| each.event == event);
    those.map(|each| Arc::clone(&each.callback)).collect()
}

/// Takes a checkpoint with everything around it.
///
/// # Errors
/// `take`'s; busy when a callback asks.
pub fn around(take: impl FnOnce() -> Result<Answer, Refusal>) -> Result<Answer, Refusal> {
    let _inside = Inside::enter()?;
    registered(Event::Before).iter().rev().for_each(|callback| callback(None));
    let ended = take();
    let event = match moment(&ended) {
        Moment::Ended => Event::After,
        Moment::Restarted => Event::Restarted,
    };
    registered(event).iter().for_each(|callback| callback(Some(&ended)));
    ended
}

/// The same of one that may turn out not to be wanted any more.
///
/// # Errors
/// As [`around`]'s.
pub fn around_wanted(
    take: impl FnOnce() -> Result<Option<Answer>, Refusal>,
) -> Result<Option<Answer>, Refusal> {
    let mut is_wanted = true;
    let ended = around(|| {
        take().and_then(|answer| {
            answer.ok_or_else(|| {
                is_wanted = false;
                Refusal::busy("the checkpoint was taken elsewhere")
            })
        })
    });
    if is_wanted { ended.map(Some) } else { Ok(None) }
}

/// While it lives, this thread takes no other checkpoint.
struct Inside;

impl Inside {
    fn enter() -> Result<Self, Refusal> {
        match IS_INSIDE.replace(true) {
            true => Err(Refusal::busy("this thread is taking a checkpoint, of which this is a callback")),
            false => Ok(Self),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_come_in_order_and_take_no_checkpoints() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = |event: Event, name: &'static str| {
            let seen = Arc::clone(&seen);
            on(event, Arc::new(move |ended| seen.lock().unwrap().push((name, ended.cloned()))))
        };
        let all = [
            note(Event::Before, "first"),
            note(Event::Before, "second"),
            note(Event::After, "after"),
            note(Event::Restarted, "restarted"),
        ];
        let nested = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&nested);
        let inner = on(
            Event::Before,
            Arc::new(move |_| *kept.lock().unwrap() = Some(around(|| panic!("it is not tried")))),
        );
        let taken = Ok(Answer::Taken { ticket: 7 });
        assert_eq!(around(|| Ok(Answer::Taken { ticket: 7 })), taken);
        assert!(matches!(*nested.lock().unwrap(), Some(Err(Refusal::Failed { code: 4, .. }))));
        assert!(inner.remove() && !inner.remove());
        let names = |seen: &Mutex<Vec<(&'static str, _)>>| -> Vec<&'static str> {
            std::mem::take(&mut *seen.lock().unwrap()).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(seen.lock().unwrap()[2], ("after", Some(taken)));
        assert_eq!(names(&seen), ["second", "first", "after"]);
        around(|| Ok(Answer::Restarted { image: "i".into() })).unwrap();
        assert_eq!(names(&seen), ["second", "first", "restarted"]);
        assert_eq!(around_wanted(|| Ok(None)), Ok(None));
        assert_eq!(names(&seen), ["second", "first", "after"]);
        assert_eq!(around_wanted(|| Err(Refusal::NotHere)), Err(Refusal::NotHere));
        assert!(all.iter().all(|each| each.remove()));
    }
}
