//! The object table: what the application's handles stand for.
//!
//! Objects are reference counted: a thread that is in a backend call with an object keeps it alive, and the table's lock is
//! never held during a call that may wait. An object that is destroyed leaves the table at once and ends when the last such
//! thread lets go of it.

mod array;
mod code;
mod context;
mod event;
mod graph;
mod green;
mod host_copy;
mod managed;
mod pace;
mod placer;
mod rewritten;
mod stream;
mod template;
mod texel;
mod variables;
mod waits;

pub use array::*;
pub use code::*;
pub use context::*;
pub use event::*;
pub use graph::*;
pub use green::*;
pub use host_copy::HostCopy;
pub use managed::*;
pub use placer::*;
pub use rewritten::Rewritten;
pub use stream::*;
pub use template::*;
pub use texel::*;
pub use variables::CodeFacts;

use crate::failure::{Failure, Result};
use backend::Range;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Weak};
use wire::{
    ArrayId, Callee, ContextId, CuError, EventId, FunctionId, GraphExecId, GraphTemplateId, GreenId,
    KernelId, LibraryId, MipmapId, ModuleId,
};

/// Every live object of a session.
#[derive(Default)]
pub struct Table {
    /// Contexts.
    pub contexts: BTreeMap<ContextId, Arc<Context>>,
    /// Streams, the default ones included.
    pub streams: BTreeMap<StreamKey, Arc<Stream>>,
    /// Streams the application has destroyed whose work is not known to be complete.
    pub dying: Vec<Arc<Stream>>,
    /// Green contexts.
    pub greens: BTreeMap<GreenId, Arc<Green>>,
    /// Events.
    pub events: BTreeMap<EventId, Arc<Event>>,
    /// Modules, those of libraries only where the application has asked for them.
    pub modules: BTreeMap<ModuleId, Arc<Module>>,
    /// Functions.
    pub functions: BTreeMap<FunctionId, Arc<Function>>,
    /// Libraries.
    pub libraries: BTreeMap<LibraryId, Arc<Library>>,
    /// Kernels.
    pub kernels: BTreeMap<KernelId, Arc<Kernel>>,
    /// Executable graphs.
    pub graphs: BTreeMap<GraphExecId, Arc<GraphExec>>,
    /// Graphs that conditions belong to.
    pub templates: BTreeMap<GraphTemplateId, Arc<Template>>,
    /// Arrays, and levels of mipmapped ones.
    pub arrays: BTreeMap<ArrayId, Arc<Array>>,
    /// Mipmapped arrays.
    pub mipmaps: BTreeMap<MipmapId, Arc<Mipmap>>,
    /// Texture and surface objects.
    pub texels: BTreeMap<TexelKey, Arc<Texel>>,
    /// Modules that are gone and shape where others lie.
    pub tombstones: Vec<Tombstone>,
    /// Variables whose addresses the application has been told, by address.
    globals: BTreeMap<u64, (Range, Weak<Module>)>,
    /// Images by name, as long as something is made of them.
    images: BTreeMap<ImageHash, Weak<Image>>,
    /// Counts changes of the set of objects that a rehearsal covers.
    pub changes: u64,
}

/// Puts a new object in; refuses an id in use.
///
/// # Errors
/// `INVALID_HANDLE` when `id` names something already.
pub fn insert<K: Ord + std::fmt::Debug + Copy, V>(map: &mut BTreeMap<K, V>, id: K, value: V) -> Result<()> {
    match map.entry(id) {
        Entry::Vacant(vacant) => {
            vacant.insert(value);
            Ok(())
        }
        Entry::Occupied(_) => Err(in_use(id)),
    }
}

/// Takes out what `gone` says, to be dropped where no lock is held.
pub fn take_out<K: Ord, V>(map: &mut BTreeMap<K, V>, mut gone: impl FnMut(&V) -> bool) -> Vec<V> {
    let (out, stay) = std::mem::take(map).into_iter().partition(|(_, value)| gone(value));
    *map = stay;
    let out: BTreeMap<K, V> = out;
    out.into_values().collect()
}

