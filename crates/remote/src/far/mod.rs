//! The far end: carries out a client's calls with the device of this machine.

mod completions;
mod executor;
mod graphs;
mod making;
mod mirrors;
mod objects;
mod quota;
mod reading;
mod staging;
#[cfg(test)]
mod tests;
mod work;

pub use quota::{Quota, Together};

use crate::frame::{self, MAGIC, PieceHeader, VERSION};
use crate::lanes::Lanes;
use crate::messages::{Call, Hello, Word};
use crate::workers::Workers;
use crate::{Patience, Wires, in_time, lock, packing};
use backend::{Backend, Range};
use completions::{Completions, Effect};
use mirrors::Mirrors;
use objects::Objects;
use quota::Account;
use staging::{Buffer, Staging};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};
use wires::BULK_MAX;
use work::At;

/// How far a client may be ahead of what it has been told is read.
const ACK_EVERY: u64 = 256 << 10;
/// How long what a client has left behind may take to end.
const LEAVE: Duration = Duration::from_millis(900);

/// Why a session ended otherwise than by its client's leaving.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The peer is no client, or of another version.
    #[error(
        "the client speaks {0}, and this end speaks version {VERSION} of the protocol: use the same release on both machines"
    )]
    Version(String),
    /// The connection broke, or the client does not keep to the protocol.
    #[error("the connection to the client broke: {0}")]
    Io(#[from] io::Error),
    /// Work that the client has left behind does not end: only the end of this process frees what it holds.
    #[error("work that the client has left behind does not end; end this process to free what it holds")]
    Stuck,
}

/// A call that is made inside of `place`, on its way to the thread that is there.
struct Placed {
    bytes: usize,
    number: u64,
    call: Call,
}

/// A client and what it has.
struct Session {
    backend: Arc<dyn Backend>,
    /// The numbers in the backend of those that there are for the client.
    devices: Vec<usize>,
    objects: Objects,
    account: Account,
    holdings: Mutex<making::Holdings>,
    staging: Arc<Staging>,
    mirrors: Mirrors,
    /// Who collects changes of mirrors and sends them.
    changing: Mutex<()>,
    completions: Completions,
    lanes: Lanes,
    out: Mutex<(Box<dyn Write + Send>, Vec<u8>)>,
    /// Pieces that have come, by transfer and offset.
    arrivals: Mutex<HashMap<(u64, u64), Buffer>>,
    arrived: Condvar,
    /// What is to be told of a stream that the next call asks about.
    held: Mutex<Option<(At, Vec<Effect>)>>,
    /// Host functions that wait for the client.
    hosts: Mutex<HashMap<u64, Sender<()>>>,
    next_host: AtomicU64,
    place: Mutex<Option<Sender<Placed>>>,
    /// What graphs read and write, by name.
    graphs: Mutex<HashMap<u64, graphs::Reach>>,
    workers: Workers,
    long_calls: reading::LongCalls,
    /// Bytes of calls that have come.
    come: AtomicU64,
    /// Of these, what is carried out, or has been: the client may send as much again.
    read: AtomicU64,
    /// Of these, what the client has been told of.
    acked: AtomicU64,
    begun: Instant,
    heard: AtomicU64,
    /// When the last call came.
    called: AtomicU64,
    /// Whether the thread that reads is carrying out a call: then it is not the client that is silent.
    busy: AtomicBool,
    /// Whether more calls have come than are carried out.
    more_calls: AtomicBool,
    turns: reading::Turns,
    lost: AtomicBool,
    hang_up: Arc<dyn Fn() + Send + Sync>,
}

/// Serves one client until the connection ends, and frees everything that it held. The addresses that it has reserved go with the
/// backend, which is to be this session's own.
///
/// # Errors
/// [`ServeError`].
pub fn serve(wires: Wires, backend: Arc<dyn Backend>, quota: Quota) -> Result<(), ServeError> {
    let Wires { mut control_out, mut control_in, bulk_out, bulk_in, hang_up, patience } = wires;
    if bulk_in.len().max(bulk_out.len()) > BULK_MAX.into() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many bulk streams").into());
    }
    let devices = quota.devices.of(backend.devices());
    in_time(patience, &hang_up, || greet(&mut *control_out, &mut *control_in, &*backend, &devices))?;
    let broken = Arc::new(AtomicBool::new(false));
    let (told, end) = (Arc::clone(&broken), Arc::clone(&hang_up));
    let lanes = Lanes::new(bulk_out, move |_: &str| {
        told.store(true, Ordering::Release);
        end();
    })?;
    let session = Arc::new(Session {
        staging: Staging::new(Arc::clone(&backend)),
        backend,
        devices,
        objects: Objects::default(),
        account: Account::new(quota),
        holdings: Mutex::default(),
        mirrors: Mirrors::default(),
        changing: Mutex::default(),
        completions: Completions::default(),
        lanes,
        out: Mutex::new((control_out, Vec::new())),
        arrivals: Mutex::default(),
        arrived: Condvar::new(),
        held: Mutex::default(),
        hosts: Mutex::default(),
        next_host: AtomicU64::new(1),
        place: Mutex::default(),
        graphs: Mutex::default(),
        workers: Workers::default(),
        long_calls: reading::LongCalls::default(),
        come: AtomicU64::new(0),
        read: AtomicU64::new(0),
        acked: AtomicU64::new(0),
        begun: Instant::now(),
        heard: AtomicU64::new(0),
        called: AtomicU64::new(0),
        busy: AtomicBool::new(false),
        more_calls: AtomicBool::new(false),
        turns: reading::Turns::default(),
        lost: AtomicBool::new(false),
        hang_up,
    });
    let ended = session.run(control_in, bulk_in, patience);
    session.lose();
    session.account.leaves();
    session.leave()?;
    match ended {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Err(_) if broken.load(Ordering::Acquire) => Ok(()),
        other => Ok(other?),
    }
}

