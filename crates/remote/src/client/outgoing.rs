//! Calls on their way out. Whoever calls appends to a buffer; a thread writes it, or whoever waits for an answer.

use crate::frame::{self, CONTROL_WINDOW};
use crate::lock;
use crate::messages::Message;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long after something was written the thread looks for more by itself, and how often: a program that submits without a pause, or waits and
/// so writes by itself, need not wake it each time.
const BUSY: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_micros(30);
/// What is so much that it is written at once.
const BATCH: usize = 64 << 10;

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Bytes appended since the beginning, and of these what the far end has read.
    appended: u64,
    acked: u64,
    /// When something was last taken out to be written.
    taken: Option<Instant>,
    writer_idle: bool,
    lost: bool,
}

/// The client's end of the control stream.
pub(super) struct Outgoing {
    buffer: Mutex<Buffer>,
    /// There is something to write.
    more: Condvar,
    /// The far end has read something.
    room: Condvar,
    stream: Mutex<(Box<dyn Write + Send>, Vec<u8>)>,
}

impl Outgoing {
    pub(super) fn new(stream: Box<dyn Write + Send>) -> Self {
        Self {
            buffer: Mutex::default(),
            more: Condvar::new(),
            room: Condvar::new(),
            stream: Mutex::new((stream, Vec::new())),
        }
    }

    /// Appends a call, once the far end is near enough behind. After a loss it goes nowhere.
    pub(super) fn push<M: Message>(&self, flags: u16, call: u64, message: &M) {
        self.push_to(flags, call, message, true);
    }

    /// The same by somebody who writes it at once.
    pub(super) fn push_and_flush<M: Message>(&self, flags: u16, call: u64, message: &M) -> io::Result<()> {
        self.push_to(flags, call, message, false);
        self.flush()
    }

    fn push_to<M: Message>(&self, flags: u16, call: u64, message: &M, wake: bool) {
        let mut buffer = lock(&self.buffer);
        while buffer.appended - buffer.acked >= CONTROL_WINDOW && !buffer.lost {
            buffer = self.room.wait(buffer).unwrap_or_else(PoisonError::into_inner);
        }
        append(&mut buffer, wake.then_some(&self.more), flags, call, message);
    }

    /// Appends a message however far the far end is behind: it may be what that waits for.
    pub(super) fn push_always<M: Message>(&self, message: &M) {
        append(&mut lock(&self.buffer), Some(&self.more), 0, 0, message);
    }

    /// Appends a message without an answer that may as well not be sent.
    pub(super) fn push_if_room<M: Message>(&self, message: &M) {
        let mut buffer = lock(&self.buffer);
        if buffer.appended - buffer.acked < CONTROL_WINDOW {
            append(&mut buffer, Some(&self.more), 0, 0, message);
        }
    }

    /// Whether there is something in the buffer.
    pub(super) fn has_rest(&self) -> bool {
        !lock(&self.buffer).bytes.is_empty()
    }

    /// Writes what is in the buffer.
    pub(super) fn flush(&self) -> io::Result<()> {
        let mut stream = lock(&self.stream);
        let (stream, spare) = &mut *stream;
        // The order of the buffer is kept: nobody else takes it while the stream is held.
        {
            let mut buffer = lock(&self.buffer);
            std::mem::swap(&mut buffer.bytes, spare);
            buffer.taken = if spare.is_empty() { buffer.taken } else { Some(Instant::now()) };
        }
        let written =
            if spare.is_empty() { Ok(()) } else { stream.write_all(spare).and_then(|()| stream.flush()) };
        spare.clear();
        written
    }

    /// The writing thread: until the connection is lost.
    pub(super) fn write(&self) -> io::Result<()> {
        loop {
            let mut buffer = lock(&self.buffer);
            while buffer.bytes.is_empty() {
                if buffer.lost {
                    return Ok(());
                }
                if buffer.taken.is_some_and(|taken| taken.elapsed() < BUSY) {
                    let waited = self.more.wait_timeout(buffer, LOOK);
                    buffer = waited.unwrap_or_else(PoisonError::into_inner).0;
                } else {
                    buffer.writer_idle = true;
                    buffer = self.more.wait(buffer).unwrap_or_else(PoisonError::into_inner);
                }
            }
            drop(buffer);
            self.flush()?;
        }
    }

    /// The far end has read so much; `false` where that cannot be.
    pub(super) fn acked(&self, bytes: u64) -> bool {
        let mut buffer = lock(&self.buffer);
        if bytes < buffer.acked || bytes > buffer.appended {
            return false;
        }
        buffer.acked = bytes;
        self.room.notify_all();
        true
    }

    pub(super) fn lose(&self) {
        lock(&self.buffer).lost = true;
        self.more.notify_all();
        self.room.notify_all();
    }
}

fn append<M: Message>(buffer: &mut Buffer, more: Option<&Condvar>, flags: u16, call: u64, message: &M) {
    if buffer.lost {
        return;
    }
    let before = buffer.bytes.len();
    frame::append(&mut buffer.bytes, M::OPCODE, flags, call, message);
    buffer.appended += (buffer.bytes.len() - before) as u64;
    let due = buffer.writer_idle || before < BATCH && buffer.bytes.len() >= BATCH;
    if let Some(more) = more.filter(|_| due) {
        buffer.writer_idle = false;
        more.notify_one();
    }
}
