//! Streams, events, modules, libraries, functions and kernels, as the client knows them.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wire::{Callee, ContextId, FunctionFacts, FunctionId, KernelId, LibraryId, ModuleId, Param};

use super::context::{Context, Owner};
use super::registry::Object;
use super::variables::Variables;
use crate::graph::CapturedAt;

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const MAX_THREADS: i32 = 0;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: i32 = 8;

macro_rules! alive_with_owner {
    ($($name:ident),*) => {$(
        impl Object for $name {
            fn is_alive(&self) -> bool {
                self.owner.is_alive() && !self.gone.load(Ordering::Acquire)
            }
        }
    )*};
}
alive_with_owner!(Event, Module);

/// A stream that the application created.
pub struct Stream {
    /// Its context.
    pub owner: Owner,
    /// What its green context converts to, if it is in one.
    pub green: Option<Arc<Context>>,
    /// `CUstream_flags`.
    pub flags: u32,
    /// As the device gave it, or as it was set since.
    pub priority: AtomicI32,
    /// Whether it is destroyed.
    pub gone: AtomicBool,
}

impl Object for Stream {
    fn is_alive(&self) -> bool {
        let green = self.green.as_ref().is_none_or(|green| green.is_active());
        self.owner.is_alive() && green && !self.gone.load(Ordering::Acquire)
    }
}

/// An event.
pub struct Event {
    /// Its context.
    pub owner: Owner,
    /// `CUevent_flags`.
    pub flags: u32,
    /// How often it has been recorded: counted up when the message is sent.
    pub records: AtomicU64,
    /// Up to which record it is known to be complete.
    pub complete: AtomicU64,
    /// Where it was last recorded, if in a capture.
    pub captured: CapturedAt,
    /// Whether it is destroyed.
    pub gone: AtomicBool,
}

/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;

impl Event {
    /// A new one.
    pub fn new(owner: Owner, flags: u32) -> Self {
        let (records, complete) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            owner,
            flags,
            records,
            complete,
            captured: CapturedAt::default(),
            gone: AtomicBool::new(false),
        }
    }

    /// Whether other processes may record it too: what is known here then says nothing.
    #[inline]
    pub fn is_interprocess(&self) -> bool {
        self.flags & INTERPROCESS != 0
    }

    /// Whether it has ever been recorded, or may have been by another process.
    pub fn is_recorded(&self) -> bool {
        self.is_interprocess() || self.records.load(Ordering::Acquire) != 0
    }

    /// The record that a question is about, unless it is known to be complete (as an event never recorded is): then there is
    /// nothing to ask.
    pub fn pending(&self) -> Option<u64> {
        let record = self.records.load(Ordering::Acquire);
        if self.is_interprocess() {
            return Some(record);
        }
        (self.complete.load(Ordering::Acquire) < record).then_some(record)
    }

    /// The server has said, after [`Event::pending`] told this record, that the event is complete.
    pub fn completed(&self, record: u64) {
        self.complete.fetch_max(record, Ordering::AcqRel);
    }
}

/// A module.
pub struct Module {
    /// Its id.
    pub id: ModuleId,
    /// Its context.
    pub owner: Owner,
    /// The library it is the module of, in its context; such a module goes with the library.
    pub library: Option<LibraryId>,
    /// Functions looked up so far, by name.
    pub functions: Mutex<HashMap<String, FunctionId>>,
    /// Its variables in managed memory, unless it is a library's.
    pub variables: Variables,
    /// Whether it is unloaded.
    pub gone: AtomicBool,
}

/// A library.
pub struct Library {
    /// Its id.
    pub id: LibraryId,
    /// Kernels looked up so far, by name.
    pub kernels: Mutex<HashMap<String, KernelId>>,
    /// Its module in each context, as far as asked for.
    pub modules: Mutex<HashMap<ContextId, ModuleId>>,
    /// Its variables in managed memory, once somebody has asked for them.
    pub variables: Mutex<Option<Arc<Variables>>>,
    /// Whether it is unloaded.
    pub gone: AtomicBool,
}

impl Object for Library {
    fn is_alive(&self) -> bool {
        !self.gone.load(Ordering::Acquire)
    }
}

/// A kernel that was asked for while there was no context to load it in: it is looked up when it is used.
pub struct Promised {
    /// Where it is to be found.
    pub library: Arc<Library>,
    /// Its name.
    pub name: String,
}

