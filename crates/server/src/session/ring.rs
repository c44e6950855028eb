//! The rings' threads: one for each ring that an application thread uses, started when the doorbell rings.

use super::burst::Burst;
use super::dispatch::{Answer, malformed, reply_bytes};
use super::half_way::Turns;
use super::reached::Reached;
use super::{Caller, Session};
use crate::failure::Failure;
use crate::gate::Gate;
use crate::objects::StreamKey;
use crate::{lock, read};
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::set_current_timer_slack;
use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transport::{Next, RingIndex, RingReader, RingState, TraceKind, TransportError, trace_clock};
use wire::{GraphLaunch, Message, Request};

/// How often a thread that waits looks around without being woken.
const LOOK: Duration = Duration::from_millis(500);
/// For how long what copies have left is given back at a time; calls wait meanwhile.
const GIVING: Duration = Duration::from_millis(10);
/// The longest that an application may take to be ended.
const ENDING: Duration = Duration::from_secs(15);
/// Shorter waits for a message's turn are not in a trace.
const WORTH_TELLING_NS: u64 = 1000;
/// In place of an opcode, while what a thread leaves behind is put away.
pub(crate) const THREAD_END: u16 = u16::MAX;
/// The same, while memory is given back that nobody has used for a while.
pub(crate) const TIDYING: u16 = u16::MAX - 1;

/// By how much the nice value of a ring's thread is below that of others: as far as it goes.
const PRECEDENCE: i32 = 20;

/// How much later than asked for such a thread may be woken.
const SLACK_NS: u64 = 1000;

/// Lets this thread, which the application waits for, run before the application's own. Natively it would be one of those: a program with a
/// thread for every core that waits, or computes, in each of them leaves no core to this one, and whoever has to share one loses several
/// milliseconds at a time. It sleeps when it has nothing to do. False where that is not permitted.
pub(crate) fn take_precedence() -> bool {
    let raised = getpriority_process(None).and_then(|nice| setpriority_process(None, nice - PRECEDENCE));
    // Its sleeps while it waits for the device are short, and no longer than they have to be.
    let woken = set_current_timer_slack(NonZeroU64::new(SLACK_NS));
    let is_raised = raised.is_ok();
    for error in [raised.err(), woken.err()].into_iter().flatten() {
        tracing::debug!(%error, "a thread has no precedence");
    }
    is_raised
}

/// The threads of a session.
pub struct Rings {
    session: Arc<Session>,
    running: Mutex<HashSet<RingIndex>>,
    /// How long a marked kernel may have a device that others wait for, if not as long as it takes.
    preempt_after: Option<Duration>,
}

impl Rings {
    /// Has marked kernels of an image go on, and starts taking messages: a thread of its own watches the doorbell until the session ends, and outlives the rings'. Marked kernels
    /// take turns with other work of the session where they may not have the device for longer than `preempt_after`.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn start(session: &Arc<Session>, preempt_after: Option<Duration>) -> std::io::Result<JoinHandle<()>> {
        session.resume_half_way();
        let session = Arc::clone(session);
        let rings = Arc::new(Self { session, running: Mutex::default(), preempt_after });
        std::thread::Builder::new().name("doorbell".into()).spawn(move || rings.watch())
    }

    fn watch(self: &Arc<Self>) {
        let control = self.session.link.control();
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let mut seen = 0;
        let mut tidied = Instant::now();
        let mut turns = self.preempt_after.map(Turns::of);
        while !self.session.is_ending() {
            for (index, state) in control.rings() {
                if state != RingState::Free && lock(&self.running).insert(index) {
                    threads.extend(self.serve(index));
                }
            }
            threads.retain(|thread| !thread.is_finished());
            let taken = turns.as_ref().filter(|_| self.session.has_marked());
            seen = control.wait_doorbell(seen, taken.map_or(LOOK, |turns| turns.pause().min(LOOK)));
            if let Some(turns) = &mut turns
                && let Some(_pass) = self.session.gate.enter_if_open(TIDYING)
            {
                self.session.take_turns(turns);
            }
            if tidied.elapsed() >= LOOK {
                self.session.tidy();
                tidied = Instant::now();
            }
        }
        for thread in threads {
            // One that panicked has said so, and has ended the session.
            let _ = thread.join();
        }
    }

    fn serve(self: &Arc<Self>, index: RingIndex) -> Option<JoinHandle<()>> {
        let rings = Arc::clone(self);
        let serve = move || {
            let _end = EndOnPanic(&rings.session);
            if !rings.session.backend().runs_on_cores() {
                let _ = take_precedence();
            }
            if let Err(error) = rings.session.serve_ring(index) {
                tracing::error!(%error, "the session ends");
                rings.session.end();
            }
            lock(&rings.running).remove(&index);
            // The ring may have been taken again before it was out of the list.
            rings.session.link.control().ring_doorbell();
        };
        match std::thread::Builder::new().name(format!("ring {}", index.get())).spawn(serve) {
            Ok(thread) => Some(thread),
            Err(error) => {
                tracing::error!(%error, "no thread for a ring: the session ends");
                self.session.end();
                None
            }
        }
    }
}

