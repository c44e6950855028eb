//! What belongs to a thread: its ring, its stack of contexts, its caches; and how a call uses them.

use std::cell::{Cell, UnsafeCell};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::{CuError, CuResult, sys};
use transport::{ClientRing, ClientSession, SLOTS, TraceKind, TransportError};
use wire::{
    Callee, Decoder, Encoder, EventId, FunctionId, KernelId, Launch, Message, Reply, StreamId, TakeOutput,
    Wire,
};

use super::context::{Context, Green};
use super::objects::{Callable, Event, Stream};
use super::registry::Cache;
use super::session::{SESSION, Session, session};
use super::{fork, forking, output};
use crate::graph;
use crate::log::{self, Level};

/// A thread's own.
pub struct Thread {
    ring: Ring,
    /// The context stack; the last is current.
    pub contexts: Vec<Arc<Context>>,
    /// The body of the message being made.
    body: Vec<u8>,
    reply: Vec<u8>,
    /// The launch being made: kept, so that its buffers are.
    pub launch: Launch,
    streams: Cache<Stream>,
    events: Cache<Event>,
    functions: Cache<Callable>,
    kernels: Cache<Callable>,
}

impl Thread {
    /// Puts what began at `start_ns` and ends now into the session's trace, if the thread has a ring of its own.
    pub fn trace(&self, kind: TraceKind, code: u16, start_ns: u64) {
        if let Ring::Own(line) = &self.ring {
            line.ring.trace(kind, code, start_ns);
        }
    }
}

/// A thread's ring.
enum Ring {
    /// It has sent nothing yet.
    None,
    /// Its own.
    Own(Line),
    /// All rings were taken when it needed one: for ever after it shares `Session::shared_line`, so that its default stream
    /// stays the same.
    Shared,
}

/// A ring with what is known of its staging slots.
pub struct Line {
    ring: ClientRing,
    /// Its staging slots.
    pub slots: Slots,
}

impl Line {
    fn new(ring: ClientRing) -> Self {
        Self { ring, slots: Slots::default() }
    }

    /// How many slots there are for a copy that would use `most`: as many as the job's shared memory has room for.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when there is none for any.
    pub fn usable_slots(&mut self, most: usize) -> CuResult<usize> {
        let Slots { ready, generation, full, .. } = &mut self.slots;
        let now = self.ring.generation();
        if *generation != Some(now) {
            (*ready, *generation, *full) = (0, Some(now), false);
        }
        while *ready < most && !*full {
            match self.ring.make_slots(*ready..*ready + FEW_SLOTS) {
                Ok(()) => *ready += FEW_SLOTS,
                // For a few it is asked again.
                Err(error) if *ready == 0 => return Err(failed(error)),
                Err(_) => *full = true,
            }
        }
        Ok(most.min(*ready))
    }

    /// A staging slot.
    ///
    /// # Errors
    /// When there is none.
    pub fn slot(&self, slot: usize) -> CuResult<transport::Slot<'_>> {
        self.ring.slot(slot).map_err(failed)
    }
}

/// The line that threads without a ring of their own share; a call holds it until it returns.
pub type SharedLine = Mutex<Option<Line>>;

/// Which staging slots an asynchronous copy may still be using, and which is next.
#[derive(Default)]
pub struct Slots {
    /// Whether a copy from the slot is under way.
    pub busy: [bool; SLOTS],
    /// The slot to be used next.
    pub next: usize,
    /// How many of the first have room in the job's shared memory for sure.
    ready: usize,
    /// In which generation of the session that is so: a file that comes back has no room for its zeros.
    generation: Option<u32>,
    /// Whether there was no room for more.
    full: bool,
}

/// Slots that a small copy uses, and that get room together.
pub const FEW_SLOTS: usize = 4;
const _: () = assert!(SLOTS.is_multiple_of(FEW_SLOTS));

/// A thread's state, and whether a call is using it: a signal handler that makes a call finds that out.
struct Place {
    busy: Cell<bool>,
    thread: UnsafeCell<Thread>,
}

thread_local! {
    // Nothing that is dropped: cudart makes calls after a thread's destructors have run.
    static PLACE: Cell<*mut Place> = const { Cell::new(null_mut()) };
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
    static GUARD: Guard = const { Guard };
}

/// Gives the thread's ring back when the thread ends.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        // The main thread ends with the process, and calls made while it ends still need the ring. A forked child has no
        // ring to give back.
        // SAFETY: these calls cannot fail.
        let is_main = unsafe { libc::c_long::from(libc::getpid()) == libc::syscall(libc::SYS_gettid) };
        if is_main || fork::is_child() {
            return;
        }
        let place = PLACE.replace(null_mut());
        if !place.is_null() {
            // SAFETY: made by `place`, and this thread, which is ending, no longer knows it.
            drop(unsafe { Box::from_raw(place) });
        }
    }
}

