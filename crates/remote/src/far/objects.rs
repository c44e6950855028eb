//! What a client has made, by the names it has given. A name means nothing in another session.

use crate::lock;
use crate::ranges::Ranges;
use backend::{
    Range, RawArray, RawBlock, RawContext, RawEvent, RawFunction, RawGraph, RawGreen, RawMipmap, RawModule,
    RawPhysical, RawStream, RawTemplate, Result, StreamArg,
};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use wire::CuError;

/// Objects of one kind, with the name of the context that each belongs to (0 for none).
pub(super) struct Names<T>(RwLock<HashMap<u64, (T, u64)>>);

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T: Copy> Names<T> {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<u64, (T, u64)>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, (T, u64)>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, name: u64) -> Result<T> {
        self.owned(name).map(|(raw, _)| raw)
    }

    /// The same with the context that it belongs to.
    pub(super) fn owned(&self, name: u64) -> Result<(T, u64)> {
        self.read().get(&name).copied().ok_or(CuError::INVALID_HANDLE)
    }

    /// Whether a new object can have the name.
    pub(super) fn is_free(&self, name: u64) -> Result<()> {
        if name == 0 || self.read().contains_key(&name) { Err(CuError::INVALID_VALUE) } else { Ok(()) }
    }

    pub(super) fn insert(&self, name: u64, raw: T, of: u64) {
        self.write().insert(name, (raw, of));
    }

    pub(super) fn remove(&self, name: u64) -> Result<T> {
        self.write().remove(&name).map(|(raw, _)| raw).ok_or(CuError::INVALID_HANDLE)
    }

    /// Forgets what belongs to a context; how many that were.
    fn remove_of(&self, ctx: u64) -> u64 {
        let mut names = self.write();
        let before = names.len();
        names.retain(|_, (_, of)| *of != ctx);
        (before - names.len()) as u64
    }

    /// All of them, and nothing is left.
    pub(super) fn drain(&self) -> Vec<T> {
        self.write().drain().map(|(_, (raw, _))| raw).collect()
    }
}

/// A module, and the names of its functions go with it.
#[derive(Clone, Copy)]
pub(super) struct FunctionOf {
    pub(super) raw: RawFunction,
    module: u64,
}

/// A block, and where it lies.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) raw: RawBlock,
    pub(super) range: Range,
}

/// An array or a mipmapped one, and what of the device's memory it is counted for.
#[derive(Clone, Copy)]
pub(super) struct Counted<T> {
    pub(super) raw: T,
    pub(super) bytes: u64,
}

/// Addresses that the client may name in copies, fills and memory operations.
#[derive(Default)]
pub(super) struct Space {
    pub(super) mapped: Ranges,
    /// Variables, by the module and the context that they go with.
    pub(super) others: Ranges<(u64, u64)>,
    pub(super) mirrors: Ranges,
}

/// Everything that a client has made.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) contexts: Names<RawContext>,
    pub(super) modules: Names<RawModule>,
    /// Variables in managed memory, by their modules, with the contexts of those: they lie where the client says, which makes nothing
    /// its own.
    pub(super) managed: Mutex<HashMap<RawModule, (u64, HashSet<String>)>>,
    pub(super) functions: Names<FunctionOf>,
    pub(super) streams: Names<RawStream>,
    pub(super) events: Names<RawEvent>,
    pub(super) graphs: Names<RawGraph>,
    pub(super) templates: Names<RawTemplate>,
    pub(super) arrays: Names<Counted<RawArray>>,
    pub(super) mipmaps: Names<Counted<RawMipmap>>,
    pub(super) greens: Names<RawGreen>,
    pub(super) blocks: Names<Block>,
    pub(super) physicals: Names<Counted<RawPhysical>>,
    /// Their values are the device library's, and kernels know them.
    pub(super) textures: Names<()>,
    pub(super) surfaces: Names<()>,
    space: RwLock<Space>,
}

