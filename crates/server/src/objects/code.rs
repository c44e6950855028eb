//! Device code: images, modules loaded from them, libraries that are modules not yet tied to a context.

use super::{Bound, CodeFacts, Context, Making, Placement, Placer, Rewritten};
use crate::failure::{Failure, Result, truncate};
use crate::lock;
use crate::state::VariableState;
use backend::{Backend, COOPERATIVE, Compiled, Range, RawFunction, RawModule};
use cpt::Group;
use cudarc::driver::sys::{CUfunction_attribute as FunctionAttribute, CUlaunchAttributeID as Attribute};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use wire::{
    ContextId, CuError, DETAIL_MAX, FunctionFacts, FunctionId, KernelId, LaunchValue, LibraryId, ModuleId,
};

/// BLAKE3 of an image: its name in a session's state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ImageHash(pub [u8; 32]);

/// A fatbin, cubin or PTX text, kept once for all modules loaded from it.
pub struct Image {
    /// Its name.
    pub hash: ImageHash,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What it says of itself, by the compute capability that is asked about.
    facts: Mutex<BTreeMap<u32, Arc<CodeFacts>>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of code", self.bytes.len())
    }
}

impl Image {
    /// Names the bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { hash: ImageHash(*blake3::hash(&bytes).as_bytes()), bytes, facts: Mutex::default() }
    }

    /// What it says of the code that a device of compute capability `capability` runs.
    pub fn facts(&self, capability: u32) -> Arc<CodeFacts> {
        let mut known = lock(&self.facts);
        Arc::clone(
            known.entry(capability).or_insert_with(|| Arc::new(CodeFacts::of(&self.bytes, capability))),
        )
    }
}

/// JIT options and their values.
pub type JitOptions = Vec<(u32, u64)>;

/// Refuses options whose values are not numbers: the device library would follow addresses that the sender has chosen.
pub(crate) fn check_options(options: &JitOptions) -> Result<()> {
    match options.iter().find(|(option, _)| !wire::is_jit_number(*option)) {
        None => Ok(()),
        Some((option, _)) => {
            Err(Failure::new(CuError::NOT_SUPPORTED, format!("JIT option {option} is not supported")))
        }
    }
}

/// Who asked for a module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Owner {
    /// The application, by `cuModuleLoadData`.
    Module(ModuleId),
    /// A library, when it was first used in the context.
    Library(LibraryId),
}

/// What it takes to load a module again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ModuleRecord {
    /// Who asked for it.
    pub owner: Owner,
    /// Its context.
    pub ctx: ContextId,
    /// The image.
    pub image: ImageHash,
    /// As it was loaded.
    pub options: JitOptions,
    /// Where its variables in managed memory lie.
    pub managed: Vec<Bound>,
    /// When it was made, and what the device library took.
    pub placement: Placement,
}

/// What the application has changed in a function.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FunctionSettings {
    /// `CUfunction_attribute` and value.
    pub attributes: BTreeMap<i32, i32>,
    /// `CUfunc_cache`.
    pub cache_config: Option<u32>,
}

/// Of so many sizes of blocks is known how many there are at a time.
const OCCUPANCY_MOST: usize = 1024;

/// A module in a context; unloaded when the last user lets go.
pub struct Module {
    /// Its constructor.
    pub record: ModuleRecord,
    /// Its context.
    pub ctx: Arc<Context>,
    /// Its code.
    pub image: Arc<Image>,
    /// What its code says of itself.
    pub facts: Arc<CodeFacts>,
    /// What has been loaded in place of its image, if its kernels are marked or allocate.
    pub rewritten: Option<Arc<Rewritten>>,
    /// Whether its kernels know where their heap is.
    knows_heap: AtomicBool,
    /// What the JIT said of it.
    pub info: String,
    /// Changes to its functions, by name.
    pub settings: Mutex<BTreeMap<String, FunctionSettings>>,
    /// Variables that have been looked up: where they lie, and whether the application has been told.
    globals: Mutex<BTreeMap<String, (Range, bool)>>,
    functions: Mutex<BTreeMap<String, RawFunction>>,
    /// How many blocks of a function a multiprocessor has at a time, by threads and shared memory of one.
    occupancy: Mutex<BTreeMap<(u64, u32, u32), u64>>,
    /// Names of its kernels, once somebody has asked.
    names: OnceLock<Vec<String>>,
    raw: RawModule,
    /// Whether it has left the table.
    gone: AtomicBool,
    backend: Arc<dyn Backend>,
}

