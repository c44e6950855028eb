//! All streams of a session, at one of its ends.

use crate::lane::SILENCE;
use crate::line::{Fate, Line};
use crate::protocol::Role;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use wires::{Patience, Wires};

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Client,
    Server,
}

/// The streams, in the order of [`Role::all`].
#[derive(Clone)]
pub(crate) struct Lines {
    all: Arc<[Arc<Line>]>,
    fate: Fate,
    patience: Patience,
}

impl Lines {
    /// Without connections yet. With a time of grace they outlive those.
    pub fn new(end: End, bulk: u8, grace: Duration) -> Self {
        let fate = Fate::default();
        let line = |role: Role| {
            let writes = role.is_up() == (end == End::Client);
            Arc::new(Line::new(role, writes, !grace.is_zero(), fate.clone()))
        };
        // Whoever is silent is noticed here, and is lost after the time of grace; there, much later.
        let patience = match grace {
            Duration::ZERO => Patience::default(),
            _ => Patience { silence: 2 * SILENCE + grace, ..Patience::default() },
        };
        Self { all: Role::all(bulk).map(line).collect(), fate: fate.clone(), patience }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Line>> {
        self.all.iter()
    }

    pub fn get(&self, role: Role) -> Option<&Arc<Line>> {
        self.all.iter().find(|line| line.role() == role)
    }

    /// Whether the peer has closed all that it had.
    pub fn are_closed(&self) -> bool {
        self.all.iter().all(|line| line.closed().1)
    }

    /// The session is over, for this reason unless there was one.
    pub fn end(&self, why: &str) {
        let _ = self.fate.set(why.to_owned());
        self.all.iter().for_each(|line| line.end());
    }

    /// As whoever uses the session has them.
    pub fn wires(&self) -> io::Result<Wires> {
        let line = |control: bool, writes: bool| {
            let of_it =
                move |line: &&Arc<Line>| line.role().is_control() == control && line.writes() == writes;
            self.all.iter().filter(of_it).cloned()
        };
        let writer = |line| Box::new(Writer(line)) as Box<dyn Write + Send>;
        let reader = |line| Box::new(Reader(line)) as Box<dyn Read + Send>;
        let none = || io::Error::from(io::ErrorKind::NotFound);
        let lines = self.clone();
        Ok(Wires {
            control_out: line(true, true).next().map(writer).ok_or_else(none)?,
            control_in: line(true, false).next().map(reader).ok_or_else(none)?,
            bulk_out: line(false, true).map(writer).collect(),
            bulk_in: line(false, false).map(reader).collect(),
            hang_up: Arc::new(move || lines.end("it was hung up")),
            patience: self.patience,
        })
    }
}

/// How long nothing may be heard of a stream: on those of control both sides say something all the time.
pub(crate) fn silence(role: Role) -> Option<Duration> {
    role.is_control().then_some(SILENCE)
}

/// Waits until a connection has ended, and tells how. What has arrived on it may still lie there.
pub(crate) fn wait_for_end(socket: Option<TcpStream>) -> io::Error {
    let closed = || io::ErrorKind::ConnectionReset.into();
    let Some(socket) = socket else { return closed() };
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    loop {
        let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
        match poll(&mut polled, None) {
            Ok(_) if polled[0].revents().intersects(gone) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return error.into(),
        }
    }
    socket.take_error().ok().flatten().unwrap_or_else(closed)
}

struct Writer(Arc<Line>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.finish();
    }
}

struct Reader(Arc<Line>);

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}
