//! Device memory that is filled while processes are restored, which takes as long for many of them.

use crate::error::Failure;
use crate::sessions::{Session, panicked};
use server::control::{Answer, Ask};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How much longer filling may take for processes to be restored meanwhile: until then a restart can be interrupted, and has touched nothing.
const AHEAD: Duration = Duration::from_secs(2);
/// What surely takes no longer, bytes.
const LITTLE: u64 = 64 << 20;

/// The filling of all sessions' memory.
pub(crate) struct Beside {
    began: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

/// A defect of ours must not leave anybody waiting.
struct EndOnPanic<'a>(&'a Beside);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(Err(panicked()));
        }
    }
}

#[derive(Default)]
struct State {
    /// Of each session: bytes that are filled, of how many.
    sessions: Vec<Option<(u64, u64)>>,
    over: Option<Result<(), Failure>>,
}

impl Beside {
    /// That of so many sessions.
    pub(crate) fn of(sessions: usize) -> Self {
        let state = State { sessions: vec![None; sessions], over: None };
        Self { began: Instant::now(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for it, on this thread; `told` hears of bytes that are filled.
    pub(crate) fn fill(&self, sessions: &[Session], told: &(dyn Fn(u64) + Sync)) {
        let _end = EndOnPanic(self);
        std::thread::scope(|scope| {
            for (number, session) in sessions.iter().enumerate() {
                let fill = move || {
                    let mut told = |done, total| told(self.note(number, done, total));
                    session.fill(&mut told).unwrap_or_else(|failure| self.end(Err(failure)));
                };
                let spawned = Builder::new().name("waiting".into()).spawn_scoped(scope, fill);
                if let Err(error) = spawned {
                    self.end(Err(Failure::of("there is no thread to wait for memory in", &error)));
                }
            }
        });
        self.end(Ok(()));
    }

    /// It ends so, unless it has before.
    fn end(&self, how: Result<(), Failure>) {
        self.state().over.get_or_insert(how);
        self.changed.notify_all();
    }

    /// How many bytes more that are than before.
    fn note(&self, session: usize, done: u64, total: u64) -> u64 {
        let before = self.state().sessions.get_mut(session).and_then(|each| each.replace((done, total)));
        self.changed.notify_all();
        done.saturating_sub(before.map_or(0, |(done, _)| done))
    }

    /// Waits until it is over, or as good as.
    ///
    /// # Errors
    /// When some memory never will be filled.
    pub(crate) fn await_nearly(&self) -> Result<(), Failure> {
        self.wait(|state| is_nearly_over(&state.sessions, self.began.elapsed()))
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// As [`Self::await_nearly`]'s.
    pub(crate) fn await_over(&self) -> Result<(), Failure> {
        self.wait(|_| false)
    }

    fn wait(&self, is_enough: impl Fn(&State) -> bool) -> Result<(), Failure> {
        let mut state = self.state();
        loop {
            match &state.over {
                Some(over) => return over.clone(),
                None if is_enough(&state) => return Ok(()),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether what is left takes no longer than [`AHEAD`], if it goes on as it went for so long.
fn is_nearly_over(sessions: &[Option<(u64, u64)>], elapsed: Duration) -> bool {
    let all = sessions.iter().try_fold((0_u64, 0_u64), |(done, total), each| {
        each.map(|each| (done.saturating_add(each.0), total.saturating_add(each.1)))
    });
    let Some((done, total)) = all else { return false };
    let left = total.saturating_sub(done);
    left <= LITTLE || done > 0 && elapsed.as_secs_f64() * left as f64 <= AHEAD.as_secs_f64() * done as f64
}

impl Session {
    /// Waits until its memory is filled, and hears how many bytes are, of how many.
    fn fill(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Failure> {
        let mut server = self.server();
        match server.ask(&Ask::Fill, progress)? {
            Answer::Done => Ok(()),
            other => Err(server.unexpected(&other)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::Kind;

    const GIB: u64 = 1 << 30;

    #[test]
    fn processes_come_back_when_little_is_left_or_it_soon_will_be() {
        let nearly = |sessions: &[_], seconds| is_nearly_over(sessions, Duration::from_secs(seconds));
        assert!(nearly(&[], 0));
        assert!(nearly(&[Some((0, 64 << 20))], 100), "that is little");
        assert!(!nearly(&[Some((100 << 20, GIB))], 30), "that is little, and takes long");
        assert!(!nearly(&[Some((0, 2 * GIB))], 100), "nobody knows how fast it goes");
        assert!(!nearly(&[Some((GIB, 3 * GIB)), None], 0), "nobody knows how much it is");
        assert!(!nearly(&[Some((8 * GIB, 16 * GIB)), Some((0, 16 * GIB))], 4));
        assert!(nearly(&[Some((16 * GIB, 16 * GIB)), Some((8 * GIB, 16 * GIB))], 4));
    }

    #[test]
    fn who_waits_hears_how_it_ends() {
        let beside = Beside::of(1);
        assert_eq!(beside.note(0, 0, 10 * GIB), 0);
        assert_eq!(beside.note(0, 10 * GIB, 10 * GIB), 10 * GIB);
        beside.await_nearly().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| beside.await_over());
            beside.state().over = Some(Err(Failure::new(Kind::Damaged, "a chunk")));
            beside.changed.notify_all();
            assert_eq!(waiting.join().unwrap().unwrap_err().kind, Kind::Damaged);
        });
        assert!(beside.await_nearly().is_err());
    }
}
