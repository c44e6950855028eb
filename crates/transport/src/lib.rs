//! The shared files of a session: the control page, a ring for each application thread, staging slots and the callback
//! ring, and how both sides wait. What a message means is not known here; the bytes are in `docs/wire-protocol.md`.
//!
//! # Rules of the shared memory
//! - Every word is an atomic, so that no access of either side is a data race whatever the other side does.
//! - Every word has one writer, named in `layout`, but for the futex words, the ring states and the session error. The fences' is the device.
//! - Nothing read is trusted: positions and lengths are checked at each use, bytes are copied out before they are decoded.
//! - Positions only grow; a ring that changes hands goes on where it was.
//! - Nobody waits for what is not published, so a thread that is killed or stopped anywhere delays nobody else.
//!
//! # Server side in brief
//! ```text
//! let session = ServerSession::create(dir)?;            // or ::attach(dir) after a restart
//! session.control().set_state(State::Running);          // ready: now tell the client
//! // One thread: loop { seen = session.wait_doorbell(seen, timeout); start a thread for each ring that is not free }
//! // One thread for each ring:
//! let mut reader = session.reader(index)?;
//! loop {
//!     match reader.next(timeout)? {                     // waits: spin, then futex
//!         Next::Message(message) => {                   // a copy: opcode, dependencies, body
//!             // for each dependency: session.is_done(dep), else session.any_pending(dep, |opcode, body| conflicts)
//!             // execute, then exactly one of:
//!             reader.advance();                         // pipelined
//!             reader.reply(&bytes)?;                    // round trip
//!         }
//!         Next::Idle => {}                              // the timeout passed, or somebody called session.wake(index)
//!         Next::Closed => { reader.release(); break }   // the application's thread has ended and everything is done
//!     }
//! }
//! ```

#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(loom))]
pub mod board;
#[cfg(not(loom))]
mod callbacks;
#[cfg(not(loom))]
mod client;
#[cfg(not(loom))]
mod control;
// The modules that need files are left out of the model that loom checks: it has no files.
mod error;
#[cfg(not(loom))]
mod fence;
#[cfg(not(loom))]
pub mod hello;
mod layout;
#[cfg(not(loom))]
mod map;
mod ring;
#[cfg(not(loom))]
mod room;
#[cfg(not(loom))]
mod server;
#[cfg(not(loom))]
mod staging;
mod sync;
#[cfg(not(loom))]
mod trace;

#[cfg(not(loom))]
pub use callbacks::{Callback, CallbackReceiver, CallbackSender};
#[cfg(not(loom))]
pub use client::{ClientRing, ClientSession};
#[cfg(not(loom))]
pub use control::{Control, RingState, SessionError, State, mark_dead};
pub use error::TransportError;
#[cfg(not(loom))]
pub use fence::Fence;
pub use layout::{CALLBACKS, MAX_RINGS, MESSAGE_MAX, REPLY_MAX, RingIndex, SLOT_BYTES, SLOTS};
pub use ring::{Dependency, Message};
#[cfg(not(loom))]
pub use room::Room;
#[cfg(not(loom))]
pub use server::{Next, RingReader, ServerSession};
#[cfg(not(loom))]
pub use staging::Slot;
#[cfg(not(loom))]
pub use trace::{Side, TraceKind, TraceReader, TraceRecord, trace_clock};

/// Result of a transport operation.
pub type Result<T> = std::result::Result<T, TransportError>;
