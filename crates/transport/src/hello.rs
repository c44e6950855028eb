//! How a session starts: the shim asks on the job's hello socket, the supervisor answers when the server is ready.

use crate::{Result, TransportError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with,
};
use std::path::{Path, PathBuf};
use std::time::Duration;
use wire::{Decoder, Encoder, GREETING_MAX, Greeting, PROTOCOL_VERSION, Wire};

/// Asks for a session on `path` and waits until the server is ready, which a checkpoint that is under way puts off for as long
/// as it takes; tells the session's number.
///
/// # Errors
/// [`TransportError::Io`] when there is no such socket, [`TransportError::Refused`] with the supervisor's reason,
/// [`TransportError::Greeting`] when the supervisor goes away.
pub fn ask(path: &Path) -> Result<u32> {
    let socket = seqpacket(path)?;
    let address = SocketAddrUnix::new(path).map_err(TransportError::io("cannot name", path))?;
    connect(&socket, &address).map_err(TransportError::io("cannot connect to", path))?;
    say(&socket, path, &Greeting::Hello { protocol: PROTOCOL_VERSION })?;
    match hear(&socket, path)? {
        Greeting::Welcome { session } => Ok(session),
        Greeting::Refused { reason } => Err(TransportError::Refused(reason)),
        Greeting::Hello { .. } => {
            Err(wire::DecodeError::Invalid { what: "answer to a hello", value: 1 }.into())
        }
    }
}

/// The supervisor's end of the hello socket.
pub struct HelloListener {
    socket: OwnedFd,
    path: PathBuf,
}

impl HelloListener {
    /// Listens on `path`, which must not exist yet.
    ///
    /// # Errors
    /// [`TransportError::Io`] when the socket cannot be made there.
    pub fn bind(path: &Path) -> Result<Self> {
        let socket = seqpacket(path)?;
        let address = SocketAddrUnix::new(path).map_err(TransportError::io("cannot name", path))?;
        bind(&socket, &address).map_err(TransportError::io("cannot bind", path))?;
        listen(&socket, 64).map_err(TransportError::io("cannot listen on", path))?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Waits for the next process.
    ///
    /// # Errors
    /// [`TransportError::Io`]; the listener goes on.
    pub fn accept(&self) -> Result<Caller> {
        let path = &self.path;
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC)
            .map_err(TransportError::io("cannot accept on", path))?;
        Ok(Caller { socket, path: path.clone() })
    }
}

/// A process that has not said what it wants.
pub struct Caller {
    socket: OwnedFd,
    path: PathBuf,
}

impl Caller {
    /// Takes its greeting, for which it has `timeout`. What is not a greeting of this version is refused here, with a reason,
    /// and answered as an error.
    ///
    /// # Errors
    /// [`TransportError`].
    pub fn hear(self, timeout: Duration) -> Result<Pending> {
        let Self { socket, path } = self;
        set_timeouts(&socket, &path, timeout)?;
        let peer =
            socket_peercred(&socket).map_err(TransportError::io("cannot identify the peer of", &path))?;
        let pending = Pending { socket, path, pid: peer.pid.as_raw_nonzero().get() };
        match hear(&pending.socket, &pending.path)? {
            Greeting::Hello { protocol: PROTOCOL_VERSION } => Ok(pending),
            Greeting::Hello { protocol } => {
                let reason = format!(
                    "the application's libcuda speaks protocol {protocol}, this supervisor {PROTOCOL_VERSION}"
                );
                pending.refuse(&reason)?;
                Err(TransportError::Refused(reason))
            }
            _ => Err(wire::DecodeError::Invalid { what: "hello", value: 0 }.into()),
        }
    }
}

impl AsFd for HelloListener {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An application process that waits for its session.
pub struct Pending {
    socket: OwnedFd,
    path: PathBuf,
    pid: i32,
}

impl Pending {
    /// The process, as the kernel tells it in the caller's PID namespace.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The server is ready. Returns when the application has closed its end, so that a checkpoint after that finds no
    /// connection out of the job.
    ///
    /// # Errors
    /// When the application is gone.
    pub fn welcome(self, session: u32) -> Result<()> {
        say(&self.socket, &self.path, &Greeting::Welcome { session })?;
        // It says nothing more: what comes is the end, or nothing within the greeting's time-out.
        let _ = rustix::io::retry_on_intr(|| recv(&self.socket, &mut [0u8; 1], RecvFlags::empty()));
        Ok(())
    }

    /// There will be no session; the application's log says why.
    ///
    /// # Errors
    /// When the application is gone.
    pub fn refuse(self, reason: &str) -> Result<()> {
        let mut end = reason.len().min(GREETING_MAX / 2);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        say(&self.socket, &self.path, &Greeting::Refused { reason: reason[..end].to_owned() })
    }
}

fn seqpacket(path: &Path) -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(TransportError::io("cannot make a socket for", path))
}

fn set_timeouts(socket: &OwnedFd, path: &Path, timeout: Duration) -> Result<()> {
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket, which, Some(timeout))
            .map_err(TransportError::io("cannot set a timeout on", path))?;
    }
    Ok(())
}

fn say(socket: &OwnedFd, path: &Path, greeting: &Greeting) -> Result<()> {
    let mut bytes = Vec::new();
    greeting.encode(&mut Encoder::new(&mut bytes));
    rustix::io::retry_on_intr(|| send(socket, &bytes, SendFlags::NOSIGNAL))
        .map_err(TransportError::io("cannot send to", path))?;
    Ok(())
}

fn hear(socket: &OwnedFd, path: &Path) -> Result<Greeting> {
    let mut buffer = [0u8; GREETING_MAX];
    let got = rustix::io::retry_on_intr(|| recv(socket, &mut buffer, RecvFlags::empty()));
    let len = match got {
        Ok((len, _)) => len,
        Err(rustix::io::Errno::AGAIN) => {
            return Err(TransportError::Timeout { path: path.to_owned() });
        }
        Err(error) => return Err(TransportError::io("cannot receive from", path)(error)),
    };
    let mut from = Decoder::new(buffer.get(..len).unwrap_or_default());
    let greeting = Greeting::decode(&mut from)?;
    from.finish()?;
    Ok(greeting)
}
