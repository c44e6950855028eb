//! Loading modules and libraries, and finding what is in them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::{CuError, CuResult, sys};
use wire::{
    Callee, ContextId, FunctionGetAttribute, FunctionId, KernelGetFunction, KernelId, LibraryGetKernel,
    LibraryGetModule, LibraryId, LibraryLoad, LibraryUnload, Message, ModuleGetFunction, ModuleId,
    ModuleLoad, ModuleUnload, Names,
};

use super::context::Owner;
use super::image::Upload;
use super::jit::JitOptions;
use super::memory::Kind;
use super::objects::{Callable, Library, Module, Origin, Promised};
use super::thread::Call;
use super::variables::Variables;

impl Call<'_> {
    /// Loads a module into the current context.
    ///
    /// # Errors
    /// What the server says; its reason goes to the application's error log buffer.
    pub fn load_module(&mut self, upload: &Upload, options: &JitOptions) -> CuResult<ModuleId> {
        let context = Arc::clone(self.context()?);
        let id = ModuleId(self.session.next_id());
        let options_sent = options.send.clone();
        let (ctx, upload) = (context.id, upload.id);
        let mut message = ModuleLoad { ctx, module: id, upload, options: options_sent, managed: 0 };
        let mut loaded = self.ask_for_reason(&message);
        let mut variables = Variables::default();
        if let Ok((_, needed)) = &loaded
            && !needed.variables.is_empty()
        {
            variables = self.house(needed)?;
            message.managed = variables.base();
            loaded = self.ask_for_reason(&message);
        }
        if let Err(error) = options.finish(loaded.map(|(info, _)| info)) {
            self.evict(&variables);
            return Err(error);
        }
        self.add_module(id, Owner::new(&context), None, variables);
        Ok(id)
    }

    fn add_module(&self, id: ModuleId, owner: Owner, library: Option<LibraryId>, variables: Variables) {
        let (functions, gone) = (Mutex::default(), AtomicBool::new(false));
        let module = Module { id, owner, library, functions, variables, gone };
        self.session.modules.insert(id.0, Arc::new(module));
    }

    /// The module that a handle names.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn module(&self, handle: sys::CUmodule) -> CuResult<Arc<Module>> {
        ModuleId::from_handle(handle.addr() as u64)
            .and_then(|id| self.session.modules.get(id.0))
            .ok_or(CuError::INVALID_HANDLE)
    }

    /// Unloads a module, and with it its functions and variables.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, also for a library's module.
    pub fn unload_module(&mut self, handle: sys::CUmodule) -> CuResult {
        let module = self.module(handle)?;
        if module.library.is_some() {
            return Err(CuError::INVALID_HANDLE);
        }
        self.ask(&ModuleUnload { module: module.id })?;
        module.gone.store(true, Ordering::Release);
        self.session.modules.remove(module.id.0);
        self.session.functions.sweep();
        self.evict(&module.variables);
        self.forget_globals(Origin::Module(module));
        Ok(())
    }

    /// The function of that name in a module.
    ///
    /// # Errors
    /// `NOT_FOUND`.
    pub fn module_function(&mut self, module: &Arc<Module>, name: &str) -> CuResult<FunctionId> {
        if let Some(id) = cached(&module.functions, name) {
            return Ok(id);
        }
        let id = FunctionId(self.session.next_id());
        let facts =
            self.ask(&ModuleGetFunction { module: module.id, function: id, name: name.to_owned() })?;
        let callable = Callable::new(Callee::Function(id), Origin::Module(Arc::clone(module)), facts);
        self.session.functions.insert(id.0, Arc::new(callable.ok_or(CuError::UNKNOWN)?));
        Ok(*locked(&module.functions).entry(name.to_owned()).or_insert(id))
    }

    /// Loads a library.
    ///
    /// # Errors
    /// As [`Call::load_module`].
    pub fn load_library(&mut self, upload: &Upload, options: &JitOptions) -> CuResult<LibraryId> {
        let id = LibraryId(self.session.next_id());
        let message = LibraryLoad { library: id, upload: upload.id, options: options.send.clone() };
        // Its code is compiled when it is used.
        let loaded = self.ask_for_reason(&message).map(|()| String::new());
        options.finish(loaded)?;
        let library = Library {
            id,
            kernels: Mutex::default(),
            modules: Mutex::default(),
            variables: Mutex::default(),
            gone: AtomicBool::new(false),
        };
        self.session.libraries.insert(id.0, Arc::new(library));
        Ok(id)
    }

    /// The library that a handle names.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn library(&self, handle: sys::CUlibrary) -> CuResult<Arc<Library>> {
        LibraryId::from_handle(handle.addr() as u64)
            .and_then(|id| self.session.libraries.get(id.0))
            .ok_or(CuError::INVALID_HANDLE)
    }

    /// Unloads a library, and with it its kernels, modules and variables.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn unload_library(&mut self, handle: sys::CUlibrary) -> CuResult {
        let library = self.library(handle)?;
        self.ask(&LibraryUnload { library: library.id })?;
        library.gone.store(true, Ordering::Release);
        self.session.libraries.remove(library.id.0);
        for id in locked(&library.modules).drain().map(|(_, id)| id) {
            if let Some(module) = self.session.modules.remove(id.0) {
                module.gone.store(true, Ordering::Release);
            }
        }
        self.session.kernels.sweep();
        self.session.promised.sweep();
        self.session.functions.sweep();
        if let Some(variables) = library.variables.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.evict(&variables);
        }
        self.forget_globals(Origin::Library(library));
        Ok(())
    }

    /// The kernel of that name in a library.
    ///
    /// # Errors
    /// `NOT_FOUND`. While there is no context, any name is taken: whether the library has it shows when it is used.
    pub fn library_kernel(&mut self, library: &Arc<Library>, name: &str) -> CuResult<KernelId> {
        if let Some(id) = cached(&library.kernels, name) {
            return Ok(id);
        }
        let id = KernelId(self.session.next_id());
        match self.any_context() {
            Ok(ctx) => self.look_up(ctx, id, library, name)?,
            Err(_) => {
                let promised = Promised { library: Arc::clone(library), name: name.to_owned() };
                self.session.promised.insert(id.0, Arc::new(promised));
            }
        }
        Ok(*locked(&library.kernels).entry(name.to_owned()).or_insert(id))
    }

    fn look_up(&mut self, ctx: ContextId, id: KernelId, library: &Arc<Library>, name: &str) -> CuResult {
        self.library_variables(library)?;
        let facts =
            self.ask(&LibraryGetKernel { ctx, library: library.id, kernel: id, name: name.to_owned() })?;
        let callable = Callable::new(Callee::Kernel(id), Origin::Library(Arc::clone(library)), facts);
        self.session.kernels.insert(id.0, Arc::new(callable.ok_or(CuError::UNKNOWN)?));
        Ok(())
    }

    /// Looks up a kernel that was promised, if it was, now that it is used.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` while there still is no context; what the server says, such as `NOT_FOUND`.
    pub fn redeem(&mut self, id: KernelId) -> CuResult {
        let _only_one = self.session.redeeming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(promised) = self.session.promised.get(id.0) {
            self.look_up(self.any_context()?, id, &promised.library, &promised.name)?;
            self.session.promised.remove(id.0);
        }
        Ok(())
    }

    /// The current context, or else any primary context that is there.
    fn any_context(&self) -> CuResult<ContextId> {
        let primaries = self.session.devices.iter().map(|device| &device.primary);
        self.context()
            .ok()
            .or_else(|| primaries.into_iter().find(|primary| primary.is_active()))
            .map(|context| context.id)
            .ok_or(CuError::INVALID_CONTEXT)
    }

    /// The library's module in the current context.
    ///
    /// # Errors
    /// What the server says.
    pub fn library_module(&mut self, library: &Arc<Library>) -> CuResult<ModuleId> {
        let context = Arc::clone(self.context()?);
        let known = locked(&library.modules).get(&context.id).copied();
        if let Some(id) = known.filter(|id| self.session.modules.get(id.0).is_some()) {
            return Ok(id);
        }
        self.library_variables(library)?;
        let id = ModuleId(self.session.next_id());
        self.ask(&LibraryGetModule { ctx: context.id, library: library.id, module: id })?;
        self.add_module(id, Owner::new(&context), Some(library.id), Variables::default());
        locked(&library.modules).insert(context.id, id);
        Ok(id)
    }

    /// A kernel as a function of the current context.
    ///
    /// # Errors
    /// What the server says.
    pub fn kernel_function(&mut self, kernel: &Arc<Callable>) -> CuResult<FunctionId> {
        let (Callee::Kernel(id), Origin::Library(library)) = (kernel.callee, &kernel.origin) else {
            return Err(CuError::INVALID_HANDLE);
        };
        let context = Arc::clone(self.context()?);
        let known = locked(&kernel.functions).get(&context.id).copied();
        if let Some(known) = known.filter(|id| self.session.functions.get(id.0).is_some()) {
            return Ok(known);
        }
        self.library_variables(library)?;
        let function = FunctionId(self.session.next_id());
        let facts = self.ask(&KernelGetFunction { ctx: context.id, kernel: id, function })?;
        let origin = Origin::KernelIn(Arc::clone(library), Owner::new(&context));
        let callable = Callable::new(Callee::Function(function), origin, facts).ok_or(CuError::UNKNOWN)?;
        self.session.functions.insert(function.0, Arc::new(callable));
        locked(&kernel.functions).insert(context.id, function);
        Ok(function)
    }

    /// The first `wanted` names of a list, or all there are, in as many round trips as it takes: `page` makes the message for
    /// at most so many (second) from a number (first) on.
    ///
    /// # Errors
    /// What the server says.
    pub fn names<M: Message<Reply = Names>>(
        &mut self,
        wanted: u32,
        page: impl Fn(u32, u32) -> M,
    ) -> CuResult<Vec<String>> {
        let mut found = Vec::new();
        loop {
            let first = found.len() as u32;
            let Some(most) = wanted.checked_sub(first).filter(|most| *most > 0) else { return Ok(found) };
            let mut more = self.ask(&page(first, most))?.names;
            if more.is_empty() {
                return Ok(found);
            }
            more.truncate(most as usize);
            found.append(&mut more);
        }
    }

    /// A function's attribute, from what is known of it or from the server.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an attribute that there is not.
    pub fn attribute(&mut self, callable: &Callable, ctx: ContextId, attribute: i32) -> CuResult<i32> {
        if let Some(value) = callable.attribute(attribute) {
            return Ok(value);
        }
        let value = self.ask(&FunctionGetAttribute { ctx, callee: callable.callee, attribute })?;
        callable.set_attribute(attribute, value);
        Ok(value)
    }

    /// Takes the variables of what is gone out of the table of allocations.
    fn forget_globals(&self, gone: Origin) {
        self.session.memory.sweep(|allocation| match (&allocation.kind, &gone) {
            (Kind::Global(of), Origin::Module(module)) => *of == module.id.handle(),
            (Kind::Global(of), Origin::Library(library) | Origin::KernelIn(library, _)) => {
                *of == library.id.handle()
            }
            _ => false,
        });
    }
}

fn locked<K, V>(table: &Mutex<HashMap<K, V>>) -> std::sync::MutexGuard<'_, HashMap<K, V>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cached<V: Copy>(table: &Mutex<HashMap<String, V>>, name: &str) -> Option<V> {
    locked(table).get(name).copied()
}
