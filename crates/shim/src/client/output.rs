//! What kernels have printed, written where the application's own output goes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::Output;

unsafe extern "C" {
    /// The C library's, in which the application's own text waits too.
    static stdout: *mut libc::FILE;
}

/// How long to wait for a thread that has what comes before: one that has been ended in between never writes it.
const PATIENCE: Duration = Duration::from_secs(5);

/// How much of it is written.
static WRITTEN: Turns = Turns(AtomicU64::new(0));

/// Writes through the process's stdio, so that it comes in order with what the application prints, and behind what other threads have been given
/// before, also where there is nothing to write: a thread that has waited for its kernels finds all that they have printed written.
pub fn write(output: &Output) {
    let Output { from, bytes, more: _ } = output;
    WRITTEN.take(*from, bytes.0.len(), || {
        // SAFETY: `stdout` is the C library's open stream; the bytes are a slice. A closed or failing stdout loses the text,
        // as it does for the driver.
        unsafe { libc::fwrite(bytes.0.as_ptr().cast::<c_void>(), 1, bytes.0.len(), stdout) };
    });
}

/// Puts threads in the order of what they have to write.
struct Turns(AtomicU64);

impl Turns {
    /// Waits until all before `from` is written, and writes the `len` bytes there, if any.
    fn take(&self, from: u64, len: usize, write: impl FnOnce()) {
        let mut until = None;
        while self.0.load(Ordering::Acquire) < from {
            let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
            if Instant::now() >= until {
                break;
            }
            std::thread::yield_now();
        }
        if len > 0 {
            write();
        }
        self.0.fetch_max(from.saturating_add(len as u64), Ordering::Release);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn pieces_are_written_in_order_and_waited_for() {
        let (turns, written) = (Turns(AtomicU64::new(0)), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for piece in (0..8u64).rev() {
                let (turns, written) = (&turns, &written);
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(8 - piece));
                    turns.take(10 * piece, 10, || written.lock().unwrap().push(piece));
                });
                scope.spawn(move || {
                    // Nothing to write, and yet behind what comes before.
                    turns.take(10 * piece, 0, || unreachable!());
                    assert!(written.lock().unwrap().len() as u64 >= piece);
                });
            }
        });
        assert_eq!(*written.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }
}
