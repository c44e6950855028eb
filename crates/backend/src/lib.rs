//! What a GPU server asks of a device, real or software. One trait, two implementations (`backend-driver`, `backend-soft`),
//! one suite for both (the feature `conformance`).
//!
//! The trait speaks the driver's language one level below the application's: contexts, mapped blocks of device memory at
//! fixed addresses, modules, streams. Virtual handles, the object table, sub-allocation and ordering between threads belong
//! to the server. Every call may come from any thread. Handles are the backend's own and mean nothing to anybody else.

mod attributes;
#[cfg(feature = "conformance")]
pub mod conformance;
mod graph;
mod partition;
mod sharing;
mod textures;
mod types;
mod visible;
mod wired;

pub use attributes::*;
pub use graph::*;
pub use partition::*;
pub use sharing::*;
use std::time::Duration;
pub use textures::*;
pub use types::*;
pub use visible::{named, visible};
use wire::{CuError, DeviceFacts, FunctionFacts};

/// What a backend call gives.
pub type Result<T> = std::result::Result<T, CuError>;

/// A device library: the real driver or the software device.
pub trait Backend:
    Sharing + Textures + StreamAttributes + Partitions + Conditions + Send + Sync + 'static
{
    // --- the machine

    /// Which backend this is, as images name it: `driver` or `soft`.
    fn kind(&self) -> &'static str;
    /// Whether kernels run on the processor's cores.
    fn runs_on_cores(&self) -> bool {
        false
    }
    /// How long a message to the device and its answer are on their way, where it is another machine's.
    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
    /// What this is, for people: `CUDA driver 13.0`, `software device`.
    fn describe(&self) -> String;
    /// As `cuDriverGetVersion`.
    fn driver_version(&self) -> i32;
    /// The driver's own version, as `580.159.04`; nothing where nobody can tell.
    fn driver_release(&self) -> String;
    /// Every device, in order.
    fn devices(&self) -> &[DeviceFacts];
    /// As `cuDeviceCanAccessPeer`.
    fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool>;

    // --- memory

    /// Claims an address range for device memory; nothing is behind it yet. `base` and `bytes` are multiples of
    /// [`BLOCK_GRANULARITY`]. Fails with `OUT_OF_MEMORY` when the range cannot be had exactly there. Given back when the
    /// backend is dropped.
    fn reserve(&self, range: Range) -> Result<()>;
    /// Takes `bytes` bytes of device memory, a multiple of [`BLOCK_GRANULARITY`], without mapping them; compressible if that
    /// is wanted and the device has it. Answers whether it is.
    fn physical_create(&self, device: usize, bytes: u64, compressible: bool) -> Result<(RawPhysical, bool)>;
    /// Takes `bytes` bytes of the host's memory, a multiple of [`BLOCK_GRANULARITY`], as near to a device as there is any, to be mapped where
    /// that device's may be: work reaches it over the bus. None of the device's own memory is taken.
    fn physical_create_on_host(&self, device: usize, bytes: u64) -> Result<RawPhysical>;
    /// Lets go of it; the memory is given back when its last mapping is gone too.
    fn physical_release(&self, physical: RawPhysical) -> Result<()>;
    /// Puts the beginning of it behind a part of a reserved range; it may be mapped several times. No device reaches it there
    /// before [`Backend::set_access`].
    fn map_physical(&self, physical: RawPhysical, range: Range) -> Result<()>;
    /// Takes a whole such mapping away. The caller has made sure that no work uses it.
    fn unmap_physical(&self, range: Range) -> Result<()>;
    /// As `cuMemSetAccess`, for one whole mapping.
    fn set_access(&self, device: usize, range: Range, access: Access) -> Result<()>;
    /// Puts fresh zeroed or undefined device memory behind a part of a reserved range, readable and writable by `device`.
    fn map_block(&self, device: usize, range: Range) -> Result<RawBlock>;
    /// Takes it away again. The caller has made sure that no work uses it.
    fn unmap_block(&self, block: RawBlock) -> Result<()>;
    /// Free and total bytes, as `cuMemGetInfo`.
    fn memory_info(&self, ctx: RawContext) -> Result<(u64, u64)>;
    /// Makes host memory of this process usable by kernels at its own address and for copies at full speed, in every
    /// context, also in ones created later, until [`Backend::unregister_host`]: it outlives any context.
    fn register_host(&self, range: Range) -> Result<()>;
    /// Ends that. The caller has made sure that no work uses it. Waits for all work of the devices, and what else is asked of them may have to wait
    /// behind it.
    fn unregister_host(&self, range: Range) -> Result<()>;
    /// Whether devices reach registered memory where it is, at every moment, and not a copy of it that is brought up to date.
    fn reaches_host(&self) -> bool {
        true
    }
    /// Whether copies between a device and a range of registered memory are known here to be over, without a question to the device, as soon as
    /// that is so: [`Backend::has_copied`] tells. Else only their stream does.
    fn tells_of_copies(&self, _range: Range) -> bool {
        false
    }
    /// Whether the copies from and to such a range that this context's streams have been given before use it no more.
    fn has_copied(&self, _ctx: RawContext, _range: Range) -> Result<bool> {
        Ok(true)
    }

    // --- contexts

    /// The primary context of a device, or one of the application's own.
    fn context_create(&self, device: usize, flags: u32, primary: bool) -> Result<RawContext>;
    /// Ends a context and all that belongs to it.
    fn context_destroy(&self, ctx: RawContext) -> Result<()>;
    /// Waits for all work of the context; tells an execution error. What its kernels have printed is then complete in
    /// [`Backend::take_output`].
    fn context_synchronize(&self, ctx: RawContext) -> Result<()>;
    /// As `cuCtxGetLimit`; `limit` is a `CUlimit`.
    fn context_limit(&self, ctx: RawContext, limit: u32) -> Result<u64>;
    /// As `cuCtxSetLimit`.
    fn context_set_limit(&self, ctx: RawContext, limit: u32, value: u64) -> Result<()>;
    /// As `cuCtxSetCacheConfig`.
    fn context_set_cache_config(&self, ctx: RawContext, config: u32) -> Result<()>;
    /// As `cuCtxEnablePeerAccess` and its opposite.
    fn peer_access(&self, ctx: RawContext, peer: RawContext, enable: bool) -> Result<()>;

    // --- code

    /// Runs `make`, which creates one object whose addresses the device library itself chooses (a module, a stream, a
    /// context), and tells which ranges it took, in the order it asked. With `replay` it is given exactly those ranges again,
    /// those of one size in their order; what it asks for beyond them, or with other sizes, comes from fresh addresses, and the ranges told say so.
    /// What the library takes outside `place` (for instance at a first launch) never lies in a range told by it. One at a
    /// time: a second caller waits.
    fn place(&self, replay: Option<&[Range]>, make: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Range>>;
    /// Whether the device library still holds a range that [`Backend::place`] told of, or has given it back since (for
    /// instance because all modules in it were unloaded).
    fn holds(&self, range: Range) -> bool;
    /// A session goes on here whose image was taken on devices of these kinds ([`Backend::kind`]), before
    /// any object of it is made again.
    fn continues(&self, _kinds: &[&str]) {}
    /// Whether [`Backend::module_load`] can put variables in the device's own memory, too, where it is told: a device that lays modules out itself. An image
    /// of a device whose library chooses can then go on here.
    fn places_variables(&self) -> bool {
        false
    }
    /// Loads a fatbin, cubin or PTX image (whole, bounded, checked by `fatbin`); `options` are JIT options. Its variables in managed
    /// memory are those of `managed`, all of them by name: they lie at these addresses, where there is memory that host and device
    /// have at one address before a kernel runs; what they hold is the caller's affair. Other variables that are named there lie so, too, where [the device
    /// can](Backend::places_variables) and the module is made again that had other ranges ([`Backend::place`]): they hold nothing yet.
    fn module_load(
        &self,
        ctx: RawContext,
        image: &[u8],
        options: &[(u32, u64)],
        managed: &[(&str, u64)],
    ) -> std::result::Result<Compiled<RawModule>, LoadError>;
    /// Links device code, as `cuLinkComplete` after a `cuLinkAddData` of each input: an image for [`Backend::module_load`].
    fn link(
        &self,
        ctx: RawContext,
        inputs: &[LinkInput<'_>],
        options: &[(u32, u64)],
    ) -> std::result::Result<Compiled<Vec<u8>>, LoadError>;
    /// As `cuModuleUnload`.
    fn module_unload(&self, ctx: RawContext, module: RawModule) -> Result<()>;
    /// Names of its kernels.
    fn module_functions(&self, ctx: RawContext, module: RawModule) -> Result<Vec<String>>;
    /// As `cuModuleGetFunction`: asked twice, it gives the same function, with what has been set in it.
    fn function(&self, ctx: RawContext, module: RawModule, name: &str) -> Result<RawFunction>;
    /// Parameters and attributes.
    fn function_facts(&self, ctx: RawContext, function: RawFunction) -> Result<FunctionFacts>;
    /// As `cuFuncGetAttribute`.
    fn function_attribute(&self, ctx: RawContext, function: RawFunction, attribute: i32) -> Result<i32>;
    /// As `cuFuncSetAttribute`.
    fn function_set_attribute(
        &self,
        ctx: RawContext,
        function: RawFunction,
        attribute: i32,
        value: i32,
    ) -> Result<()>;
    /// As `cuFuncSetCacheConfig`.
    fn function_set_cache_config(&self, ctx: RawContext, function: RawFunction, config: u32) -> Result<()>;
    /// As `cuModuleGetGlobal`: where the variable lies.
    fn global(&self, ctx: RawContext, module: RawModule, name: &str) -> Result<Range>;
    /// As `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`.
    fn occupancy_blocks(
        &self,
        ctx: RawContext,
        function: RawFunction,
        block: u32,
        shared: u64,
        flags: u32,
    ) -> Result<i32>;
    /// As `cuOccupancyAvailableDynamicSMemPerBlock`.
    fn occupancy_shared(
        &self,
        ctx: RawContext,
        function: RawFunction,
        blocks: i32,
        block: i32,
    ) -> Result<u64>;
    /// As `cuOccupancyMaxActiveClusters` (`active`) or `cuOccupancyMaxPotentialClusterSize`.
    fn occupancy_clusters(&self, ctx: RawContext, active: bool, launch: &Launch<'_>) -> Result<i32>;

    // --- streams and events

    /// As `cuStreamCreateWithPriority`.
    fn stream_create(&self, ctx: RawContext, flags: u32, priority: i32) -> Result<RawStream>;
    /// As `cuStreamDestroy`: what is in it still completes.
    fn stream_destroy(&self, ctx: RawContext, stream: RawStream) -> Result<()>;
    /// Whether all its work is complete; an execution error otherwise.
    fn stream_query(&self, ctx: RawContext, stream: StreamArg) -> Result<bool>;
    /// Waits for it; its kernels' output is then complete in [`Backend::take_output`].
    fn stream_synchronize(&self, ctx: RawContext, stream: StreamArg) -> Result<()>;
    /// As `cuStreamWaitEvent`.
    fn stream_wait_event(
        &self,
        ctx: RawContext,
        stream: StreamArg,
        event: RawEvent,
        flags: u32,
    ) -> Result<()>;
    /// As `cuEventCreate`.
    fn event_create(&self, ctx: RawContext, flags: u32) -> Result<RawEvent>;
    /// As `cuEventDestroy`.
    fn event_destroy(&self, ctx: RawContext, event: RawEvent) -> Result<()>;
    /// As `cuEventRecordWithFlags`.
    fn event_record(&self, ctx: RawContext, event: RawEvent, stream: StreamArg, flags: u32) -> Result<()>;
    /// Whether the last record is complete (an event never recorded is).
    fn event_query(&self, ctx: RawContext, event: RawEvent) -> Result<bool>;
    /// Waits for it.
    fn event_synchronize(&self, ctx: RawContext, event: RawEvent) -> Result<()>;
    /// As `cuEventElapsedTime`, milliseconds; both complete (`NOT_READY` otherwise), recorded and made for timing
    /// (`INVALID_HANDLE` otherwise).
    fn event_elapsed(&self, start: RawEvent, end: RawEvent) -> Result<f32>;

    // --- work, ordered in a stream; returns when it is submitted

    /// As `cuLaunchKernelEx`: wrong dimensions, sizes or attributes are told here, execution errors later, by
    /// [`Backend::stream_query`] and all that wait. An execution error is sticky: from then on every call of the context that
    /// submits or waits answers it.
    fn launch(&self, ctx: RawContext, launch: &Launch<'_>) -> Result<()>;
    /// Copies between any two addresses of this process: device, registered host, or plain host memory, which the call has
    /// read when it returns (to plain host memory: has written).
    fn copy(&self, ctx: RawContext, stream: StreamArg, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// The same with pitches.
    fn copy_3d(&self, ctx: RawContext, stream: StreamArg, copy: &Copy3D) -> Result<()>;
    /// The same between two contexts' devices.
    fn copy_peer(
        &self,
        stream: StreamArg,
        dst: (RawContext, u64),
        src: (RawContext, u64),
        bytes: u64,
    ) -> Result<()>;
    /// As `cuMemsetD{8,16,32}Async` and `cuMemsetD2D*Async`.
    fn fill(&self, ctx: RawContext, stream: StreamArg, fill: &Fill) -> Result<()>;
    /// As `cuStreamBatchMemOp`: reads and writes of words of device or registered memory, in order with the stream's work. One
    /// that waits for a word holds the stream, and may do so for ever.
    fn memory_operations(
        &self,
        ctx: RawContext,
        stream: StreamArg,
        operations: &[MemoryOperation],
    ) -> Result<()>;
    /// Runs `function` when the stream gets there, with the error the stream is in, if any; the stream goes on when it
    /// returns. It must call no backend function.
    fn host_function(&self, ctx: RawContext, stream: StreamArg, function: HostFunction) -> Result<()>;

    // --- graphs

    /// Makes an executable graph; `flags` are `CUgraphInstantiate_flags` but for those of device-side launches. Functions, events
    /// and memory that it names must be there as long as it is launched. Of a template one is made at a time.
    fn graph_instantiate(&self, ctx: RawContext, plan: &GraphPlan, flags: u64) -> Result<RawGraph>;
    /// Gives nodes other work of the same kind, all or none; launches that are under way are not touched.
    /// `GRAPH_EXEC_UPDATE_FAILURE` where the device library cannot.
    fn graph_update(&self, ctx: RawContext, graph: RawGraph, changes: &[(usize, GraphWork)]) -> Result<()>;
    /// As `cuGraphNodeSetEnabled`.
    fn graph_enable(&self, ctx: RawContext, graph: RawGraph, node: usize, enabled: bool) -> Result<()>;
    /// As `cuGraphUpload`.
    fn graph_upload(&self, ctx: RawContext, stream: StreamArg, graph: RawGraph) -> Result<()>;
    /// As `cuGraphLaunch`: a launch also waits for the one before of the same graph.
    fn graph_launch(&self, ctx: RawContext, stream: StreamArg, graph: RawGraph) -> Result<()>;
    /// As `cuGraphExecDestroy`: a launch that is under way completes.
    fn graph_destroy(&self, ctx: RawContext, graph: RawGraph) -> Result<()>;

    // --- what comes out

    /// Takes what kernels have printed so far; complete for work that has been waited for.
    fn take_output(&self) -> Vec<u8>;
}