fn place() -> *mut Place {
    let place = PLACE.get();
    if !place.is_null() {
        return place;
    }
    let launch = Launch {
        ctx: wire::ContextId(0),
        stream: wire::Stream::Legacy,
        callee: Callee::Function(FunctionId(0)),
        grid: [0; 3],
        block: [0; 3],
        shared: 0,
        attributes: Vec::new(),
        params: wire::Bytes::default(),
    };
    let thread = Thread {
        ring: Ring::None,
        contexts: Vec::new(),
        body: Vec::new(),
        reply: Vec::new(),
        launch,
        streams: Cache::new(),
        events: Cache::new(),
        functions: Cache::new(),
        kernels: Cache::new(),
    };
    let place = Box::into_raw(Box::new(Place { busy: Cell::new(false), thread: UnsafeCell::new(thread) }));
    PLACE.set(place);
    // A thread that is already running its destructors keeps its ring until the process ends.
    let _ = GUARD.try_with(|_| ());
    place
}

/// Makes every call of this thread answer `NOT_PERMITTED`: it runs host callbacks, which must not make any.
pub(super) fn forbid_calls() {
    FORBIDDEN.set(true);
}

/// Runs `body` with the session and the calling thread's state.
///
/// # Errors
/// `NOT_INITIALIZED` without a session; `NOT_PERMITTED` in a host callback and in a signal handler that interrupted a call.
#[inline]
pub fn with<R>(body: impl FnOnce(&mut Call<'_>) -> CuResult<R>) -> CuResult<R> {
    let session = session()?;
    if FORBIDDEN.get() {
        return Err(CuError::NOT_PERMITTED);
    }
    let place = place();
    // SAFETY: only this thread knows the place, and it frees it only when it ends.
    let place = unsafe { &*place };
    if place.busy.replace(true) {
        return Err(CuError::NOT_PERMITTED);
    }
    /// Frees the place also when the body panics.
    struct Busy<'a>(&'a Cell<bool>);
    impl Drop for Busy<'_> {
        fn drop(&mut self) {
            self.0.set(false);
        }
    }
    let _busy = Busy(&place.busy);
    // SAFETY: `busy` was false, so nobody else has a reference, and it is true until `_busy` is dropped.
    let thread = unsafe { &mut *place.thread.get() };
    forking::settled();
    let done = body(&mut Call { session, thread, shared: None });
    forking::settled();
    done
}

/// The current context, active or not, of a process that has a session.
pub(super) fn current_context() -> Option<Arc<Context>> {
    SESSION.get()?;
    with(|call| Ok(call.thread.contexts.last().cloned())).ok().flatten()
}

/// The first message of a session, before there is one to be found.
pub(super) fn first_call<M: Message>(transport: &Arc<ClientSession>, message: &M) -> CuResult<M::Reply> {
    let mut ring = transport.take_ring().map_err(failed)?;
    let (mut body, mut reply) = (Vec::new(), Vec::new());
    message.encode(&mut Encoder::new(&mut body));
    ring.call(M::OPCODE, &[&body], &mut reply).map_err(failed)?;
    answer::<M>(&reply).map(|(_, answer)| answer)?.map_err(|(error, _)| error)
}

/// A call in progress.
pub struct Call<'a> {
    /// The session.
    pub session: &'static Session,
    /// The calling thread's own.
    pub thread: &'a mut Thread,
    /// The shared line, once this call needs it.
    shared: Option<MutexGuard<'static, Option<Line>>>,
}

