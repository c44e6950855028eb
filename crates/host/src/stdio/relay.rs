//! A thread that moves bytes from one descriptor to another, counting those that arrived.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::SendFlags;
use rustix::pipe::{PipeFlags, SpliceFlags};

/// Bytes held at most between source and sink.
const BUFFER: usize = 64 * 1024;
/// Written at once: what a pipe that polls writable takes without blocking (PIPE_BUF).
const AT_ONCE: usize = 4096;
/// The same where a write may block after the first byte: what is on its way then is not counted, so it is little.
const AT_ONCE_BLOCKING: usize = 256;
/// How long a write that blocks may hold up a cut.
const IN_FLIGHT: Duration = Duration::from_secs(1);

/// A running relay.
#[derive(Debug)]
pub(crate) struct Relay {
    shared: Arc<Shared>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug)]
struct State {
    /// None once it has ended, or once nobody reads the sink any more.
    source: Option<Arc<OwnedFd>>,
    /// Taken from the source, not yet in the sink.
    pending: Vec<u8>,
    delivered: u64,
    stop: bool,
    /// Nothing is to be moved: what is on its way belongs to an image, made or read.
    parked: bool,
    /// Nothing is being moved.
    still: bool,
}

/// What is written to, and how.
struct Sink {
    fd: OwnedFd,
    is_socket: bool,
    at_once: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relay {
    /// Moves bytes from `source` to `sink`; `pending` are delivered first. `delivered` is where counting starts. It begins parked:
    /// nothing moves before [`Self::go_on`].
    pub(crate) fn parked(
        name: &str,
        source: OwnedFd,
        sink: OwnedFd,
        pending: Vec<u8>,
        delivered: u64,
    ) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // A named pipe opened once more would not tell that its writers are gone already.
        let anew = if rustix::termios::isatty(&source) { anew(&source, OFlags::RDONLY) } else { None };
        let source = Some(Arc::new(anew.unwrap_or(source)));
        let state = State { source, pending, delivered, stop: false, parked: true, still: true };
        let shared = Arc::new(Shared { state: Mutex::new(state), moved: Condvar::new() });
        let (theirs, waker, sink) = (Arc::clone(&shared), wake.try_clone()?, Sink::of(sink));
        let thread = std::thread::Builder::new().name(format!("relay-{name}")).spawn(move || {
            run(&theirs, &sink, &waker);
            theirs.lock().still = true;
            theirs.moved.notify_all();
        })?;
        Ok(Self { shared, wake, thread: Some(thread) })
    }

    /// Lets nothing be moved any more, and waits until nothing is. A write that blocks, which only one to a sink that cannot be
    /// opened anew does, counts as not delivered if it takes too long.
    pub(crate) fn park(&self) {
        self.shared.lock().parked = true;
        self.wake();
        let moving = |state: &mut State| !state.still;
        let state = self.shared.lock();
        drop(self.shared.moved.wait_timeout_while(state, IN_FLIGHT, moving));
    }

    /// Moves on.
    pub(crate) fn go_on(&self) {
        self.shared.lock().parked = false;
        self.shared.moved.notify_all();
    }

