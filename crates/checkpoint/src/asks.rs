//! Checkpoints that the program itself asks for, and points of it that suit one (`docs/self-checkpoint.md`).
//!
//! Whoever asks gets a ticket and closes his connection; what becomes of it stands on the job's board. A ticket that is pending when a
//! cut is taken, whoever wanted that, gets its image: the restarted program sees it so, and therefore the one that goes on does, too.

use crate::admin::CheckpointOptions;
use crate::error::{Chain, Failure, Kind};
use crate::sessions::panicked;
use crate::supervisor::Supervisor;
use host::InnerPid;
use image::ImageId;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use transport::TransportError;
use transport::board::{BOARD, BoardFile, Outcome, TICKETS};
use wire::Question;

/// The most that wait at a time: the board keeps the outcomes of as many again.
const WAITING_MAX: usize = TICKETS / 2;
/// So often may be asked in a row,
const BURST: f64 = 64.0;
/// and so often a second in the long run.
const PER_SECOND: f64 = 32.0;
/// Between two looks whether something is in the way while a point is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// What the programs of a job have asked for.
#[derive(Default)]
pub struct Asks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    board: Option<BoardFile>,
    /// Pending, in the order in which they were asked.
    waiting: Vec<Ask>,
    /// In the image of the checkpoint that is under way.
    cut: Vec<u64>,
    /// Whether a checkpoint waits for a point.
    wanted: bool,
    /// Whether it does, or has, and its cut is to come.
    is_approaching: bool,
    /// How long it does.
    point_wait: Duration,
    allowance: Allowance,
    ended: bool,
}

#[derive(Clone, Copy)]
struct Ask {
    ticket: u64,
    question: Question,
    /// Whether its connection is closed.
    waits: bool,
}

impl Ask {
    fn is_for_now(&self) -> bool {
        matches!(self.question, Question::Now { .. })
    }

    fn is_for_stop(&self) -> bool {
        self.question == Question::Now { stop: true }
    }
}