/// A defect of ours must not leave the application waiting.
struct EndOnPanic<'a>(&'a Session);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

/// A message taken out of the ring.
struct Taken {
    opcode: u16,
    request: Result<Request, wire::DecodeError>,
    pipelined: bool,
    dependencies: Vec<transport::Dependency>,
}

/// What has become of a message.
enum Ran {
    /// It is done, and out of the ring.
    Whole,
    /// It is in the ring still, and so in a cut: its rest comes behind what has been given to the device.
    InPart(GraphLaunch),
    /// The session ends.
    Ended,
}

impl Session {
    /// Executes a ring's messages until its thread or the session ends.
    fn serve_ring(&self, index: RingIndex) -> Result<(), TransportError> {
        Gate::serve(index);
        let mut reader = self.link.reader(index);
        let mut caller = Caller::new(index);
        let mut burst = Burst::default();
        while !self.is_ending() {
            let taken = match reader.next(LOOK)? {
                Next::Idle => continue,
                Next::Closed => {
                    self.end_of_thread(&mut caller);
                    reader.release();
                    return Ok(());
                }
                Next::Message(message) => {
                    let request = Request::decode(message.opcode, message.body);
                    Taken {
                        opcode: message.opcode,
                        pipelined: request.as_ref().is_ok_and(Request::is_pipelined),
                        dependencies: message.dependencies.to_vec(),
                        request,
                    }
                }
            };
            let goes_on = match taken {
                Taken { request: Ok(Request::Launch(first)), dependencies, .. }
                    if dependencies.is_empty() && !self.link.control().is_traced() =>
                {
                    burst.gather(first, &mut reader)?;
                    self.run_burst(&mut reader, &mut caller, &mut burst)?
                }
                mut taken => loop {
                    match self.run_message(&mut reader, &mut caller, taken)? {
                        Ran::Whole => break true,
                        Ran::InPart(rest) => {
                            taken = Taken {
                                opcode: GraphLaunch::OPCODE,
                                pipelined: true,
                                dependencies: Vec::new(),
                                request: Ok(Request::GraphLaunch(rest)),
                            };
                        }
                        Ran::Ended => break false,
                    }
                },
            };
            if !goes_on {
                break;
            }
        }
        if !self.is_idle() {
            // The device may still use what is kept for the ring; the process ends soon.
            std::mem::forget(caller);
        }
        Ok(())
    }

    /// Executes one message, or the next part of it.
    fn run_message(
        &self,
        reader: &mut RingReader,
        caller: &mut Caller,
        taken: Taken,
    ) -> Result<Ran, TransportError> {
        caller.is_in_part = false;
        let arrived = self.link.control().is_traced().then(trace_clock);
        let _claim = match &taken.request {
            Ok(request) => {
                if !self.await_turn(request, caller.number(), &taken.dependencies)? {
                    return Ok(Ran::Ended);
                }
                let claim = self.await_half_way(request, caller);
                if claim.is_none() || !self.await_room(request, caller) || !self.await_filled(request) {
                    return Ok(Ran::Ended);
                }
                if self.is_boundary_planned(caller, request) {
                    self.wait_for_cut();
                }
                claim
            }
            Err(_) => None,
        };
        let _pass = self.gate.enter(caller.ring, taken.opcode);
        if self.is_ending() {
            return Ok(Ran::Ended);
        }
        let begun = arrived.map(|arrived| {
            let begun = trace_clock();
            // The clock may have been set back.
            if begun.saturating_sub(arrived) > WORTH_TELLING_NS {
                reader.trace(TraceKind::AwaitTurn, taken.opcode, arrived);
            }
            begun
        });
        if !reader.is_prompt() {
            caller.launched = None;
        }
        (caller.round_trip, caller.fenced) = (reader.round_trip(), false);
        let name = taken.request.as_ref().map_or("an unknown message", Request::name);
        let answer = match taken.request {
            Ok(request) => {
                let launch = match &request {
                    Request::GraphLaunch(launch) => Some(launch.clone()),
                    _ => None,
                };
                let answer = self.run_request(request, caller, taken.pipelined);
                match (launch, &answer) {
                    (Some(launch), Answer::Failed(failure)) => self.give_up_launch(launch.exec, failure.code),
                    (Some(rest), _) if caller.is_in_part => return Ok(Ran::InPart(rest)),
                    _ => {}
                }
                answer
            }
            Err(error) => Answer::Failed(malformed(taken.opcode, error)),
        };
        (caller.recent.found, caller.launched) = (None, None);
        let answer = answer.bounded(name);
        if let Answer::Failed(failure) = &answer {
            if failure.code == wire::CuError::UNKNOWN && self.shadows.is_orphaned() {
                // The supervisor is gone, and the session's files with it. The program is about to be ended, and is not to see CUDA fail before.
                self.await_end();
                return Ok(Ran::Ended);
            }
            self.note_failure(failure, taken.opcode, taken.pipelined);
        }
        if let Some(begun) = begun {
            reader.trace(TraceKind::Work, taken.opcode, begun);
        }
        if taken.pipelined {
            reader.advance();
        } else {
            // Whoever has seen the fence does not read the answer.
            let output = if caller.fenced { wire::Output::default() } else { self.next_output() };
            reader.reply(&reply_bytes(output, answer))?;
        }
        Ok(Ran::Whole)
    }

