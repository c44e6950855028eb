//! Closing the gate and waiting until the device is idle; what holds it if it does not get idle.

use crate::objects::{Stream, StreamKey};
use crate::session::{Session, THREAD_END, TIDYING};
use crate::{lock, read};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Request;

/// Between two looks at the streams.
const LOOK: Duration = Duration::from_micros(50);
/// How long streams that wait for a word of memory may hold the closed gate: what writes the word may stand before it.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long it is then open.
const MOMENT: Duration = Duration::from_millis(1);

impl Session {
    /// Stops taking messages and waits until every stream is idle and every callback acknowledged.
    ///
    /// # Errors
    /// What held it, in sentences, when it is not so after `deadline`; the gate is open again then.
    pub fn close_gate(&self, deadline: Duration) -> Result<(), Vec<String>> {
        let until = Instant::now() + deadline;
        let mut since = Instant::now();
        loop {
            // A call in hand may itself wait for a stream.
            let closed = self.gate.close(until.min(Instant::now() + PATIENCE));
            if closed.is_ok() {
                self.stop_half_way();
            }
            let busy = self.busy_streams();
            let callback = self.callbacks.running();
            if closed.is_ok() && busy.is_empty() && callback.is_none() {
                break;
            }
            if Instant::now() >= until {
                self.reopen(closed.is_ok());
                let mut holders: Vec<String> =
                    busy.iter().map(|stream| self.describe_stream(stream)).collect();
                holders.extend(callback.map(|id| format!("host callback {:#x}", id.handle())));
                if let Err((ring, opcode)) = closed
                    && holders.is_empty()
                {
                    holders.push(describe_call(ring, opcode));
                }
                return Err(holders);
            }
            if since.elapsed() >= PATIENCE && busy.iter().any(|stream| stream.wait().is_some()) {
                self.reopen(closed.is_ok());
                std::thread::sleep(MOMENT);
                since = Instant::now();
            } else {
                std::thread::sleep(LOOK);
            }
        }
        if let Err(unknown) = self.settle_half_way() {
            self.open_gate();
            return Err(unknown);
        }
        self.bury_streams();
        self.devices.iter().for_each(crate::memory::DeviceMemory::settle_idle);
        lock(&self.pinned).settle_idle();
        Ok(())
    }

    /// Takes messages again, and has marked kernels that were stopped go on.
    pub fn open_gate(&self) {
        self.resume_half_way();
        self.gate.open();
    }

    /// The same where the gate may not have been `closed` behind all messages: beside one in hand nothing is launched, and kernels that were stopped go on a little later.
    fn reopen(&self, closed: bool) {
        if closed {
            self.open_gate();
        } else {
            self.gate.open();
        }
    }

    /// Streams with work; those of failed contexts have none.
    pub(crate) fn busy_streams(&self) -> Vec<Arc<Stream>> {
        let streams = read(&self.table).all_streams(None);
        streams.into_iter().filter(|stream| !stream.poll().unwrap_or(true)).collect()
    }

    /// Whether no stream has work.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy_streams().is_empty()
    }

    /// Whether a stream has work that is not the keeping of shadow pages, which asks.
    pub(crate) fn has_work_beside_shadows(&self) -> bool {
        let is_other = |stream: &Arc<Stream>| !matches!(stream.record.key, StreamKey::Shadows(_));
        self.busy_streams().iter().any(is_other)
    }

    fn describe_stream(&self, stream: &Stream) -> String {
        let kernel = stream.last_callee().and_then(|handle| read(&self.table).callee_name(handle));
        let kernel = kernel.map(|kernel| format!("last kernel: {}", cpt::in_source(&kernel)));
        let held_by: Vec<String> =
            stream.wait().map(|wait| wait.to_string()).into_iter().chain(kernel).collect();
        match held_by.is_empty() {
            true => stream.record.key.to_string(),
            false => format!("{} ({})", stream.record.key, held_by.join("; ")),
        }
    }

    /// What of the session cannot be restored, a sentence for each; the gate is closed.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        let table = read(&self.table);
        let mut refusals = Vec::new();
        for context in table.contexts.values() {
            if let Err(error) = self.backend().context_synchronize(context.raw) {
                refusals.push(format!("context {:#x} has failed with {error}", context.id().handle()));
            }
        }
        for module in table.loaded_modules() {
            let facts = &module.facts;
            let mut reasons = facts.refusals.clone();
            if facts.exact {
                let missing = facts.variables.iter().filter(|name| module.place_of(name).is_err());
                reasons.extend(
                    missing.map(|name| format!("the driver does not tell where its variable {name} lies")),
                );
            }
            if !reasons.is_empty() {
                let name = module.describe();
                refusals.extend(reasons.iter().map(|reason| format!("{name}: {reason}")));
            }
        }
        drop(table);
        refusals.extend(self.heap_refusals());
        refusals.extend(self.texel_refusals());
        refusals
    }
}

/// What a thread of the application waits for, by the message that carries it.
fn describe_call(ring: usize, opcode: u16) -> String {
    match Request::name_of(opcode) {
        Some(name) => format!("a call of thread {ring} ({name})"),
        None if opcode == THREAD_END => format!("the end of thread {ring}"),
        None if opcode == TIDYING => "freed memory, which is being given back".to_owned(),
        None => format!("an unknown call of thread {ring} (number {opcode})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Message;

    #[test]
    fn a_call_is_named() {
        assert_eq!(describe_call(3, wire::ModuleLoad::OPCODE), "a call of thread 3 (ModuleLoad)");
        assert_eq!(describe_call(3, THREAD_END), "the end of thread 3");
        assert_eq!(describe_call(3, TIDYING), "freed memory, which is being given back");
        assert_eq!(describe_call(3, 60_000), "an unknown call of thread 3 (number 60000)");
    }
}
