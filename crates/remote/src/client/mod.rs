//! The near end: what the server takes for a device.

mod backend;
mod chapters;
mod copies;
mod graphs;
mod incoming;
mod mirrors;
mod outgoing;
mod progress;
#[cfg(test)]
mod tests;
mod transfers;
mod uploads;

use crate::area::Area;
use crate::frame::{self, IN_PLACE, MAGIC, VERSION};
use crate::lanes::Lanes;
use crate::messages::{Hello, Mark, Message, Ping, Query, Watch, answer_limit};
use crate::ranges::Ranges;
use crate::workers::Workers;
use crate::{Choice, LOST, Patience, Wires, in_time, lock, looks_for};
use ::backend::{
    GraphFunction, HostFunction, LoadError, Range, RawContext, RawEvent, RawFunction, RawModule, Result,
    StreamArg,
};
use copies::Place;
use incoming::Held;
use mirrors::Mirrors;
use outgoing::Outgoing;
use progress::{Asked, Progress, Ticket};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, OnceLock, PoisonError, RwLock};
use std::thread::Builder;
use std::time::{Duration, Instant};
use transfers::Transfers;
use uploads::Uploads;
use wire::{CuError, Decoder, Wire};
use wires::BULK_MAX;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The streams broke, or what came is no greeting.
    #[error("the connection to the device machine broke while greeting: {0}")]
    Io(#[from] io::Error),
    /// The peer is something else, or of another version.
    #[error(
        "the peer speaks {0}, and this end speaks version {VERSION} of the protocol: use the same release on both machines"
    )]
    Version(String),
}

thread_local! {
    /// Whether this thread is inside of `place`.
    static PLACING: Cell<bool> = const { Cell::new(false) };
}

/// What is known of a function: what a launch is checked against.
struct Function {
    params: usize,
    max_threads: AtomicI32,
    max_dynamic: AtomicI32,
}

/// Where an answer is put, and how long it may be.
struct Slot(Mutex<Option<Answer>>, Condvar, usize);

/// How long a query waits for the far end to look.
const QUERY: Duration = Duration::from_millis(300);

type Answer = std::result::Result<Vec<u8>, LoadError>;

impl Slot {
    fn of<M: Message>() -> Arc<Self> {
        Arc::new(Self(Mutex::default(), Condvar::new(), answer_limit(M::OPCODE)))
    }

    fn fill(&self, answer: Answer) {
        lock(&self.0).get_or_insert(answer);
        self.1.notify_all();
    }

    fn look(&self) {
        let begun = Instant::now();
        while begun.elapsed() < looks_for() && lock(&self.0).is_none() {
            std::hint::spin_loop();
        }
    }

    /// Waits for an answer that says nothing, and may not come soon.
    fn wait_a_while(&self, most: Duration) {
        self.look();
        let _ = self.1.wait_timeout_while(lock(&self.0), most, |answer| answer.is_none());
    }

