//! A running session, and the supervisor's questions about it, one after another.

use super::{PROGRESS, ServeError, Supervisor, chain, failed, not_now};
use crate::capture::{Begun, CaptureError, CopyBudget, CopyRoom, Cut, Reads, Taken, Written};
use crate::control::{self, Answer, Ask, Cause};
use crate::restore::Progress;
use crate::session::{Rings, Session};
use crate::watch::{Course, Outcome, Recorder, Steering, Watch};
use image::{ImageId, RawPath};
use plan::follow::Passed;
use plan::planfile::Plan;
use plan::units::Nanos;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use store::{Access, ChunkWriter, OpenError, Receipt, WriteError, WriteOptions};

/// The longest plan that is read, bytes.
const PLAN_MAX: u64 = 256 << 20;
/// The most that a capture takes into the host's memory of what changed while it was under way, bytes; for more, another one is made, when nothing changes any more.
const LATE: u64 = 256 << 20;

/// A running session and the supervisor's questions about it.
pub(super) struct Server {
    session: Arc<Session>,
    number: u32,
    preempt_after: Option<Duration>,
    /// The rings' threads, once messages have been taken.
    rings: Option<JoinHandle<()>>,
    /// For the next capture.
    ready: Option<Ready>,
    /// A capture that is to be finished.
    begun: Option<(Begun, ChunkWriter, Reads)>,
    /// What was captured and is not written.
    taken: Option<(Taken, ChunkWriter)>,
}

/// A writer of a draft, and room for copies.
struct Ready {
    writer: ChunkWriter,
    room: CopyRoom,
    reads: Reads,
}

/// Why there are no more questions.
enum Last {
    /// The session was told to end.
    End,
    /// The supervisor is gone.
    Unasked,
}

/// Where the gate is, as the supervisor has it.
enum Gate {
    /// Messages are taken.
    Open,
    /// They are not, and this is what there is to capture, if it could be read.
    Closed(Option<Box<Cut>>),
}

impl Server {
    /// That of session number `number`, which takes no messages yet.
    pub(super) fn of(session: Arc<Session>, number: u32, preempt_after: Option<Duration>) -> Self {
        Self { session, number, preempt_after, rings: None, ready: None, begun: None, taken: None }
    }

    /// Serves the session until it is told to end, or nobody is left to tell it anything.
    pub(super) fn run(mut self, supervisor: &mut Supervisor, over: fn()) -> Result<(), ServeError> {
        let session = Arc::clone(&self.session);
        let served = self.answer_questions(supervisor);
        let is_orphaned = match &served {
            Ok(last) => matches!(last, Last::Unasked),
            Err(error) => error.is_orphaned(),
        };
        if is_orphaned {
            // The job is ended, and nothing of it may go on without its device: it would read zeros, or see CUDA fail.
            session.end_application();
        }
        session.end();
        // It is written already, but where nobody has asked for the end.
        self.end_profile();
        over();
        session.shadows.await_rest();
        if let (Ok(Last::End), Some(rings)) = (&served, self.rings.take()) {
            // One that panicked has said so.
            let _ = rings.join();
        }
        served.map(drop)
    }

