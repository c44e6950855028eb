//! Modules, libraries, functions, kernels.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::facts::compute_capability;
use crate::failure::{Failure, Result};
use crate::memory::PAGE;
use crate::objects::{
    Bound, CodeFacts, Context, Function, Image, JitOptions, Kernel, Library, LibraryRecord, Making,
    ManagedLayout, Module, ModuleRecord, Owner, Resolved, check_options, in_use, insert, take_out,
};
use crate::{lock, read, write};
use rustix::fs::{FileType, Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};
use wire::{Callee, ContextId, CuError, Device, FunctionFacts, ManagedVariables, Names, UploadId};

/// The largest image that is read, bytes.
const IMAGE_MAX: u64 = 2 << 30;

/// The variables in managed memory of some code.
fn managed_of(facts: &CodeFacts) -> Result<&ManagedLayout> {
    facts.managed.as_ref().map_err(|reason| Failure::new(CuError::NOT_SUPPORTED, reason.clone()))
}

impl Session {
    /// Reads and removes a file that the application has left in the session's folder.
    pub(super) fn take_upload(&self, id: UploadId, most: u64) -> Result<Vec<u8>> {
        let contents = self.read_upload(id, most)?;
        self.remove_upload(id);
        Ok(contents)
    }

    fn upload_path(&self, id: UploadId) -> PathBuf {
        self.config.dir.join(format!("upload-{}", id.0))
    }

    fn remove_upload(&self, id: UploadId) {
        let _ = rustix::fs::unlink(self.upload_path(id));
    }

