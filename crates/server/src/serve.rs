//! A server process: its session, and the supervisor's questions.

use crate::again;
use crate::capture::{Begun, CaptureError, CopyBudget, CopyRoom, Cut, Reads, Taken, Written, is_memory_of};
use crate::control::{self, Answer, Ask, Cause, Fills, Lines, Origin, Question, Reply, Start};
use crate::memory::Layout;
use crate::memory::Managed;
use crate::restore::{Patience, Prepared, Progress, RestoreError};
use crate::session::{Config, Rings, Session};
use crate::sharing::Sharing;
use crate::watch::{Course, Outcome, Recorder, Steering, Watch};
use backend::Backend;
use image::{ImageId, ObjectKind, RawPath, SessionId};
use plan::follow::Passed;
use plan::planfile::Plan;
use plan::units::Nanos;
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use std::fmt::Write as _;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::{Access, ChunkWriter, OpenError, Receipt, WriteError, WriteOptions};
use thiserror::Error;
use transport::{ServerSession, TransportError};

/// The descriptor on which a server finds its supervisor.
const CONTROL_FD: i32 = 3;
/// The descriptor on which it finds the broker of what sessions share.
const BROKER_FD: i32 = 4;
/// The longest plan that is read, bytes.
const PLAN_MAX: u64 = 256 << 20;
/// The most that a capture takes into the host's memory of what changed while it was under way, bytes; for more, another one is made, when nothing changes any more.
const LATE: u64 = 256 << 20;
/// Progress is told in steps of so many bytes.
const PROGRESS: u64 = 64 << 20;

/// Why a server ended without being asked to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The control socket is missing or broken, or what comes over it is no question.
    #[error("the supervisor's socket (descriptor {CONTROL_FD}): {0}")]
    Socket(#[from] io::Error),
    /// No device.
    #[error("no device: {0}")]
    Device(String),
    /// The session's files.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The session could not be made again.
    #[error("session {session} cannot be restored")]
    Restore {
        /// Which.
        session: u32,
        /// Why.
        source: RestoreError,
    },
    /// The image could not be opened.
    #[error("image {image} cannot be opened: {reason}")]
    Image {
        /// Which.
        image: String,
        /// Why.
        reason: String,
    },
}

impl ServeError {
    /// Whether the supervisor has ended without saying so, as when it was killed: the server ends then, and nobody has to be told.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        let gone = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
        };
        matches!(self, Self::Socket(error) if gone(error))
    }
}

/// Both directions of the control socket.
struct Supervisor {
    from: Lines<UnixStream>,
    to: Mutex<UnixStream>,
    /// Number of the question in hand.
    asked: AtomicU64,
}

impl Supervisor {
    fn on(fd: OwnedFd) -> Result<Self, ServeError> {
        let socket = UnixStream::from(fd);
        let from = Lines::of(socket.try_clone()?);
        Ok(Self { from, to: Mutex::new(socket), asked: AtomicU64::new(0) })
    }

    /// The next question; `None` when the supervisor is gone.
    fn question(&mut self) -> Result<Option<Ask>, ServeError> {
        let Some(Question { number, ask }) = self.from.receive()? else { return Ok(None) };
        self.asked.store(number, Ordering::Relaxed);
        Ok(Some(ask))
    }

    fn answer(&self, answer: Answer) -> Result<(), ServeError> {
        let reply = Reply { number: self.asked.load(Ordering::Relaxed), answer };
        Ok(control::say(&mut *crate::lock(&self.to), &reply)?)
    }
}

/// Serves one application process until its supervisor ends it: session number `session`, whose files lie in `dir`, on
/// the device that `open` gives; a new session's memory is laid out by `layout`. The supervisor is on file descriptor 3, and if
/// the session `shares` with others, its broker on 4.
///
/// # Errors
/// [`ServeError`]; the supervisor has been told, if it is still there.
pub fn serve(
    dir: &Path,
    session: u32,
    layout: Layout,
    (shares, settings): (bool, Settings),
    open: impl FnOnce() -> Result<Arc<dyn Backend>, String>,
) -> Result<(), ServeError> {
    raise_descriptors();
    // SAFETY: by agreement with the supervisor, which made this process, the descriptor is open and nobody else's.
    let control = unsafe { OwnedFd::from_raw_fd(CONTROL_FD) };
    // SAFETY: the same.
    let broker = shares.then(|| unsafe { OwnedFd::from_raw_fd(BROKER_FD) });
    let start = again::start();
    serve_on(
        Ends { control, broker, settings, start, again: again::begin, over: end_soon },
        dir,
        session,
        layout,
        open,
    )
}

/// How long a server may take to give back what its session had. All of it goes with the process anyway.
const GIVES_BACK_WITHIN: Duration = Duration::from_secs(1);

