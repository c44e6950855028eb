//! Green contexts: a primary context's streams whose kernels run on some of the multiprocessors.

use super::{Context, Making, Placement, Placer};
use crate::failure::{Failure, Result};
use backend::{Backend, RawGreen};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use wire::{ContextId, CuError, GreenId, SmCount, SmSet};

/// What it takes to make a green context again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GreenRecord {
    /// Its handle.
    pub id: GreenId,
    /// The primary context that it is a part of.
    pub ctx: ContextId,
    /// Which multiprocessors it has.
    pub of: SmSet,
    /// How many these are.
    pub count: SmCount,
    /// When it was made, and what the device library took.
    pub placement: Placement,
}

/// A live green context; ended when it is destroyed and so are its streams.
pub struct Green {
    /// Its constructor.
    pub record: GreenRecord,
    /// The backend's handle.
    pub raw: RawGreen,
    /// The primary context, which ends later.
    pub ctx: Arc<Context>,
    backend: Arc<dyn Backend>,
}

impl Green {
    /// Makes it and completes its record.
    ///
    /// # Errors
    /// The backend's; when it is made again, also that the set has another size here.
    pub fn make(
        placer: &Placer,
        ctx: &Arc<Context>,
        mut record: GreenRecord,
        making: Making,
    ) -> Result<Arc<Self>> {
        let backend = &placer.backend;
        let count = backend.sm_count(ctx.device(), &record.of)?;
        if making == Making::Again && count != record.count {
            let detail =
                format!("it had {} multiprocessors, and here has {}", record.count.count, count.count);
            return Err(Failure::new(CuError::INVALID_RESOURCE_CONFIGURATION, detail));
        }
        record.count = count;
        let raw =
            placer.place(&mut record.placement, making, || backend.green_create(ctx.device(), &record.of))?;
        Ok(Arc::new(Self { record, raw, ctx: Arc::clone(ctx), backend: Arc::clone(backend) }))
    }
}

impl Drop for Green {
    fn drop(&mut self) {
        if let Err(error) = self.backend.green_destroy(self.raw) {
            tracing::warn!(green = self.record.id.0, %error, "green context not destroyed");
        }
    }
}