impl Module {
    /// Whether it has left the table: no message means its functions any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Notes that it has left the table.
    pub fn note_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Loads the module and completes its record; one that is made again, with its `variables` where they were if the device can.
    ///
    /// # Errors
    /// The backend's; `NOT_SUPPORTED` for options that are no numbers.
    pub fn make(
        placer: &Placer,
        ctx: &Arc<Context>,
        image: &Arc<Image>,
        mut record: ModuleRecord,
        making: Making,
        variables: &[VariableState],
    ) -> Result<Arc<Self>> {
        check_options(&record.options)?;
        let backend = &placer.backend;
        let managed = record.managed.iter().map(|bound| (bound.name.as_str(), bound.range.base));
        let own = variables.iter().map(|variable| (variable.name.as_str(), variable.range.base));
        let named: Vec<_> = managed.chain(own.filter(|_| backend.places_variables())).collect();
        let facts = image.facts(ctx.compute_capability());
        let mut rewritten = facts.rewritten.clone();
        let mut detail = String::new();
        let loaded = placer.place(&mut record.placement, making, || {
            let load = |code: &[u8]| backend.module_load(ctx.raw, code, &record.options, &named);
            let load_best = |code: &Rewritten| {
                let mut loaded = None;
                for text in code.texts() {
                    let tried = loaded.insert(load(text.as_bytes()));
                    if tried.as_ref().err().is_none_or(|error| error.code == CuError::OUT_OF_MEMORY) {
                        break;
                    }
                }
                loaded
            };
            let instead = rewritten.as_ref().and_then(|code| match load_best(code)? {
                Err(error) if error.code != CuError::OUT_OF_MEMORY => {
                    tracing::warn!("marked kernels are not stopped half-way and the heap of those that allocate cannot be saved ({code:?}), since the device library does not load what is made of them: {}", error.detail);
                    None
                }
                loaded => Some(loaded),
            });
            let loaded = instead.unwrap_or_else(|| {
                rewritten = None;
                load(&image.bytes)
            });
            loaded.map_err(|error| {
                detail = error.detail;
                error.code
            })
        });
        let Compiled { code: raw, mut info } = loaded.map_err(|failure| match detail.is_empty() {
            true => failure,
            false => Failure::new(failure.code, detail),
        })?;
        truncate(&mut info, DETAIL_MAX);
        if facts.prints {
            ctx.note_prints();
        }
        Ok(Arc::new(Self {
            record,
            ctx: Arc::clone(ctx),
            image: Arc::clone(image),
            facts,
            rewritten,
            knows_heap: AtomicBool::new(false),
            info,
            settings: Mutex::default(),
            globals: Mutex::default(),
            functions: Mutex::default(),
            occupancy: Mutex::default(),
            names: OnceLock::new(),
            gone: AtomicBool::new(false),
            raw,
            backend: Arc::clone(backend),
        }))
    }

    /// The function of that name.
    ///
    /// # Errors
    /// `NOT_FOUND`, or the backend's.
    pub fn function(self: &Arc<Self>, name: &str) -> backend::Result<Arc<Function>> {
        if self.is_twin(name) {
            return Err(CuError::NOT_FOUND);
        }
        let raw = self.raw_function(name)?;
        let stoppable = self.rewritten.as_ref().and_then(|code| code.kernel(name));
        let twin = stoppable.map(|kernel| {
            Ok::<_, CuError>(Twin { raw: self.raw_function(&kernel.twin)?, kernel: Arc::clone(kernel) })
        });
        let (module, twin) = (Arc::clone(self), twin.transpose()?);
        if let Some(twin) = &twin {
            self.tell_cost(name, raw, twin.raw);
        }
        Ok(Arc::new(Function {
            name: name.to_owned(),
            raw,
            twin,
            module,
            params_bytes: OnceLock::new(),
            name_hash: OnceLock::new(),
            watched: OnceLock::new(),
        }))
    }

