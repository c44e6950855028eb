//! Host callbacks: a stream comes to one, the application's thread runs it, the stream goes on.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::Result;
use crate::lock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::{Callback, CallbackSender};
use wire::{CallbackId, CuError};

/// How often a waiting stream looks whether the session has ended.
const LOOK: Duration = Duration::from_millis(100);
/// How long a stream waits for room when too many callbacks are under way.
const FULL: Duration = Duration::from_millis(1);

/// The server's end of the callback ring.
pub struct Callbacks {
    sender: Mutex<CallbackSender>,
    waiter: CallbackSender,
    /// Callbacks that are published and not acknowledged.
    running: Mutex<BTreeSet<u32>>,
    ending: Arc<AtomicBool>,
}

impl Callbacks {
    pub(super) fn new(sender: CallbackSender, ending: Arc<AtomicBool>) -> Self {
        Self { waiter: sender.waiter(), sender: Mutex::new(sender), running: Mutex::default(), ending }
    }

    /// A callback that has not returned, if any.
    #[must_use]
    pub fn running(&self) -> Option<CallbackId> {
        lock(&self.running).first().copied().map(CallbackId)
    }

    /// Has the application run a callback, and waits until it has, or until the session ends. Called by a stream.
    pub(super) fn run(&self, id: CallbackId, status: std::result::Result<(), CuError>) {
        lock(&self.running).insert(id.0);
        let callback = Callback { id: id.0, status: status.err().map_or(0, CuError::code) };
        if let Some(number) = self.publish(callback) {
            while !self.ending.load(Ordering::SeqCst) && self.waiter.wait_acknowledged(number, LOOK) <= number
            {
            }
        }
        lock(&self.running).remove(&id.0);
    }

    fn publish(&self, callback: Callback) -> Option<u64> {
        while !self.ending.load(Ordering::SeqCst) {
            match lock(&self.sender).publish(callback) {
                Ok(Some(number)) => return Some(number),
                Ok(None) => std::thread::sleep(FULL),
                Err(error) => {
                    tracing::error!(%error, callback = callback.id, "callback ring");
                    return None;
                }
            }
        }
        None
    }
}

impl Execute for wire::HostFunction {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let callbacks = Arc::clone(&session.callbacks);
        let id = self.callback;
        stream.begin_work()?;
        session.backend().host_function(
            stream.ctx.raw,
            stream.arg(),
            Box::new(move |status| callbacks.run(id, status)),
        )?;
        Ok(())
    }
}
