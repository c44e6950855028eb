//! Contexts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::sys::CUcontext;
use wire::{ContextId, Device};

use super::registry::Object;

/// A context. A primary context keeps its handle when it is reset and made anew, so a context has *lives*.
pub struct Context {
    /// Its id.
    pub id: ContextId,
    /// Its device.
    pub device: Device,
    /// Whether it is its device's primary context.
    pub primary: bool,
    /// `CUctx_flags`.
    pub flags: AtomicU32,
    /// `cuCtxGetApiVersion`.
    pub api_version: u32,
    /// `CUfunc_cache` of `cuCtxSetCacheConfig`.
    pub cache_config: AtomicU32,
    /// Odd while it is alive; counts up when it begins and when it ends.
    life: AtomicU32,
}

impl Context {
    /// A context that is not alive yet.
    pub fn new(id: ContextId, device: Device, primary: bool, flags: u32, api_version: u32) -> Self {
        Self {
            id,
            device,
            primary,
            flags: AtomicU32::new(flags),
            api_version,
            cache_config: AtomicU32::new(0),
            life: AtomicU32::new(0),
        }
    }

    /// The server has made it.
    pub fn begin(&self) {
        self.life.fetch_add(1, Ordering::AcqRel);
    }

    /// It is destroyed, and with it all that belonged to this life.
    pub fn end(&self) {
        self.life.fetch_add(1, Ordering::AcqRel);
        self.cache_config.store(0, Ordering::Relaxed);
    }

    /// Whether the server has it.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.life.load(Ordering::Acquire) % 2 == 1
    }

    /// What the application holds.
    pub fn handle(&self) -> CUcontext {
        std::ptr::without_provenance_mut(self.id.handle() as usize)
    }
}

impl Object for Context {
    fn is_alive(&self) -> bool {
        self.primary || self.is_active()
    }
}

/// What belongs to one life of a context.
#[derive(Clone)]
pub struct Owner {
    /// The context.
    pub context: Arc<Context>,
    life: u32,
}

impl Owner {
    /// The context as it lives now.
    pub fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), life: context.life.load(Ordering::Acquire) }
    }

    /// Whether that life goes on.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.life % 2 == 1 && self.context.life.load(Ordering::Acquire) == self.life
    }

    /// Whether this is that context.
    pub fn is(&self, context: &Context) -> bool {
        self.context.id == context.id
    }
}