impl Objects {
    pub(super) fn ctx(&self, ctx: RawContext) -> Result<RawContext> {
        self.contexts.get(ctx.0).map_err(|_| CuError::INVALID_CONTEXT)
    }

    pub(super) fn stream(&self, stream: StreamArg) -> Result<StreamArg> {
        match stream {
            StreamArg::Legacy => Ok(StreamArg::Legacy),
            StreamArg::Created(name) => self.streams.get(name.0).map(StreamArg::Created),
        }
    }

    pub(super) fn function(&self, function: RawFunction) -> Result<RawFunction> {
        self.functions.get(function.0).map(|function| function.raw)
    }

    pub(super) fn add_function(
        &self,
        name: RawFunction,
        raw: RawFunction,
        module: RawModule,
        ctx: RawContext,
    ) {
        self.functions.insert(name.0, FunctionOf { raw, module: module.0 }, ctx.0);
    }

    /// Forgets what goes with a module; how many objects that were.
    pub(super) fn module_gone(&self, module: RawModule) -> u64 {
        self.space_mut().others.take(|(of, _)| *of == module.0);
        let mut functions = self.functions.write();
        let before = functions.len();
        functions.retain(|_, (function, _)| function.module != module.0);
        (before - functions.len()) as u64
    }

    /// Forgets what goes with a context; how many objects that were.
    pub(super) fn context_gone(&self, ctx: RawContext) -> u64 {
        // First of all the modules: of those that are gone no variable is added.
        let modules = self.modules.remove_of(ctx.0);
        lock(&self.managed).retain(|_, (of, _)| *of != ctx.0);
        self.space_mut().others.take(|(_, of)| *of == ctx.0);
        modules
            + self.functions.remove_of(ctx.0)
            + self.streams.remove_of(ctx.0)
            + self.events.remove_of(ctx.0)
            + self.graphs.remove_of(ctx.0)
            + self.templates.remove_of(ctx.0)
            + self.textures.remove_of(ctx.0)
            + self.surfaces.remove_of(ctx.0)
    }

    /// Bytes of arrays that go with a context, and how many they are.
    pub(super) fn arrays_gone(&self, ctx: RawContext) -> (u64, u64) {
        let (mut bytes, mut count) = (0, 0);
        let mut of = |counted: u64, owner: u64| {
            if owner == ctx.0 {
                (bytes, count) = (bytes + counted, count + 1);
            }
            owner != ctx.0
        };
        self.arrays.write().retain(|_, (array, owner)| of(array.bytes, *owner));
        self.mipmaps.write().retain(|_, (mipmap, owner)| of(mipmap.bytes, *owner));
        (bytes, count)
    }

    pub(super) fn space(&self) -> RwLockReadGuard<'_, Space> {
        self.space.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn space_mut(&self) -> RwLockWriteGuard<'_, Space> {
        self.space.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a variable lies is the client's from now on, unless it has said itself where that is, or the module has gone meanwhile.
    pub(super) fn variable(&self, module: RawModule, (raw, ctx): (RawModule, u64), name: &str, range: Range) {
        let is_managed = lock(&self.managed).get(&raw).is_some_and(|(_, names)| names.contains(name));
        if !is_managed && self.owns(range.base, range.bytes).is_err() {
            let mut space = self.space_mut();
            if self.modules.owned(module.0) == Ok((raw, ctx)) {
                space.others.insert(range, (module.0, ctx));
            }
        }
    }

    /// Whether these bytes are the client's: this end's own memory never is.
    pub(super) fn owns(&self, address: u64, bytes: u64) -> Result<()> {
        let space = self.space();
        let all = |covers: bool| if covers { Ok(()) } else { Err(CuError::INVALID_VALUE) };
        all(space.mapped.covers(address, bytes)
            || space.others.covers(address, bytes)
            || space.mirrors.covers(address, bytes))
    }
}
