//! What kernels have printed, written where the application's own output goes.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::Output;

unsafe extern "C" {
    /// The C library's, in which the application's own text waits too.
    static stdout: *mut libc::FILE;
    /// Takes a stream's own lock, which a thread may have several times.
    fn flockfile(stream: *mut libc::FILE);
    fn funlockfile(stream: *mut libc::FILE);
}

/// How long to wait for a piece that another thread has been given and not put down: one that has been ended in between never does.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to look for it at once, since it takes a moment only.
const LOOKS: u32 = 100;
/// How long to sleep between two looks after that. A process that is stopped meanwhile has not waited longer.
const NAP: Duration = Duration::from_millis(1);

static PIECES: Pieces = Pieces::new(PATIENCE);

/// Writes through the process's stdio, so that it comes in order with what the application prints, and behind what other threads have been given
/// before, also where there is nothing to write: a thread that has waited for its kernels finds all that they have printed written.
pub fn write(output: &Output) {
    // SAFETY: `stdout` is the C library's open stream.
    let stream = unsafe { stdout };
    PIECES.write(output.from, &output.bytes.0, stream);
}

/// Pieces of a text that threads are given in order, and write in order, whoever comes first. A thread may have the stream's lock of the application's own
/// doing while another waits for it with the piece before: so a piece is put down first, and written by whoever has the lock.
struct Pieces {
    /// How much is written.
    written: AtomicU64,
    /// What is not, by where it begins. Taken with the stream's lock, or for a moment.
    waiting: Mutex<BTreeMap<u64, Vec<u8>>>,
    patience: Duration,
}

impl Pieces {
    const fn new(patience: Duration) -> Self {
        Self { written: AtomicU64::new(0), waiting: Mutex::new(BTreeMap::new()), patience }
    }

    /// Has all up to the end of `bytes`, which begin at `from`, written to an open stream.
    fn write(&self, from: u64, bytes: &[u8], stream: *mut libc::FILE) {
        let end = from.saturating_add(bytes.len() as u64);
        if !bytes.is_empty() {
            self.waiting().insert(from, bytes.to_vec());
        } else if self.is_written(end) {
            return;
        }
        let (mut looks, mut waited) = (0, Duration::ZERO);
        loop {
            let lost = if waited < self.patience { 0 } else { from };
            self.write_out(lost, stream);
            if self.is_written(end) {
                return;
            }
            if looks < LOOKS {
                looks += 1;
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
                waited += NAP;
            }
        }
    }

    fn is_written(&self, end: u64) -> bool {
        self.written.load(Ordering::Acquire) >= end
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u8>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is next; what nobody has put down is not waited for where it lies before `lost`.
    fn write_out(&self, lost: u64, stream: *mut libc::FILE) {
        let _lock = StreamLock::take(stream);
        let mut waiting = self.waiting();
        self.written.fetch_max(lost, Ordering::Release);
        while let Some(first) = waiting.first_entry()
            && self.is_written(*first.key())
        {
            let (from, bytes) = first.remove_entry();
            // SAFETY: an open stream; the bytes are a slice. A closed or failing stdout loses the text, as it does for the driver.
            unsafe { libc::fwrite(bytes.as_ptr().cast::<c_void>(), 1, bytes.len(), stream) };
            self.written.fetch_max(from.saturating_add(bytes.len() as u64), Ordering::Release);
        }
    }
}

/// A stream's lock.
struct StreamLock(*mut libc::FILE);

impl StreamLock {
    fn take(stream: *mut libc::FILE) -> Self {
        // SAFETY: an open stream.
        unsafe { flockfile(stream) };
        Self(stream)
    }
}

impl Drop for StreamLock {
    fn drop(&mut self) {
        // SAFETY: this thread has taken it.
        unsafe { funlockfile(self.0) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::thread::{scope, sleep};

    /// A stream, as an address that threads may share.
    struct File(usize);

    impl File {
        fn new() -> Self {
            // SAFETY: no arguments.
            let stream = unsafe { libc::tmpfile() };
            assert!(!stream.is_null());
            Self(stream as usize)
        }

        fn stream(&self) -> *mut libc::FILE {
            self.0 as *mut libc::FILE
        }

        fn text(&self) -> String {
            let mut bytes = vec![0; 4096];
            // SAFETY: an open stream, and room for so many bytes.
            let count = unsafe {
                libc::rewind(self.stream());
                libc::fread(bytes.as_mut_ptr().cast(), 1, bytes.len(), self.stream())
            };
            bytes.truncate(count);
            String::from_utf8(bytes).unwrap()
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            // SAFETY: nobody uses it any more.
            unsafe { libc::fclose(self.stream()) };
        }
    }

    #[test]
    fn pieces_are_written_in_order_and_waited_for() {
        let (pieces, file) = (Pieces::new(PATIENCE), File::new());
        scope(|scope| {
            for piece in (0..8u64).rev() {
                let (pieces, file) = (&pieces, &file);
                scope.spawn(move || {
                    sleep(Duration::from_millis(8 - piece));
                    pieces.write(2 * piece, format!("{piece}\n").as_bytes(), file.stream());
                    assert!(pieces.is_written(2 * piece + 2));
                });
                scope.spawn(move || {
                    // Nothing to write, and yet behind what comes before.
                    pieces.write(2 * piece, &[], file.stream());
                    assert!(pieces.is_written(2 * piece));
                });
            }
        });
        assert_eq!(file.text(), "0\n1\n2\n3\n4\n5\n6\n7\n");
    }

    #[test]
    fn who_has_the_streams_lock_writes_what_comes_before() {
        let (pieces, file) = (Pieces::new(Duration::MAX), File::new());
        let lock = StreamLock::take(file.stream());
        scope(|scope| {
            scope.spawn(|| pieces.write(0, b"before\n", file.stream()));
            while pieces.waiting().is_empty() {
                std::thread::yield_now();
            }
            pieces.write(7, b"behind\n", file.stream());
            drop(lock);
        });
        assert_eq!(file.text(), "before\nbehind\n");
    }

    #[test]
    fn a_piece_that_never_comes_is_given_up_and_one_that_comes_late_is_written() {
        let (pieces, file) = (Pieces::new(Duration::from_millis(20)), File::new());
        pieces.write(4, b"second\n", file.stream());
        assert!(pieces.is_written(11));
        pieces.write(0, b"one\n", file.stream());
        assert_eq!(file.text(), "second\none\n");
    }
}
