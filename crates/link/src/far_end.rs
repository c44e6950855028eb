//! The process of one session: TLS, keys and data, and none of the front's rights.
//!
//! It gives up its privileges before it reads anything at all, and has no key of this machine: the front signs handshakes for it, and knows the clients. The client that proves to have an authorised key on the first
//! connection is the session's; the others must show the same key, and the token that the first was given.

use crate::confine::{ConfineError, User, confine};
use crate::fingerprint::Fingerprint;
use crate::keys::{Denied, Quota};
use crate::lane::{self, Activity, Lane};
use crate::packet::{self, ToFarEnd, ToFront};
use crate::protocol::{self, Answer, BULK_MAX, Hello, Refusal, Role, Token};
use crate::tls::{self, Authority};
use crate::{Welcome, Wires};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Signal, getpid, kill_process};
use rustls::pki_types::CertificateDer;
use rustls::{ServerConfig, ServerConnection};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// How long a connection may take for its handshake and hello, each read or write of it; the front bounds the whole.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How many connections may be in that at once: those of a session, and a few more.
const PENDING_MAX: usize = 2 * BULK_MAX as usize + 8;
/// How long a service may go on after its client has left, to end by itself.
const GRACE: Duration = Duration::from_millis(500);

/// How a session's process behaves.
#[derive(Debug)]
pub struct FarEndOptions {
    /// Whether clients of this machine may come without TLS.
    pub insecure_loopback: bool,
    /// Whom to become, if root.
    pub user: Option<User>,
    /// Whether to allow only the system calls that the software device makes.
    pub system_calls: bool,
    /// After how long a silence to end.
    pub idle: Option<Duration>,
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
/// and that goes on, the process is ended.
///
/// # Errors
/// [`FarEndError`]: there was no session.
pub fn far_end<S: FnOnce(Wires)>(
    control: OwnedFd,
    options: &FarEndOptions,
    open: impl FnOnce(&ClientFacts) -> Result<S, String>,
) -> Result<(), FarEndError> {
    confine(options.user, options.system_calls)?;
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
    let Hello::New { device, bulk } = protocol::receive(&mut lane).map_err(about)? else {
        return Err(about(io::ErrorKind::InvalidData.into()));
    };
    if !(1..=BULK_MAX).contains(&bulk) {
        return Err(about(io::ErrorKind::InvalidData.into()));
    }

    let key = lane.peer();
    let (session, name, quota) = match front.ask(&ToFront::Admitted { key }).ok_or_else(gone)? {
        ToFarEnd::Granted { session, name, quota } => (session, name, quota),
        ToFarEnd::Denied { reason } => {
            return Err(refuse(lane, source.to_string(), Refusal::Sessions, reason));
        }
        _ => return Err(gone()),
    };
    // A client that goes while its device is opened, or its other connections come, does not keep them.
    watch_over(vec![lane.socket().map_err(about)?], &Activity::new(), None);
    let facts = ClientFacts { name, key, source, device, quota };
    let service = match open(&facts) {
        Ok(service) => service,
        Err(reason) => return Err(refuse(lane, facts.name, Refusal::Request, reason)),
    };
    let token = Token::random()?;
    let welcome = Welcome {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        new_key: newest.filter(|_| lane.asked_for() != newest.map(|key| key.server_name())),
        memory: quota.memory,
    };
    let answer = Answer::New { session, token: token.clone(), welcome };
    protocol::send(&mut lane, &answer).map_err(about)?;

    let (joined, joins) = mpsc::channel();
    let joiner = Joiner { arrivals, key, token, joined };
    thread::spawn(move || joiner.run(&arriving));
    let mut lanes = HashMap::from([(Role::ControlUp, lane)]);
    let expected = 2 + 2 * usize::from(bulk);
    while lanes.len() < expected {
        // The front ends this process when they do not come.
        let (role, lane) = joins.recv().map_err(|_| gone())?;
        let in_range = match role {
            Role::ControlUp => false,
            Role::ControlDown => true,
            Role::BulkUp(number) | Role::BulkDown(number) => number < bulk,
        };
        if in_range {
            lanes.entry(role).or_insert(lane);
        }
    }
    front.tell(&ToFront::Ready)?;

    let activity = Activity::new();
    let sockets = || lanes.values().map(Lane::socket).collect::<io::Result<Vec<TcpStream>>>();
    watch_over(sockets().map_err(about)?, &activity, options.idle);
    let hang_up = lane::hang_up(sockets().map_err(about)?);
    let wires = wires(lanes, bulk, &activity, hang_up).map_err(about)?;
    tracing::info!("a session of {} ({}) begins", facts.name, facts.source);
    service(wires);
    tracing::info!("a session of {} ({}) has ended", facts.name, facts.source);
    Ok(())
}

fn refuse(mut lane: Lane, name: String, code: Refusal, mut reason: String) -> FarEndError {
    // As much as a message holds.
    let mut end = reason.len().min(900);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    let answer = Answer::Refused { code, reason: reason.clone() };
    if protocol::send(&mut lane, &answer).is_ok() {
        lane.refuse();
    }
    FarEndError::Refused { name, reason }
}

/// A connection that the front passes on: the socket, whether it is without TLS, and where it comes from.
type Arrival = (OwnedFd, bool, IpAddr);

/// The process that accepts connections: it answers one question at a time.
struct Front {
    control: Arc<OwnedFd>,
    answers: Mutex<mpsc::Receiver<ToFarEnd>>,
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
                    (packet, _) => drop(answer.send(packet)),
                }
            }
            end();
        });
        (Arc::new(Self { control, answers: Mutex::new(answers) }), arriving)
    }

    fn tell(&self, packet: &ToFront) -> io::Result<()> {
        packet::send(&self.control, packet, None, SendFlags::empty())
    }

    fn ask(&self, question: &ToFront) -> Option<ToFarEnd> {
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
            ToFarEnd::Signed { signature } => Some(signature),
            _ => None,
        }
    }

    fn knows(&self, key: Fingerprint) -> Option<Result<(), Denied>> {
        match self.ask(&ToFront::Known { key })? {
            ToFarEnd::Known { is } => Some(is),
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

/// Lets the other connections of the session in.
struct Joiner {
    arrivals: Arrivals,
    key: Option<Fingerprint>,
    token: Token,
    joined: mpsc::Sender<(Role, Lane)>,
}

impl Joiner {
    fn run(self, arriving: &mpsc::Receiver<Arrival>) {
        let joiner = Arc::new(self);
        let pending = Arc::new(AtomicUsize::new(0));
        while let Ok((socket, plain, source)) = arriving.recv() {
            // Whoever guessed the session's number finds no more room than this.
            if pending.load(Ordering::Relaxed) >= PENDING_MAX {
                continue;
            }
            pending.fetch_add(1, Ordering::Relaxed);
            let (joiner, pending) = (joiner.clone(), pending.clone());
            thread::spawn(move || {
                if let Err(error) = joiner.join(socket, plain, source) {
                    tracing::debug!("a connection from {source}: {error}");
                }
                pending.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    fn join(&self, socket: OwnedFd, plain: bool, source: IpAddr) -> io::Result<()> {
        let mut lane = self.arrivals.lane(socket, plain, source)?;
        if lane.peer() != self.key {
            return Err(io::Error::other("its key is not that of the session"));
        }
        let Hello::Join { token, role } = protocol::receive(&mut lane)? else {
            return Err(io::Error::other("it belongs to a session, and asks for one"));
        };
        if !self.token.is(&token) {
            return Err(io::Error::other("its token is not that of the session"));
        }
        protocol::send(&mut lane, &Answer::Joined)?;
        self.joined.send((role, lane)).map_err(io::Error::other)
    }
}

fn wires(
    mut lanes: HashMap<Role, Lane>,
    bulk: u8,
    activity: &Activity,
    hang_up: Arc<dyn Fn() + Send + Sync>,
) -> io::Result<Wires> {
    let mut take = |role| lanes.remove(&role).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    let mut reader = |role| -> io::Result<Box<dyn Read + Send>> { take(role)?.into_reader(activity.clone()) };
    let control_in = reader(Role::ControlUp)?;
    let bulk_in = (0..bulk).map(|number| reader(Role::BulkUp(number))).collect::<Result<_, _>>()?;
    let mut writer =
        |role| -> io::Result<Box<dyn Write + Send>> { take(role)?.into_writer(activity.clone()) };
    let control_out = writer(Role::ControlDown)?;
    let bulk_out = (0..bulk).map(|number| writer(Role::BulkDown(number))).collect::<Result<_, _>>()?;
    Ok(Wires { control_out, control_in, bulk_out, bulk_in, hang_up })
}

/// Ends the process when its client has gone, or says nothing for too long.
fn watch_over(sockets: Vec<TcpStream>, activity: &Activity, idle: Option<Duration>) {
    let activity = activity.clone();
    thread::spawn(move || watch(&sockets, &activity, idle));
}

fn watch(sockets: &[TcpStream], activity: &Activity, idle: Option<Duration>) {
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    loop {
        let mut polled: Vec<PollFd<'_>> =
            sockets.iter().map(|socket| PollFd::new(socket, PollFlags::RDHUP)).collect();
        let a_second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ = poll(&mut polled, idle.is_some().then_some(&a_second));
        if polled.iter().any(|socket| socket.revents().intersects(gone)) {
            thread::sleep(GRACE);
            end();
        }
        if idle.is_some_and(|idle| activity.idle() >= idle) {
            tracing::warn!("nothing was said for {}s: the session ends", activity.idle().as_secs());
            end();
        }
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