    fn read_upload(&self, id: UploadId, most: u64) -> Result<Vec<u8>> {
        let path = self.upload_path(id);
        let wrong =
            |what: String| Failure::new(CuError::INVALID_IMAGE, format!("{}: {what}", path.display()));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| wrong(error.to_string()))?;
        let stat = rustix::fs::fstat(&file).map_err(|error| wrong(error.to_string()))?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || bytes > most {
            return Err(wrong(format!("no regular file of at most {most} bytes")));
        }
        let mut contents = Vec::new();
        contents.try_reserve_exact(bytes as usize).map_err(|error| wrong(error.to_string()))?;
        File::from(file).take(bytes).read_to_end(&mut contents).map_err(|error| wrong(error.to_string()))?;
        Ok(contents)
    }

    /// The image that the application has left, in a file that stays.
    fn upload(&self, id: UploadId) -> Result<Arc<Image>> {
        let image = self.read_upload(id, IMAGE_MAX)?;
        let wrong = |error: String| Failure::new(CuError::INVALID_IMAGE, format!("upload-{}: {error}", id.0));
        fatbin::Image::parse(&image).map_err(|error| wrong(error.to_string()))?;
        Ok(write(&self.table).intern(Image::new(image)))
    }

    fn load(
        &self,
        ctx: &Arc<Context>,
        image: &Arc<Image>,
        owner: Owner,
        options: &JitOptions,
        managed: Vec<Bound>,
    ) -> Result<Arc<Module>> {
        let record = ModuleRecord {
            owner,
            ctx: ctx.id(),
            image: image.hash,
            options: options.clone(),
            managed,
            placement: Default::default(),
        };
        let make = || Module::make(&self.placer, ctx, image, record.clone(), Making::New, &[]);
        // It needs that much, and room for variables that begin as zeros.
        let made = self.with_room(ctx.device(), image.bytes.len() as u64, make).inspect_err(|failure| {
            if !failure.detail.is_empty() {
                // Programs tend to say no more than the code's name.
                tracing::error!("device code is not loaded ({}): {}", failure.code, failure.detail);
            }
        });
        made.inspect(|module| self.note_marked(module))
    }

    /// The library's module in a context, loaded at first use.
    pub(super) fn library_module(&self, library: &Library, ctx: ContextId) -> Result<Arc<Module>> {
        let context = self.context(ctx)?;
        let mut modules = {
            // Whoever has it loads code, and may want to be alone to make way for that.
            let _waiting = self.gate.wait();
            lock(&library.modules)
        };
        if let Some(found) = modules.get(&ctx) {
            return Ok(Arc::clone(found));
        }
        let owner = Owner::Library(library.record.id);
        let managed = lock(&library.managed).clone();
        let facts = library.image.facts(context.compute_capability());
        let told = managed_of(&facts)?.told();
        let bound = |wanted: &wire::ManagedVariable| managed.iter().find(|bound| bound.name == wanted.name);
        let is_there = |wanted: &wire::ManagedVariable| {
            let has_room = |it: &&Bound| it.range.bytes >= wanted.bytes;
            let is_live = |it: &Bound| lock(&self.pinned).has_made(it.range.base, it.range.bytes);
            bound(wanted).filter(has_room).is_some_and(is_live)
        };
        if let Some(missing) = told.variables.iter().find(|variable| !is_there(variable)) {
            let detail = format!(
                "{} is a variable in managed memory (`__managed__`) of a library, and has none: use the library where a context is \
                 current, or ask for its variables (cuLibraryGetManaged) first",
                missing.name
            );
            return Err(Failure::new(CuError::NOT_SUPPORTED, detail));
        }
        let module = self.load(&context, &library.image, owner, &library.record.options, managed)?;
        modules.insert(ctx, Arc::clone(&module));
        drop(modules);
        write(&self.table).changes += 1;
        Ok(module)
    }

    /// The function a callee stands for in a context.
    pub(super) fn callee(&self, ctx: ContextId, callee: Callee) -> Result<Arc<Function>> {
        let resolved = read(&self.table).callee(ctx, callee)?;
        match resolved {
            Resolved::Function(function) => Ok(function),
            Resolved::Unloaded(kernel) => self.load_kernel(&kernel, ctx),
        }
    }

    fn load_kernel(&self, kernel: &Kernel, ctx: ContextId) -> Result<Arc<Function>> {
        let module = self.library_module(&kernel.library, ctx)?;
        let function = module.function(&kernel.name)?;
        let mut known = write(&kernel.functions);
        if !known.iter().any(|(known, _)| *known == ctx) {
            known.push((ctx, Arc::clone(&function)));
        }
        Ok(function)
    }

    fn capability(&self, device: Device) -> Result<u32> {
        let facts = self.backend().devices().get(device.0 as usize);
        Ok(compute_capability(facts.ok_or(CuError::INVALID_DEVICE)?))
    }

    /// Puts variables into managed memory of the application's that is coherent, with what they hold at first.
    fn bind(&self, layout: &ManagedLayout, base: u64) -> Result<Vec<Bound>> {
        let missing = || {
            let detail = format!("{base:#x} is no managed memory for {} bytes of variables", layout.bytes());
            Failure::new(CuError::INVALID_VALUE, detail)
        };
        let pinned = lock(&self.pinned);
        if !base.is_multiple_of(PAGE) || !pinned.has_made(base, layout.bytes()) {
            return Err(missing());
        }
        let mut contents = layout.contents(base).filter(|(_, contents)| !contents.is_empty());
        match contents.all(|(address, contents)| pinned.put(address, &contents)) {
            true => Ok(layout.at(base)),
            false => Err(missing()),
        }
    }

    /// The same, in memory that may have shadow pages.
    fn bind_anywhere(&self, layout: &ManagedLayout, base: u64) -> Result<Vec<Bound>> {
        if !base.is_multiple_of(PAGE) || !self.shadows.contains(base, layout.bytes()) {
            return self.bind(layout, base);
        }
        let mut contents = layout.contents(base).filter(|(_, contents)| !contents.is_empty());
        contents.try_for_each(|(address, contents)| self.shadows.put(address, &contents))?;
        Ok(layout.at(base))
    }

    /// Where a variable lies; copies to and from it are let through from now on.
    fn tell_global(&self, module: &Arc<Module>, name: &str) -> Result<(u64, u64)> {
        if let Some(bound) = module.record.managed.iter().find(|bound| bound.name == name) {
            return Ok((bound.range.base, bound.range.bytes));
        }
        let range = module.global(name)?;
        write(&self.table).note_global(range, module);
        Ok((range.base, range.bytes))
    }

    /// Unloads modules that have left the table's lists, once nothing runs in their contexts any more.
    fn unload(&self, modules: Vec<Arc<Module>>) -> Result<()> {
        for module in &modules {
            let streams = read(&self.table).all_streams(Some(module.record.ctx));
            match self.wait_streams(&streams) {
                Err(failure) if self.is_ending() => return Err(failure),
                // What the context has failed with is told where it is asked for.
                Err(_) | Ok(()) => {}
            }
        }
        self.unbuild_graphs_of(&modules);
        let mut table = write(&self.table);
        for module in &modules {
            table.bury(module, &self.placer);
        }
        drop(table);
        // What kernels have printed is handed over before their strings are gone.
        self.collect_output();
        drop(modules);
        write(&self.table).prune_tombstones(&self.placer);
        Ok(())
    }
}