    fn answer_questions(&mut self, supervisor: &mut Supervisor) -> Result<Last, ServeError> {
        let (mut captured_changes, mut gate) = match self.rings {
            // It was made again from a capture.
            None => (Some(crate::read(&self.session.table).changes), Gate::Closed(None)),
            Some(_) => (None, Gate::Open),
        };
        supervisor.answer(Answer::Ready { device: self.session.backend().describe() })?;
        while let Some(ask) = supervisor.question()? {
            let answer = match ask {
                Ask::Filling => self.filling(),
                Ask::Fill => self.fill(supervisor),
                Ask::Watch { profile, course, passed } => self.watch(profile, course, passed),
                Ask::Approach => match self.session.watch().steering() {
                    Some(steering) => Answer::Approach(steering.approach()),
                    None => not_now(&ask),
                },
                Ask::Await { within_ms } => match self.session.watch().steering() {
                    Some(steering) => Answer::Come { come: steering.wait(Duration::from_millis(within_ms)) },
                    None => not_now(&ask),
                },
                Ask::Devices => Answer::Devices { devices: self.session.used_devices() },
                Ask::Prepare { store, draft, compress, memory, threads, pack_len, reread, reads, copies }
                    if matches!(gate, Gate::Open) && !self.session.is_filling() =>
                {
                    // What is left of a checkpoint that came to nothing goes before more is had.
                    self.ready = None;
                    let options = WriteOptions { compress, threads, memory, pack_len, reread };
                    match join(&store, &draft, &options) {
                        Ok(writer) => {
                            let room = copies.map(|budget| self.room(budget, supervisor));
                            let room = room.unwrap_or_else(CopyRoom::none);
                            self.session.prepare_comparison();
                            self.ready = Some(Ready { writer, room, reads });
                            Answer::Done
                        }
                        Err(failed) => failed,
                    }
                }
                Ask::Gate { deadline_ms } if matches!(gate, Gate::Open) => {
                    let (answer, now) = self.gate(Duration::from_millis(deadline_ms), captured_changes);
                    gate = now;
                    if matches!(gate, Gate::Open) {
                        self.ready = None;
                    }
                    answer
                }
                Ask::BeginCapture => self.begin(&gate).map_or_else(|failed| failed, |()| Answer::Done),
                Ask::Capture => {
                    let captured = self.capture(&gate, supervisor);
                    if captured.is_ok() {
                        captured_changes = Some(crate::read(&self.session.table).changes);
                    }
                    captured.unwrap_or_else(|failed| failed)
                }
                Ask::Leave { states } => self.leave(states.as_path()).unwrap_or_else(|failed| failed),
                Ask::Write { states } => match self.taken.take() {
                    Some(taken) => {
                        self.write(taken, supervisor, states.as_path()).unwrap_or_else(|failed| failed)
                    }
                    None => nothing_captured(),
                },
                Ask::Keep => match self.session.keep_shadows_again() {
                    Ok(()) => Answer::Done,
                    Err(failure) => failed(failure.detail, Cause::Other),
                },
                Ask::Ungate { keep } => {
                    if !matches!(gate, Gate::Open) {
                        gate = Gate::Open;
                        self.ungate()?;
                    }
                    self.ready = None;
                    // What was begun and not finished has come to nothing.
                    self.begun = None;
                    self.session.shadows.noted();
                    if !keep {
                        self.taken = None;
                    }
                    if let Some(steering) = self.session.watch().steering() {
                        steering.release();
                    }
                    Answer::Done
                }
                Ask::End => {
                    self.session.end();
                    self.end_profile();
                    supervisor.answer(Answer::Ended)?;
                    return Ok(Last::End);
                }
                other => not_now(&other),
            };
            supervisor.answer(answer)?;
        }
        Ok(Last::Unasked)
    }

    /// Begins to watch the program. What cannot be watched is warned of: the program runs all the same.
    fn watch(&self, profile: Option<RawPath>, course: Option<Course>, passed: Option<Passed>) -> Answer {
        let watch = self.session.watch();
        let begun = profile.map_or(Ok(()), |file| {
            let recorder = Recorder::begin(file.as_path().to_owned());
            recorder.map(|recorder| watch.record(recorder)).map_err(|error| format!("no profile: {error}"))
        });
        let steered = course.map_or(Ok(()), |course| steer(watch, course, passed));
        self.session.tell_watch();
        for problem in [begun, steered].into_iter().filter_map(Result::err) {
            tracing::warn!("session {}: {problem}", self.number);
        }
        Answer::Done
    }

    /// Writes the profile, if there is one to write.
    fn end_profile(&self) {
        let Some(recorder) = self.session.watch().recorder() else { return };
        match recorder.end() {
            Ok(Some(Outcome { full: Some(full), .. })) => {
                tracing::warn!(
                    "the profile of session {} ends at {full}: it has no room for more kernels",
                    self.number
                );
            }
            Ok(_) => {}
            Err(error) => tracing::warn!("there is no profile of session {}: {error}", self.number),
        }
    }

    /// How far the filling of memory is.
    fn filling(&self) -> Answer {
        match self.session.filling() {
            None => Answer::Filling { done: 0, total: 0 },
            Some(Progress { failure: Some(failure), .. }) => failed(
                format!("the device memory of session {} cannot be filled: {}", self.number, chain(&failure)),
                Cause::Store,
            ),
            Some(Progress { done, total, .. }) => Answer::Filling { done, total },
        }
    }

    /// Waits until memory is filled.
    fn fill(&self, supervisor: &Supervisor) -> Answer {
        let total = self.session.filling().map_or(0, |filling| filling.total);
        let mut told = Told::of(supervisor, total);
        // A supervisor that is gone is noticed at the next question.
        let _ = told.tell();
        let filled = self.session.finish_filling(|Progress { done, .. }| {
            let _ = told.add(done - told.done);
        });
        match filled {
            Ok(()) => Answer::Done,
            Err(failure) => failed(
                format!("session {} cannot be restored: {}", self.number, chain(&failure)),
                Cause::Other,
            ),
        }
    }

