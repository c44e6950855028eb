//! RDMA, as far as it is used: byte streams of *rsockets*, which librdmacm of rdma-core has, found at run time.
//!
//! Such a stream carries what a connection would carry in one direction, TLS records mostly, in its place; the connection stays, for the other direction, and because
//! it has what rsockets have not: a descriptor that can be passed to another process, is closed by the kernel, and can be polled and shut down by any thread. Whoever waits for a
//! stream watches its connection, too: where that has ended, so has the stream, but for what is on its way.

use crate::protocol::Token;
use libc::{POLLIN, POLLOUT, POLLRDHUP, c_int, c_void, pollfd, sockaddr, socklen_t};
use libloading::os::unix;
use rustix::net::SocketAddrAny;
use rustix::net::addr::{SocketAddrArg, SocketAddrStorage};
use std::error::Error;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Names the library where it is not the system's.
pub const LIBRARY_VARIABLE: &str = "DORMOUSE_RDMACM";
/// The system's.
const LIBRARY: &str = "librdmacm.so.1";
/// How long what is on its way may take when the connection has ended, and whoever connects to show its ticket.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// Whether this machine has the library.
///
/// # Errors
/// Which is missing, and what it belongs to.
pub fn is_there() -> io::Result<()> {
    library().map(drop)
}

/// What is called, as `rdma/rsocket.h` declares it.
struct Library {
    rsocket: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int,
    rbind: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int,
    rlisten: unsafe extern "C" fn(c_int, c_int) -> c_int,
    raccept: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    rconnect: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int,
    rrecv: unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize,
    rsend: unsafe extern "C" fn(c_int, *const c_void, usize, c_int) -> isize,
    rpoll: unsafe extern "C" fn(*mut pollfd, libc::nfds_t, c_int) -> c_int,
    rgetsockname: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    rgetsockopt: unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    rfcntl: unsafe extern "C" fn(c_int, c_int, ...) -> c_int,
    rclose: unsafe extern "C" fn(c_int) -> c_int,
    /// It stays, as its threads do.
    _library: unix::Library,
}

fn library() -> io::Result<&'static Library> {
    static FOUND: OnceLock<Result<Library, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let name = std::env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| LIBRARY.into());
        Library::load(&name).map_err(|error| {
            let error = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            format!("no RDMA without librdmacm of rdma-core (the package librdmacm1 or librdmacm; {LIBRARY_VARIABLE} names its file): {error}")
        })
    });
    found.as_ref().map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why.clone()))
}

impl Library {
    fn load(name: &std::ffi::OsStr) -> Result<Self, libloading::Error> {
        // SAFETY: what it runs when it is loaded is the affair of whoever runs this process, who has named or installed it.
        let library = unsafe { unix::Library::new(name) }?;
        // SAFETY: these functions have had these types since rsockets were published.
        unsafe {
            Ok(Self {
                rsocket: *library.get(b"rsocket\0")?,
                rbind: *library.get(b"rbind\0")?,
                rlisten: *library.get(b"rlisten\0")?,
                raccept: *library.get(b"raccept\0")?,
                rconnect: *library.get(b"rconnect\0")?,
                rrecv: *library.get(b"rrecv\0")?,
                rsend: *library.get(b"rsend\0")?,
                rpoll: *library.get(b"rpoll\0")?,
                rgetsockname: *library.get(b"rgetsockname\0")?,
                rgetsockopt: *library.get(b"rgetsockopt\0")?,
                rfcntl: *library.get(b"rfcntl\0")?,
                rclose: *library.get(b"rclose\0")?,
                _library: library,
            })
        }
    }
}

/// What a call that gives -1 has given.
fn checked(given: c_int) -> io::Result<c_int> {
    if given < 0 { Err(io::Error::last_os_error()) } else { Ok(given) }
}

/// The same machine's address as that of an end of a connection, with another port.
fn beside(end: SocketAddr, port: u16) -> SocketAddr {
    match end.ip().to_canonical() {
        // A scope stays.
        ip if ip == end.ip() => {
            let mut beside = end;
            beside.set_port(port);
            beside
        }
        ip => (ip, port).into(),
    }
}

/// One that this process has made; no call waits in it but the last.
struct Socket {
    library: &'static Library,
    number: c_int,
}

impl Socket {
    fn new(at: SocketAddr) -> io::Result<Self> {
        let library = library()?;
        let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: it takes numbers only.
        let number = checked(unsafe { (library.rsocket)(family, libc::SOCK_STREAM, 0) })?;
        let socket = Self { library, number };
        socket.never_waits()?;
        socket.with(at, library.rbind)?;
        Ok(socket)
    }

    fn never_waits(&self) -> io::Result<()> {
        // SAFETY: it takes numbers only.
        checked(unsafe { (self.library.rfcntl)(self.number, libc::F_SETFL, libc::O_NONBLOCK) }).map(drop)
    }

    fn with(
        &self,
        at: SocketAddr,
        call: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int,
    ) -> io::Result<()> {
        // SAFETY: the callee reads an address of the length that it is told, which is there for as long as it runs.
        let given = unsafe { at.with_sockaddr(|address, len| call(self.number, address.cast(), len)) };
        checked(given).map(drop)
    }