impl Execute for wire::ModuleLoad {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<(String, ManagedVariables)> {
        let image = session.upload(self.upload)?;
        let ctx = session.context(self.ctx)?;
        let facts = image.facts(ctx.compute_capability());
        let layout = managed_of(&facts)?;
        if !layout.is_empty() && self.managed == 0 {
            return Ok((String::new(), layout.told()));
        }
        if read(&session.table).modules.contains_key(&self.module) {
            return Err(in_use(self.module));
        }
        let managed =
            if layout.is_empty() { Vec::new() } else { session.bind_anywhere(layout, self.managed)? };
        session.remove_upload(self.upload);
        let module = session.load(&ctx, &image, Owner::Module(self.module), &self.options, managed)?;
        let info = module.info.clone();
        let mut table = write(&session.table);
        table.changes += 1;
        insert(&mut table.modules, self.module, module)?;
        Ok((info, ManagedLayout::default().told()))
    }
}

impl Execute for wire::ModuleUnload {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let module = read(&session.table).module(self.module)?;
        if module.record.owner != Owner::Module(self.module) {
            let detail = format!("{:?} belongs to a library: unload that", self.module);
            return Err(Failure::new(CuError::INVALID_HANDLE, detail));
        }
        session.unload(vec![module])
    }
}

impl Execute for wire::ModuleGetFunction {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<FunctionFacts> {
        let module = read(&session.table).module(self.module)?;
        let function = module.function(&self.name)?;
        let facts = function.facts()?;
        insert(&mut write(&session.table).functions, self.function, function)?;
        Ok(facts)
    }
}

impl Execute for wire::ModuleGetGlobal {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<(u64, u64)> {
        let module = read(&session.table).module(self.module)?;
        session.tell_global(&module, &self.name)
    }
}

impl Execute for wire::ModuleListFunctions {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<Names> {
        let module = read(&session.table).module(self.module)?;
        Ok(Names::page(module.functions()?, self.first, self.most))
    }
}

impl Execute for wire::LibraryLoad {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        check_options(&self.options)?;
        let image = session.upload(self.upload)?;
        session.remove_upload(self.upload);
        let record = LibraryRecord { id: self.library, image: image.hash, options: self.options };
        let (managed, modules) = (Mutex::default(), Mutex::default());
        let library = Arc::new(Library { record, image, managed, modules });
        insert(&mut write(&session.table).libraries, self.library, library)
    }
}