    /// Room for copies. The supervisor hears meanwhile that it takes long.
    fn room(&self, budget: CopyBudget, supervisor: &Supervisor) -> CopyRoom {
        let mut told = Told::of(supervisor, 0);
        // For a supervisor that is gone nobody makes room.
        self.session.room_for_copies(budget, &mut |bytes| told.add(bytes))
    }

    fn gate(&self, deadline: Duration, captured_changes: Option<u64>) -> (Answer, Gate) {
        if let Err(holders) = self.session.close_gate(deadline) {
            return (Answer::Busy { holders: control::few(holders) }, Gate::Open);
        }
        if let Some(steering) = self.session.watch().steering() {
            steering.cut();
        }
        let mut refusals = self.session.refusals();
        let cut = self.session.cut();
        if let Err(error) = &cut {
            refusals.push(format!("the device library answered {error} to questions about its objects"));
        }
        let cut = cut.ok().map(Box::new);
        let bytes = cut.as_deref().map_or(0, Cut::bytes);
        let table_changed = captured_changes != Some(crate::read(&self.session.table).changes);
        (Answer::Idle { refusals: control::few(refusals), table_changed, bytes }, Gate::Closed(cut))
    }

    fn ungate(&mut self) -> Result<(), ServeError> {
        if self.rings.is_some() {
            self.session.open_gate();
            return Ok(());
        }
        self.start()
    }

    pub(super) fn start(&mut self) -> Result<(), ServeError> {
        self.session.announce();
        self.rings = Some(Rings::start(&self.session, self.preempt_after)?);
        Ok(())
    }

    /// Begins a capture; `Err` with the answer when that failed.
    fn begin(&mut self, gate: &Gate) -> Result<(), Answer> {
        let (Gate::Closed(Some(cut)), Some(Ready { writer, room, reads })) = (gate, self.ready.take()) else {
            return Err(failed("a capture comes after Prepare and Gate".to_owned(), Cause::Other));
        };
        let shadows = &self.session.shadows;
        // No page is dropped while tasks run: what direct I/O under way writes into one would be lost.
        let written = shadows.separate().and_then(|()| shadows.write_ahead());
        written.map_err(|failure| failed(failure.detail, Cause::Other))?;
        shadows.note_writes();
        let begun = self.session.begin_capture(cut, self.number, &writer, room, reads);
        self.begun = Some((begun.map_err(|error| self.not_captured(&error))?, writer, reads));
        Ok(())
    }

    /// `Err` with the answer when it failed.
    fn capture(&mut self, gate: &Gate, supervisor: &Supervisor) -> Result<Answer, Answer> {
        if self.begun.is_none() {
            self.begin(gate)?;
        }
        let (Gate::Closed(Some(cut)), Some((mut begun, writer, reads))) = (gate, self.begun.take()) else {
            return Err(failed("no capture has begun".to_owned(), Cause::Other));
        };
        let shadows = &self.session.shadows;
        shadows.write_back().map_err(|failure| failed(failure.detail, Cause::Other))?;
        let mut written = Written::of(shadows.noted());
        if begun.late_bytes(&written) > LATE {
            let again = self.session.begin_capture(cut, self.number, &writer, begun.give_up(), reads);
            begun = again.map_err(|error| self.not_captured(&error))?;
            written = Written::default();
        }
        let mut told = Told::of(supervisor, begun.bytes_left());
        let taken = self.session.finish_capture(begun, &written, &writer, &mut |bytes| {
            // A supervisor that is gone is noticed at the next question.
            let _ = told.add(bytes);
        });
        let taken = taken.map_err(|error| self.not_captured(&error))?;
        let passed = self.session.watch().steering().and_then(Steering::passed).map(Box::new);
        let (kept, devices) = (taken.kept, taken.devices.clone());
        let answer = Answer::Captured { kept, devices, passed, half_way: taken.half_way() };
        self.taken = Some((taken, writer));
        Ok(answer)
    }