impl Object for Promised {
    fn is_alive(&self) -> bool {
        self.library.is_alive()
    }
}

/// Where a function or kernel comes from, and goes with.
pub enum Origin {
    /// A function of this module.
    Module(Arc<Module>),
    /// A kernel of this library.
    Library(Arc<Library>),
    /// A kernel of this library as a function of one context.
    KernelIn(Arc<Library>, Owner),
}

/// What has been set at a function for launches in the form of CUDA 3.
#[derive(Clone, Default)]
pub struct OldForm {
    /// Threads of a block; 0 as long as nobody has said.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// Bytes of parameters.
    pub size: usize,
    /// What of them has been set.
    pub params: Vec<u8>,
}

/// A function or a kernel: whatever can be launched.
pub struct Callable {
    /// What the server calls it.
    pub callee: Callee,
    /// Where it comes from.
    pub origin: Origin,
    /// Its name, for `cuFuncGetName`.
    pub name: CString,
    /// Its parameters, in order.
    pub params: Box<[Param]>,
    /// Bytes of its parameters.
    pub param_bytes: usize,
    /// For a kernel: its function in each context, as far as asked for.
    pub functions: Mutex<HashMap<ContextId, FunctionId>>,
    /// What a launch in the form of CUDA 3 takes.
    pub old_form: Mutex<OldForm>,
    attributes: Mutex<HashMap<i32, i32>>,
    max_threads: AtomicI32,
    max_dynamic_shared: AtomicI32,
}

/// The longest parameter list that a launch carries (32,764 bytes since CUDA 12.1), rounded up.
const PARAMS_MAX: usize = 32 << 10;

impl Callable {
    /// From what the server says of it.
    pub fn new(callee: Callee, origin: Origin, facts: FunctionFacts) -> Option<Self> {
        let ends = facts.params.iter().map(|param| param.offset.checked_add(param.size));
        let param_bytes = ends.collect::<Option<Vec<_>>>()?.into_iter().max().unwrap_or(0) as usize;
        if param_bytes > PARAMS_MAX {
            return None;
        }
        let attributes: HashMap<i32, i32> = facts.attributes.into_iter().collect();
        let known = |attribute| AtomicI32::new(attributes.get(&attribute).copied().unwrap_or(i32::MAX));
        Some(Self {
            callee,
            origin,
            name: CString::new(facts.name).ok()?,
            params: facts.params.into(),
            param_bytes,
            functions: Mutex::default(),
            old_form: Mutex::default(),
            max_threads: known(MAX_THREADS),
            max_dynamic_shared: known(MAX_DYNAMIC_SHARED),
            attributes: Mutex::new(attributes),
        })
    }

    /// The most threads of a block.
    pub fn max_threads(&self) -> i32 {
        self.max_threads.load(Ordering::Relaxed)
    }

    /// The most dynamic shared memory of a launch, bytes.
    pub fn max_dynamic_shared(&self) -> i32 {
        self.max_dynamic_shared.load(Ordering::Relaxed)
    }

    /// An attribute, if it is known here.
    pub fn attribute(&self, attribute: i32) -> Option<i32> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).get(&attribute).copied()
    }

    /// Remembers an attribute.
    pub fn set_attribute(&self, attribute: i32, value: i32) {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).insert(attribute, value);
        if attribute == MAX_DYNAMIC_SHARED {
            self.max_dynamic_shared.store(value, Ordering::Relaxed);
        }
    }

    /// The library's kernel that it is a function of, if it is one.
    pub fn library_kernel(&self) -> Option<KernelId> {
        let Origin::KernelIn(library, _) = &self.origin else { return None };
        let kernels = library.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        kernels.get(self.name.to_str().ok()?).copied()
    }

    /// The context it is bound to; a kernel is bound to none.
    pub fn owner(&self) -> Option<&Owner> {
        match &self.origin {
            Origin::Module(module) => Some(&module.owner),
            Origin::KernelIn(_, owner) => Some(owner),
            Origin::Library(_) => None,
        }
    }
}

impl Object for Callable {
    fn is_alive(&self) -> bool {
        match &self.origin {
            Origin::Module(module) => module.is_alive(),
            Origin::Library(library) => library.is_alive(),
            Origin::KernelIn(library, owner) => library.is_alive() && owner.is_alive(),
        }
    }
}
