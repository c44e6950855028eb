//! The process of one session: TLS, keys and data, and none of the front's rights.
//!
//! It gives up its privileges, if it needs none, before it reads anything at all, and has no key of this machine: the front signs handshakes for it, and knows the clients. The client that proves to have an authorised key on the first
//! connection is the session's; the others must show the same key, and the token that the first was given. So must those that come when one has broken.

use crate::confine::{ConfineError, Confinement, confine};
use crate::fingerprint::Fingerprint;
use crate::keys::{Denied, Quota};
use crate::lane::{self, Lane};
use crate::ledger::MemoryShare;
use crate::line::Line;
use crate::lines::{End, Lines, silence, wait_for_end};
use crate::packet::{self, ToFarEnd, ToFront};
use crate::protocol::{self, Answer, Hello, Refusal, Role, Service, Token};
use crate::rdma::{self, Listener};
use crate::tls::{self, Authority};
use crate::{Welcome, Wires};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Signal, getpid, kill_process};
use rustls::pki_types::CertificateDer;
use rustls::{ServerConfig, ServerConnection};
use std::fmt;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use wires::BULK_MAX;

/// How long a connection may take for its handshake and hello, each read or write of it; the front bounds the whole.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How many connections may be in that at once: those of a session, and a few more.
const PENDING_MAX: usize = 2 * BULK_MAX as usize + 8;
/// How long a client that has closed all its connections, or something on the way has, may take to knock again, and a service to end by itself.
const LEAVE: Duration = Duration::from_millis(500);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How a session's process behaves.
#[derive(Debug)]
pub struct FarEndOptions {
    /// Whether clients of this machine may come without TLS.
    pub insecure_loopback: bool,
    /// What it serves.
    pub service: Service,
    /// What it gives up; nothing, where it is to do what only this user may.
    pub confinement: Option<Confinement>,
    /// Whether what bulk connections carry may go by RDMA.
    pub rdma: bool,
    /// For how long what a client has is kept when its connections break, for it to come back.
    pub grace: Duration,
}

impl FarEndOptions {
    /// Whether there is RDMA at the address that the client has come to.
    fn has_rdma(&self, lane: &Lane) -> io::Result<()> {
        if !self.rdma {
            return Err(io::Error::other("it offers no RDMA (`dormouse serve --rdma` does)"));
        }
        rdma::is_there()?;
        let socket = lane.socket()?;
        let at = socket.local_addr()?.ip();
        let listens = Listener::new(socket).map(drop);
        listens.map_err(|error| io::Error::new(error.kind(), format!("no RDMA at its address {at}: {error}")))
    }
}

/// Who the client is, and what it may have.
#[derive(Clone, Debug)]
pub struct ClientFacts {
    /// What the list of clients calls it.
    pub name: String,
    /// Its key, unless there is no TLS.
    pub key: Option<Fingerprint>,
    /// Where it is.
    pub source: IpAddr,
    /// Which device it asks for.
    pub device: u32,
    /// What it may have.
    pub quota: Quota,
    /// The memory that all its sessions have together, where that is bounded.
    pub memory: Option<Arc<MemoryShare>>,
}

