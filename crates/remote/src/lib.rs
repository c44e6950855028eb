//! A device on another machine. [`RemoteBackend`] is a [`backend::Backend`] whose calls go over a few byte streams to the *far
//! end* ([`serve`]), which holds a real one. What the streams are (TCP, TLS, a socket pair) is the caller's affair, and so is
//! who may use them. `docs/remote.md` says what travels, when, and what it means for memory that both ends see.
//!
//! Neither end trusts the other: every length is bounded before anything is allocated, names mean something in one session
//! only, and addresses are checked at the end where they are used.

mod area;
mod choice;
mod client;
mod diff;
mod far;
mod frame;
mod lanes;
mod messages;
mod packing;
mod ranges;
mod workers;

pub use choice::Choice;
pub use client::{ConnectError, RemoteBackend};
pub use far::{Quota, ServeError, Together, serve};
pub use wires::{Patience, Wires};

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use wire::CuError;
use wires::looks_for;

/// What every call answers once the connection is lost.
const LOST: CuError = CuError::DEVICE_UNAVAILABLE;

/// Greets, and hangs up where that takes longer than a peer may be silent.
fn in_time<T>(patience: Patience, hang_up: &Arc<dyn Fn() + Send + Sync>, greet: impl FnOnce() -> T) -> T {
    let (done, over) = channel::<()>();
    let hang_up = Arc::clone(hang_up);
    // Without a thread for it nobody looks at the time.
    let _ = Builder::new().name("remote-greeting".into()).spawn(move || {
        if over.recv_timeout(patience.silence) == Err(RecvTimeoutError::Timeout) {
            hang_up();
        }
    });
    let greeted = greet();
    drop(done);
    greeted
}

/// A thread that panicked while it held a lock has left nothing half-done that another could trip over.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
