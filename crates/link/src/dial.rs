//! The client's side: a session's connections, or a sentence that says what to do.

use crate::address::Address;
use crate::fingerprint::Fingerprint;
use crate::keys::{Identity, Keys, KeysError, Moment};
use crate::lane::{self, Lane};
use crate::lines::{End, Lines, silence};
use crate::mend::Session;
use crate::protocol::{self, Answer, Hello, Kind, Notice, Preface, Refusal, Role, Service, VERSION};
use crate::rdma::{self, Stream};
use crate::tls::{ClientSide, ServerProblem};
use crate::{Welcome, Wires};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConnection};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use wires::BULK_MAX;

/// How each side knows the other.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// By keys, over TLS.
    Keys(&'a Keys),
    /// Not at all, without TLS, to this very machine only.
    InsecureLoopback,
}

/// How to open a session.
#[derive(Clone, Copy, Debug)]
pub struct DialOptions {
    /// What is wanted of the machine.
    pub service: Service,
    /// How many bulk connections in each direction, 16 at most.
    pub bulk: u8,
    /// How long all of it may take.
    pub timeout: Duration,
}

impl Default for DialOptions {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // What is encrypted on one core gains nothing by several streams; where the other end is this machine too, it needs as many.
        let bulk = u8::try_from(cores.min(4).max(cores / 2).min(8)).unwrap_or(1);
        Self { service: Service::Devices, bulk, timeout: Duration::from_secs(10) }
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// Nobody knows the name.
    #[error("the name {host} cannot be resolved: {error}")]
    NotResolved {
        /// The name.
        host: String,
        /// What the system said.
        error: io::Error,
    },
    /// Nobody listens.
    #[error(
        "{machine} refused the connection: does `{}` run there, and listen on that address and port?", service.command()
    )]
    ConnectionRefused {
        /// The machine.
        machine: String,
        /// What is wanted of it.
        service: Service,
    },
    /// Nobody answers.
    #[error("{machine} does not answer within {}s: is it up, and do firewalls let the port pass?", timeout.as_secs_f32())]
    TimedOut {
        /// The machine.
        machine: String,
        /// How long it had.
        timeout: Duration,
    },
    /// The connection broke, or something else answers there.
    #[error("no session with {machine}: {error}")]
    Broken {
        /// The machine.
        machine: String,
        /// What happened.
        error: io::Error,
    },
    /// Whatever listens there is no Dormouse.
    #[error("what answers at {machine} is not Dormouse")]
    NotDormouse {
        /// The machine.
        machine: String,
    },
    /// This machine's own keys.
    #[error(transparent)]
    OwnKeys(#[from] KeysError),
    /// The server's key is not known.
    #[error(
        "the key of {machine} is not known: it shows {key}. If that is what `dormouse keys show` prints there, type:  dormouse keys trust {machine} {key}"
    )]
    UnknownServer {
        /// The machine.
        machine: String,
        /// Its key.
        key: Fingerprint,
    },
    /// The server's key is another one than it was.
    #[error(
        "THE KEY OF {machine} HAS CHANGED: it shows {key}, and was known as {known}. Somebody may be listening, or may answer in its place. Nothing was sent. Only if somebody who is there says that its key was changed, type:  dormouse keys trust --replace {machine} {key}"
    )]
    ServerChanged {
        /// The machine.
        machine: String,
        /// The key that it shows.
        key: Fingerprint,
        /// The one that it had.
        known: Fingerprint,
    },
    /// The server's certificate is over.
    #[error("the certificate of {machine} expired at {at}: `dormouse keys rotate` there makes a new key")]
    ServerExpired {
        /// The machine.
        machine: String,
        /// When.
        at: Moment,
    },
    /// A certificate begins in the future.
    #[error("the certificate of {machine} is good from {from} on only: is one of the clocks wrong?")]
    ServerTooNew {
        /// The machine.
        machine: String,
        /// When.
        from: Moment,
    },
    /// The server does not know our key.
    #[error(
        "{machine} does not know this machine's key {key}. To let it in, type there:  dormouse keys authorize NAME {key}"
    )]
    NotAuthorised {
        /// The machine.
        machine: String,
        /// Our key.
        key: Fingerprint,
    },
    /// The server has taken our key off its list.
    #[error("{machine} has revoked this machine's key {key}")]
    Revoked {
        /// The machine.
        machine: String,
        /// Our key.
        key: Fingerprint,
    },
    /// The server's list says that our time is over.
    #[error(
        "{machine} does not let this machine's key {key} in any more: its time there is over. `dormouse keys authorize` there gives it more"
    )]
    AuthorisationExpired {
        /// The machine.
        machine: String,
        /// Our key.
        key: Fingerprint,
    },
    /// Our certificate is over by the server's clock.
    #[error(
        "{machine} says that this machine's certificate, good until {until}, is not good now: is one of the clocks wrong?"
    )]
    OwnExpired {
        /// The machine.
        machine: String,
        /// When it ends.
        until: Moment,
    },
    /// The server speaks another version.
    #[error(
        "{machine} speaks version {theirs} of the protocol, this machine {VERSION}: both need the same release of Dormouse"
    )]
    Version {
        /// The machine.
        machine: String,
        /// Its version.
        theirs: u16,
    },
    /// The server has enough to do.
    #[error("{machine} has as many clients as it takes (--max-clients there); try again later")]
    Busy {
        /// The machine.
        machine: String,
    },
    /// The server has ended the session, or was itself started anew.
    #[error("{machine} has the session no more: its server was started anew, or has ended it")]
    NoSession {
        /// The machine.
        machine: String,
    },
    /// The server takes TLS only.
    #[error("{machine} takes no connection without TLS: it was not started with --insecure-loopback")]
    NotPlain {
        /// The machine.
        machine: String,
    },
    /// The server knows us and says no.
    #[error("{machine} takes no session of this machine: {reason}")]
    Refused {
        /// The machine.
        machine: String,
        /// What kind of no.
        code: Refusal,
        /// Its words.
        reason: String,
    },
    /// RDMA was asked for, which this machine has not, or which does not lead there.
    #[error("no RDMA to {machine}: {error}")]
    NoRdma {
        /// The machine.
        machine: String,
        /// What happened.
        error: io::Error,
    },
    /// TLS is never left out on a network.
    #[error("{machine} is not this machine: without TLS only 127.0.0.0/8 and ::1 are connected to")]
    NotLoopback {
        /// The machine.
        machine: String,
    },
}

