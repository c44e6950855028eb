//! The process that accepts connections. It reads 16 bytes of each, and hands the socket to the process of its session, which it starts for a new one:
//! it decides who may have how much, and proves this machine's key for them in handshakes, whose parts it does not see. It never sees data; and those who talk
//! with clients never have the key.
//!
//! One thread, one loop, which waits for nobody: a connection is *half-open* until its session's process says that the client is known, and the oldest
//! ones of whoever has most of them make room for others.

mod half_open;
mod own;
mod session;

use crate::far_end::PATIENCE;
use crate::fingerprint::Fingerprint;
use crate::keys::{Clients, Keys, KeysError, Moment, Quota};
use crate::ledger::Ledger;
use crate::packet::{self, ToFarEnd, ToFront};
use crate::protocol::{Kind, Notice, Preface};
use crate::tls;
use half_open::{Waiting, drop_oldest, network};
use own::{Own, Read};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, acceptfrom_with, listen, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use session::{Holder, Session, Stage};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

/// How many connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// How many are accepted before others have their turn.
const ACCEPTED_AT_ONCE: usize = 64;
/// How much a session may say before others have their turn.
const HEARD_AT_ONCE: usize = 8;
/// How many sessions may be at their handshake at once.
const STARTING_MAX: usize = 32;
/// How long a handshake may hold its place when others wait for one.
const STARTING_SHARE: Duration = Duration::from_secs(1);
/// How long nothing is accepted when there are no descriptors left.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// How often the list of clients is looked after.
const ROUND: Duration = Duration::from_millis(500);
/// How often processes that are ending are.
const ENDING: Duration = Duration::from_millis(10);