    /// Waits until everything the source holds has reached the sink, or until `patience` is over. The source's writers must be
    /// stopped.
    pub(crate) fn drain(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        loop {
            let waiting =
                state.source.as_ref().is_some_and(|s| rustix::io::ioctl_fionread(s).unwrap_or(0) > 0);
            let left = deadline.saturating_duration_since(Instant::now());
            if (state.pending.is_empty() && !waiting) || left.is_zero() {
                return;
            }
            let nap = left.min(Duration::from_millis(5));
            state = self.shared.moved.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Bytes delivered so far, and those taken from the source but not delivered yet.
    pub(crate) fn position(&self) -> (u64, Vec<u8>) {
        let state = self.shared.lock();
        (state.delivered, state.pending.clone())
    }

    /// [`Self::position`], with what still waits in the source counted as taken. The source must be a pipe whose writers are
    /// stopped.
    pub(crate) fn position_with_source(&self) -> (u64, Vec<u8>) {
        let state = self.shared.lock();
        let mut undelivered = state.pending.clone();
        if let Some(source) = &state.source {
            undelivered.extend(peek_pipe(source.as_fd()).unwrap_or_default());
        }
        (state.delivered, undelivered)
    }

    /// Ends the relay: at once and dropping what is pending (`discard`), or when the source has ended and everything has
    /// arrived.
    pub(crate) fn finish(mut self, discard: bool) -> u64 {
        if discard {
            self.halt();
        } else {
            self.go_on();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.lock().delivered
    }

    fn halt(&self) {
        self.shared.lock().stop = true;
        self.shared.moved.notify_all();
        self.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.halt();
        }
    }
}

impl Sink {
    fn of(fd: OwnedFd) -> Self {
        let kind = rustix::fs::fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let (is_socket, is_pipe) = (kind == Ok(FileType::Socket), kind == Ok(FileType::Fifo));
        let anew = if is_pipe || rustix::termios::isatty(&fd) { anew(&fd, OFlags::WRONLY) } else { None };
        let blocks = anew.is_none() && !is_socket && !is_pipe;
        Self { fd: anew.unwrap_or(fd), is_socket, at_once: if blocks { AT_ONCE_BLOCKING } else { AT_ONCE } }
    }

    fn write(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        if self.is_socket {
            rustix::net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        } else {
            rustix::io::write(&self.fd, bytes)
        }
    }
}

/// The same pipe or terminal, opened once more: for us it never blocks, and no flag is set on what others share.
fn anew(fd: &OwnedFd, access: OFlags) -> Option<OwnedFd> {
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty()).ok()
}

fn run(shared: &Shared, sink: &Sink, wake: &OwnedFd) {
    loop {
        let (source, can_read, can_write) = {
            let mut state = shared.lock();
            while state.parked && !state.stop {
                state.still = true;
                shared.moved.notify_all();
                state = shared.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.still = false;
            if state.stop || (state.source.is_none() && state.pending.is_empty()) {
                return;
            }
            (state.source.clone(), state.pending.len() < BUFFER, !state.pending.is_empty())
        };
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        if let Some(source) = source.as_ref().filter(|_| can_read) {
            fds.push(PollFd::new(&**source, PollFlags::IN));
        }
        // A sink with nothing to write is watched too: only so do we learn that nobody reads it any more.
        fds.push(PollFd::new(&sink.fd, if can_write { PollFlags::OUT } else { PollFlags::empty() }));
        if poll(&mut fds, None).is_err_and(|e| e != rustix::io::Errno::INTR) {
            return;
        }
        let sink_events = fds.last().map_or(PollFlags::empty(), PollFd::revents);
        let readable = can_read && source.is_some() && !fds[1].revents().is_empty();
        let _ = rustix::io::read(wake, &mut [0; 8]);
        let mut state = shared.lock();
        if state.stop || state.parked {
            continue;
        }
        if sink_events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            abandon(&mut state);
        } else if sink_events.contains(PollFlags::OUT) {
            state = deliver(shared, state, sink);
        }
        if readable && !state.stop && !state.parked {
            take(&mut state);
        }
        shared.moved.notify_all();
    }
}

fn take(state: &mut State) {
    let Some(source) = &state.source else { return };
    let mut buffer = [0; BUFFER];
    match rustix::io::read(source, &mut buffer) {
        Ok(0) => state.source = None,
        Ok(n) => state.pending.extend_from_slice(&buffer[..n]),
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
        // A terminal that hung up.
        Err(_) => state.source = None,
    }
}

/// Writes without holding the state: a write that blocks holds up nobody who looks at it.
fn deliver<'a>(shared: &'a Shared, state: MutexGuard<'a, State>, sink: &Sink) -> MutexGuard<'a, State> {
    let chunk = state.pending[..state.pending.len().min(sink.at_once)].to_vec();
    drop(state);
    let written = sink.write(&chunk);
    let mut state = shared.lock();
    match written {
        Ok(n) => {
            state.pending.drain(..n);
            state.delivered += n as u64;
        }
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
        Err(_) => abandon(&mut state),
    }
    state
}

/// Nobody reads the sink any more: closing the source passes that on, as SIGPIPE where the job is the writer.
fn abandon(state: &mut State) {
    state.source = None;
    state.pending.clear();
}

/// What a pipe holds, without taking it out.
pub(crate) fn peek_pipe(pipe: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let size = rustix::pipe::fcntl_getpipe_size(pipe)?;
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    rustix::pipe::fcntl_setpipe_size(&writer, size)?;
    let copied = match rustix::pipe::tee(pipe, &writer, size, SpliceFlags::NONBLOCK) {
        Ok(n) => n,
        Err(rustix::io::Errno::AGAIN) => 0,
        Err(e) => return Err(e.into()),
    };
    let mut bytes = vec![0; copied];
    let mut filled = 0;
    while filled < copied {
        match rustix::io::read(&reader, &mut bytes[filled..])? {
            0 => break,
            n => filled += n,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::pty::OpenptFlags;

    #[test]
    fn a_terminal_that_nobody_looks_at_holds_up_no_checkpoint() {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let slave = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let (source, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let output = vec![b'x'; 40_000];
        let relay = Relay::parked("test", source, slave, output.clone(), 0).unwrap();
        relay.go_on();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let relay = &relay;
            scope.spawn(move || {
                // By now the terminal is full and the relay waits in a write.
                std::thread::sleep(Duration::from_millis(200));
                relay.drain(Duration::from_millis(50));
                sender.send(relay.position()).unwrap();
            });
            let position = receiver.recv_timeout(Duration::from_secs(10));
            // Lets everybody go, whatever has come of it.
            drop(writer);
            let mut shown = 0;
            let mut bytes = [0; 4096];
            while shown < output.len() {
                shown += rustix::io::read(&master, &mut bytes).unwrap();
            }
            let (delivered, pending) = position.unwrap();
            assert!(delivered > 0 && delivered as usize + pending.len() == output.len());
        });
        assert_eq!(relay.finish(false), output.len() as u64);
    }

    #[test]
    fn what_is_parked_neither_arrives_nor_is_taken() {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((source, writer), (reader, sink)) = (pipe(), pipe());
        let relay = Relay::parked("test", source, sink, b"one ".to_vec(), 7).unwrap();
        rustix::io::write(&writer, b"two ").unwrap();
        let waiting = |fd: &OwnedFd| rustix::io::ioctl_fionread(fd).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!((waiting(&reader), relay.position_with_source()), (0, (7, b"one two ".to_vec())));

        relay.go_on();
        relay.drain(Duration::from_secs(10));
        relay.park();
        assert_eq!((waiting(&reader), relay.position_with_source()), (8, (15, Vec::new())));
        rustix::io::write(&writer, b"three ").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!((waiting(&reader), relay.position()), (8, (15, Vec::new())));
        assert_eq!(relay.position_with_source().1, b"three ");
        drop(writer);
        assert_eq!((relay.finish(false), waiting(&reader)), (21, 14));
    }
}