impl DialError {
    /// Whether it may be otherwise in a moment: nobody answers there, or a connection broke. What the other machine has told it will tell again.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::ConnectionRefused { .. } | Self::TimedOut { .. } | Self::Broken { .. })
    }
}

/// Opens a session.
///
/// # Errors
/// [`DialError`]: sentences for whoever wants it.
pub fn dial(
    address: &Address,
    trust: Trust<'_>,
    options: &DialOptions,
) -> Result<(Wires, Welcome), DialError> {
    let deadline = Instant::now() + options.timeout;
    let bulk = options.bulk.clamp(1, BULK_MAX);
    if address.is_over_rdma() {
        rdma::is_there().map_err(|error| DialError::NoRdma { machine: address.machine(), error })?;
    }
    let Trust::Keys(keys) = trust else { return Dial::new(address, None, deadline, options)?.session(bulk) };
    let known = keys.servers()?.keys(&address.machine());
    let own = keys.identity()?;
    if own.has_expired() {
        return Err(KeysError::Expired(Moment(own.expires())).into());
    }
    let refused = match Dial::new(address, Some((own, known.clone())), deadline, options)?.session(bulk) {
        Err(refused @ DialError::NotAuthorised { .. }) => refused,
        done => return done,
    };
    // A key that is being replaced is shown where the new one is not known yet.
    let Some(previous) = keys.previous()? else { return Err(refused) };
    let done = Dial::new(address, Some((previous, known)), deadline, options)?.session(bulk);
    match done {
        Ok(session) => {
            tracing::warn!("{refused} (with --replace); the previous key is taken there until then");
            Ok(session)
        }
        Err(_) => Err(refused),
    }
}