impl Asks {
    /// Makes the board on the job's tmpfs, or takes over the one that came with `image`.
    ///
    /// # Errors
    /// When there is no room for a new job's.
    pub fn begin(
        &self,
        tmpfs: &Path,
        image: Option<ImageId>,
        point_wait: Duration,
    ) -> Result<(), TransportError> {
        let path = tmpfs.join(BOARD);
        let made = match image {
            Some(image) => BoardFile::take_over(&path, &image.to_string()),
            None => BoardFile::create(&path),
        };
        let mut state = self.lock();
        state.point_wait = point_wait;
        match made {
            Ok(board) => state.board = Some(board),
            // The job may have put anything there, and its programs get no more of it. It is restarted all the same.
            Err(error) if image.is_some() => {
                tracing::warn!("programs of this job cannot ask for checkpoints: {}", Chain(&error));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives a ticket; the asking process has to hang up before anything is done about it ([`Self::waits`]).
    ///
    /// # Errors
    /// [`Kind::Busy`] when that is too much at a time, [`Kind::Failed`].
    pub fn note(&self, question: Question, process: InnerPid) -> Result<u64, Failure> {
        let mut state = self.lock();
        let state = &mut *state;
        if !state.allowance.is_granted(Instant::now()) || state.waiting.len() >= WAITING_MAX {
            return Err(too_often());
        }
        let board = state
            .board
            .as_mut()
            .ok_or_else(|| Failure::new(Kind::Failed, "the job has spoilt the file with the answers"))?;
        let is_pending = match question {
            Question::Now { .. } => true,
            Question::AtPoint => state.wanted,
            Question::HasPoints => false,
        };
        let outcome = if is_pending { Outcome::Pending } else { Outcome::Unwanted };
        // Their places are theirs until they are told how it ended.
        let held =
            |ticket| state.cut.contains(&ticket) || state.waiting.iter().any(|ask| ask.ticket == ticket);
        let given = match (question, u32::try_from(process.0)) {
            (Question::HasPoints, Ok(pid)) => board.has_points(pid).and_then(|()| board.give(&outcome, held)),
            _ => board.give(&outcome, held),
        };
        let ticket = given
            .map_err(|error| Failure::of("the job's board is not written", &error))?
            .ok_or_else(too_often)?;
        if is_pending {
            state.waiting.push(Ask { ticket, question, waits: false });
        }
        Ok(ticket)
    }

    /// Whoever has the ticket has hung up.
    pub fn waits(&self, ticket: u64) {
        let mut state = self.lock();
        state.waiting.iter_mut().filter(|ask| ask.ticket == ticket).for_each(|ask| ask.waits = true);
        self.changed.notify_all();
    }

    /// Waits until a checkpoint is asked for that nobody else is about to take; `None` when the job has ended.
    fn next(&self) -> Option<Vec<Ask>> {
        let is_idle = |state: &mut State| {
            let is_asked = state.waiting.iter().any(|ask| ask.waits && ask.is_for_now());
            !state.ended && (state.is_approaching || !is_asked)
        };
        let state = self.changed.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        let asked = state.waiting.iter().filter(|ask| ask.waits && ask.is_for_now());
        (!state.ended).then(|| asked.copied().collect())
    }

    /// There is no image for those that still wait.
    fn refuse(&self, asked: &[Ask], failure: &Failure) {
        let mut state = self.lock();
        let asked = |ask: &Ask| asked.iter().any(|each| each.ticket == ask.ticket);
        let refused: Vec<Ask> = state.waiting.extract_if(.., |ask| asked(ask)).collect();
        state.tell(refused.iter().map(|ask| ask.ticket), &failed(failure));
    }

    /// The way to a point that suits the program, if it has such and is to be waited for.
    pub fn approach(&self, options: &CheckpointOptions, job: &host::Job) -> Option<Approach<'_>> {
        let state = self.lock();
        let patience = options.point_wait_ms.map_or(state.point_wait, Duration::from_millis);
        let points = state.board.as_ref().map_or(&[][..], |board| board.points()).to_vec();
        drop(state);
        let is_there = |pid: &u32| i32::try_from(*pid).is_ok_and(|pid| job.outer(InnerPid(pid)).is_some());
        let waits = !patience.is_zero() && points.iter().any(is_there);
        waits.then_some(Approach { asks: self, patience, until: None, is_reached: false })
    }

    /// The job stands still and is captured: those that wait are in the image. Whether one is among them that asked for it, and was not only at a
    /// point that suits it.
    pub fn is_cut(&self, options: &CheckpointOptions) -> bool {
        let mut state = self.lock();
        // Who wants the job stopped has not got that by an image alone, and who asks for an image wants it in the job's own store.
        let is_got = |ask: &mut Ask| match ask.question {
            Question::Now { stop } => options.store.is_none() && (options.stop || !stop),
            Question::AtPoint | Question::HasPoints => true,
        };
        let got: Vec<Ask> = state.waiting.extract_if(.., is_got).collect();
        state.cut = got.iter().map(|ask| ask.ticket).collect();
        state.is_approaching = false;
        self.changed.notify_all();
        got.iter().any(Ask::is_for_now)
    }

    /// A checkpoint begins, whose turn it is by `cutting`.
    pub fn turn<'a>(&'a self, cutting: MutexGuard<'a, ()>) -> Turn<'a> {
        Turn { asks: self, cutting: Some(cutting) }
    }

    /// The job goes on, before the image is written.
    pub fn goes_on(&self) {
        let state = self.lock();
        state.tell(state.cut.iter().copied(), &Outcome::Taken);
    }

    /// So the checkpoint that was under way has ended.
    fn conclude(&self, taken: Result<&str, &Failure>, cutting: MutexGuard<'_, ()>) {
        let mut state = self.lock();
        let cut = std::mem::take(&mut state.cut);
        let at_points = state.waiting.extract_if(.., |ask| !ask.is_for_now());
        let at_points: Vec<u64> = at_points.map(|ask| ask.ticket).collect();
        let (outcome, late) = match taken {
            Ok(image) => (Outcome::Published { image: image.to_owned() }, Outcome::Unwanted),
            Err(failure) => (failed(failure), failed(failure)),
        };
        state.tell(cut.into_iter(), &outcome);
        state.tell(at_points.into_iter(), &late);
        state.is_approaching = false;
        // Who has waited for the approach to end finds nobody else at it then.
        drop(cutting);
        self.changed.notify_all();
    }

    /// The job has ended.
    pub fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_often() -> Failure {
    Failure::new(Kind::Busy, "programs of the job ask too often; wait a while")
}

fn failed(failure: &Failure) -> Outcome {
    Outcome::Failed { code: failure.kind.exit_code().into(), text: failure.message.clone() }
}

impl State {
    fn tell(&self, tickets: impl Iterator<Item = u64>, outcome: &Outcome) {
        let Some(board) = &self.board else { return };
        for ticket in tickets {
            if let Err(error) = board.tell(ticket, outcome) {
                tracing::error!("whoever has asked for a checkpoint is not told: {}", Chain(&error));
            }
        }
    }

    fn want(&mut self, wanted: bool) {
        if self.wanted == wanted {
            return;
        }
        self.wanted = wanted;
        let told = self.board.as_ref().map_or(Ok(()), |board| board.want(wanted));
        if let Err(error) = told {
            tracing::error!("the program is not told that a checkpoint is wanted: {}", Chain(&error));
        }
    }
}

/// The one checkpoint that is under way. Who is in it is told how it ended, also where that is a panic.
pub struct Turn<'a> {
    asks: &'a Asks,
    cutting: Option<MutexGuard<'a, ()>>,
}

impl Turn<'_> {
    /// So it has ended.
    pub fn ends(mut self, taken: Result<&str, &Failure>) {
        self.conclude(taken);
    }

    fn conclude(&mut self, taken: Result<&str, &Failure>) {
        self.cutting.take().into_iter().for_each(|cutting| self.asks.conclude(taken, cutting));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.conclude(Err(&panicked()));
    }
}

/// A checkpoint that waits for a point that suits the program.
pub struct Approach<'a> {
    asks: &'a Asks,
    patience: Duration,
    /// No longer than that, from the first time on.
    until: Option<Instant>,
    is_reached: bool,
}