impl Call<'_> {
    /// The current context; while a green one is current the primary context, whose objects its are.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` without one, `CONTEXT_IS_DESTROYED` when it is no longer there.
    #[inline]
    pub fn context(&self) -> CuResult<&Arc<Context>> {
        let context = self.thread.contexts.last().ok_or(CuError::INVALID_CONTEXT)?;
        if context.is_active() { Ok(Context::base(context)) } else { Err(CuError::CONTEXT_IS_DESTROYED) }
    }

    /// What the current context is converted from, if it is a green one.
    pub fn green(&self) -> Option<&Green> {
        self.thread.contexts.last().and_then(|context| context.green.as_ref())
    }

    /// What a stream argument means: the stream, and the context it is in. A capture of the stream is invalidated: a call that
    /// can be captured asks [`Call::capture_of`] first.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for a stream that is not there; `STREAM_CAPTURE_*` for one that is being captured.
    #[inline]
    pub fn stream(&mut self, handle: sys::CUstream) -> CuResult<(wire::Stream, wire::ContextId)> {
        let found = self.any_stream(handle)?;
        if graph::capturing() {
            self.refuse_in_capture(found)?;
        }
        Ok(found)
    }

    /// The same for a question or a call that also a stream that is being captured can be asked.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for a stream that is not there.
    #[inline]
    pub fn any_stream(&mut self, handle: sys::CUstream) -> CuResult<(wire::Stream, wire::ContextId)> {
        let current = self.context()?.id;
        match handle.addr() {
            0 | cuda_abi::STREAM_LEGACY => Ok(match self.green() {
                None => (wire::Stream::Legacy, current),
                Some(green) => (wire::Stream::Created(green.default_stream()), current),
            }),
            cuda_abi::STREAM_PER_THREAD => Ok((wire::Stream::PerThread, current)),
            handle => {
                let id = StreamId::from_handle(handle as u64).ok_or(CuError::INVALID_HANDLE)?;
                let stream =
                    self.thread.streams.get(&self.session.streams, id.0).ok_or(CuError::INVALID_HANDLE)?;
                Ok((wire::Stream::Created(id), stream.owner.context.id))
            }
        }
    }

    /// An event.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for one that is not there.
    #[inline]
    pub fn event(&mut self, handle: sys::CUevent) -> CuResult<(EventId, &Arc<Event>)> {
        let id = EventId::from_handle(handle.addr() as u64).ok_or(CuError::INVALID_HANDLE)?;
        let event = self.thread.events.get(&self.session.events, id.0).ok_or(CuError::INVALID_HANDLE)?;
        Ok((id, event))
    }

    /// A function or a kernel.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for one that is not there; what looking it up fails with, for a kernel that was only promised.
    #[inline]
    pub fn callable(&mut self, handle: sys::CUfunction) -> CuResult<&Arc<Callable>> {
        let handle = handle.addr() as u64;
        let found = if let Some(id) = KernelId::from_handle(handle) {
            if self.thread.kernels.get(&self.session.kernels, id.0).is_none() {
                self.redeem(id)?;
            }
            self.thread.kernels.get(&self.session.kernels, id.0)
        } else if let Some(id) = FunctionId::from_handle(handle) {
            self.thread.functions.get(&self.session.functions, id.0)
        } else {
            None
        };
        found.ok_or(CuError::INVALID_HANDLE)
    }

    /// The line that this call's messages go through.
    ///
    /// # Errors
    /// When there is none to be had.
    pub fn line(&mut self) -> CuResult<&mut Line> {
        line(self.session, &mut self.thread.ring, &mut self.shared)
    }

    /// What earlier asynchronous work has failed with, if it has.
    ///
    /// # Errors
    /// That.
    #[inline]
    pub fn check(&self) -> CuResult {
        match self.session.transport.control().error() {
            None => Ok(()),
            Some(_) => self.session.transport.control().take_error().map_or(Ok(()), Err),
        }
    }

    /// Sends a pipelined message.
    ///
    /// # Errors
    /// What earlier work has failed with; `DEVICE_UNAVAILABLE` when the server is dead.
    #[inline]
    pub fn submit<M: Message>(&mut self, message: &M) -> CuResult {
        self.submit_with(message, &[])
    }

    /// Sends a pipelined message whose last field, bytes, is given apart and empty in `message`.
    ///
    /// # Errors
    /// As [`Call::submit`].
    pub fn submit_with<M: Message>(&mut self, message: &M, last: &[u8]) -> CuResult {
        debug_assert!(M::PIPELINED);
        self.check()?;
        let mut body = std::mem::take(&mut self.thread.body);
        body.clear();
        message.encode(&mut Encoder::new(&mut body));
        if !last.is_empty() {
            // The field ends the message: its count, a `u32`, is what ends the bytes.
            body.truncate(body.len().saturating_sub(4));
            (last.len() as u32).encode(&mut Encoder::new(&mut body));
        }
        let sent = self.line().and_then(|line| line.ring.submit(M::OPCODE, &[&body, last]).map_err(failed));
        self.thread.body = body;
        sent
    }

    /// Sends the launch that the thread has made.
    ///
    /// # Errors
    /// As [`Call::submit`].
    pub fn submit_launch(&mut self) -> CuResult {
        self.check()?;
        let thread = &mut *self.thread;
        thread.body.clear();
        thread.launch.encode(&mut Encoder::new(&mut thread.body));
        let line = line(self.session, &mut thread.ring, &mut self.shared)?;
        line.ring.submit(Launch::OPCODE, &[&thread.body]).map_err(failed)
    }

    /// Sends a round trip and waits for its answer.
    ///
    /// # Errors
    /// What earlier work has failed with, what the server answers, `DEVICE_UNAVAILABLE` when it is dead.
    pub fn ask<M: Message>(&mut self, message: &M) -> CuResult<M::Reply> {
        self.ask_for_reason(message).map_err(|(error, _)| error)
    }

    /// The same, with the server's reason.
    ///
    /// # Errors
    /// As [`Call::ask`].
    pub fn ask_for_reason<M: Message>(&mut self, message: &M) -> Result<M::Reply, (CuError, String)> {
        self.check().map_err(|error| (error, String::new()))?;
        self.converse(message)
    }

    /// As [`Call::ask`], also when earlier work has failed: for what gives memory back that belongs to no context.
    ///
    /// # Errors
    /// What the server answers, `DEVICE_UNAVAILABLE` when it is dead.
    pub fn ask_all_the_same<M: Message>(&mut self, message: &M) -> CuResult<M::Reply> {
        self.converse(message).map_err(|(error, _)| error)
    }

    /// Waits for work of the device by a round trip that has nothing to answer but that it is done; the device may tell that itself.
    ///
    /// # Errors
    /// As [`Call::ask`].
    pub fn await_work<M: Message<Reply = ()>>(&mut self, message: &M) -> CuResult {
        self.check()?;
        if !self.round_trip(message, ClientRing::call_or_fence)? {
            return Ok(());
        }
        let answer = answer::<M>(&self.thread.reply)?;
        self.conclude::<M>(answer).map_err(|(error, _)| error)
    }

    fn converse<M: Message>(&mut self, message: &M) -> Result<M::Reply, (CuError, String)> {
        let answer = self.exchange(message).map_err(|error| (error, String::new()))?;
        self.conclude::<M>(answer)
    }

    /// Takes what else has been printed, and says why a message has failed.
    fn conclude<M: Message>(&mut self, (mut more, result): Answer<M>) -> Result<M::Reply, (CuError, String)> {
        while more {
            more = self.exchange(&TakeOutput {}).map_err(|error| (error, String::new()))?.0;
        }
        result.inspect_err(|(error, reason)| {
            if !reason.is_empty() {
                log::message(Level::Error, format_args!("{}: {error}: {reason}", M::NAME));
            }
        })
    }

    /// One round trip.
    fn exchange<M: Message>(&mut self, message: &M) -> CuResult<Answer<M>> {
        self.round_trip(message, ClientRing::call)?;
        answer::<M>(&self.thread.reply)
    }

    /// Sends a message by `call`, which puts the reply into the thread's buffer.
    fn round_trip<M: Message, T>(
        &mut self,
        message: &M,
        call: impl FnOnce(&mut ClientRing, u16, &[&[u8]], &mut Vec<u8>) -> Result<T, TransportError>,
    ) -> CuResult<T> {
        debug_assert!(!M::PIPELINED);
        let mut body = std::mem::take(&mut self.thread.body);
        let mut reply = std::mem::take(&mut self.thread.reply);
        body.clear();
        message.encode(&mut Encoder::new(&mut body));
        let called = self
            .line()
            .and_then(|line| call(&mut line.ring, M::OPCODE, &[&body], &mut reply).map_err(failed));
        self.thread.body = body;
        self.thread.reply = reply;
        called
    }
}