fn greet(
    to: &mut (dyn Write + Send),
    from: &mut (dyn Read + Send),
    backend: &dyn Backend,
    devices: &[usize],
) -> Result<(), ServeError> {
    let (mut magic, mut version) = ([0; 8], [0; 4]);
    from.read_exact(&mut magic)?;
    from.read_exact(&mut version)?;
    // A peer of another version is told which this one is.
    let mut bytes = [MAGIC.as_slice(), &VERSION.to_le_bytes()].concat();
    let told = to.write_all(&bytes).and_then(|()| to.flush());
    if magic != MAGIC {
        return Err(ServeError::Version("something else".into()));
    }
    if version != VERSION.to_le_bytes() {
        return Err(ServeError::Version(format!("version {}", u32::from_le_bytes(version))));
    }
    let hello = Hello {
        kind: backend.kind().into(),
        on_cores: backend.runs_on_cores(),
        describe: backend.describe(),
        driver_version: backend.driver_version(),
        driver_release: backend.driver_release(),
        devices: devices.iter().filter_map(|number| backend.devices().get(*number).cloned()).collect(),
    };
    told?;
    bytes.clear();
    frame::append(&mut bytes, 0, 0, 0, &hello);
    to.write_all(&bytes)?;
    Ok(to.flush()?)
}

/// What a thread of a session does.
type Task = Box<dyn FnOnce(&Arc<Session>) -> io::Result<()> + Send>;

impl Session {
    fn run(
        self: &Arc<Self>,
        control_in: Box<dyn Read + Send>,
        bulk_in: Vec<Box<dyn Read + Send>>,
        patience: Patience,
    ) -> io::Result<()> {
        let spawn = |name: &str, run: Task| {
            let session = Arc::clone(self);
            let run = move || {
                if run(&session).is_err() {
                    session.lose();
                }
            };
            Builder::new().name(name.into()).spawn(run).map(drop)
        };
        spawn(
            "remote-watch",
            Box::new(|session| {
                session.watch();
                Ok(())
            }),
        )?;
        for mut stream in bulk_in {
            spawn("remote-bulk-in", Box::new(move |session| session.receive_bulk(&mut *stream)))?;
        }
        spawn("remote-read-on", Box::new(|session| session.read_on()))?;
        spawn("remote-alive", Box::new(move |session| session.stay_alive(patience)))?;
        self.read_calls(control_in)
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Ends the session: everything that waits for the client is told.
    fn lose(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            (self.hang_up)();
        }
        lock(&self.hosts).clear();
        lock(&self.place).take();
        drop(lock(&self.arrivals));
        self.arrived.notify_all();
        self.lanes.end();
    }

    fn hear(&self) {
        self.heard.store(self.begun.elapsed().as_millis() as u64, Ordering::Release);
    }

    /// A call is carried out.
    fn called(&self) {
        self.called.store(self.begun.elapsed().as_millis() as u64, Ordering::Release);
    }

    /// Whether the client has asked for nothing for so long, and nothing is under way.
    fn is_idle(&self, most: Duration) -> bool {
        let called = Duration::from_millis(self.called.load(Ordering::Acquire));
        self.begun.elapsed().saturating_sub(called) > most
            && self.completions.are_all_told()
            && !self.busy.load(Ordering::Acquire)
    }

