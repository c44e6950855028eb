//! The gate between rings and device: while it is closed no message begins.
//!
//! A ring's thread says that it executes a message, and then looks whether the gate is closed; whoever closes it says so, and then looks
//! at what is executed. One of the two must see the other, so between its steps each needs a barrier. Messages are
//! many and cuts are few: the closer has the kernel run one on every thread (`membarrier(2)`), and a message costs none.

use crate::lock;
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence, fence};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use transport::{MAX_RINGS, RingIndex};

/// No message is executed in a ring.
const IDLE: u32 = 0;

/// One for the session.
pub struct Gate {
    closed: AtomicBool,
    /// Whether the kernel runs barriers for us.
    remote: bool,
    /// What each ring executes, and behind them whoever tidies up: opcode + 1, or [`IDLE`].
    executing: Box<[AtomicU32]>,
    parked: Mutex<()>,
    opened: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            closed: AtomicBool::new(false),
            remote: membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok(),
            executing: (0..=MAX_RINGS).map(|_| AtomicU32::new(IDLE)).collect(),
            parked: Mutex::new(()),
            opened: Condvar::new(),
        }
    }
}

/// A message is being executed; the gate cannot be shut behind it before this is dropped.
pub struct Pass<'a>(&'a AtomicU32);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.store(IDLE, Ordering::Release);
    }
}

impl Gate {
    /// Waits until the gate is open and goes through with message `opcode` of a ring.
    #[inline]
    pub fn enter(&self, ring: RingIndex, opcode: u16) -> Pass<'_> {
        let word = &self.executing[ring.get()];
        loop {
            word.store(u32::from(opcode) + 1, Ordering::Relaxed);
            if self.remote {
                compiler_fence(Ordering::SeqCst);
            } else {
                fence(Ordering::SeqCst);
            }
            if !self.closed.load(Ordering::Acquire) {
                return Pass(word);
            }
            word.store(IDLE, Ordering::Release);
            let mut parked = lock(&self.parked);
            while self.closed.load(Ordering::SeqCst) {
                parked = self.opened.wait(parked).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }

    /// Goes through without a message, as the only one who does that, to do what `number` stands for in place of an opcode; `None`
    /// while the gate is closed.
    pub fn enter_if_open(&self, number: u16) -> Option<Pass<'_>> {
        let word = self.executing.last()?;
        // As in `enter`, with a barrier of its own: this is seldom.
        word.store(u32::from(number) + 1, Ordering::SeqCst);
        let pass = Pass(word);
        (!self.closed.load(Ordering::SeqCst)).then_some(pass)
    }

    /// Closes the gate and waits until no message is executed any more; otherwise tells, at the deadline, one that is:
    /// its ring and opcode. The gate stays closed either way.
    ///
    /// # Errors
    /// The ring and opcode of a message that is still executed.
    pub fn close(&self, deadline: Instant) -> Result<(), (usize, u16)> {
        self.closed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.remote
            && let Err(error) = membarrier(MembarrierCommand::PrivateExpedited)
        {
            // It cannot fail once it was registered; if it does, any look that comes late enough will do.
            tracing::warn!(%error, "no barrier on other threads");
            std::thread::sleep(Duration::from_millis(10));
        }
        loop {
            let busy = self.executing.iter().map(|word| word.load(Ordering::SeqCst)).enumerate();
            let Some((ring, word)) = busy.into_iter().find(|(_, word)| *word != IDLE) else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err((ring, (word - 1) as u16));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Opens the gate.
    pub fn open(&self) {
        let _parked = lock(&self.parked);
        self.closed.store(false, Ordering::SeqCst);
        self.opened.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn closing_waits_for_the_message_in_hand_and_names_it() {
        let gate = Arc::new(Gate::default());
        let ring = RingIndex::new(7).unwrap();
        let pass = gate.enter(ring, 90);
        assert_eq!(gate.close(Instant::now() + Duration::from_millis(5)), Err((7, 90)));
        drop(pass);
        assert_eq!(gate.close(Instant::now() + Duration::from_secs(5)), Ok(()));
    }

    #[test]
    fn tidying_up_is_waited_for_and_does_not_begin() {
        let gate = Gate::default();
        let pass = gate.enter_if_open(7).unwrap();
        assert_eq!(gate.close(Instant::now() + Duration::from_millis(5)), Err((MAX_RINGS, 7)));
        drop(pass);
        assert_eq!(gate.close(Instant::now() + Duration::from_secs(5)), Ok(()));
        assert!(gate.enter_if_open(7).is_none());
        assert_eq!(gate.close(Instant::now()), Ok(()), "whoever did not begin holds nothing");
        gate.open();
        assert!(gate.enter_if_open(7).is_some());
    }

    #[test]
    fn nobody_slips_through_as_it_closes() {
        for remote in [true, false] {
            let gate = Gate { remote, ..Gate::default() };
            let [shut, over] = [(); 2].map(|()| AtomicBool::new(false));
            std::thread::scope(|scope| {
                for ring in 0..2 {
                    let (gate, shut, over) = (&gate, &shut, &over);
                    scope.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            let _pass = gate.enter(RingIndex::new(ring).unwrap(), 1);
                            for _ in 0..50 {
                                assert!(!shut.load(Ordering::Relaxed), "executed behind the closed gate");
                                std::hint::spin_loop();
                            }
                        }
                    });
                }
                for _ in 0..5000 {
                    gate.close(Instant::now() + Duration::from_secs(30)).unwrap();
                    shut.store(true, Ordering::Relaxed);
                    (0..50).for_each(|_| std::hint::spin_loop());
                    shut.store(false, Ordering::SeqCst);
                    gate.open();
                }
                over.store(true, Ordering::Relaxed);
            });
        }
    }

    #[test]
    fn nothing_passes_while_closed() {
        let gate = Arc::new(Gate::default());
        gate.close(Instant::now()).unwrap();
        let passed = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (gate, passed) = (Arc::clone(&gate), Arc::clone(&passed));
            move || {
                drop(gate.enter(RingIndex::new(0).unwrap(), 1));
                passed.store(true, Ordering::SeqCst);
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!passed.load(Ordering::SeqCst));
        assert_eq!(gate.close(Instant::now()), Ok(()), "a parked thread executes nothing");
        gate.open();
        thread.join().unwrap();
        assert!(passed.load(Ordering::SeqCst));
    }
}