/// How to serve.
#[derive(Debug)]
pub struct FrontOptions {
    /// Where to listen.
    pub listen: SocketAddr,
    /// This machine's keys, and whom it lets in.
    pub keys: Keys,
    /// Whether clients of this machine may come without TLS.
    pub insecure_loopback: bool,
    /// The most sessions at a time.
    pub max_clients: usize,
    /// The most connections that have not said yet what they want.
    pub half_open: usize,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontError {
    /// The keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Without TLS, on a network.
    #[error("{0} can be reached from other machines: without TLS only 127.0.0.0/8 and ::1 are served")]
    InsecureBeyondLoopback(SocketAddr),
    /// Nothing can listen there.
    #[error("cannot listen on {at}: {error}")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The loop's own system calls.
    #[error("cannot wait for connections: {0}")]
    Wait(io::Error),
}

/// Accepts connections.
#[derive(Debug)]
pub struct Front {
    options: FrontOptions,
    listener: TcpListener,
    key: Option<Fingerprint>,
    own: Read<Vec<Own>>,
    clients: Read<Clients>,
    /// Whose preface is not complete.
    waiting: VecDeque<Waiting>,
    /// Who wants a session, and waits for its process to be started.
    queued: VecDeque<Waiting>,
    sessions: HashMap<u64, Session>,
    /// What each client has, of whom memory is counted.
    ledgers: HashMap<String, Ledger>,
    /// Processes that are to end, or have ended, and where their memory is counted.
    ended: Vec<(Child, Option<(String, u32)>)>,
    accept_from: Instant,
}

impl Front {
    /// Listens.
    ///
    /// # Errors
    /// [`FrontError`]: without a key, with one that has expired, or without TLS beyond this machine nothing is served.
    pub fn bind(options: FrontOptions) -> Result<Self, FrontError> {
        if options.insecure_loopback && !options.listen.ip().is_loopback() {
            return Err(FrontError::InsecureBeyondLoopback(options.listen));
        }
        let key = match options.keys.identity() {
            Ok(own) if own.has_expired() => return Err(KeysError::Expired(Moment(own.expires())).into()),
            Ok(own) => Some(own.fingerprint()),
            Err(KeysError::None { .. }) if options.insecure_loopback => None,
            Err(error) => return Err(error.into()),
        };
        let own = Read::first(Own::read(&options.keys)?, options.keys.identity_version());
        let clients = Read::first(options.keys.clients()?, options.keys.clients_version());
        let about = |error: io::Error| FrontError::Listen { at: options.listen, error };
        let listener = TcpListener::bind(options.listen).map_err(about)?;
        listener.set_nonblocking(true).map_err(about)?;
        listen(&listener, BACKLOG).map_err(|error| about(error.into()))?;
        // Each session takes two descriptors here.
        let most = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: most.maximum, maximum: most.maximum });
        Ok(Self {
            options,
            listener,
            key,
            own,
            clients,
            waiting: VecDeque::new(),
            queued: VecDeque::new(),
            sessions: HashMap::new(),
            ledgers: HashMap::new(),
            ended: Vec::new(),
            accept_from: Instant::now(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As the system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// This machine's key.
    #[must_use]
    pub fn key(&self) -> Option<Fingerprint> {
        self.key
    }

    /// Serves for ever. `spawn` starts a session's process with this as its standard input; there it calls [`crate::far_end()`]. All of them end with the
    /// thread that calls this.
    ///
    /// # Errors
    /// When it cannot go on.
    pub fn run(mut self, mut spawn: impl FnMut(OwnedFd) -> io::Result<Child>) -> Result<(), FrontError> {
        let mut round = Instant::now();
        loop {
            self.wait(round + ROUND)?;
            self.accept();
            self.read_prefaces();
            self.hear_sessions();
            let now = Instant::now();
            if now >= round + ROUND {
                round = now;
                self.look_at_clients();
            }
            self.give_up_old(now);
            self.start(&mut spawn);
            self.collect();
        }
    }

    /// Until something happens, or it is time for something.
    fn wait(&self, round: Instant) -> Result<(), FrontError> {
        let now = Instant::now();
        let accepts = self.accept_from <= now;
        let mut polled: Vec<PollFd<'_>> = Vec::new();
        if accepts {
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let sockets = self.waiting.iter().map(|waiting| waiting.socket.as_fd());
        let controls = self.sessions.values().map(|session| session.control.as_fd());
        polled.extend(sockets.chain(controls).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let until = if accepts { round } else { round.min(self.accept_from) };
        // Somebody may wait for what they had.
        let until = if self.ended.is_empty() { until } else { until.min(now + ENDING) };
        // A moment longer than that, so that it has come then.
        let left = until.saturating_duration_since(now) + Duration::from_millis(1);
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(FrontError::Wait(error.into())),
        }
    }

    fn accept(&mut self) {
        if self.accept_from > Instant::now() {
            return;
        }
        for _ in 0..ACCEPTED_AT_ONCE {
            let flags = SocketFlags::CLOEXEC;
            let (socket, address) = match acceptfrom_with(&self.listener, flags) {
                Ok(accepted) => accepted,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(
                    error @ (rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOMEM),
                ) => {
                    tracing::warn!("a connection waits: {error}");
                    self.exhausted();
                    return;
                }
                // Whatever went wrong with one connection is over with it.
                Err(_) => continue,
            };
            let Some(source) = address.and_then(|address| SocketAddr::try_from(address).ok()) else {
                continue;
            };
            let source = source.ip().to_canonical();
            let got = [0; Preface::LEN];
            self.waiting.push_back(Waiting { socket, source, since: Instant::now(), got, len: 0 });
            if self.waiting.len() > self.options.half_open {
                // What has arrived meanwhile need not go.
                self.read_prefaces();
            }
            if self.waiting.len() > self.options.half_open {
                drop_oldest(&mut self.waiting);
            }
        }
    }

    /// Makes room where the system has none.
    fn exhausted(&mut self) {
        drop_oldest(&mut self.waiting);
        self.accept_from = Instant::now() + EXHAUSTED;
    }

    fn read_prefaces(&mut self) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.read() {
                Ok(None) => self.waiting.push_back(waiting),
                Ok(Some(preface)) => self.sort(waiting, preface),
                Err(()) => {}
            }
        }
    }

    /// Decides what becomes of a connection that has said what it is.
    fn sort(&mut self, waiting: Waiting, preface: Preface) {
        let plain = match preface.kind {
            Kind::Tls => false,
            Kind::Plain if self.options.insecure_loopback && waiting.source.is_loopback() => true,
            Kind::Plain => return waiting.close(Notice::NotPlain),
            Kind::Notice(_) => return waiting.close(Notice::Version),
        };
        if preface.session == 0 {
            let known = self.sessions.values().filter(|session| session.holder().is_some()).count();
            if known >= self.options.max_clients {
                return waiting.close(Notice::Busy);
            }
            self.queued.push_back(waiting);
            // They hold no process, so there may be more of them.
            if self.queued.len() > 4 * self.options.half_open.max(STARTING_MAX) {
                drop_oldest(&mut self.queued);
            }
            return;
        }
        let session = self.sessions.get_mut(&preface.session);
        let Some(session) = session.filter(|session| session.holder().is_some()) else {
            return waiting.close(Notice::NoSession);
        };
        session.pass(plain, &waiting);
    }

    /// Starts processes for those who want a session.
    fn start(&mut self, spawn: &mut impl FnMut(OwnedFd) -> io::Result<Child>) {
        while !self.queued.is_empty() {
            let starting = || self.sessions.iter().filter(|(_, session)| session.stage == Stage::Starting);
            let mut shares: HashMap<IpAddr, usize> = HashMap::new();
            starting().for_each(|(_, session)| *shares.entry(network(session.source)).or_default() += 1);
            let share = |source| shares.get(&network(source)).copied().unwrap_or(0);
            if starting().count() >= STARTING_MAX {
                let slow = starting().filter(|(_, session)| session.since.elapsed() >= STARTING_SHARE);
                let slowest = slow.min_by_key(|(_, session)| (Reverse(share(session.source)), session.since));
                let Some((&number, _)) = slowest else { return };
                self.end(number, "others wait");
                continue;
            }
            // Of whoever has least, and the newest: where more come than can be served, the old ones are mostly not meant.
            let newest = self.queued.iter().enumerate().rev();
            let next = newest.min_by_key(|(_, waiting)| share(waiting.source)).map(|(index, _)| index);
            let Some(waiting) = next.and_then(|next| self.queued.remove(next)) else { return };
            if let Err(error) = self.start_one(waiting, spawn) {
                tracing::warn!("cannot start a session's process: {error}");
                self.exhausted();
                return;
            }
        }
    }

    fn start_one(
        &mut self,
        waiting: Waiting,
        spawn: &mut impl FnMut(OwnedFd) -> io::Result<Child>,
    ) -> io::Result<()> {
        let mut number = [0; 8];
        SystemRandom::new().fill(&mut number).map_err(|_| io::Error::other("no random numbers"))?;
        // 0 is a new session's, and the number is taken if it is there: not in the age of the universe.
        let number = u64::from_le_bytes(number).max(1);
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let child = spawn(theirs)?;
        let since = Instant::now();
        let stage = Stage::Starting;
        let (source, word) = (waiting.source, None);
        let mut session = Session { child, control, source, since, stage, word, signatures: 0 };
        self.own.renew(self.options.keys.identity_version(), || Own::read(&self.options.keys));
        let certificates = self.own.value.iter().map(|own| own.certificate.to_vec()).collect();
        session.tell(&ToFarEnd::Begin { certificates });
        let plain = Preface::from_bytes(waiting.got).is_some_and(|preface| preface.kind == Kind::Plain);
        session.pass(plain, &waiting);
        self.sessions.insert(number, session);
        Ok(())
    }

    fn hear_sessions(&mut self) {
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for number in numbers {
            for _ in 0..HEARD_AT_ONCE {
                let Some(session) = self.sessions.get(&number) else { break };
                match packet::receive::<ToFront>(&session.control, RecvFlags::DONTWAIT) {
                    Ok(Some((ToFront::Sign { key, message }, _))) => self.sign(number, key, &message),
                    Ok(Some((ToFront::Known { key }, _))) => {
                        self.read_clients();
                        let is = self.clients.value.admit(key).map(drop);
                        if let Some(session) = self.sessions.get(&number) {
                            session.tell(&ToFarEnd::Known { is });
                        }
                    }
                    Ok(Some((ToFront::Admitted { key }, _))) => self.admit(number, key),
                    Ok(Some((ToFront::Ready, _))) => self.is_ready(number),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Ok(None) | Err(_) => self.end(number, "it has ended"),
                }
            }
        }
    }

    /// Proves a key of this machine, in a handshake of a session's.
    fn sign(&mut self, number: u64, key: Fingerprint, message: &[u8]) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let Some(left) = session.signatures.checked_sub(1) else {
            return self.end(number, "it wants more handshakes than it has connections");
        };
        session.signatures = left;
        let own = self.own.value.iter().find(|own| own.fingerprint == key);
        let signed = own.and_then(|own| tls::sign_handshake(&own.certified, message));
        session.tell(&match signed {
            Some(signature) => ToFarEnd::Signed { signature },
            None => ToFarEnd::Denied { reason: "nothing of the sort is signed here".to_owned() },
        });
    }

    /// Whether a client may have a session.
    fn admit(&mut self, number: u64, key: Option<Fingerprint>) {
        let Some(session) = self.sessions.get(&number) else { return };
        if session.stage != Stage::Starting {
            return self.end(number, "it says twice who its client is");
        }
        self.read_clients();
        let known = || self.sessions.values().filter_map(Session::holder);
        let decided = match key {
            _ if known().count() >= self.options.max_clients => {
                Err("it has as many clients as it takes (--max-clients there)".to_owned())
            }
            None if self.options.insecure_loopback => Ok(("this machine".to_owned(), Default::default())),
            None => Err("it takes no client without a key".to_owned()),
            Some(key) => match self.clients.value.admit(key) {
                Err(_) => Err("its key has just been taken off the list".to_owned()),
                Ok(client) => {
                    let has = known().filter(|holder| holder.name == client.name).count();
                    match client.quota.sessions {
                        Some(most) if has >= usize::try_from(most).unwrap_or(usize::MAX) => {
                            Err(format!("the client {} may have {most} at a time, and has them", client.name))
                        }
                        _ => Ok((client.name.clone(), client.quota.clone())),
                    }
                }
            },
        };
        let counted = decided.and_then(|(name, quota): (String, Quota)| {
            let word = if quota.memory.is_some() { Some(self.word_for(&name)?) } else { None };
            Ok((name, quota, word))
        });
        let Some(session) = self.sessions.get_mut(&number) else { return };
        match counted {
            Ok((name, quota, word)) => {
                session.since = Instant::now();
                session.stage = Stage::Joining(Holder { name: name.clone(), key });
                session.word = word;
                let ledger = word.and_then(|_| self.ledgers.get(&name)).map(AsFd::as_fd);
                if !session.tell_with(&ToFarEnd::Granted { session: number, name, quota, word }, ledger) {
                    self.end(number, "it is not told what its client may have");
                }
            }
            Err(reason) => {
                tracing::info!("no session for {}: {reason}", session.source);
                session.tell(&ToFarEnd::Denied { reason });
            }
        }
    }

    /// Where a new session of a client counts its memory.
    fn word_for(&mut self, name: &str) -> Result<u32, String> {
        let about = |why: &dyn Display| format!("it cannot count the memory of the client {name}: {why}");
        if !self.ledgers.contains_key(name) {
            let ledger = Ledger::new().map_err(|error| about(&error))?;
            self.ledgers.insert(name.to_owned(), ledger);
        }
        let ledger = self.ledgers.get_mut(name);
        ledger.and_then(Ledger::take).ok_or_else(|| about(&"too many of its sessions are just ending"))
    }

    /// Waits for processes that have ended, with which goes what they had.
    fn collect(&mut self) {
        let ledgers = &mut self.ledgers;
        self.ended.retain_mut(|(child, counted)| {
            if matches!(child.try_wait(), Ok(None)) {
                return true;
            }
            if let Some((name, word)) = counted
                && let Some(ledger) = ledgers.get_mut(name)
            {
                // A word that cannot be set back stays taken, and counts: the client has less.
                if let Err(error) = ledger.give_back(*word) {
                    tracing::warn!("the memory of an ended session of {name} stays counted: {error}");
                }
                if ledger.is_unused() {
                    ledgers.remove(name);
                }
            }
            false
        });
    }

    fn is_ready(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        match session.holder().cloned() {
            Some(holder) => session.stage = Stage::Ready(holder),
            None => self.end(number, "it is ready for nobody"),
        }
    }

    /// Reads the list of clients again when it has changed.
    fn read_clients(&mut self) {
        self.clients.renew(self.options.keys.clients_version(), || self.options.keys.clients());
    }

    /// Ends sessions of those who are let in no more.
    fn look_at_clients(&mut self) {
        self.read_clients();
        let is_out = |session: &Session| {
            let key = session.holder().and_then(|holder| holder.key);
            key.is_some_and(|key| self.clients.value.admit(key).is_err())
        };
        let out: Vec<u64> =
            self.sessions.iter().filter(|(_, session)| is_out(session)).map(|(number, _)| *number).collect();
        out.into_iter().for_each(|number| self.end(number, "its client is let in no more"));
    }

    /// Half-open connections and sessions that do not begin.
    fn give_up_old(&mut self, now: Instant) {
        self.waiting.retain(|waiting| now < waiting.since + PATIENCE);
        self.queued.retain(|waiting| now < waiting.since + PATIENCE);
        let is_late = |session: &Session| session.deadline().is_some_and(|deadline| deadline <= now);
        let late: Vec<u64> =
            self.sessions.iter().filter(|(_, session)| is_late(session)).map(|(number, _)| *number).collect();
        late.into_iter().for_each(|number| self.end(number, "it took too long"));
    }

    fn end(&mut self, number: u64, why: &str) {
        let Some(mut session) = self.sessions.remove(&number) else { return };
        let who = session.holder().map_or_else(|| session.source.to_string(), |holder| holder.name.clone());
        tracing::debug!("a session of {who} ends: {why}");
        let _ = session.child.kill();
        let counted = session.word.and_then(|word| Some((session.holder()?.name.clone(), word)));
        self.ended.push((session.child, counted));
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        for session in self.sessions.values_mut() {
            let _ = session.child.kill();
            let _ = session.child.wait();
        }
    }
}