impl Approach<'_> {
    /// Waits until the program is at such a point, or asks for a checkpoint anyway, or time is up; false when something is in the way before.
    pub fn is_reached(&mut self, is_in_the_way: impl Fn() -> bool) -> bool {
        if self.is_reached {
            return true;
        }
        let until = *self.until.get_or_insert_with(|| Instant::now() + self.patience);
        let mut state = self.asks.lock();
        state.is_approaching = true;
        state.want(true);
        loop {
            let is_there = state.waiting.iter().any(|ask| ask.waits);
            if is_there || Instant::now() >= until {
                self.is_reached = true;
                // Who comes to such a point now goes on.
                state.want(false);
                return true;
            }
            drop(state);
            if is_in_the_way() {
                return false;
            }
            let waited = self.asks.changed.wait_timeout_while(self.asks.lock(), LOOK, |state| {
                !state.ended && !state.waiting.iter().any(|ask| ask.waits)
            });
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Approach<'_> {
    fn drop(&mut self) {
        // Who asks waits until its turn has ended: the next would not get his yet.
        self.asks.lock().want(false);
    }
}

/// How often may be asked.
#[derive(Default)]
struct Allowance(Option<(Instant, f64)>);

impl Allowance {
    fn is_granted(&mut self, now: Instant) -> bool {
        let left = self.0.map_or(BURST, |(then, left)| {
            (left + now.saturating_duration_since(then).as_secs_f64() * PER_SECOND).min(BURST)
        });
        let granted = left >= 1.0;
        self.0 = Some((now, if granted { left - 1.0 } else { left }));
        granted
    }
}

impl Supervisor {
    /// Takes checkpoints as the program asks for them, until the job has ended.
    pub(crate) fn checkpoint_as_asked(&self) {
        while let Some(asked) = self.sessions.asks().next() {
            // Nobody looks on; but as long as somebody could, the checkpoint is wanted.
            let (events, _nobody) = mpsc::channel();
            let stop = asked.iter().any(Ask::is_for_stop);
            let options = CheckpointOptions { stop, ..CheckpointOptions::default() };
            match self.checkpoint(&options, &events) {
                Ok(report) => tracing::info!(
                    "image {}, as the program has asked: stopped for {:.0} ms",
                    report.image,
                    report.stall_ms
                ),
                Err(failure) => {
                    tracing::debug!("no checkpoint, as the program has asked: {failure}");
                    self.sessions.asks().refuse(&asked, &failure);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use transport::board::Board;

    const NOW: Question = Question::Now { stop: false };
    const IMAGE: &str = "00112233445566778899aabbccddeeff";

    struct Fixture {
        asks: Asks,
        board: Board,
        cutting: Mutex<()>,
        _dir: tempfile::TempDir,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let asks = Asks::default();
        asks.begin(dir.path(), None, Duration::from_secs(60)).unwrap();
        let board = Board::open(&dir.path().join(BOARD)).unwrap();
        Fixture { asks, board, cutting: Mutex::default(), _dir: dir }
    }

    impl Fixture {
        fn ask(&self, question: Question) -> u64 {
            let ticket = self.asks.note(question, InnerPid(2)).unwrap();
            self.asks.waits(ticket);
            ticket
        }

        fn turn(&self) -> Turn<'_> {
            self.asks.turn(self.cutting.lock().unwrap_or_else(PoisonError::into_inner))
        }

        fn conclude(&self, taken: Result<&str, &Failure>) {
            self.turn().ends(taken);
        }

        fn approach(&self) -> Approach<'_> {
            Approach { asks: &self.asks, patience: Duration::from_secs(60), until: None, is_reached: false }
        }
    }

    fn busy() -> Failure {
        Failure::new(Kind::Busy, "another one")
    }

    #[test]
    fn all_that_wait_at_a_cut_get_its_image() {
        let f = fixture();
        let (first, second) = (f.ask(NOW), f.ask(NOW));
        let stop = f.ask(Question::Now { stop: true });
        assert_eq!(f.asks.next().unwrap().len(), 3);
        f.asks.is_cut(&CheckpointOptions::default());
        let late = f.ask(NOW);
        f.asks.goes_on();
        assert_eq!(f.board.outcome(first), Outcome::Taken);
        // Its own attempt was too late; it has its image all the same.
        f.asks.refuse(&[Ask { ticket: first, question: NOW, waits: true }], &busy());
        f.conclude(Ok(IMAGE));
        for ticket in [first, second] {
            assert_eq!(f.board.outcome(ticket), Outcome::Published { image: IMAGE.into() });
        }
        for ticket in [stop, late] {
            assert_eq!(f.board.outcome(ticket), Outcome::Pending);
        }
        let asked = f.asks.next().unwrap();
        assert!(asked.len() == 2 && asked[0].is_for_stop());
        f.asks.refuse(&asked, &busy());
        assert_eq!(f.board.outcome(late), Outcome::Failed { code: 4, text: "another one".into() });
        f.asks.end();
        assert!(f.asks.next().is_none());
    }

    /// However often others ask while an image is written.
    #[test]
    fn who_is_in_a_cut_keeps_his_place_on_the_board() {
        let f = fixture();
        let first = f.ask(NOW);
        assert!(f.asks.is_cut(&CheckpointOptions::default()));
        let others: Vec<u64> = (0..4 * TICKETS)
            .map(|_| {
                f.asks.lock().allowance = Allowance::default();
                f.ask(Question::AtPoint)
            })
            .collect();
        f.conclude(Ok(IMAGE));
        assert_eq!(f.board.outcome(first), Outcome::Published { image: IMAGE.into() });
        let told = |each: &u64| matches!(f.board.outcome(*each), Outcome::Unwanted | Outcome::Forgotten);
        assert!(others.iter().all(told));
    }

    #[test]
    fn an_image_in_another_store_is_not_what_was_asked_for() {
        let f = fixture();
        let ticket = f.ask(NOW);
        let elsewhere = CheckpointOptions {
            store: Some(store::Location::Folder("elsewhere".into()).into()),
            ..CheckpointOptions::default()
        };
        assert!(!f.asks.is_cut(&elsewhere));
        f.conclude(Ok(IMAGE));
        assert_eq!(f.board.outcome(ticket), Outcome::Pending);
        // Nor is one at a point asked for by the program.
        f.asks.lock().want(true);
        f.asks.refuse(&f.asks.next().unwrap(), &busy());
        f.ask(Question::AtPoint);
        assert!(!f.asks.is_cut(&CheckpointOptions::default()));
    }

    #[test]
    fn who_is_in_the_cut_of_a_checkpoint_that_panics_is_told() {
        let f = fixture();
        let ticket = f.ask(NOW);
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _turn = f.turn();
                f.asks.is_cut(&CheckpointOptions::default());
                panic!("as if something were amiss");
            });
            assert!(panics.join().is_err());
        });
        assert!(matches!(f.board.outcome(ticket), Outcome::Failed { .. }));
        f.conclude(Ok(IMAGE));
        assert!(matches!(f.board.outcome(ticket), Outcome::Failed { .. }));
    }

    /// It tries for itself then, and hears why there is none.
    #[test]
    fn who_asks_during_an_approach_that_fails_finds_nobody_else_at_it() {
        let f = fixture();
        let turn = f.turn();
        let mut approach = f.approach();
        assert!(!approach.is_reached(|| true));
        f.ask(NOW);
        std::thread::scope(|scope| {
            let tries = scope.spawn(|| {
                let asked = f.asks.next().unwrap();
                (asked.len(), f.cutting.try_lock().is_ok())
            });
            drop(approach);
            std::thread::sleep(LOOK);
            assert!(!tries.is_finished());
            turn.ends(Err(&busy()));
            assert_eq!(tries.join().unwrap(), (1, true));
        });
    }

    #[test]
    fn a_job_that_has_spoilt_its_board_is_restarted_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(BOARD)).unwrap();
        let asks = Asks::default();
        asks.begin(dir.path(), Some(IMAGE.parse().unwrap()), Duration::ZERO).unwrap();
        let refused = asks.note(NOW, InnerPid(2)).unwrap_err();
        assert_eq!(refused.kind, Kind::Failed);
        assert!(Asks::default().begin(dir.path(), None, Duration::ZERO).is_err());
    }

    #[test]
    fn a_checkpoint_waits_for_a_point_and_who_comes_later_goes_on() {
        let f = fixture();
        let early = f.ask(Question::AtPoint);
        assert_eq!(f.board.outcome(early), Outcome::Unwanted);
        f.ask(Question::HasPoints);
        let mut approach = f.approach();
        assert!(!approach.is_reached(|| true));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| approach.is_reached(|| false));
            let ticket = f.ask(Question::AtPoint);
            assert!(waiting.join().unwrap());
            assert_eq!(f.board.outcome(f.ask(Question::AtPoint)), Outcome::Unwanted);
            f.asks.is_cut(&CheckpointOptions::default());
            f.conclude(Err(&busy()));
            assert_eq!(f.board.outcome(ticket), Outcome::Failed { code: 4, text: "another one".into() });
        });
        // Gone on to a further try, it is still there.
        assert!(approach.is_reached(|| true));
    }

    /// The one that waits for a point takes the other's checkpoint, too.
    #[test]
    fn who_asks_for_one_now_is_waited_for_no_longer() {
        let f = fixture();
        let mut approach = f.approach();
        let ticket = f.ask(NOW);
        assert!(approach.is_reached(|| false));
        f.asks.is_cut(&CheckpointOptions::default());
        drop(approach);
        f.conclude(Ok(IMAGE));
        assert_eq!(f.board.outcome(ticket), Outcome::Published { image: IMAGE.into() });
    }

    #[test]
    fn no_point_is_waited_for_longer_than_was_said() {
        let f = fixture();
        let mut approach = Approach { patience: Duration::from_millis(50), ..f.approach() };
        assert!(approach.is_reached(|| false));
        assert_eq!(f.board.outcome(f.ask(Question::AtPoint)), Outcome::Unwanted);
    }

    /// The header's names are those of our exit codes.
    #[test]
    fn failures_are_called_as_the_header_has_them() {
        let header = include_str!("../../ask/include/dormouse.h");
        for (name, kind) in [
            ("FAILED", Kind::Failed),
            ("USAGE", Kind::Usage),
            ("BUSY", Kind::Busy),
            ("NOT_IDLE", Kind::NotIdle),
            ("REFUSED", Kind::Refused),
            ("DAMAGED", Kind::Damaged),
            ("MISMATCH", Kind::Mismatch),
            ("UNAVAILABLE", Kind::Unavailable),
            ("STORE", Kind::Store),
            ("ENDED", Kind::Ended),
        ] {
            let line = format!("    DORMOUSE_{name} = -{}, ", kind.exit_code());
            assert!(header.contains(&line), "{line:?}");
        }
    }

    #[test]
    fn who_asks_too_often_is_refused() {
        let f = fixture();
        for _ in 0..WAITING_MAX {
            f.ask(NOW);
        }
        assert_eq!(f.asks.note(NOW, InnerPid(2)).unwrap_err().kind, Kind::Busy);
        let mut allowance = Allowance::default();
        let now = Instant::now();
        let granted =
            |allowance: &mut Allowance, now| (0..1000).filter(|_| allowance.is_granted(now)).count();
        assert_eq!(granted(&mut allowance, now), 64);
        assert_eq!(granted(&mut allowance, now + Duration::from_secs(1)), 32);
        assert_eq!(granted(&mut allowance, now + Duration::from_secs(100)), 64);
    }
}
