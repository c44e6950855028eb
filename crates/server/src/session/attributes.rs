//! Attributes of streams.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::Result;
use crate::objects::Stream;
use crate::{lock, write};
use wire::LaunchValue;

impl Session {
    /// Sets an attribute of a stream, and remembers it.
    pub(crate) fn set_stream_attribute(
        &self,
        stream: &Stream,
        attribute: u32,
        value: LaunchValue,
    ) -> Result<()> {
        self.backend().stream_set_attribute(stream.ctx.raw, stream.arg(), attribute, value)?;
        lock(&stream.attributes).insert(attribute, value);
        write(&self.table).changes += 1;
        Ok(())
    }
}

impl Execute for wire::StreamGetAttribute {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<LaunchValue> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        Ok(session.backend().stream_attribute(stream.ctx.raw, stream.arg(), self.attribute)?)
    }
}

impl Execute for wire::StreamSetAttribute {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        session.set_stream_attribute(&stream, self.attribute, self.value)
    }
}

impl Execute for wire::LinearTextureWidth {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        let device = session.device(self.device)?;
        Ok(session.backend().linear_texture_width(device, self.format, self.channels)?)
    }
}