    /// Says what a kernel takes as it is, and as one that can be stopped half-way.
    fn tell_cost(&self, name: &str, raw: RawFunction, twin: RawFunction) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let cost = |raw| {
            let facts = self.backend.function_facts(self.ctx.raw, raw)?;
            let value = |wanted| facts.attribute(wanted as i32).unwrap_or(-1);
            let [registers, local] = [
                FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS,
                FunctionAttribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            ]
            .map(value);
            let blocks = self.backend.occupancy_blocks(self.ctx.raw, raw, 256, 0, 0)?;
            backend::Result::Ok(format!(
                "{registers} registers, {local} bytes of local memory, {blocks} blocks of 256 threads"
            ))
        };
        if let (Ok(before), Ok(after)) = (cost(raw), cost(twin)) {
            tracing::debug!("{name} can be stopped half-way: {after} (as it is: {before})");
        }
    }

    fn raw_function(&self, name: &str) -> backend::Result<RawFunction> {
        let mut functions = lock(&self.functions);
        if let Some(raw) = functions.get(name) {
            return Ok(*raw);
        }
        let raw = self.backend.function(self.ctx.raw, self.raw, name)?;
        functions.insert(name.to_owned(), raw);
        Ok(raw)
    }

    /// How many blocks of so many threads and so much dynamic shared memory a multiprocessor has of it at a time. The device library is asked once for each: on another machine
    /// that takes a round trip.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn occupancy(&self, raw: RawFunction, threads: u32, shared: u32) -> backend::Result<u64> {
        let mut known = lock(&self.occupancy);
        if let Some(blocks) = known.get(&(raw.0, threads, shared)) {
            return Ok(*blocks);
        }
        let blocks = self.backend.occupancy_blocks(self.ctx.raw, raw, threads, shared.into(), 0)?;
        let blocks = u64::try_from(blocks).unwrap_or(0);
        if known.len() >= OCCUPANCY_MOST {
            known.clear();
        }
        known.insert((raw.0, threads, shared), blocks);
        Ok(blocks)
    }

    fn is_twin(&self, name: &str) -> bool {
        self.rewritten.as_ref().is_some_and(|code| code.is_twin(name))
    }

    /// Whether its kernels allocate from a heap of ours.
    #[must_use]
    pub fn has_heap(&self) -> bool {
        self.rewritten.as_ref().is_some_and(|code| code.has_heap())
    }

    /// Whether its kernels know where that is.
    #[must_use]
    pub fn knows_heap(&self) -> bool {
        self.knows_heap.load(Ordering::Acquire)
    }

    /// Notes that they do.
    pub fn note_heap(&self) {
        self.knows_heap.store(true, Ordering::Release);
    }

    /// Names of the variables that a checkpoint saves, as far as its code has them.
    pub fn saved_variables(&self) -> impl Iterator<Item = &str> {
        let ours = self.has_heap().then_some(heap::VARIABLE);
        self.facts.variables.iter().map(String::as_str).chain(ours)
    }

    /// Where the variable of that name lies; the application is told.
    ///
    /// # Errors
    /// `NOT_FOUND`, or the backend's.
    pub fn global(&self, name: &str) -> backend::Result<Range> {
        if self.has_heap() && name == heap::VARIABLE {
            return Err(CuError::NOT_FOUND);
        }
        self.find_variable(name, true)
    }

    /// The same, and nobody is told.
    ///
    /// # Errors
    /// `NOT_FOUND`, or the backend's.
    pub fn place_of(&self, name: &str) -> backend::Result<Range> {
        self.find_variable(name, false)
    }

    fn find_variable(&self, name: &str, tell: bool) -> backend::Result<Range> {
        let mut globals = lock(&self.globals);
        if let Some((range, told)) = globals.get_mut(name) {
            *told |= tell;
            return Ok(*range);
        }
        let range = self.backend.global(self.ctx.raw, self.raw, name)?;
        globals.insert(name.to_owned(), (range, tell));
        Ok(range)
    }

    /// What to call it: its handle or its library's, and one of its kernels.
    #[must_use]
    pub fn describe(&self) -> String {
        let handle = match self.record.owner {
            Owner::Module(id) => format!("module {:#x}", id.handle()),
            Owner::Library(id) => format!("library {:#x}", id.handle()),
        };
        match self.functions().unwrap_or_default().first() {
            Some(kernel) => format!("{handle} (with kernel {kernel})"),
            None => handle,
        }
    }

    /// Names of the variables whose addresses the application has been told.
    #[must_use]
    pub fn told_globals(&self) -> BTreeSet<String> {
        lock(&self.globals).iter().filter(|(_, (_, told))| *told).map(|(name, _)| name.clone()).collect()
    }

    /// Names of its kernels.
    ///
    /// # Errors
    /// The backend's.
    pub fn functions(&self) -> backend::Result<&[String]> {
        if let Some(names) = self.names.get() {
            return Ok(names);
        }
        let mut names = self.backend.module_functions(self.ctx.raw, self.raw)?;
        names.retain(|name| !self.is_twin(name));
        Ok(self.names.get_or_init(|| names))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Err(error) = self.backend.module_unload(self.ctx.raw, self.raw) {
            tracing::warn!(owner = ?self.record.owner, %error, "module not unloaded");
        }
    }
}

