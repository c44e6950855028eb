//! Reading what a program prints while it runs.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The bytes that came out of a pipe so far.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    printed: Mutex<Printed>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Printed {
    bytes: Vec<u8>,
    /// When the first line and the last line so far were complete.
    first: Option<Instant>,
    last: Option<Instant>,
    ended: bool,
}

impl Shared {
    fn printed(&self) -> MutexGuard<'_, Printed> {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Capture {
    /// Reads `pipe` to its end on a thread of its own.
    pub fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let sink = Arc::clone(&shared);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            loop {
                let read = pipe.read(&mut buffer);
                let mut printed = sink.printed();
                match read {
                    Ok(count) if count > 0 => {
                        printed.bytes.extend_from_slice(&buffer[..count]);
                        if buffer[..count].contains(&b'\n') {
                            let now = Instant::now();
                            printed.first.get_or_insert(now);
                            printed.last = Some(now);
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    _ => printed.ended = true,
                }
                sink.more.notify_all();
                if printed.ended {
                    return;
                }
            }
        });
        Self { shared, reader }
    }

    /// Waits for the first whole line; `false` when the output ends, or the time is up, before there is one.
    pub fn wait_for_line(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut printed = self.shared.printed();
        while printed.first.is_none() && !printed.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            printed = self.shared.more.wait_timeout(printed, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        printed.first.is_some()
    }

    /// What was printed so far.
    pub fn so_far(&self) -> Vec<u8> {
        self.shared.printed().bytes.clone()
    }

    /// From the first line to the last so far.
    pub fn window(&self) -> Duration {
        let printed = self.shared.printed();
        match (printed.first, printed.last) {
            (Some(first), Some(last)) => last - first,
            _ => Duration::ZERO,
        }
    }

    /// Everything, once the last writer has closed the pipe; `None` when it does not within `limit`.
    pub fn finish(self, limit: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + limit;
        let mut printed = self.shared.printed();
        while !printed.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            printed = self.shared.more.wait_timeout(printed, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let bytes = std::mem::take(&mut printed.bytes);
        drop(printed);
        // It has ended; a panic in it would have lost bytes, which the comparison then shows.
        let _ = self.reader.join();
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_are_seen_as_they_come() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let capture = Capture::start(reader);
        assert!(!capture.wait_for_line(Duration::from_millis(10)));
        writer.write_all(b"half").unwrap();
        assert!(!capture.wait_for_line(Duration::from_millis(10)));
        writer.write_all(b" a line\n").unwrap();
        assert!(capture.wait_for_line(Duration::from_secs(10)));
        std::thread::sleep(Duration::from_millis(20));
        writer.write_all(b"another\n").unwrap();
        drop(writer);
        assert_eq!(capture.finish(Duration::from_secs(10)).unwrap(), b"half a line\nanother\n");
    }

    #[test]
    fn a_pipe_that_stays_open_is_given_up() {
        let (reader, writer) = std::io::pipe().unwrap();
        let capture = Capture::start(reader);
        assert_eq!(capture.finish(Duration::from_millis(20)), None);
        drop(writer);
    }
}
