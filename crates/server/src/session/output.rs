//! What kernels print: taken from the backend when the application synchronises, and sent with the answer.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::Result;
use crate::lock;
use crate::objects::{Context, Stream};
use std::collections::VecDeque;
use std::sync::Mutex;
use wire::{Bytes, OUTPUT_MAX};

/// What kernels have printed.
#[derive(Default)]
pub(crate) struct Output(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    /// How many bytes have been sent.
    sent: u64,
    /// Those that have not.
    bytes: VecDeque<u8>,
}

impl Pending {
    /// The next piece: all of it or, if that is too much, whole lines where there are any.
    fn next(&mut self) -> wire::Output {
        let most = self.bytes.len().min(OUTPUT_MAX);
        let lines = || self.bytes.range(..most).rposition(|byte| *byte == b'\n').map(|end| end + 1);
        let count = if most < self.bytes.len() { lines().unwrap_or(most) } else { most };
        let from = self.sent;
        self.sent += count as u64;
        let bytes = Bytes(self.bytes.drain(..count).collect());
        wire::Output { from, bytes, more: !self.bytes.is_empty() }
    }
}

impl Session {
    /// Takes what work that has been waited for has printed.
    pub(crate) fn collect_output(&self) {
        let mut pending = lock(&self.output.0);
        pending.bytes.extend(self.backend().take_output());
    }

    /// Has the device library hand over what the work of an idle stream has printed.
    pub(crate) fn hand_over_output(&self, stream: &Stream) -> Result<()> {
        if stream.ctx.may_print() {
            // Nothing is left to wait for.
            self.backend().stream_synchronize(stream.ctx.raw, stream.arg())?;
            self.collect_output();
        }
        Ok(())
    }

    /// The same for a context whose streams are idle.
    pub(crate) fn hand_over_all_output(&self, context: &Context) -> Result<()> {
        if context.may_print() {
            let waited = self.backend().context_synchronize(context.raw);
            self.collect_output();
            waited?;
        }
        Ok(())
    }

    /// What goes with the next reply.
    pub(super) fn next_output(&self) -> wire::Output {
        lock(&self.output.0).next()
    }

    /// How many bytes have been sent, and everything that is not sent yet, for a session's state; it stays to be sent.
    pub(crate) fn unsent_output(&self) -> (u64, Vec<u8>) {
        self.collect_output();
        let pending = lock(&self.output.0);
        (pending.sent, pending.bytes.iter().copied().collect())
    }

    /// Output that a session's state had not sent.
    pub(crate) fn restore_output(&self, (sent, bytes): &(u64, Vec<u8>)) {
        *lock(&self.output.0) = Pending { sent: *sent, bytes: bytes.iter().copied().collect() };
    }
}

impl Execute for wire::TakeOutput {
    fn execute(self, _: &Session, _: &mut Caller) -> Result<()> {
        // Every reply carries what is there.
        Ok(())
    }
}