/// One attempt, and what it takes for another.
#[derive(Clone)]
pub(crate) struct Dial {
    address: Address,
    service: Service,
    /// Where that is: the first that answers is the machine.
    at: Vec<SocketAddr>,
    tls: Option<Arc<Own>>,
    deadline: Instant,
    timeout: Duration,
}

/// What TLS stands on.
struct Own {
    side: ClientSide,
    key: Fingerprint,
    expires: Moment,
    /// The server's, the newest first.
    known: Vec<Fingerprint>,
    server_name: ServerName<'static>,
}

impl Dial {
    fn new(
        address: &Address,
        keys: Option<(Identity, Vec<Fingerprint>)>,
        deadline: Instant,
        options: &DialOptions,
    ) -> Result<Self, DialError> {
        let machine = address.machine();
        let host = address.host().to_owned();
        let resolved = (address.host(), address.port()).to_socket_addrs();
        let at: Vec<SocketAddr> =
            resolved.map_err(|error| DialError::NotResolved { host: host.clone(), error })?.collect();
        let tls = match keys {
            None if !at.iter().all(|at| at.ip().is_loopback()) => {
                return Err(DialError::NotLoopback { machine });
            }
            None => None,
            Some((identity, known)) => {
                // The key that is asked for by name: the newest that is known, or any.
                let name = known.first().map_or_else(|| "dormouse".to_owned(), Fingerprint::server_name);
                let broken = |what: String| DialError::Broken {
                    machine: machine.clone(),
                    error: io::Error::other(what),
                };
                Some(Arc::new(Own {
                    key: identity.fingerprint(),
                    expires: Moment(identity.expires()),
                    side: ClientSide::new(&identity, known.clone())
                        .map_err(|error| broken(error.to_string()))?,
                    known,
                    server_name: ServerName::try_from(name).map_err(|error| broken(error.to_string()))?,
                }))
            }
        };
        Ok(Self {
            address: address.clone(),
            service: options.service,
            at,
            tls,
            deadline,
            timeout: options.timeout,
        })
    }

    /// Another one, which may take so long.
    pub fn again(&self, timeout: Duration) -> Self {
        Self { deadline: Instant::now() + timeout, timeout, ..self.clone() }
    }

    pub fn machine(&self) -> String {
        self.address.machine()
    }

    /// Whether what bulk connections carry goes by RDMA.
    pub fn is_over_rdma(&self) -> bool {
        self.address.is_over_rdma()
    }

    /// Has a connection go on beside its socket as the server has told, and gives the next answer.
    pub fn go_beside(&self, lane: &mut Lane, writes: bool, told: Answer) -> Result<Answer, DialError> {
        let Answer::Beside { port, ticket } = told else {
            return Err(DialError::NotDormouse { machine: self.machine() });
        };
        let connected = |socket: TcpStream| {
            let here = socket.local_addr()?.ip();
            let about = |error: io::Error| {
                let text =
                    format!("from this machine's address {here}, which needs a device for it: {error}");
                io::Error::new(error.kind(), text)
            };
            Stream::connect(socket, port, &ticket, self.deadline).map_err(about)
        };
        let stream = lane.socket().and_then(connected);
        lane.go_beside(stream.map_err(|error| DialError::NoRdma { machine: self.machine(), error })?, writes);
        protocol::receive(lane).map_err(|error| self.of(error))
    }