/// Why there was no session. The client has been told what concerns it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FarEndError {
    /// A right that could not be given up.
    #[error(transparent)]
    Confine(#[from] ConfineError),
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The client did not come as far as a session.
    #[error("no session for {source_ip}: {error}")]
    Client {
        /// Where it is.
        source_ip: IpAddr,
        /// What happened.
        error: io::Error,
    },
    /// The client was told no.
    #[error("no session for the client {name}: {reason}")]
    Refused {
        /// Its name, or its address.
        name: String,
        /// Why.
        reason: String,
    },
    /// The front has gone, or speaks nonsense.
    #[error("the process that accepts connections: {0}")]
    Front(#[from] io::Error),
}

/// Serves one session, whose connections come through `control`, in a process of its own that has no other thread yet.
///
/// `open` makes what serves it, once the client is known, or says why not; what it makes has the wires until the session ends. When the client is gone
/// and that goes on, the process is ended: a client whose machine has closed all connections, within a second; one that has fallen silent, after the time of grace.
///
/// # Errors
/// [`FarEndError`]: there was no session.
pub fn far_end<S: FnOnce(Wires)>(
    control: OwnedFd,
    options: &FarEndOptions,
    open: impl FnOnce(&ClientFacts) -> Result<S, String>,
) -> Result<(), FarEndError> {
    confine(options.confinement)?;
    let gone = || FarEndError::Front(io::ErrorKind::UnexpectedEof.into());
    let next = || packet::receive(&control, RecvFlags::empty())?.ok_or_else(gone);
    let (ToFarEnd::Begin { certificates }, None) = next()? else { return Err(gone()) };
    let (ToFarEnd::Connection { plain, source, .. }, Some(socket)) = next()? else { return Err(gone()) };
    let (front, arriving) = Front::talk(control);
    let certificates: Vec<_> = certificates.into_iter().map(CertificateDer::from).collect();
    let newest = certificates.first().and_then(tls::examine).map(|(key, _)| key);
    let tls = match newest {
        Some(_) => Some(tls::server(certificates, &(front.clone() as Arc<dyn Authority>))?),
        None => None,
    };

    let about = |error| FarEndError::Client { source_ip: source, error };
    let arrivals = Arrivals { tls, insecure_loopback: options.insecure_loopback };
    let mut lane = arrivals.lane(socket, plain, source).map_err(about)?;
    let Hello::New { service, device, bulk, rdma } = protocol::receive(&mut lane).map_err(about)? else {
        return Err(about(io::ErrorKind::InvalidData.into()));
    };
    if !(1..=BULK_MAX).contains(&bulk) {
        return Err(about(io::ErrorKind::InvalidData.into()));
    }

    let key = lane.peer();
    let (answer, table) = front.ask(&ToFront::Admitted { key }).ok_or_else(gone)?;
    let (session, name, quota, word) = match answer {
        ToFarEnd::Granted { session, name, quota, word } => (session, name, quota, word),
        ToFarEnd::Denied { reason } => {
            return Err(refuse(&mut lane, source.to_string(), Refusal::Sessions, reason));
        }
        _ => return Err(gone()),
    };
    if service != options.service {
        let [here, there] = [options.service, service].map(Service::command);
        let reason = format!("it is `{here}` that listens on this port, and not `{there}`");
        return Err(refuse(&mut lane, name, Refusal::Request, reason));
    }
    if let Err(error) = if rdma { options.has_rdma(&lane) } else { Ok(()) } {
        return Err(refuse(&mut lane, name, Refusal::Request, error.to_string()));
    }
    let memory = match quota.memory {
        Some(most) => {
            let (table, word) = table.zip(word).ok_or_else(gone)?;
            Some(Arc::new(MemoryShare::new(table, word, most)?))
        }
        None => None,
    };
    let lines = Lines::new(End::Server, bulk, options.grace);
    let control = lines.get(Role::ControlUp).ok_or_else(gone)?;
    let asked_for = lane.asked_for();
    control.resume(lane, silence(control.role()), |_, _| Ok(0)).map_err(about)?;
    // A client that goes while its device is opened, or its other connections come, does not keep them.
    let knocks = Arc::new(Knocks::default());
    for line in lines.iter() {
        let (line, lines, knocks, grace) = (line.clone(), lines.clone(), knocks.clone(), options.grace);
        let memory = memory.clone();
        thread::spawn(move || keep(&line, &lines, (&knocks, memory.as_deref()), grace));
    }
    let facts = ClientFacts { name, key, source, device, quota, memory };
    let service = match open(&facts) {
        Ok(service) => service,
        Err(reason) => {
            let refused = |lane: &mut Lane| Ok(refuse(lane, facts.name, Refusal::Request, reason));
            return Err(control.with_lane(refused).map_err(about)?);
        }
    };
    let token = Token::random()?;
    let welcome = Welcome {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        new_key: newest.filter(|_| asked_for != newest.map(|key| key.server_name())),
        memory: facts.quota.memory,
        grace: options.grace,
    };
    let answer = Answer::New { session, token: token.clone(), welcome };
    control.with_lane(|lane| protocol::send(lane, &answer)).map_err(about)?;

    let joiner = Joiner { arrivals, key, token, rdma, lines: lines.clone(), knocks };
    thread::spawn(move || joiner.run(&arriving));
    for line in lines.iter() {
        // The front ends this process when they do not come.
        line.connection_after(0).ok_or_else(gone)?;
    }
    front.tell(&ToFront::Ready)?;

    let wires = lines.wires().map_err(about)?;
    tracing::info!("a session of {} ({}) begins", facts.name, facts.source);
    service(wires);
    tracing::info!("a session of {} ({}) has ended", facts.name, facts.source);
    Ok(())
}

fn refuse(lane: &mut Lane, name: String, code: Refusal, mut reason: String) -> FarEndError {
    // As much as a message holds.
    let mut end = reason.len().min(900);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    let answer = Answer::Refused { code, reason: reason.clone() };
    if protocol::send(lane, &answer).is_ok() {
        lane.close();
    }
    FarEndError::Refused { name, reason }
}

/// A connection that the front passes on: the socket, whether it is without TLS, and where it comes from.
type Arrival = (OwnedFd, bool, IpAddr);

/// What the front has answered, and the descriptor that came with it.
type Answered = (ToFarEnd, Option<OwnedFd>);

/// The process that accepts connections: it answers one question at a time.
struct Front {
    control: Arc<OwnedFd>,
    answers: Mutex<mpsc::Receiver<Answered>>,
}

impl Front {
    /// Hears it from now on, until it has gone: then this process ends, too.
    fn talk(control: OwnedFd) -> (Arc<Self>, mpsc::Receiver<Arrival>) {
        let control = Arc::new(control);
        let (arrive, arriving) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let heard = control.clone();
        thread::spawn(move || {
            while let Ok(Some((packet, socket))) = packet::receive(&heard, RecvFlags::empty()) {
                // Whoever waited for it may have given up.
                match (packet, socket) {
                    (ToFarEnd::Connection { plain, source }, Some(socket)) => {
                        drop(arrive.send((socket, plain, source)));
                    }
                    answered => drop(answer.send(answered)),
                }
            }
            end();
        });
        (Arc::new(Self { control, answers: Mutex::new(answers) }), arriving)
    }

    fn tell(&self, packet: &ToFront) -> io::Result<()> {
        packet::send(&self.control, packet, None, SendFlags::empty())
    }

    fn ask(&self, question: &ToFront) -> Option<Answered> {
        let answers = self.answers.lock().ok()?;
        self.tell(question).ok()?;
        answers.recv().ok()
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").finish_non_exhaustive()
    }
}

impl Authority for Front {
    fn sign(&self, key: Fingerprint, message: &[u8]) -> Option<Vec<u8>> {
        match self.ask(&ToFront::Sign { key, message: message.to_vec() })? {
            (ToFarEnd::Signed { signature }, _) => Some(signature),
            _ => None,
        }
    }

    fn knows(&self, key: Fingerprint) -> Option<Result<(), Denied>> {
        match self.ask(&ToFront::Known { key })? {
            (ToFarEnd::Known { is }, _) => Some(is),
            _ => None,
        }
    }
}

/// Makes connections of what the front passes on.
struct Arrivals {
    tls: Option<Arc<ServerConfig>>,
    insecure_loopback: bool,
}

impl Arrivals {
    fn lane(&self, socket: OwnedFd, plain: bool, source: IpAddr) -> io::Result<Lane> {
        let socket = TcpStream::from(socket);
        lane::prepare(&socket, PATIENCE)?;
        let tls = match &self.tls {
            // The front has looked; whoever serves strangers by mistake looks twice.
            _ if plain && self.insecure_loopback && source.is_loopback() => None,
            Some(tls) if !plain => Some(ServerConnection::new(tls.clone()).map_err(io::Error::other)?),
            _ => return Err(io::ErrorKind::PermissionDenied.into()),
        };
        Lane::open(socket, tls.map(Into::into))
    }
}

/// Who knocks, and when anything last happened to the session's connections.
struct Knocks {
    pending: AtomicUsize,
    last: Mutex<Instant>,
}

impl Default for Knocks {
    fn default() -> Self {
        Self { pending: AtomicUsize::new(0), last: Mutex::new(Instant::now()) }
    }
}

impl Knocks {
    fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether nobody has knocked for so long, and nothing else has happened.
    fn are_over(&self, since: Duration) -> bool {
        self.pending.load(Ordering::Acquire) == 0
            && self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= since
    }
}

/// Lets the other connections of the session in, and later those that come in the place of one that broke.
struct Joiner {
    arrivals: Arrivals,
    key: Option<Fingerprint>,
    token: Token,
    rdma: bool,
    lines: Lines,
    knocks: Arc<Knocks>,
}

impl Joiner {
    fn run(self, arriving: &mpsc::Receiver<Arrival>) {
        let joiner = Arc::new(self);
        while let Ok((socket, plain, source)) = arriving.recv() {
            // Whoever guessed the session's number finds no more room than this.
            if joiner.knocks.pending.load(Ordering::Acquire) >= PENDING_MAX {
                continue;
            }
            joiner.knocks.pending.fetch_add(1, Ordering::AcqRel);
            let joiner = joiner.clone();
            thread::spawn(move || {
                if let Err(error) = joiner.join(socket, plain, source) {
                    tracing::debug!("a connection from {source}: {error}");
                }
                joiner.knocks.note();
                joiner.knocks.pending.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }

    fn join(&self, socket: OwnedFd, plain: bool, source: IpAddr) -> io::Result<()> {
        let mut lane = self.arrivals.lane(socket, plain, source)?;
        if lane.peer() != self.key {
            return Err(io::Error::other("its key is not that of the session"));
        }
        let Hello::Join { token, role, arrived } = protocol::receive(&mut lane)? else {
            return Err(io::Error::other("it belongs to a session, and asks for one"));
        };
        if !self.token.is(&token) {
            return Err(io::Error::other("its token is not that of the session"));
        }
        let line = self.lines.get(role).ok_or_else(|| io::Error::other("the session has no such stream"))?;
        if self.rdma && !role.is_control() {
            let (listener, ticket) = (Listener::new(lane.socket()?)?, Token::random()?);
            let answer = Answer::Beside { port: listener.port()?, ticket: ticket.clone() };
            protocol::send(&mut lane, &answer)?;
            lane.go_beside(listener.accept(&ticket, Instant::now() + PATIENCE)?, line.writes());
        }
        line.resume(lane, silence(role), |lane, here| {
            protocol::send(lane, &Answer::Joined { arrived: here }).map(|()| arrived)
        })
    }
}

/// Ends the process when the client has gone: its machine, or something on the way, has closed all connections and nobody knocks again, or one was
/// silent for longer than the time of grace.
fn keep(line: &Line, lines: &Lines, (knocks, memory): (&Knocks, Option<&MemoryShare>), grace: Duration) {
    let mut count = 0;
    loop {
        if let Some((next, socket)) = line.connection_after(count) {
            count = next;
            line.has_ended(count, wait_for_end(socket));
        }
        knocks.note();
        let since = Instant::now();
        while !line.has_connection_after(count, LOOK) {
            let are_closed = lines.are_closed();
            // Whoever comes next waits for it.
            memory.filter(|_| are_closed).into_iter().for_each(MemoryShare::leaves);
            let deserted = are_closed && knocks.are_over(LEAVE);
            if deserted || since.elapsed() >= grace.max(LEAVE) {
                end();
            }
        }
        memory.into_iter().for_each(MemoryShare::stays);
    }
}

/// Ends this process at once. A device library's own way out waits for kernels, and whoever has left must not hold a device.
fn end() {
    let _ = kill_process(getpid(), Signal::KILL);
}

/// The control socket where a front has put it: on standard input.
///
/// # Errors
/// As the system's.
pub fn control() -> io::Result<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned()
}
