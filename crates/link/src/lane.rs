//! One connection: both ways while it is set up, from then on one way, and counts the other.

use crate::fingerprint::Fingerprint;
use crate::rdma::Stream;
use crate::tls;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};
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
    socket: BufReader<Socket>,
    tls: Option<Box<Connection>>,
    /// What carries the one way of it that data goes, in the socket's place.
    beside: Option<Beside>,
}

/// A socket, whose reader may look on for a moment before it sleeps.
struct Socket {
    stream: TcpStream,
    looks_for: Duration,
}

enum Beside {
    In(BufReader<Stream>),
    Out(Stream),
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
        let socket = Socket { stream: socket, looks_for: Duration::ZERO };
        Ok(Self { socket: BufReader::with_capacity(READ_AHEAD, socket), tls, beside: None })
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

    /// What is written from now on, or else what is read, goes through this stream. TLS goes on: who has put something else there is found out.
    pub fn go_beside(&mut self, stream: Stream, writes: bool) {
        self.beside = Some(match writes {
            true => Beside::Out(stream),
            false => Beside::In(BufReader::with_capacity(READ_AHEAD, stream)),
        });
    }

    /// Until when what goes beside the socket may take, or for ever.
    fn may_take(&mut self, until: Option<Instant>) {
        match &mut self.beside {
            Some(Beside::In(stream)) => stream.get_mut().may_take(until),
            Some(Beside::Out(stream)) => stream.may_take(until),
            None => {}
        }
    }

    /// Another descriptor of the same socket.
    pub fn socket(&self) -> io::Result<TcpStream> {
        self.tcp().try_clone()
    }

    /// Closes it so that what was sent last arrives.
    pub fn close(&mut self) {
        self.farewell();
        linger(self.tcp());
    }

    /// It is set up: whoever reads it waits for so long, whoever writes for ever.
    pub fn settle(&mut self, silence: Option<Duration>) -> io::Result<()> {
        self.may_take(None);
        self.tcp().set_read_timeout(silence)?;
        self.tcp().set_write_timeout(None)
    }

    /// Whoever reads it looks on for so long before it sleeps.
    pub fn look_for(&mut self, time: Duration) {
        self.socket.get_mut().looks_for = time;
    }

    fn tcp(&self) -> &TcpStream {
        &self.socket.get_ref().stream
    }

    /// Says that this was all.
    pub fn farewell(&mut self) {
        self.may_take(Some(Instant::now() + FAREWELL));
        let _ = self.tcp().set_write_timeout(Some(FAREWELL));
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = drain(tls, out(&mut self.beside, &mut self.socket));
        }
        let _ = self.tcp().shutdown(Shutdown::Write);
    }

    /// Whether something has come that has not been read.
    pub fn has_input(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(self.tcp(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(!self.socket.buffer().is_empty() || poll(&mut polled, Some(&now))? > 0)
    }
}

impl Read for Lane {
    /// 0 at the end that the peer has said; one that it has not said is an error. Without TLS none is said.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let from: &mut dyn Read = match &mut self.beside {
            Some(Beside::In(stream)) => stream,
            _ => &mut self.socket,
        };
        match &mut self.tls {
            Some(tls) => decrypt(tls, from, buffer),
            None => match from.read(buffer) {
                Ok(0) if !buffer.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
                done => done,
            },
        }
    }
}

impl Write for Lane {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let to = out(&mut self.beside, &mut self.socket);
        match &mut self.tls {
            Some(tls) => encrypt(tls, bytes, to),
            None => to.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where what is written goes.
fn out<'a>(beside: &'a mut Option<Beside>, socket: &'a mut BufReader<Socket>) -> &'a mut dyn Write {
    match beside {
        Some(Beside::Out(stream)) => stream,
        _ => &mut socket.get_mut().stream,
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        while begun.elapsed() < self.looks_for {
            match recv(&self.stream, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                done => return Ok(done?.1),
            }
        }
        self.stream.read(buffer)
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
fn encrypt(tls: &mut Connection, bytes: &[u8], to: &mut dyn Write) -> io::Result<usize> {
    let taken = tls.writer().write(bytes)?;
    drain(tls, to)?;
    Ok(taken)
}

fn drain(tls: &mut Connection, to: &mut dyn Write) -> io::Result<()> {
    while tls.wants_write() {
        // Whoever heard of an interruption would send the text again.
        if uninterrupted(|| tls.write_tls(to))? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// Reads until there is some text, or the end that the peer has said; one that it has not said is an error.
fn decrypt(tls: &mut Connection, from: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match tls.reader().read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        tls.read_tls(from)?;
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    #[test]
    fn who_looks_on_sees_what_comes_and_the_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for looks_for in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(20)] {
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut socket = Socket { stream: listener.accept().unwrap().0, looks_for };
            thread::scope(|scope| {
                scope.spawn(move || {
                    for byte in 0..3 {
                        thread::sleep(Duration::from_millis(5));
                        peer.write_all(&[byte]).unwrap();
                    }
                });
                let mut bytes = Vec::new();
                socket.read_to_end(&mut bytes).unwrap();
                assert_eq!(bytes, [0, 1, 2]);
            });
        }
    }
}
