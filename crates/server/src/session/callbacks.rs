//! Host callbacks: a stream comes to one, the application's thread runs it, the stream goes on.

use super::dispatch::Execute;
use super::wait::Backoff;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::memory::Shadows;
use crate::objects::Marker;
use crate::{lock, read};
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
    /// Those that are in no stream.
    later: Mutex<Later>,
    ending: Arc<AtomicBool>,
    shadows: Arc<Shadows>,
}

#[derive(Default)]
struct Later {
    /// What has to be complete before each.
    queue: Vec<(Option<Marker>, Callback)>,
    /// Whether a thread looks after them.
    served: bool,
}

impl Callbacks {
    pub(super) fn new(sender: CallbackSender, ending: Arc<AtomicBool>, shadows: Arc<Shadows>) -> Self {
        Self {
            waiter: sender.waiter(),
            sender: Mutex::new(sender),
            running: Mutex::default(),
            later: Mutex::default(),
            ending,
            shadows,
        }
    }

    /// A callback that has not returned, if any.
    #[must_use]
    pub fn running(&self) -> Option<CallbackId> {
        lock(&self.running).first().copied().map(CallbackId)
    }

    /// Whether this thread of the application runs one, as it is numbered where it runs.
    #[must_use]
    pub fn is_run_by(&self, thread: u32) -> bool {
        // A process from an image of an older release does not say which it is.
        self.running().is_some() && self.waiter.thread().is_none_or(|own| own == thread)
    }

    /// Has the application run a callback, and waits until it has, or until the session ends. Called by a stream.
    pub(super) fn run(&self, id: CallbackId, status: std::result::Result<(), CuError>) {
        lock(&self.running).insert(id.0);
        self.run_now(Callback { id: id.0, status: status.err().map_or(0, CuError::code) });
    }

    fn run_now(&self, mut callback: Callback) {
        // One that would find managed memory stale is told of a failure, as one is whose stream has failed.
        if let Err(code) = self.shadows.aside(Shadows::settle)
            && callback.status == 0
        {
            callback.status = code.code();
        }
        if let Some(number) = self.publish(callback) {
            while !self.ending.load(Ordering::SeqCst) && self.waiter.wait_acknowledged(number, LOOK) <= number
            {
            }
        }
        // What stands behind it in its stream is with the device already, and is to see what it has written.
        // Later calls are told what that fails with.
        let _ = self.shadows.aside(Shadows::write_back);
        lock(&self.running).remove(&callback.id);
    }

    /// Tells the application that a callback will not be run, for that reason.
    pub(super) fn cancel(self: &Arc<Self>, id: CallbackId, why: CuError) {
        self.run_later(None, Callback { id: id.0, status: why.code() });
    }

    /// Has the application run a callback when the marker, if there is one, is complete.
    pub(super) fn run_behind(self: &Arc<Self>, marker: Option<Marker>, id: CallbackId) {
        self.run_later(marker, Callback { id: id.0, status: 0 });
    }

    fn run_later(self: &Arc<Self>, marker: Option<Marker>, callback: Callback) {
        lock(&self.running).insert(callback.id);
        let mut later = lock(&self.later);
        later.queue.push((marker, callback));
        if !later.served {
            let callbacks = Arc::clone(self);
            let thread = std::thread::Builder::new().name("callbacks".into());
            match thread.spawn(move || callbacks.serve_later()) {
                Ok(_) => later.served = true,
                Err(error) => tracing::error!(%error, "no thread for callbacks"),
            }
        }
    }

    /// Has the application run what is in no stream, until nothing of that is left.
    fn serve_later(&self) {
        let mut backoff = Backoff::new();
        loop {
            let due: Vec<Callback> = {
                let mut later = lock(&self.later);
                if self.ending.load(Ordering::SeqCst) {
                    later.queue.clear();
                }
                if later.queue.is_empty() {
                    later.served = false;
                    return;
                }
                let is_due = |(marker, _): &mut (Option<Marker>, Callback)| {
                    marker.as_ref().is_none_or(Marker::is_complete)
                };
                later.queue.extract_if(.., is_due).map(|(_, callback)| callback).collect()
            };
            if due.is_empty() {
                backoff.pause();
                continue;
            }
            due.into_iter().for_each(|callback| self.run_now(callback));
            backoff = Backoff::new();
        }
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
        let mut submit = || {
            let stream = session.stream(caller, self.ctx, self.stream)?;
            let (callbacks, id) = (Arc::clone(&session.callbacks), self.callback);
            let _work = stream.begin_work()?;
            let run = Box::new(move |status| callbacks.run(id, status));
            Ok(session.backend().host_function(stream.ctx.raw, stream.arg(), run)?)
        };
        submit().inspect_err(|failure: &Failure| session.callbacks.cancel(self.callback, failure.code))
    }
}

impl Execute for wire::GraphRelease {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let last = self.exec.and_then(|exec| {
            let graph = read(&session.table).graphs.get(&exec).cloned()?;
            let last = lock(&graph.state).last.clone();
            // A stream that is no more has done all it was given.
            last?.upgrade()
        });
        let marker = match &last {
            Some(stream) => session.mark(stream).inspect_err(|failure| {
                session.callbacks.cancel(self.callback, failure.code);
            })?,
            None => None,
        };
        session.callbacks.run_behind(marker, self.callback);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::memory::that_cannot_be_settled;
    use transport::{ClientSession, ServerSession};

    /// It would take for the end of work what was there before; in a stream that has failed it is not run either.
    #[test]
    fn a_host_function_before_which_memory_cannot_be_settled_is_told_of_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let link = ServerSession::create(dir.path()).unwrap();
        let application = ClientSession::open(dir.path()).unwrap().callbacks();
        let callbacks = Callbacks::new(link.callbacks(), Arc::default(), that_cannot_be_settled());
        let told = std::thread::spawn(move || {
            let due = std::iter::repeat_with(|| application.next(LOOK).unwrap()).find_map(|due| due);
            application.acknowledge();
            due.map(|due| due.status)
        });
        callbacks.run(CallbackId(1), Ok(()));
        assert_eq!(told.join().unwrap(), Some(CuError::ILLEGAL_ADDRESS.code()));
    }
}