/// Ends this process if it does not end by itself.
fn end_soon() {
    let wait = || {
        std::thread::sleep(GIVES_BACK_WITHIN);
        tracing::debug!("work that does not end is left to the device");
        let _ = kill_process(getpid(), Signal::KILL);
    };
    if let Err(error) = std::thread::Builder::new().name("ending".into()).spawn(wait) {
        tracing::warn!(%error, "this server waits for work that the device has, however long that takes");
    }
}

/// Lets this process have as many descriptors as it may: each region of managed memory with shadow pages has a file that is open.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "this server has as few descriptors as it had");
    }
}

/// How long turns of marked kernels may be.
pub const TURNS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// What a server is told of how programs run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// How managed memory is had.
    pub managed: Managed,
    /// How long a marked kernel may have a device that other streams of the session wait for; as long as it takes, if that is not said.
    pub preempt_after: Option<Duration>,
}

/// Where a server finds its supervisor.
pub struct Ends {
    /// The socket of the supervisor.
    pub control: OwnedFd,
    /// That of its broker.
    pub broker: Option<OwnedFd>,
    /// How programs run.
    pub settings: Settings,
    /// What the supervisor has said already.
    pub start: Option<Start>,
    /// Begins the process again, if it can: addresses that it needs are taken, and it gets others then.
    pub again: fn(&Start),
    /// Is told that the session is over. What it has is given back from here on, which waits for work that the device has, and that may wait for ever.
    pub over: fn(),
}

/// [`serve`] with any socket.
///
/// # Errors
/// As [`serve`].
pub fn serve_on(
    ends: Ends,
    dir: &Path,
    session: u32,
    layout: Layout,
    open: impl FnOnce() -> Result<Arc<dyn Backend>, String>,
) -> Result<(), ServeError> {
    let Ends { control, broker, settings, start, again, over } = ends;
    let Settings { managed, preempt_after } = settings;
    let mut supervisor = Supervisor::on(control)?;
    let Some(start) = start.map_or_else(|| supervisor.from.receive(), |start| Ok(Some(start)))? else {
        return Ok(());
    };
    let begun = Instant::now();
    let told = |what: &str| tracing::debug!("{what} after {:.3} s", begun.elapsed().as_secs_f64());
    // Before there is a device library, which takes addresses.
    let prepared = prepare(&start, session);
    if let Err(ServeError::Restore { source: RestoreError::Addresses(_), .. }) = &prepared {
        again(&start);
    }
    if let Ok(Some((opened, _))) = &prepared {
        read_ahead(opened.clone(), session);
    }
    told("what is to be restored is read");
    let served = prepared.and_then(|prepared| {
        let sharing = match broker {
            Some(broker) => Sharing::over(broker)?,
            None => Sharing::alone(),
        };
        Ok((prepared, sharing, open().map_err(ServeError::Device)?))
    });
    told("the device library is there");
    let served = served.and_then(|(prepared, sharing, backend)| match start {
        Start::Rehearsal => rehearsal(&mut supervisor, dir, backend),
        Start::Fresh => {
            let link = ServerSession::create(dir)?;
            let config = Config { dir: dir.to_owned(), layout, sharing, managed };
            let made = Session::new(backend, link, config, 0);
            let mut server = Server::of(made, session, preempt_after);
            server.start()?;
            server.run(&mut supervisor, over)
        }
        Start::Restore { fills, .. } => {
            let Some((opened, prepared)) = prepared else { return Ok(()) };
            let from = (&opened, prepared, fills);
            let made = restore(&supervisor, (dir, sharing, managed), session, backend, from)?;
            // The session goes on without its image, which may be removed; what fills its memory has it open until that is over.
            drop(opened);
            Server::of(made, session, preempt_after).run(&mut supervisor, over)
        }
    });
    if let Err(error) = &served {
        // The supervisor may be gone; then nobody has to be told.
        let _ = supervisor.answer(failed(chain(error), Cause::Other));
    }
    served
}

/// What a session is restored from, and its addresses.
fn prepare(start: &Start, session: u32) -> Result<Option<(store::Image, Prepared)>, ServeError> {
    let Start::Restore { store, image, origin, .. } = start else { return Ok(None) };
    let failed = |reason: String| ServeError::Image { image: image.clone(), reason };
    let id: ImageId = image.parse().map_err(|error: image::ParseIdError| failed(error.to_string()))?;
    let opened = store.open().map_err(|error| failed(chain(&error)))?;
    let opened = match origin {
        Origin::Store => opened.open_image(&id),
        Origin::Arriving => opened.open_arriving(&id),
        Origin::Own => opened.open_image(&id).map(store::Image::trusted),
    };
    let opened = opened.map_err(|error| failed(chain(&error)))?;
    let prepared =
        Prepared::of(&opened, session).map_err(|source| ServeError::Restore { session, source })?;
    Ok(Some((opened, prepared)))
}