    /// `Err` with the answer when it failed.
    fn leave(&self, states: &Path) -> Result<Answer, Answer> {
        let taken = self.taken.as_ref().ok_or_else(nothing_captured)?;
        let state = taken.0.state().map_err(|error| self.not_captured(&error))?;
        write_file(&control::state_file(states, self.number), &state)?;
        Ok(Answer::Left { free: self.session.least_free().unwrap_or(u64::MAX) })
    }

    /// `Err` with the answer when it failed.
    fn write(
        &self,
        (taken, writer): (Taken, ChunkWriter),
        supervisor: &Supervisor,
        states: &Path,
    ) -> Result<Answer, Answer> {
        let mut told = Told::of(supervisor, taken.kept.on_device + taken.kept.on_host);
        // Nobody needs an image whose supervisor is gone, and the device is not to be held for it.
        let written = taken.write(&writer, &mut |bytes| told.add(bytes));
        let seen = written.map_err(|error| self.not_captured(&error))?;
        let receipt: Receipt = writer.finish().map_err(of_store)?;
        self.session.remember(seen, &receipt);
        let receipt = receipt.to_bytes().map_err(of_store)?;
        write_file(&control::receipt_file(states, self.number), &receipt)?;
        Ok(Answer::Written { receipt_bytes: receipt.len() as u64 })
    }

    fn not_captured(&self, error: &CaptureError) -> Answer {
        if let Some(code) = error.device_failure() {
            let when = "before its memory was written: that is lost with it, and nothing was published";
            return failed(
                format!("the device of session {} failed with {code} {when}", self.number),
                Cause::Differs,
            );
        }
        let cause = if error.is_of_the_store() { Cause::Store } else { Cause::Other };
        failed(format!("session {} was not captured: {}", self.number, chain(error)), cause)
    }
}

fn nothing_captured() -> Answer {
    failed("nothing has been captured".to_owned(), Cause::Other)
}

fn write_file(file: &Path, bytes: &[u8]) -> Result<(), Answer> {
    std::fs::write(file, bytes)
        .map_err(|error| failed(format!("cannot write {}: {error}", file.display()), Cause::Other))
}

/// How much of something the supervisor has been told of, in steps.
struct Told<'a> {
    supervisor: &'a Supervisor,
    done: u64,
    told: u64,
    total: u64,
}

impl<'a> Told<'a> {
    fn of(supervisor: &'a Supervisor, total: u64) -> Self {
        Self { supervisor, done: 0, told: 0, total }
    }

    fn add(&mut self, bytes: u64) -> io::Result<()> {
        self.done += bytes;
        if self.done - self.told < PROGRESS { Ok(()) } else { self.tell() }
    }

    fn tell(&mut self) -> io::Result<()> {
        self.told = self.done;
        let told = self.supervisor.answer(Answer::Progress { done: self.done, total: self.total });
        told.map_err(io::Error::other)
    }
}

/// Has the program steered; `Err` with a sentence.
fn steer(watch: &Watch, course: Course, passed: Option<Passed>) -> Result<(), String> {
    let steering = match course {
        Course::Online { every_ns, offset_ns } => Steering::online(Nanos(every_ns), Nanos(offset_ns)),
        Course::Plan { file } => {
            let about = |error: String| format!("the plan {file} cannot be followed: {error}");
            let plan = read_plan(file.as_path()).map_err(about)?;
            Steering::by_plan(&plan, passed).map_err(|error| about(error.to_string()))?
        }
    };
    watch.steer(steering);
    Ok(())
}

/// Reads a plan.
///
/// # Errors
/// Why it cannot be, as a sentence.
pub fn read_plan(file: &Path) -> Result<Plan, String> {
    let mut text = Vec::new();
    let opened = std::fs::File::open(file).and_then(|open| open.take(PLAN_MAX + 1).read_to_end(&mut text));
    opened.map_err(|error| error.to_string())?;
    if text.len() as u64 > PLAN_MAX {
        return Err(format!("it has more than {PLAN_MAX} bytes"));
    }
    Plan::from_json(&text).map_err(|error| error.to_string())
}

/// Joins a draft; `Err` with the answer when it failed.
fn join(store: &Access, draft: &str, options: &WriteOptions) -> Result<ChunkWriter, Answer> {
    let draft: ImageId =
        draft.parse().map_err(|error: image::ParseIdError| failed(error.to_string(), Cause::Other))?;
    let store = store.open().map_err(|error: OpenError| failed(chain(&error), Cause::Store))?;
    ChunkWriter::join(&store, draft, options).map_err(of_store)
}

fn of_store(error: WriteError) -> Answer {
    failed(chain(&error), Cause::Store)
}
