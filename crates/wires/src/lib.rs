//! The byte streams of a session between two machines: who makes them knows nothing of what they carry, and who uses them nothing of what they are.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The most bulk streams of a session in a direction.
pub const BULK_MAX: u8 = 16;

/// Streams of one session, each used in one direction only, so that each can be a TLS connection of its own.
pub struct Wires {
    /// Calls or answers, out of this end.
    pub control_out: Box<dyn Write + Send>,
    /// The other end's.
    pub control_in: Box<dyn Read + Send>,
    /// Contents of memory, out of this end; at least one.
    pub bulk_out: Vec<Box<dyn Write + Send>>,
    /// The other end's.
    pub bulk_in: Vec<Box<dyn Read + Send>>,
    /// Ends all of them at once, so that whoever reads or writes one is told.
    pub hang_up: Arc<dyn Fn() + Send + Sync>,
    /// When a silent peer is given up.
    pub patience: Patience,
}

/// When a silent peer is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// A peer of which nothing has been heard for this long is lost.
    pub silence: Duration,
    /// At the far end: a client that has asked for nothing for this long, and of whose work nothing is under way, is left.
    pub idle: Option<Duration>,
}

impl Patience {
    /// How often each end says something, whether there is anything to say or not.
    #[must_use]
    pub fn says_every(&self) -> Duration {
        (self.silence / 4).min(Duration::from_millis(2500))
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self { silence: Duration::from_secs(10), idle: None }
    }
}

/// How long whoever waits for a peer looks on before it sleeps: being woken takes as long as a message over a fast network, but where cores are
/// few, the thread that is to bring the answer needs this one.
#[must_use]
pub fn looks_for() -> Duration {
    static TIME: OnceLock<Duration> = OnceLock::new();
    *TIME.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        if cores < 8 { Duration::ZERO } else { Duration::from_micros(50) }
    })
}

impl Wires {
    /// Of TCP connections: the first for control, the others for bulk, each in both directions.
    ///
    /// # Errors
    /// When there are fewer than two, or a socket cannot be duplicated.
    pub fn of_tcp(sockets: Vec<TcpStream>) -> io::Result<Self> {
        for socket in &sockets {
            socket.set_nodelay(true)?;
        }
        Self::of(sockets, TcpStream::try_clone, |socket| drop(socket.shutdown(Shutdown::Both)))
    }

    /// The same of UNIX sockets.
    ///
    /// # Errors
    /// As [`Self::of_tcp`].
    pub fn of_unix(sockets: Vec<UnixStream>) -> io::Result<Self> {
        Self::of(sockets, UnixStream::try_clone, |socket| drop(socket.shutdown(Shutdown::Both)))
    }

    fn of<S: Read + Write + Send + Sync + 'static>(
        sockets: Vec<S>,
        clone: impl Fn(&S) -> io::Result<S>,
        end: fn(&S),
    ) -> io::Result<Self> {
        let clones = || sockets.iter().map(&clone).collect::<io::Result<Vec<S>>>();
        let (ends, outs, ins) = (clones()?, clones()?, clones()?);
        let mut outs = outs.into_iter().map(|socket| Box::new(socket) as Box<dyn Write + Send>);
        let mut ins = ins.into_iter().map(|socket| Box::new(socket) as Box<dyn Read + Send>);
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "a session needs at least two connections");
        let wires = Self {
            control_out: outs.next().ok_or_else(none)?,
            control_in: ins.next().ok_or_else(none)?,
            bulk_out: outs.collect(),
            bulk_in: ins.collect(),
            hang_up: Arc::new(move || ends.iter().for_each(end)),
            patience: Patience::default(),
        };
        if wires.bulk_out.is_empty() { Err(none()) } else { Ok(wires) }
    }
}
