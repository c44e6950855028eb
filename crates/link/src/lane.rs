//! One connection: both ways while it is set up, from then on one way, and counts the other.

use crate::fingerprint::Fingerprint;
use crate::tls;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustls::Connection;
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// What is read from a socket at once: rustls by itself would read 4 KiB.
const READ_AHEAD: usize = 256 << 10;
/// What is encrypted before it is written.
const WRITE_BEHIND: usize = 256 << 10;
/// How long a connection may take to say that it ends.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long a machine may be silent before the connection counts as broken: while it is owed something, and while it is not.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// A connection.
pub(crate) struct Lane {
    // What is read ahead takes no memory until it is there.
    socket: BufReader<TcpStream>,
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
    pub fn open(mut socket: TcpStream, tls: Option<Connection>) -> io::Result<Self> {
        let mut tls = tls.map(Box::new);
        if let Some(tls) = &mut tls {
            tls.set_buffer_limit(Some(WRITE_BEHIND));
            if let Err(error) = uninterrupted(|| tls.complete_io(&mut socket)) {
                // What is left to send is the alert that says why.
                let _ = drain(tls, &mut socket);
                linger(&socket);
                return Err(error);
            }
        }
        Ok(Self { socket: BufReader::with_capacity(READ_AHEAD, socket), tls })
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
        self.socket.get_ref().try_clone()
    }

    /// Closes it so that what was sent last arrives.
    pub fn close(&mut self) {
        self.farewell();
        linger(self.socket.get_ref());
    }

    /// It is set up: whoever reads it waits for so long, whoever writes for ever.
    pub fn settle(&self, silence: Option<Duration>) -> io::Result<()> {
        self.socket.get_ref().set_read_timeout(silence)?;
        self.socket.get_ref().set_write_timeout(None)
    }

    /// Says that this was all.
    pub fn farewell(&mut self) {
        let socket = self.socket.get_mut();
        let _ = socket.set_write_timeout(Some(FAREWELL));
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = drain(tls, socket);
        }
        let _ = socket.shutdown(Shutdown::Write);
    }

    /// Whether something has come that has not been read.
    pub fn has_input(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(self.socket.get_ref(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(!self.socket.buffer().is_empty() || poll(&mut polled, Some(&now))? > 0)
    }
}

impl Read for Lane {
    /// 0 at the end that the peer has said; one that it has not said is an error. Without TLS none is said.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => decrypt(tls, &mut self.socket, buffer),
            None => match self.socket.read(buffer) {
                Ok(0) if !buffer.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
                done => done,
            },
        }
    }
}

impl Write for Lane {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let socket = self.socket.get_mut();
        match &mut self.tls {
            Some(tls) => encrypt(tls, bytes, socket),
            None => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
fn encrypt(tls: &mut Connection, bytes: &[u8], socket: &mut TcpStream) -> io::Result<usize> {
    let taken = tls.writer().write(bytes)?;
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