    /// What `call` gives, and the address that it writes.
    fn told(
        &self,
        call: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    ) -> io::Result<(c_int, Option<SocketAddr>)> {
        let mut storage = MaybeUninit::<SocketAddrStorage>::zeroed();
        let space = size_of::<SocketAddrStorage>() as socklen_t;
        let mut len = space;
        // SAFETY: it writes no more than the length that it is told, and how much that was.
        let given = checked(unsafe { call(self.number, storage.as_mut_ptr().cast(), &raw mut len) })?;
        // SAFETY: all of it is initialised, and the length is within it.
        let told = unsafe { SocketAddrAny::new(storage, len.min(space) as _) };
        Ok((given, SocketAddr::try_from(told).ok()))
    }

    /// Until it is ready for that, or `until`; not much longer than its connection.
    fn wait(&self, events: i16, connection: &TcpStream, mut until: Option<Instant>) -> io::Result<()> {
        let polled = |fd, events| pollfd { fd, events, revents: 0 };
        let mut watched: libc::nfds_t = 2;
        loop {
            let mut both = [polled(self.number, events), polled(connection.as_raw_fd(), POLLRDHUP)];
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // A moment longer than that, so that it has come then.
            let millis = left.map_or(-1, |left| c_int::try_from(left.as_millis() + 1).unwrap_or(c_int::MAX));
            // SAFETY: there are at least so many entries.
            match checked(unsafe { (self.library.rpoll)(both.as_mut_ptr(), watched, millis) }) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                // What is wrong with it the next call says.
                Ok(_) if both[0].revents != 0 => return Ok(()),
                Ok(_) if watched == 2 && both[1].revents != 0 => {
                    watched = 1;
                    let end = Instant::now() + ON_ITS_WAY;
                    until = Some(until.map_or(end, |until| until.min(end)));
                }
                Ok(_) if until.is_none_or(|until| Instant::now() < until) => {}
                Ok(_) if watched == 1 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

impl Drop for Socket {
    /// On a thread of its own: it may wait for what was sent last, and others wait for whoever drops it.
    fn drop(&mut self) {
        let (rclose, number) = (self.library.rclose, self.number);
        // SAFETY: it is this value's, and nobody has it after that.
        let close = move || unsafe { rclose(number) };
        // Without a thread it goes with the process.
        let _ = std::thread::Builder::new().name("rclose".into()).spawn(close);
    }
}

/// A stream beside a connection, used one way.
pub(crate) struct Stream {
    socket: Socket,
    connection: TcpStream,
    /// When it has taken too long.
    until: Option<Instant>,
}

impl Stream {
    /// To whoever has told this port and ticket on that connection.
    pub fn connect(connection: TcpStream, port: u16, ticket: &Token, until: Instant) -> io::Result<Self> {
        let there = beside(connection.peer_addr()?, port);
        let socket = Socket::new(beside(connection.local_addr()?, 0))?;
        match socket.with(there, socket.library.rconnect) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                socket.wait(POLLOUT, &connection, Some(until))?;
            }
            done => done?,
        }
        let (mut error, mut len) = (0, size_of::<c_int>() as socklen_t);
        // SAFETY: it writes an `int`, for which there is room.
        checked(unsafe {
            (socket.library.rgetsockopt)(
                socket.number,
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                (&raw mut error).cast(),
                &raw mut len,
            )
        })?;
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        let mut stream = Self { socket, connection, until: Some(until) };
        ticket.write(&mut stream)?;
        Ok(stream)
    }

    /// From now on it may take until then.
    pub fn may_take(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    fn again(&self, events: i16, call: impl Fn(&Socket) -> isize) -> io::Result<usize> {
        loop {
            // Negative where it failed.
            if let Ok(bytes) = usize::try_from(call(&self.socket)) {
                return Ok(bytes);
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => self.socket.wait(events, &self.connection, self.until)?,
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (to, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the buffer has room for so many bytes.
        self.again(POLLIN, |socket| unsafe { (socket.library.rrecv)(socket.number, to.cast(), len, 0) })
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (from, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: so many bytes are there.
        self.again(POLLOUT, |socket| unsafe {
            (socket.library.rsend)(socket.number, from.cast(), len, libc::MSG_NOSIGNAL)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits for the stream of one connection, at the address that this has here.
pub(crate) struct Listener {
    socket: Socket,
    connection: TcpStream,
}

impl Listener {
    pub fn new(connection: TcpStream) -> io::Result<Self> {
        let socket = Socket::new(beside(connection.local_addr()?, 0))?;
        // SAFETY: it takes numbers only.
        checked(unsafe { (socket.library.rlisten)(socket.number, 8) })?;
        Ok(Self { socket, connection })
    }

    pub fn port(&self) -> io::Result<u16> {
        let (_, at) = self.socket.told(self.socket.library.rgetsockname)?;
        at.map(|at| at.port()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Takes the first that comes from the same machine as the connection, and has the ticket.
    pub fn accept(self, ticket: &Token, until: Instant) -> io::Result<Stream> {
        use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        let source = self.connection.peer_addr()?.ip().to_canonical();
        loop {
            self.socket.wait(POLLIN, &self.connection, Some(until))?;
            let (number, from) = match self.socket.told(self.socket.library.raccept) {
                // Whoever knocked may have gone.
                Err(error) if matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted) => {
                    continue;
                }
                accepted => accepted?,
            };
            let socket = Socket { library: self.socket.library, number };
            if from.is_none_or(|from| from.ip().to_canonical() != source) {
                continue;
            }
            socket.never_waits()?;
            let soon = until.min(Instant::now() + ON_ITS_WAY);
            let mut stream = Stream { socket, connection: self.connection.try_clone()?, until: Some(soon) };
            if Token::read(&mut stream).is_ok_and(|shown| shown.is(ticket)) {
                stream.until = Some(until);
                return Ok(stream);
            }
        }
    }
}