    /// Waits until the session ends, for no longer than that may take.
    fn await_end(&self) {
        let begun = Instant::now();
        while !self.is_ending() && begun.elapsed() < ENDING {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Executes a message, with the application's managed memory in step before and after.
    fn run_request(&self, request: Request, caller: &mut Caller, pipelined: bool) -> Answer {
        let reach = match self.shadows.reach(|| Reached::by(&request)) {
            Ok(reach) => reach,
            Err(failure) => return Answer::Failed(failure),
        };
        self.record(&request);
        // Once it has left, it has left.
        let leaves = matches!(request, Request::ManagedLeave(_));
        let asks = matches!(request, Request::StreamQuery(_) | Request::EventQuery(_));
        let answer = self.dispatch(request, caller);
        drop(reach);
        if pipelined {
            return answer;
        }
        if asks && answer.is_no() {
            self.shadows.asked();
            return answer;
        }
        // Any other answer may tell that some work is complete.
        match self.shadows.settle().and_then(|()| self.change_coherence()) {
            Ok(()) => {
                self.exchange_regions();
                answer
            }
            Err(failure) => match answer {
                // What it has made would be lost with its answer.
                Answer::Done(body) if !body.is_empty() || leaves => {
                    self.shadows.tell(&failure);
                    Answer::Done(body)
                }
                _ => Answer::Failed(failure),
            },
        }
    }

    /// What a pipelined message fails with, and what every message fails with from now on, is told by later calls.
    pub(super) fn note_failure(&self, failure: &Failure, opcode: u16, pipelined: bool) {
        if failure.code == wire::CuError::NOT_READY {
            return;
        }
        tracing::debug!(opcode, pipelined, %failure, "message failed");
        if pipelined || failure.code.is_sticky() {
            self.link.control().set_error(failure.code);
        }
    }

    /// Gives back memory that nobody has used for a while; not in a cut.
    fn tidy(&self) {
        let Some(_pass) = self.gate.enter_if_open(TIDYING) else { return };
        lock(&self.pinned).settle();
        for device in &self.devices {
            if let Err(error) = device.tidy() {
                tracing::debug!(%error, "freed memory is not given back");
            }
        }
        self.resume_half_way();
        self.give_back_buffers();
    }

    /// Gives back what copies have left, some at a time, when no device has work nor gets any meanwhile: to unregister memory the driver waits for it, and all else waits behind that.
    fn give_back_buffers(&self) {
        let begun = Instant::now();
        let Some(_alone) = self.gate.alone() else { return };
        while begun.elapsed() < GIVING && self.is_idle() && self.buffers.give_back() {}
    }

    /// Puts away what belongs to an application thread that has ended.
    fn end_of_thread(&self, caller: &mut Caller) {
        let own = |key: &StreamKey| matches!(key, StreamKey::PerThread(_, ring) if *ring == caller.number());
        self.await_half_way_in_streams(own);
        let _pass = self.gate.enter(caller.ring, THREAD_END);
        let number = caller.number();
        let own: Vec<StreamKey> = read(&self.table)
            .streams
            .keys()
            .filter(|key| matches!(key, StreamKey::PerThread(_, ring) if *ring == number))
            .copied()
            .collect();
        for key in own {
            if let Err(failure) = self.destroy_stream(key) {
                tracing::warn!(%failure, "stream of an ended thread");
            }
        }
        self.release_slots(caller);
    }
}
