//! Attributes of streams.

use crate::api::check;
use crate::driver::{Driver, stream};
use backend::{RawContext, Result, StreamArg, StreamAttributes};
use cudarc::driver::sys;
use wire::LaunchValue;

/// `CUstreamAttrValue`, aligned as it is.
#[repr(C, align(8))]
struct Value([u8; 64]);
const _: () = assert!(size_of::<Value>() == size_of::<sys::CUstreamAttrValue>());

impl StreamAttributes for Driver {
    fn stream_attribute(&self, ctx: RawContext, arg: StreamArg, attribute: u32) -> Result<LaunchValue> {
        self.enter(ctx)?;
        let mut value = Value([0; 64]);
        // SAFETY: a live stream, and room for a value; the driver refuses attributes it does not know.
        check(unsafe { (self.api.cuStreamGetAttribute)(stream(arg), attribute, (&raw mut value).cast()) })?;
        Ok(LaunchValue(value.0))
    }

    fn stream_set_attribute(
        &self,
        ctx: RawContext,
        arg: StreamArg,
        attribute: u32,
        value: LaunchValue,
    ) -> Result<()> {
        self.enter(ctx)?;
        let value = Value(value.0);
        // SAFETY: a live stream, and a whole value; the driver refuses attributes it does not know.
        check(unsafe { (self.api.cuStreamSetAttribute)(stream(arg), attribute, (&raw const value).cast()) })
    }
}