/// A kernel that can be stopped.
pub(crate) struct Twin {
    /// The backend's handle.
    pub raw: RawFunction,
    /// How.
    pub kernel: Arc<cpt::Kernel>,
}

/// Launch attributes that change neither what a kernel computes nor which of its blocks belong together: its twin is launched with them, too.
const TAKEN_OVER: &[Attribute] = &[
    Attribute::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    Attribute::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    Attribute::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
    Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    Attribute::CU_LAUNCH_ATTRIBUTE_PRIORITY,
    Attribute::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
    Attribute::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    Attribute::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
];
/// One that is left out: it lets a kernel begin early, and a twin comes behind what it is given.
const LEFT_OUT: Attribute = Attribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
/// Those that group blocks.
const GROUPING: &[Attribute] = &[
    Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    Attribute::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
];

impl Twin {
    /// The attributes that its launches take.
    pub fn attributes(&self) -> &'static [(u32, LaunchValue)] {
        if self.kernel.group == Group::Grid { &[COOPERATIVE] } else { &[] }
    }

    /// Those of its launch in place of one of the kernel with such.
    ///
    /// # Errors
    /// Why it is not launched in place of that, and what to do.
    pub fn attributes_for(
        &self,
        asked: &[(u32, LaunchValue)],
    ) -> std::result::Result<Vec<(u32, LaunchValue)>, String> {
        let is_one_of = |id: u32, those: &[Attribute]| those.iter().any(|known| *known as u32 == id);
        // Behind the word there may be anything.
        let is_cooperative =
            |(id, value): &(u32, LaunchValue)| *id == COOPERATIVE.0 && value.0[..4] != [0; 4];
        if self.kernel.group == Group::Grid && !asked.iter().any(is_cooperative) {
            return Err("it has barriers of the grid; launch it by cudaLaunchCooperativeKernel".into());
        }
        let mut taken = Vec::new();
        for (id, value) in asked {
            let is_single = value.0[..12].chunks(4).all(|blocks| blocks == [1, 0, 0, 0]);
            if is_one_of(*id, TAKEN_OVER) || is_one_of(*id, GROUPING) && is_single {
                taken.push((*id, *value));
            } else if *id != LEFT_OUT as u32 {
                let named = GROUPING.iter().find(|known| **known as u32 == *id);
                let name = named.map_or_else(|| id.to_string(), |known| format!("{known:?}"));
                return Err(format!(
                    "kernels with the launch attribute {name} are not stopped; launch it without"
                ));
            }
        }
        Ok(taken)
    }

    /// Whether it is launched in place of a kernel with such attributes.
    pub fn stops_with(&self, attributes: &[(u32, LaunchValue)]) -> bool {
        self.attributes_for(attributes).is_ok()
    }
}

/// A function of a module.
pub struct Function {
    /// Its name as linked.
    pub name: String,
    /// The backend's handle.
    pub raw: RawFunction,
    /// What it is launched as so that it can be stopped, if it is marked.
    pub(crate) twin: Option<Twin>,
    /// Its module.
    pub module: Arc<Module>,
    params_bytes: OnceLock<u64>,
    name_hash: OnceLock<u64>,
    /// Its number in a profile, once it is there.
    pub(crate) watched: OnceLock<u32>,
}

impl Function {
    /// Bytes of its parameter buffer.
    ///
    /// # Errors
    /// The backend's.
    pub fn params_bytes(&self) -> backend::Result<u64> {
        if let Some(bytes) = self.params_bytes.get() {
            return Ok(*bytes);
        }
        let params = self.facts()?.params;
        let end = params.iter().map(|param| u64::from(param.offset) + u64::from(param.size)).max();
        Ok(*self.params_bytes.get_or_init(|| end.unwrap_or(0)))
    }

    /// What a plan knows its name by.
    pub fn name_hash(&self) -> u64 {
        *self.name_hash.get_or_init(|| plan::follow::name(&self.name))
    }

    /// Parameters and attributes.
    ///
    /// # Errors
    /// The backend's.
    pub fn facts(&self) -> backend::Result<FunctionFacts> {
        self.module.backend.function_facts(self.module.ctx.raw, self.raw)
    }

    /// Sets something of it, and of its twin: where that is refused, the twin may not be launched, and the function is.
    fn set(&self, set: impl Fn(RawFunction) -> backend::Result<()>) -> backend::Result<()> {
        set(self.raw)?;
        if let Some(Err(error)) = self.twin.as_ref().map(|twin| set(twin.raw)) {
            tracing::debug!(%error, "the twin of {} is not as that", self.name);
        }
        // It may depend on any of them.
        lock(&self.module.occupancy).clear();
        Ok(())
    }