/// What a message that creates `id` a second time is told.
pub fn in_use(id: impl std::fmt::Debug) -> Failure {
    Failure::new(CuError::INVALID_HANDLE, format!("{id:?} is in use already"))
}

fn find<K: Ord + std::fmt::Debug, V>(map: &BTreeMap<K, Arc<V>>, id: K, code: CuError) -> Result<Arc<V>> {
    map.get(&id).cloned().ok_or_else(|| Failure::new(code, format!("there is no {id:?}")))
}

impl Table {
    /// The context `id`.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn context(&self, id: ContextId) -> Result<Arc<Context>> {
        find(&self.contexts, id, CuError::INVALID_CONTEXT)
    }

    /// The green context `id`.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn green(&self, id: GreenId) -> Result<Arc<Green>> {
        find(&self.greens, id, CuError::INVALID_CONTEXT)
    }

    /// The array `id`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn array(&self, id: ArrayId) -> Result<Arc<Array>> {
        find(&self.arrays, id, CuError::INVALID_HANDLE)
    }

    /// The mipmapped array `id`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn mipmap(&self, id: MipmapId) -> Result<Arc<Mipmap>> {
        find(&self.mipmaps, id, CuError::INVALID_HANDLE)
    }

    /// The template `id`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn template(&self, id: GraphTemplateId) -> Result<Arc<Template>> {
        find(&self.templates, id, CuError::INVALID_HANDLE)
    }

    /// The event `id`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn event(&self, id: EventId) -> Result<Arc<Event>> {
        find(&self.events, id, CuError::INVALID_HANDLE)
    }

    /// The module `id`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn module(&self, id: ModuleId) -> Result<Arc<Module>> {
        find(&self.modules, id, CuError::INVALID_HANDLE)
    }

    /// The library `id`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn library(&self, id: LibraryId) -> Result<Arc<Library>> {
        find(&self.libraries, id, CuError::INVALID_HANDLE)
    }

    /// The function `id`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn function(&self, id: FunctionId) -> Result<Arc<Function>> {
        find(&self.functions, id, CuError::INVALID_HANDLE)
    }

    /// The kernel `id`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn kernel(&self, id: KernelId) -> Result<Arc<Kernel>> {
        find(&self.kernels, id, CuError::INVALID_HANDLE)
    }

    /// The name of what a callee's handle stands for.
    #[must_use]
    pub fn callee_name(&self, handle: u64) -> Option<String> {
        if let Some(id) = GraphExecId::from_handle(handle) {
            return Some(format!("one of graph {:#x}", id.handle()));
        }
        if let Some(id) = FunctionId::from_handle(handle) {
            return self.functions.get(&id).map(|function| function.name.clone());
        }
        KernelId::from_handle(handle).and_then(|id| self.kernels.get(&id)).map(|kernel| kernel.name.clone())
    }

    /// Every stream that may have work, of one context or of all.
    pub fn all_streams(&self, ctx: Option<ContextId>) -> Vec<Arc<Stream>> {
        self.streams
            .values()
            .chain(&self.dying)
            .filter(|stream| ctx.is_none_or(|ctx| stream.record.ctx == ctx))
            .cloned()
            .collect()
    }

    /// The image with these bytes: the one that is there already, if any.
    pub fn intern(&mut self, image: Image) -> Arc<Image> {
        if let Some(found) = self.images.get(&image.hash).and_then(Weak::upgrade) {
            return found;
        }
        let image = Arc::new(image);
        self.images.retain(|_, image| image.strong_count() > 0);
        self.images.insert(image.hash, Arc::downgrade(&image));
        image
    }

    /// The same for an image of a restored state.
    pub fn intern_arc(&mut self, image: Arc<Image>) -> Arc<Image> {
        self.images.insert(image.hash, Arc::downgrade(&image));
        image
    }

    /// Every module that is loaded, with those of libraries.
    #[must_use]
    pub fn loaded_modules(&self) -> Vec<Arc<Module>> {
        let owned = self.modules.values().filter(|module| matches!(module.record.owner, Owner::Module(_)));
        let mut all: Vec<_> = owned.cloned().collect();
        for library in self.libraries.values() {
            all.extend(crate::lock(&library.modules).values().cloned());
        }
        all.sort_by_key(|module| module.record.placement.turn);
        all
    }

    /// Notes that the application has been told where a variable lies.
    pub fn note_global(&mut self, range: Range, module: &Arc<Module>) {
        self.globals.insert(range.base, (range, Arc::downgrade(module)));
    }

    /// Whether the bytes lie in a variable that the application has been told of.
    #[must_use]
    pub fn in_global(&self, address: u64, bytes: u64) -> bool {
        self.globals
            .range(..=address)
            .next_back()
            .is_some_and(|(_, (range, module))| range.contains(address, bytes) && module.strong_count() > 0)
    }

    /// Whether the bytes lie in any variable of a module.
    pub(crate) fn in_module(&self, address: u64, bytes: u64) -> bool {
        let within = |module: &Arc<Module>| {
            module.record.placement.ranges.iter().any(|range| range.contains(address, bytes))
        };
        self.in_global(address, bytes) || self.loaded_modules().iter().any(within)
    }

    /// Takes out a module's functions and variables, and leaves a tombstone where a restart needs one. The module itself is
    /// the caller's to let go of.
    pub fn bury(&mut self, module: &Arc<Module>, placer: &Placer) {
        module.note_gone();
        self.changes += 1;
        self.functions.retain(|_, function| !Arc::ptr_eq(&function.module, module));
        self.modules.retain(|_, other| !Arc::ptr_eq(other, module));
        self.globals.retain(|_, (_, owner)| !std::ptr::eq(owner.as_ptr(), Arc::as_ptr(module)));
        self.tombstones.push(Tombstone {
            record: module.record.clone(),
            unloaded: placer.turn(),
            image: Arc::clone(&module.image),
        });
    }

    /// Drops the tombstones that shape nothing any more: no live module is younger, and the device library has given back
    /// what was taken for them.
    pub fn prune_tombstones(&mut self, placer: &Placer) {
        let youngest = self.loaded_modules().last().map(|module| module.record.placement.turn);
        self.tombstones.retain(|tombstone| {
            let placement = &tombstone.record.placement;
            youngest.is_some_and(|youngest| placement.turn < youngest)
                || placement.ranges.iter().any(|range| placer.backend.holds(*range))
        });
    }

    /// The function a callee stands for, if it is known in this context already.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when there is no such function or kernel, or it belongs to another context.
    pub fn callee(&self, ctx: ContextId, callee: Callee) -> Result<Resolved> {
        match callee {
            Callee::Function(id) => {
                let function = self.functions.get(&id);
                let function = function
                    .ok_or_else(|| Failure::new(CuError::INVALID_HANDLE, format!("there is no {id:?}")))?;
                if function.module.record.ctx != ctx {
                    return Err(Failure::new(
                        CuError::INVALID_HANDLE,
                        format!("{id:?} is of another context than {ctx:?}"),
                    ));
                }
                Ok(Resolved::Function(Arc::clone(function)))
            }
            Callee::Kernel(id) => {
                let kernel = self.kernels.get(&id);
                let kernel = kernel
                    .ok_or_else(|| Failure::new(CuError::INVALID_HANDLE, format!("there is no {id:?}")))?;
                let known = crate::read(&kernel.functions);
                match known.iter().find(|(known, _)| *known == ctx) {
                    Some((_, function)) => Ok(Resolved::Function(Arc::clone(function))),
                    None => Ok(Resolved::Unloaded(Arc::clone(kernel))),
                }
            }
        }
    }
}

/// What a callee stands for.
pub enum Resolved {
    /// A function.
    Function(Arc<Function>),
    /// A kernel whose library is not loaded in the context yet.
    Unloaded(Arc<Kernel>),
}
