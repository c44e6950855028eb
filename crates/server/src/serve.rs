//! A server process: how it comes to its session.

mod answers;

use self::answers::Server;
pub use self::answers::read_plan;
use crate::again;
use crate::capture::is_memory_of;
use crate::control::{self, Answer, Ask, Cause, Fills, Lines, Origin, Question, Reply, Start};
use crate::memory::Layout;
use crate::memory::Managed;
use crate::restore::{Patience, Prepared, RestoreError};
use crate::session::{Config, Session};
use crate::sharing::Sharing;
use backend::Backend;
use image::{ImageId, ObjectKind, SessionId};
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use std::fmt::Write as _;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use thiserror::Error;
use transport::{ServerSession, TransportError};

/// The descriptor on which a server finds its supervisor.
const CONTROL_FD: i32 = 3;
/// The descriptor on which it finds the broker of what sessions share.
const BROKER_FD: i32 = 4;
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
