//! What kernels print: taken from the backend when the application synchronises, and sent with the answer.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::Result;
use crate::lock;
use crate::objects::{Context, Stream};
use std::collections::VecDeque;
use std::sync::Mutex;
use wire::OUTPUT_MAX;

/// Output that is not sent yet.
#[derive(Default)]
pub(crate) struct Output(Mutex<VecDeque<u8>>);

impl Session {
    /// Takes what work that has been waited for has printed.
    pub(crate) fn collect_output(&self) {
        let mut pending = lock(&self.output.0);
        pending.extend(self.backend().take_output());
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
    pub(super) fn next_output(&self) -> Vec<u8> {
        let mut pending = lock(&self.output.0);
        let count = pending.len().min(OUTPUT_MAX);
        pending.drain(..count).collect()
    }

    /// Everything that is not sent yet, for a session's state; it stays to be sent.
    pub(crate) fn unsent_output(&self) -> Vec<u8> {
        self.collect_output();
        lock(&self.output.0).iter().copied().collect()
    }

    /// Output that a session's state had not sent.
    pub(crate) fn restore_output(&self, bytes: &[u8]) {
        lock(&self.output.0).extend(bytes);
    }
}

impl Execute for wire::TakeOutput {
    fn execute(self, _: &Session, _: &mut Caller) -> Result<()> {
        // Every reply carries what is there.
        Ok(())
    }
}
