//! The gate between rings and device: while it is closed no message begins.
//!
//! A ring's thread says that it executes a message, and then looks whether the gate is closed; whoever closes it says so, and then looks
//! at what is executed. One of the two must see the other, so between its steps each needs a barrier. Messages are
//! many and cuts are few: the closer has the kernel run one on every thread (`membarrier(2)`), and a message costs none.

use crate::lock;
use rustix::thread::{MembarrierCommand, membarrier};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use transport::{MAX_RINGS, RingIndex};

/// No message is executed in a ring.
const IDLE: u32 = 0;
/// Beside an opcode: the message waits, and does nothing to the device before it has been [`Gate::alone`].
const WAITING: u32 = 1 << 31;

thread_local! {
    /// The ring whose messages this thread executes.
    static RING: Cell<Option<RingIndex>> = const { Cell::new(None) };
}

/// Who has closed the gate: whoever makes a cut.
const CUT: u32 = 1;
/// A message that wants no other beside it.
const MESSAGE: u32 = 2;

/// One for the session.
pub struct Gate {
    /// By whom it is closed.
    closed: AtomicU32,
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
            closed: AtomicU32::new(0),
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

/// The message in hand waits for others.
pub struct Waiting<'a>(Option<(&'a Gate, &'a AtomicU32)>);

impl Drop for Waiting<'_> {
    /// Goes on when nobody is alone: whoever is has not counted this message.
    fn drop(&mut self) {
        let Some((gate, word)) = self.0 else { return };
        loop {
            // As in `enter`: one of the two sees the other.
            word.fetch_and(!WAITING, Ordering::SeqCst);
            if gate.closed.load(Ordering::SeqCst) & MESSAGE == 0 {
                return;
            }
            word.fetch_or(WAITING, Ordering::SeqCst);
            gate.park(MESSAGE);
        }
    }
}

