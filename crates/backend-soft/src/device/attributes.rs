//! Attributes of streams: kept, and of no consequence here.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use backend::{RawContext, Result, StreamArg, StreamAttributes};
use wire::{CuError, LaunchValue};

use super::backend::SoftBackend;

/// `CUstreamAttrID`.
const WINDOW: u32 = 1;
const SYNCHRONIZATION: u32 = 3;
const PRIORITY: u32 = 8;
const DOMAIN_MAP: u32 = 9;
const DOMAIN: u32 = 10;

/// What has been set, by context, stream and attribute.
#[derive(Default)]
pub struct Attributes(Mutex<HashMap<(RawContext, StreamArg, u32), LaunchValue>>);

impl Attributes {
    /// Forgets a stream.
    pub fn remove_stream(&self, ctx: RawContext, stream: StreamArg) {
        self.retain(|key| (key.0, key.1) != (ctx, stream));
    }

    /// Forgets a context's.
    pub fn remove_context(&self, ctx: RawContext) {
        self.retain(|key| key.0 != ctx);
    }

    fn retain(&self, keep: impl Fn(&(RawContext, StreamArg, u32)) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| keep(key));
    }
}

/// What an attribute is before it is set; none for what is no attribute.
fn initial(attribute: u32) -> Result<LaunchValue> {
    let mut value = [0; 64];
    match attribute {
        WINDOW | PRIORITY | DOMAIN => {}
        // `CU_SYNC_POLICY_AUTO`; remote work has a domain of its own.
        SYNCHRONIZATION => value[0] = 1,
        DOMAIN_MAP => value[1] = 1,
        _ => return Err(CuError::INVALID_VALUE),
    }
    Ok(LaunchValue(value))
}

impl StreamAttributes for SoftBackend {
    fn stream_attribute(&self, ctx: RawContext, stream: StreamArg, attribute: u32) -> Result<LaunchValue> {
        self.stream(&*self.context(ctx)?, stream)?;
        let initial = initial(attribute)?;
        let set = self.attributes.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(set.get(&(ctx, stream, attribute)).copied().unwrap_or(initial))
    }

    fn stream_set_attribute(
        &self,
        ctx: RawContext,
        stream: StreamArg,
        attribute: u32,
        value: LaunchValue,
    ) -> Result<()> {
        self.stream(&*self.context(ctx)?, stream)?;
        initial(attribute)?;
        let mut set = self.attributes.0.lock().unwrap_or_else(PoisonError::into_inner);
        set.insert((ctx, stream, attribute), value);
        Ok(())
    }
}