/// Has a session's device memory read from the disk, while there is neither a device nor anything on it.
fn read_ahead(opened: store::Image, session: u32) {
    let is_of_it = move |kind: &ObjectKind| is_memory_of(kind, SessionId(session.into()));
    let ahead = move || opened.read_ahead(is_of_it, host::memory::available() / 2);
    if let Err(error) = std::thread::Builder::new().name("reading ahead".into()).spawn(ahead) {
        tracing::debug!(%error, "nothing is read ahead");
    }
}

fn restore(
    supervisor: &Supervisor,
    (dir, sharing, managed): (&Path, Arc<Sharing>, Managed),
    session: u32,
    backend: Arc<dyn Backend>,
    (opened, prepared, fills): (&store::Image, Prepared, Fills),
) -> Result<Arc<Session>, ServeError> {
    let total = opened.manifest().stored.total;
    let told = Mutex::new((0, 0));
    let link = ServerSession::attach(dir)?;
    let tell = |bytes: u64| {
        let mut told = crate::lock(&told);
        told.0 += bytes;
        if told.0 - told.1 >= PROGRESS {
            told.1 = told.0;
            // A supervisor that is gone is noticed at the next question.
            let _ = supervisor.answer(Answer::Progress { done: told.0, total });
        }
    };
    let patience = match fills {
        Fills::Before => Patience::All(&tell),
        Fills::Beside => Patience::Some,
        Fills::Lazily => Patience::Little,
    };
    Session::restore(backend, link, (dir.to_owned(), sharing, managed), prepared, opened, patience)
        .map_err(|source| ServeError::Restore { session, source })
}

fn rehearsal(supervisor: &mut Supervisor, dir: &Path, backend: Arc<dyn Backend>) -> Result<(), ServeError> {
    supervisor.answer(Answer::Ready { device: backend.describe() })?;
    let Some(ask) = supervisor.question()? else { return Ok(()) };
    let answer = match ask {
        Ask::Rehearse { state } => {
            let link = ServerSession::create(dir)?;
            let rehearsed = std::fs::read(state.as_path())
                .map_err(|error| (format!("{state}: {error}"), Cause::Other))
                .and_then(|state| {
                    Session::rehearse(backend, link, dir.to_owned(), &state)
                        .map_err(|error| (chain(&error), cause_of(&error)))
                });
            match rehearsed {
                Ok(()) => Answer::Done,
                Err((message, cause)) => failed(message, cause),
            }
        }
        other => not_now(&other),
    };
    supervisor.answer(answer)
}

/// What a rehearsal's failure is put down to.
fn cause_of(error: &RestoreError) -> Cause {
    match error {
        error if error.is_out_of_memory() => Cause::DeviceMemory,
        error if error.is_of_the_session() => Cause::Differs,
        _ => Cause::Other,
    }
}

fn failed(message: String, cause: Cause) -> Answer {
    Answer::Failed { message: control::short(message), cause }
}

fn not_now(ask: &Ask) -> Answer {
    failed(format!("{ask:?} cannot be asked for now"), Cause::Other)
}

/// A running session and the supervisor's questions about it.
struct Server {
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
    fn of(session: Arc<Session>, number: u32, preempt_after: Option<Duration>) -> Self {
        Self { session, number, preempt_after, rings: None, ready: None, begun: None, taken: None }
    }

    /// Serves the session until it is told to end, or nobody is left to tell it anything.
    fn run(mut self, supervisor: &mut Supervisor, over: fn()) -> Result<(), ServeError> {
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
                Ask::Write { states } => match self.taken.take() {
                    Some(taken) => {
                        self.write(taken, supervisor, states.as_path()).unwrap_or_else(|failed| failed)
                    }
                    None => failed("nothing has been captured".to_owned(), Cause::Other),
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

    fn start(&mut self) -> Result<(), ServeError> {
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
    fn write(
        &self,
        (taken, writer): (Taken, ChunkWriter),
        supervisor: &Supervisor,
        states: &Path,
    ) -> Result<Answer, Answer> {
        let mut told = Told::of(supervisor, taken.kept.on_device + taken.kept.on_host);
        // Nobody needs an image whose supervisor is gone, and the device is not to be held for it.
        let written = taken.write(&writer, &mut |bytes| told.add(bytes));
        let (state, seen) = written.map_err(|error| self.not_captured(&error))?;
        let receipt: Receipt = writer.finish().map_err(of_store)?;
        self.session.remember(seen, &receipt);
        let receipt = receipt.to_bytes().map_err(of_store)?;
        let files = [
            (control::state_file(states, self.number), &state),
            (control::receipt_file(states, self.number), &receipt),
        ];
        for (file, bytes) in files {
            std::fs::write(&file, bytes)
                .map_err(|error| failed(format!("cannot write {}: {error}", file.display()), Cause::Other))?;
        }
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

/// An error and what it comes from, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        // Writing to a string does not fail.
        let _ = write!(text, ": {source}");
        next = source.source();
    }
    text
}
