//! Linking device code: files in, a file out. Nothing is kept here.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result, truncate};
use crate::objects::check_options;
use backend::{Compiled, LinkInput};
use rustix::fs::{Mode, OFlags};
use std::io::Write;
use wire::{CuError, DETAIL_MAX, UploadId};

/// The most inputs of one link.
const INPUTS_MAX: usize = 4096;
/// The most bytes of all of them: they are in memory at once.
const BYTES_MAX: u64 = 4 << 30;

impl Session {
    /// Leaves a file for the client in the session's folder.
    fn leave(&self, id: UploadId, bytes: &[u8]) -> Result<()> {
        let path = self.config.dir.join(format!("upload-{}", id.0));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(std::io::Error::from);
        let written = made.and_then(|file| std::fs::File::from(file).write_all(bytes));
        written.map_err(|error| {
            let detail = format!("{}: {error}; is the job's tmpfs full?", path.display());
            Failure::new(CuError::OUT_OF_MEMORY, detail)
        })
    }
}

impl Execute for wire::Link {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<(u64, String)> {
        check_options(&self.options)?;
        let ctx = session.context(self.ctx)?;
        if self.inputs.len() > INPUTS_MAX {
            let detail = format!("{} inputs are too many for one link", self.inputs.len());
            return Err(Failure::new(CuError::INVALID_VALUE, detail));
        }
        let mut data = Vec::with_capacity(self.inputs.len());
        let mut room = BYTES_MAX;
        for (_, (upload, _)) in &self.inputs {
            let input = session.take_upload(*upload, room)?;
            room -= input.len() as u64;
            data.push(input);
        }
        let inputs: Vec<LinkInput<'_>> = self
            .inputs
            .iter()
            .zip(&data)
            .map(|((kind, (_, name)), data)| LinkInput { kind: *kind, name, data })
            .collect();
        let linked = session.backend().link(ctx.raw, &inputs, &self.options);
        let Compiled { code, mut info } = linked.map_err(|error| Failure::new(error.code, error.detail))?;
        session.leave(self.output, &code)?;
        truncate(&mut info, DETAIL_MAX);
        Ok((code.len() as u64, info))
    }
}
