//! The chapter of [`Backend`](crate::Backend) on attributes of streams.

use crate::{RawContext, Result, StreamArg};
use wire::LaunchValue;

/// Attributes of streams (`CUstreamAttrID`), which the work that is given to a stream takes on.
pub trait StreamAttributes {
    /// As `cuStreamGetAttribute`.
    fn stream_attribute(&self, ctx: RawContext, stream: StreamArg, attribute: u32) -> Result<LaunchValue>;
    /// As `cuStreamSetAttribute`; the bytes behind the attribute's value are zero.
    fn stream_set_attribute(
        &self,
        ctx: RawContext,
        stream: StreamArg,
        attribute: u32,
        value: LaunchValue,
    ) -> Result<()>;
}