    /// A name may have several addresses, not all of which are served.
    fn connect(&self) -> io::Result<TcpStream> {
        let mut connected = Err(io::ErrorKind::NotFound.into());
        for (tried, at) in self.at.iter().enumerate() {
            let share = self.left() / u32::try_from(self.at.len() - tried).unwrap_or(1);
            connected = TcpStream::connect_timeout(at, share.max(Duration::from_millis(1)));
            if connected.is_ok() {
                break;
            }
        }
        connected
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    fn session(mut self, bulk: u8) -> Result<(Wires, Welcome), DialError> {
        let (device, rdma) = (self.address.device().unwrap_or(0), self.is_over_rdma());
        let (control, answer) =
            self.connection(0, &Hello::New { service: self.service, device, bulk, rdma })?;
        let Answer::New { session, token, welcome } = answer else {
            return Err(DialError::NotDormouse { machine: self.machine() });
        };
        // The others lead to the same machine.
        let found = control.socket().and_then(|socket| socket.peer_addr());
        self.at = vec![found.map_err(|error| self.of(error))?];
        let lines = Lines::new(End::Client, bulk, welcome.grace);
        if let Some(line) = lines.get(Role::ControlUp) {
            line.resume(control, silence(line.role()), |_, _| Ok(0)).map_err(|error| self.of(error))?;
        }
        let wires = lines.wires().map_err(|error| self.of(error))?;
        let machine = self.machine();
        let session = Arc::new(Session::new(self, session, token, lines, welcome.grace));
        session.begin()?;
        if let Some(key) = welcome.new_key {
            tracing::warn!(
                "{machine} has a new key, which follows the one that is known; type:  dormouse keys trust --replace {machine} {key}"
            );
        }
        Ok((wires, welcome))
    }

    pub fn connection(&self, session: u64, hello: &Hello) -> Result<(Lane, Answer), DialError> {
        let mut socket = self.connect().map_err(|error| self.of(error))?;
        // Where nobody listens on a port of one's own machine, a connection may by chance be to itself.
        if socket.local_addr().ok() == socket.peer_addr().ok() {
            return Err(DialError::ConnectionRefused {
                machine: self.address.machine(),
                service: self.service,
            });
        }
        lane::prepare(&socket, self.left()).map_err(|error| self.of(error))?;
        let kind = if self.tls.is_some() { Kind::Tls } else { Kind::Plain };
        let preface = Preface { version: VERSION, kind, session };
        socket.write_all(&preface.to_bytes()).map_err(|error| self.of(error))?;
        let notices = socket.try_clone().map_err(|error| self.of(error))?;
        let talked = self.talk(socket, hello);
        match talked {
            Ok((_, Answer::Refused { code, reason })) => {
                Err(DialError::Refused { machine: self.address.machine(), code, reason: printable(&reason) })
            }
            Ok(done) => Ok(done),
            Err((error, seen)) => Err(self.notice(&notices, &seen).unwrap_or_else(|| self.of(error))),
        }
    }

    /// The handshake and the hello; and the first bytes that came when it failed.
    fn talk(&self, socket: TcpStream, hello: &Hello) -> Result<(Lane, Answer), (io::Error, Vec<u8>)> {
        let mut first = [0; Preface::LEN];
        let plain = |error| (error, Vec::new());
        let tls = match &self.tls {
            None => None,
            Some(own) => {
                let config = own.side.config.clone();
                let connection = ClientConnection::new(config, own.server_name.clone());
                let mut connection = connection.map_err(|error| plain(io::Error::other(error)))?;
                // The server's first bytes are looked at before TLS takes them: they may be a notice.
                let mut socket = &socket;
                let mut sent = Ok(0);
                while connection.wants_write() && sent.is_ok() {
                    sent = lane::uninterrupted(|| connection.write_tls(&mut socket));
                }
                // They may lie there, too, when the server has closed already.
                let seen = lane::uninterrupted(|| socket.peek(&mut first)).map_err(plain)?;
                if seen > 0 && Preface::may_begin(&first[..seen]) {
                    return Err((io::ErrorKind::InvalidData.into(), first[..seen].to_vec()));
                }
                Some(connection.into())
            }
        };
        let mut lane = Lane::open(socket, tls).map_err(plain)?;
        // A server that does not like our key says so after the handshake has ended for us, and may have closed by now.
        let sent = protocol::send(&mut lane, hello);
        let answer = if self.tls.is_none() {
            Self::plain_answer(&mut lane)?
        } else {
            protocol::receive(&mut lane).map_err(plain)?
        };
        sent.map_err(plain)?;
        Ok((lane, answer))
    }

    /// An answer in the clear, where a notice may stand in its place: its first two bytes are a length that no answer has.
    fn plain_answer(lane: &mut Lane) -> Result<Answer, (io::Error, Vec<u8>)> {
        let plain = |error| (error, Vec::new());
        let mut first = [0; Preface::LEN];
        let (length, rest) = first.split_at_mut(2);
        lane.read_exact(length).map_err(plain)?;
        if Preface::may_begin(length) {
            lane.read_exact(rest).map_err(plain)?;
            return Err((io::ErrorKind::InvalidData.into(), first.to_vec()));
        }
        protocol::receive(&mut (&*length).chain(lane)).map_err(plain)
    }

    /// What a server says in the clear before it closes.
    fn notice(&self, mut socket: &TcpStream, seen: &[u8]) -> Option<DialError> {
        if seen.is_empty() {
            return None;
        }
        // With TLS they were looked at, without it all of them read.
        let taken = if self.tls.is_some() { 0 } else { seen.len() };
        let mut bytes = [0; Preface::LEN];
        bytes[..taken].copy_from_slice(&seen[..taken]);
        socket.read_exact(&mut bytes[taken..]).ok()?;
        let machine = self.address.machine();
        let preface = Preface::from_bytes(bytes)?;
        match preface.kind {
            Kind::Notice(Notice::Version) => Some(DialError::Version { machine, theirs: preface.version }),
            Kind::Notice(Notice::Busy) => Some(DialError::Busy { machine }),
            Kind::Notice(Notice::NotPlain) => Some(DialError::NotPlain { machine }),
            Kind::Notice(Notice::NoSession) => Some(DialError::NoSession { machine }),
            Kind::Tls | Kind::Plain => None,
        }
    }

    /// What an error of a socket or of TLS means.
    pub fn of(&self, error: io::Error) -> DialError {
        let machine = self.address.machine();
        if let Some(own) = &self.tls {
            match (own.side.problem(), own.known.first()) {
                (Some(ServerProblem::Changed(key)), Some(&known)) => {
                    return DialError::ServerChanged { machine, key, known };
                }
                (Some(ServerProblem::Unknown(key) | ServerProblem::Changed(key)), _) => {
                    return DialError::UnknownServer { machine, key };
                }
                (Some(ServerProblem::Expired(at)), _) => return DialError::ServerExpired { machine, at },
                (Some(ServerProblem::NotYet(from)), _) => return DialError::ServerTooNew { machine, from },
                (Some(ServerProblem::Foreign), _) => return DialError::NotDormouse { machine },
                (None, _) => {}
            }
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            let (key, until) = (own.key, own.expires);
            match inner {
                Some(rustls::Error::AlertReceived(AlertDescription::UnknownCA)) => {
                    return DialError::NotAuthorised { machine, key };
                }
                Some(rustls::Error::AlertReceived(AlertDescription::CertificateRevoked)) => {
                    return DialError::Revoked { machine, key };
                }
                Some(rustls::Error::AlertReceived(AlertDescription::AccessDenied)) => {
                    return DialError::AuthorisationExpired { machine, key };
                }
                Some(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)) => {
                    return DialError::OwnExpired { machine, until };
                }
                Some(rustls::Error::InvalidMessage(_)) => return DialError::NotDormouse { machine },
                _ => {}
            }
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                DialError::ConnectionRefused { machine, service: self.service }
            }
            // A socket's own timeout reads as the former.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                DialError::TimedOut { machine, timeout: self.timeout }
            }
            _ => DialError::Broken { machine, error },
        }
    }
}

/// What another machine wrote, for a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
