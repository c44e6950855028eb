//! The GPU server: one process for each application process, the only one that talks to a device.
//!
//! The data's way: a [`session`] takes messages from the rings, resolves the application's handles in the object table
//! ([`objects`]), places memory ([`memory`]), and calls the backend. A checkpoint closes the `gate`, waits until the
//! device is idle, and writes the state and the device's memory ([`capture`]); a restart makes the same objects at the
//! same addresses again ([`restore`]). The supervisor asks for all that over [`control`]. [`watch`] records what
//! a program does, and stops it where a checkpoint is planned.

mod again;
mod application;
mod buffers;
pub mod capture;
pub mod conditions;
pub mod control;
mod drain;
mod facts;
mod failure;
mod gate;
pub mod heaps;
pub mod memory;
pub mod objects;
pub mod restore;
mod serve;
pub mod session;
pub mod shares;
pub mod sharing;
mod snapshot;
mod stand_in;
pub mod state;
pub mod textures;
mod transfer;
pub mod watch;

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use application::Application;
pub use failure::Failure;
pub use serve::{Ends, ServeError, Settings, TURNS, read_plan, serve, serve_on};

/// A lock that a panicking thread does not take along: the session ends then anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`].
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`].
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