impl Execute for wire::LibraryUnload {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let mut table = write(&session.table);
        let Some(library) = table.libraries.remove(&self.library) else {
            return Err(Failure::new(CuError::INVALID_HANDLE, format!("there is no {:?}", self.library)));
        };
        // Kernels hold functions, which hold modules.
        let kernels = take_out(&mut table.kernels, |kernel| Arc::ptr_eq(&kernel.library, &library));
        drop(table);
        drop(kernels);
        let modules = std::mem::take(&mut *lock(&library.modules)).into_values().collect();
        session.unload(modules)
    }
}

impl Execute for wire::LibraryGetKernel {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<FunctionFacts> {
        let library = read(&session.table).library(self.library)?;
        if read(&session.table).kernels.contains_key(&self.kernel) {
            return Err(in_use(self.kernel));
        }
        let kernel =
            Arc::new(Kernel { id: self.kernel, library, name: self.name, functions: RwLock::default() });
        let facts = session.load_kernel(&kernel, self.ctx)?.facts()?;
        insert(&mut write(&session.table).kernels, self.kernel, kernel)?;
        Ok(facts)
    }
}

impl Execute for wire::LibraryGetGlobal {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<(u64, u64)> {
        let library = read(&session.table).library(self.library)?;
        let module = session.library_module(&library, self.ctx)?;
        session.tell_global(&module, &self.name)
    }
}

impl Execute for wire::LibraryListKernels {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<Names> {
        let (library, ctx) = {
            let table = read(&session.table);
            (table.library(self.library)?, table.contexts.keys().next().copied())
        };
        let loaded = lock(&library.modules).values().next().cloned();
        let module = match (loaded, ctx) {
            (Some(module), _) => module,
            (None, Some(ctx)) => session.library_module(&library, ctx)?,
            (None, None) => {
                let detail = "a library's kernels are known once there is a context";
                return Err(Failure::new(CuError::INVALID_CONTEXT, detail));
            }
        };
        Ok(Names::page(module.functions()?, self.first, self.most))
    }
}

impl Execute for wire::LibraryGetModule {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let library = read(&session.table).library(self.library)?;
        let module = session.library_module(&library, self.ctx)?;
        insert(&mut write(&session.table).modules, self.module, module)
    }
}

impl Execute for wire::LibraryManaged {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<ManagedVariables> {
        let library = read(&session.table).library(self.library)?;
        let facts = library.image.facts(session.capability(self.device)?);
        Ok(managed_of(&facts)?.told())
    }
}

impl Execute for wire::LibraryBind {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let library = read(&session.table).library(self.library)?;
        let facts = library.image.facts(session.capability(self.device)?);
        let layout = managed_of(&facts)?;
        // None is being made meanwhile.
        let modules = lock(&library.modules);
        if !modules.is_empty() {
            let detail = format!("{:?} is in use: its variables lie where they lie", self.library);
            return Err(Failure::new(CuError::INVALID_VALUE, detail));
        }
        *lock(&library.managed) = session.bind(layout, self.managed)?;
        drop(modules);
        write(&session.table).changes += 1;
        Ok(())
    }
}

impl Execute for wire::KernelGetFunction {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<FunctionFacts> {
        let kernel = read(&session.table).kernel(self.kernel)?;
        let function = session.load_kernel(&kernel, self.ctx)?;
        let facts = function.facts()?;
        insert(&mut write(&session.table).functions, self.function, function)?;
        Ok(facts)
    }
}

impl Execute for wire::FunctionGetAttribute {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<i32> {
        let function = session.callee(self.ctx, self.callee)?;
        let ctx = function.module.ctx.raw;
        Ok(session.backend().function_attribute(ctx, function.raw, self.attribute)?)
    }
}

impl Execute for wire::FunctionSetAttribute {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let function = session.callee(self.ctx, self.callee)?;
        Ok(function.set_attribute(self.attribute, self.value)?)
    }
}

impl Execute for wire::FunctionSetCacheConfig {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let function = session.callee(self.ctx, self.callee)?;
        Ok(function.set_cache_config(self.config)?)
    }
}