/// The thread's line, which it gets with its first message.
#[inline]
fn line<'a>(
    session: &'static Session,
    ring: &'a mut Ring,
    shared: &'a mut Option<MutexGuard<'static, Option<Line>>>,
) -> CuResult<&'a mut Line> {
    if let Ring::None = ring {
        *ring = match session.transport.take_ring() {
            Ok(own) => Ring::Own(Line::new(own)),
            Err(TransportError::NoRing) => Ring::Shared,
            Err(error) => return Err(failed(error)),
        };
    }
    if let Ring::Own(line) = ring {
        return Ok(line);
    }
    let held =
        shared.get_or_insert_with(|| session.shared_line.lock().unwrap_or_else(PoisonError::into_inner));
    match &mut **held {
        Some(line) => Ok(line),
        none => Ok(none.insert(Line::new(session.transport.take_last_ring().map_err(failed)?))),
    }
}

/// Whether the device has printed more, and the answer.
type Answer<M> = (bool, Result<<M as Message>::Reply, (CuError, String)>);

/// Decodes a reply and writes out what was printed.
fn answer<M: Message>(reply: &[u8]) -> CuResult<Answer<M>> {
    let mut from = Decoder::new(reply);
    let reply = Reply::<M::Reply>::decode(&mut from).map_err(|error| {
        log::message(Level::Error, format_args!("the server's answer to {} is none: {error}", M::NAME));
        CuError::UNKNOWN
    })?;
    output::write(&reply.output);
    Ok((reply.output.more, reply.result))
}

/// What the application is told when the transport fails.
#[cold]
fn failed(error: TransportError) -> CuError {
    log::message(Level::Error, format_args!("{error}"));
    match error {
        TransportError::Dead => CuError::DEVICE_UNAVAILABLE,
        TransportError::NoRing | TransportError::NoRoom => CuError::OUT_OF_MEMORY,
        _ => CuError::UNKNOWN,
    }
}