    fn wait(&self) -> Answer {
        self.look();
        let mut slot = lock(&self.0);
        loop {
            match slot.take() {
                Some(answer) => return answer,
                None => slot = self.1.wait(slot).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A function of the host that the far end may ask for.
#[derive(Clone)]
enum Callback {
    Once(Arc<Mutex<Option<HostFunction>>>),
    Graph(GraphFunction),
}

/// Device memory, as far as it is known here.
#[derive(Default)]
struct Space {
    /// With what keeps the addresses free of memory of this process's.
    reserved: Ranges<Area>,
    mapped: Ranges,
    /// Variables, by the module and the context that they go with.
    others: Ranges<(u64, u64)>,
}

/// A connection and all that is known of what lies behind it.
pub(crate) struct Link {
    hello: Hello,
    /// Numbers of the devices on their machine, in the order that they have here.
    chosen: Vec<usize>,
    out: Outgoing,
    progress: Progress,
    /// Held while a piece of work is pushed and counted: streams count in the order in which the far end hears of it, whoever gives it.
    order: Mutex<()>,
    transfers: Transfers,
    uploads: Uploads,
    mirrors: Mirrors,
    held: Held,
    space: RwLock<Space>,
    calls: Mutex<HashMap<u64, Arc<Slot>>>,
    callbacks: Mutex<HashMap<u64, Callback>>,
    functions: RwLock<HashMap<u64, Arc<Function>>>,
    /// Where variables in managed memory lie, by module.
    managed: Mutex<Vec<(u64, u64)>>,
    named: Mutex<HashMap<(u64, String), RawFunction>>,
    contexts: RwLock<HashMap<u64, usize>>,
    blocks: Mutex<HashMap<u64, u64>>,
    graphs: Mutex<HashMap<u64, graphs::Known>>,
    /// Host functions in streams that have not returned.
    hosting: AtomicUsize,
    /// Host functions of graphs that the far end has asked for, and that have not returned.
    called_back: AtomicUsize,
    /// Work that may be waiting for the host, where that is not known to be over.
    holds: Mutex<Vec<(progress::Key, u64)>>,
    /// Functions of graphs that are gone, to be forgotten when their last launch is over.
    retired: Mutex<Vec<graphs::Retired>>,
    output: Mutex<Vec<u8>>,
    workers: Workers,
    prints: AtomicBool,
    stepping: AtomicBool,
    next: AtomicU64,
    lost: AtomicBool,
    /// Why it is lost.
    why: OnceLock<String>,
    /// Whoever wants to know has been told that it is lost.
    told: Once,
    begun: Instant,
    /// When something was last heard, milliseconds since the beginning.
    heard: AtomicU64,
    hang_up: Arc<dyn Fn() + Send + Sync>,
    on_loss: Box<dyn Fn(&str) + Send + Sync>,
}

/// How often it is asked how far the other machine is.
const QUESTIONS: usize = 3;

/// A device on another machine.
pub struct RemoteBackend {
    link: Arc<Link>,
    /// Between the machines, as it was found at the beginning.
    round_trip: Duration,
}

/// What a thread of a session does.
type Task = Box<dyn FnOnce(&Arc<Link>) -> io::Result<()> + Send>;

impl RemoteBackend {
    /// Greets the far end, of whose devices there are those of `choice`. `lost` is told, once, why the connection is gone; from then on every call answers `DEVICE_UNAVAILABLE`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(
        wires: Wires,
        choice: &Choice,
        lost: impl Fn(&str) + Send + Sync + 'static,
    ) -> std::result::Result<Self, ConnectError> {
        let Wires { mut control_out, mut control_in, bulk_out, bulk_in, hang_up, patience } = wires;
        if bulk_in.len().max(bulk_out.len()) > BULK_MAX.into() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many bulk streams").into());
        }
        let mut hello = in_time(patience, &hang_up, || greet(&mut *control_out, &mut *control_in))?;
        let chosen = choice.of(&hello.devices);
        hello.devices = chosen.iter().filter_map(|number| hello.devices.get(*number).cloned()).collect();
        let weak: Arc<Mutex<std::sync::Weak<Link>>> = Arc::default();
        let broken = Arc::clone(&weak);
        let broke = move |why: &str| {
            let link = lock(&broken).upgrade();
            if let Some(link) = link {
                link.lose(why);
            }
        };
        let link = Arc::new(Link {
            hello,
            chosen,
            out: Outgoing::new(control_out),
            progress: Progress::default(),
            order: Mutex::default(),
            transfers: Transfers::default(),
            uploads: Uploads::new(Lanes::new(bulk_out, broke)?),
            mirrors: Mirrors::default(),
            held: Held::new(bulk_in.len()),
            space: RwLock::default(),
            calls: Mutex::default(),
            callbacks: Mutex::default(),
            functions: RwLock::default(),
            managed: Mutex::default(),
            named: Mutex::default(),
            contexts: RwLock::default(),
            blocks: Mutex::default(),
            graphs: Mutex::default(),
            hosting: AtomicUsize::new(0),
            called_back: AtomicUsize::new(0),
            holds: Mutex::default(),
            retired: Mutex::default(),
            output: Mutex::default(),
            workers: Workers::default(),
            prints: AtomicBool::new(false),
            stepping: AtomicBool::new(false),
            next: AtomicU64::new(1),
            lost: AtomicBool::new(false),
            why: OnceLock::new(),
            told: Once::new(),
            begun: Instant::now(),
            heard: AtomicU64::new(0),
            hang_up,
            on_loss: Box::new(lost),
        });
        *lock(&weak) = Arc::downgrade(&link);
        // Dropped when anything below fails: the threads that run already then end.
        let mut backend = Self { link, round_trip: Duration::ZERO };
        backend.start(control_in, bulk_in, patience)?;
        backend.round_trip = backend.measured();
        Ok(backend)
    }

    /// What the quickest of a few questions takes.
    fn measured(&self) -> Duration {
        if self.link.hello.devices.is_empty() {
            return Duration::ZERO;
        }
        let asked = |()| {
            let begun = Instant::now();
            // Where the connection is lost it does not matter any more.
            let _ = ::backend::Backend::can_access_peer(self, 0, 0);
            begun.elapsed()
        };
        std::iter::repeat_n((), QUESTIONS).map(asked).min().unwrap_or_default()
    }

    fn start(
        &self,
        mut control_in: Box<dyn Read + Send>,
        bulk_in: Vec<Box<dyn Read + Send>>,
        patience: Patience,
    ) -> io::Result<()> {
        let spawn = |name: &str, run: Task| {
            let link = Arc::clone(&self.link);
            let run = move || {
                if let Err(error) = run(&link) {
                    link.lose(&error.to_string());
                }
            };
            Builder::new().name(name.into()).spawn(run).map(drop)
        };
        spawn("remote-out", Box::new(|link| link.out.write()))?;
        spawn("remote-in", Box::new(move |link| link.receive(&mut *control_in)))?;
        for (lane, mut stream) in bulk_in.into_iter().enumerate() {
            spawn("remote-bulk-in", Box::new(move |link| link.receive_bulk(lane, &mut *stream)))?;
        }
        spawn("remote-alive", Box::new(move |link| link.stay_alive(patience)))
    }
}

impl Drop for RemoteBackend {
    fn drop(&mut self) {
        // What was submitted still goes out; nobody hears of the end that the owner has chosen.
        let _ = self.link.out.flush();
        self.link.lost.store(true, Ordering::Release);
        self.link.end();
        // Threads that have yet to notice hold on to the rest.
        *self.link.space() = Space::default();
    }
}

fn greet(
    to: &mut (dyn Write + Send),
    from: &mut (dyn Read + Send),
) -> std::result::Result<Hello, ConnectError> {
    to.write_all(&MAGIC)?;
    to.write_all(&VERSION.to_le_bytes())?;
    to.flush()?;
    let (mut magic, mut version) = ([0; 8], [0; 4]);
    from.read_exact(&mut magic)?;
    from.read_exact(&mut version)?;
    if magic != MAGIC {
        return Err(ConnectError::Version("something else".into()));
    }
    if version != VERSION.to_le_bytes() {
        return Err(ConnectError::Version(format!("version {}", u32::from_le_bytes(version))));
    }
    let mut body = Vec::new();
    frame::read(&mut &mut *from, |_| frame::SHORT_MAX, &mut body)?;
    let mut fields = Decoder::new(&body);
    let hello = Hello::decode(&mut fields).and_then(|hello| fields.finish().map(|()| hello));
    Ok(hello.map_err(|error| frame::invalid(error.to_string()))?)
}

impl Link {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Ends the session: everybody who waits is told.
    fn lose(&self, why: &str) {
        // What others find behind the hang-up is no reason.
        let why = self.why.get_or_init(|| why.to_owned());
        // Whoever reads or writes goes on, whatever it holds.
        (self.hang_up)();
        // Before anybody gets an error of it: a program that ends at one must not be gone before it is known why.
        if !self.is_lost() {
            self.told.call_once(|| {
                tracing::warn!("the connection to the device machine is lost: {why}");
                (self.on_loss)(why);
            });
        }
        // Before the program hears of it, which may give memory back then that something was still to come into.
        self.transfers.lose();
        // So that no query answers otherwise once a call has said that the connection is lost.
        self.progress.lose();
        if !self.lost.swap(true, Ordering::AcqRel) {
            self.end();
        }
    }

    fn end(&self) {
        (self.hang_up)();
        self.out.lose();
        self.progress.lose();
        self.transfers.lose();
        self.uploads.lose();
        for (_, slot) in lock(&self.calls).drain() {
            slot.fill(Err(LOST.into()));
        }
    }

    /// A name for something new at the far end.
    fn name(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn flags() -> u16 {
        if PLACING.get() { IN_PLACE } else { 0 }
    }

    /// A call without an answer.
    fn tell<M: Message>(&self, message: &M) {
        self.out.push(Self::flags(), 0, message);
    }

    /// The same by somebody who waits for what comes of it.
    fn tell_and_flush<M: Message>(&self, message: &M) {
        if let Err(error) = self.out.push_and_flush(Self::flags(), 0, message) {
            self.lose(&error.to_string());
        }
    }

    /// The same, never as a part of `place`, and never behind what the far end has yet to read.
    fn tell_always<M: Message>(&self, message: &M) {
        self.out.push_always(message);
    }

    /// A call and its answer.
    fn ask<M: Message>(&self, message: &M) -> Result<M::Reply> {
        self.ask_in_words(message).map_err(|error| error.code)
    }

    fn ask_in_words<M: Message>(&self, message: &M) -> std::result::Result<M::Reply, LoadError> {
        let (call, slot) = (self.name(), Slot::of::<M>());
        lock(&self.calls).insert(call, Arc::clone(&slot));
        if self.is_lost() {
            lock(&self.calls).remove(&call);
            return Err(LOST.into());
        }
        if let Err(error) = self.out.push_and_flush(Self::flags(), call, message) {
            self.lose(&error.to_string());
        }
        let body = slot.wait()?;
        let mut fields = Decoder::new(&body);
        let reply = M::Reply::decode(&mut fields).and_then(|reply| fields.finish().map(|()| reply));
        reply.map_err(|error| {
            self.lose(&format!("an answer is not what was asked for: {error}"));
            LOST.into()
        })
    }

    fn flush(&self) {
        if let Err(error) = self.out.flush() {
            self.lose(&error.to_string());
        }
    }

    /// The same where there may be nothing to write: somebody looks again and again for what comes of it.
    fn flush_rest(&self) {
        if self.out.has_rest() {
            self.flush();
        }
    }

    /// A piece of work for a stream.
    fn submit<M: Message>(&self, ctx: RawContext, stream: StreamArg, work: &M) -> Result<()> {
        self.progress.check(ctx)?;
        self.submit_checked(ctx, stream, work);
        Ok(())
    }

    /// The same once it has been checked that there is nothing to tell: what belongs to the call may be on its way.
    fn submit_checked<M: Message>(&self, ctx: RawContext, stream: StreamArg, work: &M) {
        self.give(progress::key(ctx, stream), work);
    }

    /// Pushes a piece of work; which one of its stream it is.
    fn give<M: Message>(&self, key: progress::Key, work: &M) -> u64 {
        let _order = lock(&self.order);
        self.tell(work);
        self.progress.submitted(key)
    }

    /// A piece of work waits for the host, or has the host run a function.
    fn note_hold(&self, place: (progress::Key, u64)) {
        let mut holds = lock(&self.holds);
        holds.retain(|place| !self.progress.has_passed(*place));
        holds.push(place);
    }

    /// Whether work that is under way may be waiting for something that the host has yet to do. What is behind it sees what the host writes
    /// until then.
    fn is_held(&self) -> bool {
        self.may_wait_for_word() || self.hosting.load(Ordering::Acquire) > 0
    }

    /// The same, where it may be the thread that is calling which has to do it.
    fn may_wait_for_word(&self) -> bool {
        let mut holds = lock(&self.holds);
        holds.retain(|place| !self.progress.has_passed(*place));
        !holds.is_empty()
    }

    fn mark(&self, ctx: RawContext, stream: StreamArg, ticket: u64) {
        self.tell_and_flush(&Mark { ctx, stream, ticket });
    }

    /// Whether a stream has come to its end; the far end is asked to tell when it has.
    fn ask_stream(&self, ctx: RawContext, stream: StreamArg) -> Result<bool> {
        match self.progress.ask_stream(progress::key(ctx, stream))? {
            Asked::Complete => return Ok(true),
            Asked::Ask(ticket) => {
                self.mark(ctx, stream, ticket);
            }
            Asked::Waiting => {}
        }
        Ok(false)
    }

    /// The same by somebody who may have heard otherwise that the stream has come to its end, and must not be told that it has not: the first
    /// question about new work waits until the far end has looked. It may be held up by other work, so not for ever.
    fn query(&self, ctx: RawContext, stream: StreamArg) -> Result<bool> {
        let ticket = match self.progress.ask_stream(progress::key(ctx, stream))? {
            Asked::Complete => return Ok(true),
            Asked::Waiting => return Ok(false),
            Asked::Ask(ticket) => ticket,
        };
        let (call, slot) = (self.name(), Slot::of::<Query>());
        lock(&self.calls).insert(call, Arc::clone(&slot));
        if let Err(error) = self.out.push_and_flush(Self::flags(), call, &Query { ctx, stream, ticket }) {
            self.lose(&error.to_string());
        }
        slot.wait_a_while(QUERY);
        self.ask_stream(ctx, stream)
    }

    fn ask_event(&self, ctx: RawContext, event: RawEvent) -> Result<bool> {
        match self.progress.ask_event(event)? {
            Asked::Complete => return Ok(true),
            Asked::Ask(ticket) => {
                self.tell_and_flush(&Watch { ctx, event, ticket });
            }
            Asked::Waiting => {}
        }
        Ok(false)
    }

    /// Has words of registered memory written when a stream comes here.
    fn notify(&self, ctx: RawContext, stream: StreamArg, words: Vec<::backend::MemoryOperation>) {
        let key = progress::key(ctx, stream);
        let ticket = self.progress.ticket(Ticket::Words(key, words));
        {
            let _order = lock(&self.order);
            self.tell(&Mark { ctx, stream, ticket });
            self.progress.submitted(key);
        }
        // Somebody polls them.
        self.flush();
    }

    /// Forgets what went with a module.
    fn module_gone(&self, module: RawModule) {
        let mut gone = HashSet::new();
        lock(&self.named).retain(|(of, _), function| {
            let kept = *of != module.0;
            if !kept {
                gone.insert(function.0);
            }
            kept
        });
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        functions.retain(|name, _| !gone.contains(name));
    }

    /// Remembers where a variable lies at the far end: what is neither there nor reserved is the host's to a copy, so a place that
    /// cannot be one must not go on to the program.
    fn variable_known(&self, range: Range, of: (u64, u64), name: &str) -> Result<()> {
        let is_far = || self.place_of(range.base, range.bytes) == Ok(Place::Far { mirrored: false });
        // It may lie in managed memory, or be asked for again, by another thread at this moment.
        let is_new = || self.place_of(range.base, range.bytes) == Ok(Place::Plain);
        if range.bytes == 0 || is_far() || (is_new() && self.space().others.insert(range, of)) || is_far() {
            return Ok(());
        }
        self.lose(&format!(
            "variable {name} is said to have {} bytes at {:#x}, where it cannot be",
            range.bytes, range.base
        ));
        Err(LOST)
    }

    /// Does what ends variables at the far end: they are forgotten before it, as others may lie there from then on.
    fn without_variables(
        &self,
        end: impl Fn(&(u64, u64)) -> bool,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let gone = self.space().others.take(end);
        work().inspect_err(|_| {
            let mut space = self.space();
            for (range, of) in gone {
                space.others.insert(range, of);
            }
        })
    }

    fn space(&self) -> std::sync::RwLockWriteGuard<'_, Space> {
        self.space.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn function_known(&self, function: RawFunction) -> Result<Arc<Function>> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        functions.get(&function.0).cloned().ok_or(CuError::INVALID_HANDLE)
    }

    /// Says something now and then, and listens whether anything is heard.
    fn stay_alive(&self, patience: Patience) -> io::Result<()> {
        let silence = patience.silence;
        let step = patience.says_every().min(Duration::from_millis(250));
        let mut said = Instant::now();
        while !self.is_lost() {
            std::thread::sleep(step);
            let heard = Duration::from_millis(self.heard.load(Ordering::Acquire));
            if self.begun.elapsed().saturating_sub(heard) > silence {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("nothing was heard for {silence:?}"),
                ));
            }
            if said.elapsed() >= patience.says_every() {
                self.out.push_if_room(&Ping {});
                said = Instant::now();
            }
        }
        Ok(())
    }

    /// Carries over what the host writes to mirrored memory while work runs, within milliseconds and for a small part of the
    /// time. Coherence does not rest on it: programs that poll do.
    fn keep_in_step(self: &Arc<Self>) {
        if self.stepping.swap(true, Ordering::AcqRel) {
            return;
        }
        let link = Arc::clone(self);
        let run = move || {
            while !link.is_lost() {
                let begun = Instant::now();
                link.push_changes();
                std::thread::sleep((begun.elapsed() * 30).max(Duration::from_millis(1)));
            }
        };
        let _ = Builder::new().name("remote-mirrors".into()).spawn(run);
    }
}
