//! One connection: both ways while it is set up, one way from then on.

use crate::fingerprint::Fingerprint;
use crate::tls;
use rustix::net::sockopt;
use rustls::Connection;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is read from a socket at once: rustls by itself would read 4 KiB.
const READ_AHEAD: usize = 256 << 10;
/// What is encrypted before it is written.
const WRITE_BEHIND: usize = 256 << 10;
/// How long a connection may take to say that it ends.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long a machine may be silent before it counts as gone: while it is owed something, and while it is not.
const SILENCE: Duration = Duration::from_secs(15);

/// A connection that is being set up.
pub(crate) struct Lane {
    socket: TcpStream,
    tls: Option<Box<Connection>>,
}

/// Sets what both sides set.
pub(crate) fn prepare(socket: &TcpStream, timeout: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE / 3)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE / 3)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    let millis = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, millis)?;
    Ok(())
}

impl Lane {
    /// Without TLS, or with it once the handshake is done.
    ///
    /// # Errors
    /// As the handshake's; `tls` has told the peer.
    pub fn open(socket: TcpStream, tls: Option<Connection>) -> io::Result<Self> {
        let mut lane = Self { socket, tls: tls.map(Box::new) };
        if let Some(tls) = &mut lane.tls {
            tls.set_buffer_limit(Some(WRITE_BEHIND));
            if let Err(error) = uninterrupted(|| tls.complete_io(&mut lane.socket)) {
                // What is left to send is the alert that says why.
                let _ = drain(tls, &mut lane.socket);
                linger(&lane.socket);
                return Err(error);
            }
        }
        Ok(lane)
    }

    /// The key that the peer has shown.
    pub fn peer(&self) -> Option<Fingerprint> {
        tls::peer(self.tls.as_ref()?.peer_certificates())
    }

    /// The name that a client has asked for a key by.
    pub fn asked_for(&self) -> Option<String> {
        match self.tls.as_deref()? {
            Connection::Server(server) => server.server_name().map(str::to_owned),
            Connection::Client(_) => None,
        }
    }

    /// Another descriptor of the same socket.
    pub fn socket(&self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }

    /// Closes it so that what was sent last arrives.
    pub fn refuse(mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = drain(tls, &mut self.socket);
        }
        linger(&self.socket);
    }

    /// What writes to it.
    pub fn into_writer(self, activity: Activity) -> io::Result<Box<dyn Write + Send>> {
        self.socket.set_read_timeout(None)?;
        self.socket.set_write_timeout(None)?;
        Ok(Box::new(Writer { socket: self.socket, tls: self.tls, activity }))
    }

    /// What reads from it.
    pub fn into_reader(self, activity: Activity) -> io::Result<Box<dyn Read + Send>> {
        self.socket.set_read_timeout(None)?;
        self.socket.set_write_timeout(None)?;
        let socket = BufReader::with_capacity(READ_AHEAD, self.socket);
        Ok(Box::new(Reader { socket, tls: self.tls, activity }))
    }
}

impl Read for Lane {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => decrypt(tls, &mut self.socket, buffer),
            None => self.socket.read(buffer),
        }
    }
}

impl Write for Lane {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => encrypt(tls, &[IoSlice::new(bytes)], &mut self.socket),
            None => self.socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Again, where a signal came between: sockets with a timeout are not spared that.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Takes what it can of a text, and writes that; nothing of it stays behind.
fn encrypt(tls: &mut Connection, parts: &[IoSlice<'_>], socket: &mut TcpStream) -> io::Result<usize> {
    let taken = tls.writer().write_vectored(parts)?;
    drain(tls, socket)?;
    Ok(taken)
}

fn drain(tls: &mut Connection, socket: &mut TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        // Whoever heard of an interruption would send the text again.
        if uninterrupted(|| tls.write_tls(socket))? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// Reads until there is some text, or the end that the peer has said; one that it has not said is an error.
fn decrypt(tls: &mut Connection, socket: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match tls.reader().read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        tls.read_tls(socket)?;
        tls.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    }
}

/// Ends our side and waits for the other to do so, for a moment: a socket that is closed with something unread resets the connection, and what was sent
/// last is lost with it.
fn linger(socket: &TcpStream) {
    let end = Instant::now() + FAREWELL;
    let _ = socket.shutdown(Shutdown::Write);
    let mut sink = [0; 4096];
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        let _ = socket.set_read_timeout(Some(left));
        if !matches!((&*socket).read(&mut sink), Ok(1..)) {
            break;
        }
    }
}

/// Ends these connections at once.
pub(crate) fn hang_up(sockets: Vec<TcpStream>) -> Arc<dyn Fn() + Send + Sync> {
    Arc::new(move || sockets.iter().for_each(|socket| drop(socket.shutdown(Shutdown::Both))))
}

/// When anything last went through any connection of a session.
#[derive(Clone)]
pub(crate) struct Activity {
    since: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Activity {
    pub fn new() -> Self {
        Self { since: Instant::now(), last_ms: Arc::default() }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn mark(&self) {
        self.last_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// How long ago that was.
    pub fn idle(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.last_ms.load(Ordering::Relaxed)))
    }
}

struct Writer {
    socket: TcpStream,
    tls: Option<Box<Connection>>,
    activity: Activity,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.activity.mark();
        match &mut self.tls {
            Some(tls) => encrypt(tls, parts, &mut self.socket),
            None => self.socket.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl Drop for Writer {
    /// Says that this was all: a reader can tell it from a line that was cut.
    fn drop(&mut self) {
        let _ = self.socket.set_write_timeout(Some(FAREWELL));
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = drain(tls, &mut self.socket);
        }
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

struct Reader {
    socket: BufReader<TcpStream>,
    tls: Option<Box<Connection>>,
    activity: Activity,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.activity.mark();
        match &mut self.tls {
            Some(tls) => decrypt(tls, &mut self.socket, buffer),
            None => self.socket.read(buffer),
        }
    }
}