    /// Says something now and then, and listens whether anything is heard.
    fn stay_alive(&self, patience: Patience) -> io::Result<()> {
        let Patience { silence, idle } = patience;
        let step = patience.says_every().min(Duration::from_millis(250));
        let mut said = Instant::now();
        while !self.is_lost() {
            std::thread::sleep(step);
            let heard = Duration::from_millis(self.heard.load(Ordering::Acquire));
            if self.begun.elapsed().saturating_sub(heard) > silence && !self.busy.load(Ordering::Acquire) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if idle.is_some_and(|most| self.is_idle(most)) {
                tracing::info!("a client has asked for nothing for {idle:?}: its session ends");
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Whoever holds it is saying something.
            if said.elapsed() >= patience.says_every()
                && let Ok(mut out) = self.out.try_lock()
            {
                said = Instant::now();
                let (stream, spare) = &mut *out;
                spare.clear();
                frame::append(spare, Word::Ping.opcode(), 0, 0, &Word::Ping.body());
                stream.write_all(spare).and_then(|()| stream.flush())?;
            }
        }
        Ok(())
    }

    /// Says one thing to the client. A broken connection is noticed by whoever reads.
    fn say(&self, call: u64, word: &Word) {
        let mut out = lock(&self.out);
        let (stream, spare) = &mut *out;
        spare.clear();
        frame::append(spare, word.opcode(), 0, call, &word.body());
        if stream.write_all(spare).and_then(|()| stream.flush()).is_err() {
            (self.hang_up)();
        }
    }

    fn say_all(&self, words: &[(u64, Word)]) {
        if words.is_empty() {
            return;
        }
        let mut out = lock(&self.out);
        let (stream, spare) = &mut *out;
        spare.clear();
        for (call, word) in words {
            frame::append(spare, word.opcode(), 0, *call, &word.body());
        }
        if stream.write_all(spare).and_then(|()| stream.flush()).is_err() {
            (self.hang_up)();
        }
    }

    /// Tells the client how much of what it has sent is used.
    fn ack(&self) {
        let mut out = lock(&self.out);
        // Read while nobody else says it: it never becomes less.
        let control = self.read.load(Ordering::Acquire);
        self.acked.store(control, Ordering::Release);
        let word = Word::Ack { control, bulk: self.staging.acked() };
        let (stream, spare) = &mut *out;
        spare.clear();
        frame::append(spare, word.opcode(), 0, 0, &word.body());
        if stream.write_all(spare).and_then(|()| stream.flush()).is_err() {
            (self.hang_up)();
        }
    }

    /// Counts bytes of calls that wait no more, and tells the client where they are many.
    fn has_read(&self, bytes: usize) {
        let read = self.read.fetch_add(bytes as u64, Ordering::AcqRel) + bytes as u64;
        if read.saturating_sub(self.acked.load(Ordering::Acquire)) >= ACK_EVERY {
            self.ack();
        }
    }

    fn receive_bulk(&self, stream: &mut (dyn Read + Send)) -> io::Result<()> {
        let mut spare = Vec::new();
        loop {
            let (head, held) = PieceHeader::read(stream)?;
            if !self.staging.receive() {
                return Err(frame::invalid("more contents than there is room for"));
            }
            let none = |error| io::Error::other(format!("no buffer for contents: {error:?}"));
            let mut buffer = self.staging.get(head.bytes).map_err(none)?;
            packing::receive(stream, held, buffer.bytes_mut(), &mut spare)?;
            self.hear();
            let before = lock(&self.arrivals).insert((head.transfer, head.offset), buffer);
            if before.is_some() {
                return Err(frame::invalid("contents came twice"));
            }
            self.arrived.notify_all();
        }
    }

    /// A piece that the client has said it sends; `None` once the connection is lost.
    fn arrival(&self, transfer: u64, offset: u64) -> Option<Buffer> {
        let mut arrivals = lock(&self.arrivals);
        loop {
            if let Some(buffer) = arrivals.remove(&(transfer, offset)) {
                return Some(buffer);
            }
            // It is the client's turn.
            self.busy.store(false, Ordering::Release);
            if self.is_lost() {
                return None;
            }
            arrivals = self.arrived.wait(arrivals).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Frees everything that the client had, as far as its work ends.
    fn leave(self: &Arc<Self>) -> Result<(), ServeError> {
        let session = Arc::clone(self);
        let (sender, receiver) = std::sync::mpsc::channel();
        let free = move || {
            session.free();
            let _ = sender.send(());
        };
        Builder::new().name("remote-leave".into()).spawn(free)?;
        receiver.recv_timeout(LEAVE).map_err(|_| ServeError::Stuck)
    }

    fn free(&self) {
        let (backend, objects) = (&self.backend, &self.objects);
        self.completions.end();
        for ctx in objects.contexts.drain() {
            let _ = backend.context_destroy(ctx);
        }
        for green in objects.greens.drain() {
            let _ = backend.green_destroy(green);
        }
        let mappings: Vec<Range> = objects.space().mapped.iter().map(|(range, _)| range).collect();
        for block in objects.blocks.drain() {
            let _ = backend.unmap_block(block.raw);
            objects.space_mut().mapped.remove(block.range.base);
        }
        for range in mappings {
            if objects.space_mut().mapped.remove(range.base).is_some() {
                let _ = backend.unmap_physical(range);
            }
        }
        for physical in objects.physicals.drain() {
            let _ = backend.physical_release(physical.raw);
        }
        self.unmirror_all();
        self.staging.unregister();
    }
}