    /// Sets an attribute, and remembers it.
    ///
    /// # Errors
    /// The backend's.
    pub fn set_attribute(&self, attribute: i32, value: i32) -> backend::Result<()> {
        let (backend, ctx) = (&self.module.backend, self.module.ctx.raw);
        self.set(|raw| backend.function_set_attribute(ctx, raw, attribute, value))?;
        lock(&self.module.settings).entry(self.name.clone()).or_default().attributes.insert(attribute, value);
        Ok(())
    }

    /// Sets the preferred cache configuration, and remembers it.
    ///
    /// # Errors
    /// The backend's.
    pub fn set_cache_config(&self, config: u32) -> backend::Result<()> {
        let (backend, ctx) = (&self.module.backend, self.module.ctx.raw);
        self.set(|raw| backend.function_set_cache_config(ctx, raw, config))?;
        lock(&self.module.settings).entry(self.name.clone()).or_default().cache_config = Some(config);
        Ok(())
    }
}

/// What it takes to make a library again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LibraryRecord {
    /// Its handle.
    pub id: LibraryId,
    /// The image.
    pub image: ImageHash,
    /// As it was loaded.
    pub options: JitOptions,
}

/// A library: an image, and a module for each context in which it has been used.
pub struct Library {
    /// Its constructor.
    pub record: LibraryRecord,
    /// Its code.
    pub image: Arc<Image>,
    /// Where its variables in managed memory lie; none as long as that is not known.
    pub managed: Mutex<Vec<Bound>>,
    /// Its modules, made at first use.
    pub modules: Mutex<BTreeMap<ContextId, Arc<Module>>>,
}

/// A kernel of a library: a function in each context in which it has been used.
pub struct Kernel {
    /// Its handle.
    pub id: KernelId,
    /// Its library.
    pub library: Arc<Library>,
    /// Its name as linked.
    pub name: String,
    /// The functions, one for each context.
    pub functions: RwLock<Vec<(ContextId, Arc<Function>)>>,
}

/// A module that is unloaded and has to be loaded and unloaded again at a restart: what it left behind in the device
/// library's own reservations is where younger modules lie.
#[derive(Clone)]
pub struct Tombstone {
    /// Its constructor.
    pub record: ModuleRecord,
    /// When it was unloaded, in the same order as the creations.
    pub unloaded: u64,
    /// Its code.
    pub image: Arc<Image>,
}

/// What an id of the application's names: a function, or an alias for one of a library's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FunctionRecord {
    /// The handle.
    pub id: FunctionId,
    /// The module.
    pub owner: Owner,
    /// In which context.
    pub ctx: ContextId,
    /// The function.
    pub name: String,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn twin(group: Group) -> Twin {
        let marked = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry run()\n{\n.pragma \"cpt\";\nret;\n}\n";
        let kernel = Rewritten::of(marked.as_bytes(), false).unwrap().kernel("run").unwrap().as_ref().clone();
        Twin { raw: RawFunction(0), kernel: Arc::new(cpt::Kernel { group, ..kernel }) }
    }

    /// Behind the word that says it there may be anything.
    #[test]
    fn a_twin_with_barriers_of_the_grid_is_launched_cooperatively_alone() {
        let mut cooperative = COOPERATIVE;
        cooperative.1.0[4..].fill(0xA5);
        let not = (COOPERATIVE.0, LaunchValue([0; 64]));
        let grid = twin(Group::Grid);
        assert_eq!(grid.attributes_for(&[cooperative]).unwrap(), [cooperative]);
        for asked in [&[][..], &[not]] {
            let why = grid.attributes_for(asked).unwrap_err();
            assert!(why.contains("cudaLaunchCooperativeKernel"), "{why}");
            assert!(twin(Group::Block).stops_with(asked));
        }
    }

    #[test]
    fn attributes_that_group_blocks_are_told_by_name() {
        let clusters = Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as u32;
        let value = |blocks: u8| {
            let mut value = [0; 64];
            (value[0], value[4], value[8]) = (blocks, 1, 1);
            LaunchValue(value)
        };
        let early = (LEFT_OUT as u32, value(1));
        let taken = twin(Group::Thread).attributes_for(&[early, (clusters, value(1))]).unwrap();
        assert_eq!(taken, [(clusters, value(1))]);
        let why = |id| twin(Group::Thread).attributes_for(&[(id, value(2))]).unwrap_err();
        assert!(why(clusters).contains("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"));
        assert!(why(99).contains("attribute 99"));
    }
}
