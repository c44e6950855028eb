//! Contexts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::sys::CUcontext;
use wire::{ContextId, Device, GreenId, SmSet, StreamId};

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
    /// How often it was created and attached, less detached; of a context of the application's own.
    pub usage: AtomicU32,
    /// What it is converted from, if it stands for a green context.
    pub green: Option<Green>,
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
            usage: AtomicU32::new(1),
            green: None,
            life: AtomicU32::new(0),
        }
    }

    /// What a green context of `base` converts to, not alive yet.
    pub fn of_green(id: GreenId, base: &Arc<Self>, of: SmSet) -> Self {
        let green = Green { id, base: Owner::new(base), of };
        let flags = base.flags.load(Ordering::Relaxed);
        Self { green: Some(green), ..Self::new(ContextId(id.0), base.device, false, flags, base.api_version) }
    }

    /// The context that everything but streams is made in: its own, but for a green one.
    #[inline]
    pub fn base(context: &Arc<Self>) -> &Arc<Self> {
        context.green.as_ref().map_or(context, |green| &green.base.context)
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
            && self.green.as_ref().is_none_or(|green| green.base.is_alive())
    }

    /// What the application holds.
    pub fn handle(&self) -> CUcontext {
        std::ptr::without_provenance_mut(self.id.handle() as usize)
    }
}

/// A green context: some of the device's multiprocessors, and the streams of the primary context whose kernels run on them.
pub struct Green {
    /// Its handle.
    pub id: GreenId,
    /// The primary context.
    pub base: Owner,
    /// The multiprocessors.
    pub of: SmSet,
}

impl Green {
    /// What NULL means as a stream while it is current.
    #[inline]
    pub fn default_stream(&self) -> StreamId {
        StreamId(self.id.0)
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
