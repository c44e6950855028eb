//! Stream memory operations.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use wire::{CuError, MemoryOperation};

impl Session {
    /// Whether the words of all operations are there.
    pub(super) fn check_operations(&self, operations: &[MemoryOperation]) -> Result<()> {
        for word in operations.iter().filter_map(MemoryOperation::word) {
            self.check_memory(word.address, word.bytes())?;
            if !word.address.is_multiple_of(word.bytes()) {
                let detail = format!("{:#x} is no multiple of {}", word.address, word.bytes());
                return Err(Failure::new(CuError::INVALID_VALUE, detail));
            }
        }
        Ok(())
    }
}

impl Execute for wire::MemoryOperations {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        session.check_operations(&self.operations)?;
        session.shadows.note_waits(&self.operations);
        let _work = stream.begin_work()?;
        session.backend().memory_operations(stream.ctx.raw, stream.arg(), &self.operations)?;
        stream.note_waits(&self.operations)?;
        Ok(())
    }
}