/// No message begins before this is dropped.
pub struct Alone<'a>(&'a Gate);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.open_for(MESSAGE);
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
            if self.closed.load(Ordering::Acquire) == 0 {
                return Pass(word);
            }
            word.store(IDLE, Ordering::Release);
            self.park(CUT | MESSAGE);
        }
    }

    /// Waits until none of these has the gate closed.
    fn park(&self, who: u32) {
        let mut parked = lock(&self.parked);
        while self.closed.load(Ordering::SeqCst) & who != 0 {
            parked = self.opened.wait(parked).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Goes through without a message, as the only one who does that, to do what `number` stands for in place of an opcode; `None`
    /// while the gate is closed.
    pub fn enter_if_open(&self, number: u16) -> Option<Pass<'_>> {
        let word = self.executing.last()?;
        // As in `enter`, with a barrier of its own: this is seldom.
        word.store(u32::from(number) + 1, Ordering::SeqCst);
        let pass = Pass(word);
        (self.closed.load(Ordering::SeqCst) == 0).then_some(pass)
    }

    /// Closes the gate and waits until no message is executed any more; otherwise tells, at the deadline, one that is:
    /// its ring and opcode. The gate stays closed either way.
    ///
    /// # Errors
    /// The ring and opcode of a message that is still executed.
    pub fn close(&self, deadline: Instant) -> Result<(), (usize, u16)> {
        self.closed.fetch_or(CUT, Ordering::SeqCst);
        self.have_all_see();
        loop {
            let Some((ring, word)) = self.executed().next() else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err((ring, ((word & !WAITING) - 1) as u16));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Opens the gate after [`Gate::close`].
    pub fn open(&self) {
        self.open_for(CUT);
    }

    /// This thread executes the messages of a ring from now on.
    pub fn serve(ring: RingIndex) {
        RING.set(Some(ring));
    }

    /// To be held by a message that waits to be alone: others that do, too, are not in its way, and it not in theirs. It does nothing to the device meanwhile, and lets go of
    /// what it had alone before it lets go of this.
    pub fn wait(&self) -> Waiting<'_> {
        Waiting(RING.get().map(|ring| {
            let word = &self.executing[ring.get()];
            word.fetch_or(WAITING, Ordering::SeqCst);
            (self, word)
        }))
    }

    /// Closes the gate behind the message in hand, if no other is executed, as long as what is given lives; a cut waits for that. One that is about to be made does not
    /// keep a message from it that waits.
    pub fn alone(&self) -> Option<Alone<'_>> {
        let own = RING.get().map_or(IDLE, |ring| self.executing[ring.get()].load(Ordering::SeqCst));
        let waits = own & WAITING != 0;
        let closed = self.closed.fetch_or(MESSAGE, Ordering::SeqCst);
        if closed & MESSAGE != 0 {
            return None;
        }
        let alone = Alone(self);
        if closed & CUT != 0 && !waits {
            return None;
        }
        self.have_all_see();
        let others = self.executed().filter(|(_, word)| word & WAITING == 0).count();
        (others <= usize::from(!waits)).then_some(alone)
    }

    fn open_for(&self, who: u32) {
        let _parked = lock(&self.parked);
        self.closed.fetch_and(!who, Ordering::SeqCst);
        self.opened.notify_all();
    }

    /// Whoever begins from now on sees that the gate is closed; who began before is seen.
    fn have_all_see(&self) {
        fence(Ordering::SeqCst);
        if self.remote
            && let Err(error) = membarrier(MembarrierCommand::PrivateExpedited)
        {
            // It cannot fail once it was registered; if it does, any look that comes late enough will do.
            tracing::warn!(%error, "no barrier on other threads");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What is executed: in which ring, and its word.
    fn executed(&self) -> impl Iterator<Item = (usize, u32)> {
        let words = self.executing.iter().map(|word| word.load(Ordering::SeqCst)).enumerate();
        words.filter(|(_, word)| *word != IDLE)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_message_may_be_alone_and_a_cut_waits_for_it() {
        let gate = Gate::default();
        Gate::serve(RingIndex::new(3).unwrap());
        let [first, second] = [3, 4].map(|ring| gate.enter(RingIndex::new(ring).unwrap(), 90));
        assert!(gate.alone().is_none());
        drop(second);
        let alone = gate.alone().unwrap();
        assert!(gate.enter_if_open(7).is_none());
        assert!(gate.alone().is_none());
        assert_eq!(gate.close(Instant::now()), Err((3, 90)));
        drop(alone);
        assert!(gate.enter_if_open(7).is_none(), "it is still closed for the cut");
        assert!(gate.alone().is_none());
        gate.open();
        assert!(gate.alone().is_some());
        drop(first);
        assert!(gate.enter_if_open(7).is_some());
    }

    #[test]
    fn who_wait_are_not_in_each_others_way_nor_in_a_cuts() {
        let gate = Gate::default();
        let [ours, other] = [3, 4].map(|ring| RingIndex::new(ring).unwrap());
        let pass = gate.enter(ours, 90);
        std::thread::scope(|scope| {
            let (waits, ends) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
            let gate = &gate;
            scope.spawn(move || {
                Gate::serve(other);
                let _pass = gate.enter(other, 91);
                let waiting = gate.wait();
                waits.0.send(()).unwrap();
                ends.1.recv().unwrap();
                drop(waiting);
                waits.0.send(()).unwrap();
                ends.1.recv().unwrap();
            });
            Gate::serve(ours);
            waits.1.recv().unwrap();
            drop(gate.alone().unwrap());
            let waiting = gate.wait();
            assert_eq!(gate.close(Instant::now()), Err((3, 90)), "a cut waits for both");
            drop(gate.alone().unwrap());
            drop(waiting);
            assert!(gate.alone().is_none(), "a cut is about to be made");
            gate.open();
            ends.0.send(()).unwrap();
            waits.1.recv().unwrap();
            assert!(gate.alone().is_none(), "the other goes on");
            ends.0.send(()).unwrap();
        });
        drop(pass);
        assert_eq!(gate.close(Instant::now()), Ok(()));
    }

    #[test]
    fn who_has_waited_goes_on_when_nobody_is_alone() {
        let gate = Gate::default();
        let [ours, other] = [3, 4].map(|ring| RingIndex::new(ring).unwrap());
        let goes_on = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (waits, ends) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
            let (gate, goes_on) = (&gate, &goes_on);
            scope.spawn(move || {
                Gate::serve(other);
                let _pass = gate.enter(other, 91);
                let waiting = gate.wait();
                waits.0.send(()).unwrap();
                ends.1.recv().unwrap();
                drop(waiting);
                goes_on.store(true, Ordering::SeqCst);
            });
            Gate::serve(ours);
            let _pass = gate.enter(ours, 90);
            waits.1.recv().unwrap();
            let alone = gate.alone().unwrap();
            ends.0.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            assert!(!goes_on.load(Ordering::SeqCst), "beside one that is alone");
            drop(alone);
        });
        assert!(goes_on.load(Ordering::SeqCst));
    }

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
