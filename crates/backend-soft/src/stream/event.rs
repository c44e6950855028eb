//! Events.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::Ticket;

/// The last record of an event.
#[derive(Clone)]
pub struct Record {
    /// Complete when the event is.
    pub ticket: Ticket,
    /// When that was.
    pub time: Arc<OnceLock<Instant>>,
}

/// An event.
pub struct Event {
    /// Whether it was made to measure time.
    pub timing: bool,
    record: Mutex<Option<Record>>,
}

impl Event {
    /// An event that has not been recorded.
    pub fn new(timing: bool) -> Self {
        Self { timing, record: Mutex::default() }
    }

    /// Takes the place of the last record.
    pub fn set(&self, record: Record) {
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
    }

    /// The last record.
    pub fn get(&self) -> Option<Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
