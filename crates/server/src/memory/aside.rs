//! A thread for what a stream's own must not do: call the device library.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel, sync_channel};

type Step = Box<dyn FnOnce() + Send>;

/// One thread, which is there from the beginning: where it is needed none may be to be had.
pub(super) struct Aside(Sender<Step>);

impl Aside {
    /// Begins the thread.
    ///
    /// # Errors
    /// The kernel's, where there can be no more threads.
    pub(super) fn new() -> io::Result<Self> {
        let (steps, given) = channel::<Step>();
        let thread = std::thread::Builder::new().name("aside".to_owned());
        thread.spawn(move || given.into_iter().for_each(|step| step()))?;
        Ok(Self(steps))
    }

    /// Does something there, and waits for it. `None` where that panicked.
    pub(super) fn run<T: Send + 'static>(&self, step: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, wait) = sync_channel(1);
        let step = move || {
            let answer = catch_unwind(AssertUnwindSafe(step)).ok();
            // Whoever asked waits below.
            let _ = done.send(answer);
        };
        self.0.send(Box::new(step)).ok()?;
        wait.recv().ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_panics_is_told_and_the_next_is_done() {
        let aside = Aside::new().expect("a thread");
        let outside = std::thread::current().id();
        assert_eq!(aside.run(move || std::thread::current().id() == outside), Some(false));
        assert_eq!(aside.run(|| panic!("for a test")), None::<()>);
        assert_eq!(aside.run(|| 7), Some(7));
    }
}
