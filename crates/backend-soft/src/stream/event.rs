//! Events.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{Interprocess, Ticket};

/// Between two looks at what another process may complete.
const LOOK: Duration = Duration::from_micros(20);

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
    /// Where other processes see it, if they may.
    pub shared: Option<Arc<Interprocess>>,
    record: Mutex<Option<Record>>,
}

impl Event {
    /// An event that has not been recorded.
    pub fn new(timing: bool) -> Self {
        Self { timing, shared: None, record: Mutex::default() }
    }

    /// One that other processes use too.
    pub fn interprocess(shared: Interprocess) -> Self {
        Self { shared: Some(Arc::new(shared)), ..Self::new(false) }
    }

    /// Whether the last record is complete; what was never recorded is.
    pub fn is_complete(&self) -> bool {
        match &self.shared {
            Some(shared) => shared.is_complete(shared.latest()),
            None => self.get().is_none_or(|record| record.ticket.is_done()),
        }
    }

    /// Waits until it is.
    pub fn wait(&self) {
        match &self.shared {
            Some(_) => {
                while !self.is_complete() {
                    std::thread::sleep(LOOK);
                }
            }
            None => self.get().into_iter().for_each(|record| record.ticket.wait()),
        }
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
