//! Every message, defined once. `messages!` makes from it the struct, its opcode, its codec, its reply type, and the
//! [`Request`] that a server matches on.

use crate::arrays::{ArrayDesc, CopySide};
pub use crate::codec::Bytes;
use crate::codec::{DecodeError, Decoder, Encoder, Wire};
use crate::facts::{FunctionFacts, ManagedVariables, Names, PinnedPlace, SessionFacts};
use crate::graph::GraphData;
use crate::ids::*;
use crate::memory_operation::MemoryOperation;
use crate::partition::{SmCount, SmSet, SmSplit};
use crate::share::{Claim, ShareId};
use crate::textures::{TensorMap, TensorMapRequest, TextureDesc};

/// A message from the application's side and the type of its answer.
pub trait Message: Wire {
    /// Number of the message in the ring.
    const OPCODE: u16;
    /// Name, for traces and errors.
    const NAME: &'static str;
    /// Whether the client goes on without an answer. A pipelined message has the reply `()`, and its failure is reported by
    /// a later call.
    const PIPELINED: bool;
    /// What the server answers.
    type Reply: Wire;
}

macro_rules! mode {
    (pipelined) => {
        true
    };
    (round_trip) => {
        false
    };
}

macro_rules! messages {
    ($($(#[$doc:meta])* $op:literal $mode:ident $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? } -> $reply:ty;)*) => {
        $($(#[$doc])*
        // Fields are named as the driver's own parameters are.
        #[allow(missing_docs)]
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        impl Wire for $name {
            #[allow(unused_variables)]
            fn encode(&self, to: &mut Encoder<'_>) {
                $(self.$field.encode(to);)*
            }
            #[allow(unused_variables)]
            #[inline]
            fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self { $($field: Wire::decode(from)?),* })
            }
        }
        impl Message for $name {
            const OPCODE: u16 = $op;
            const NAME: &'static str = stringify!($name);
            const PIPELINED: bool = mode!($mode);
            type Reply = $reply;
        })*

        /// Any message, decoded.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Request { $($(#[$doc])* $name($name)),* }

        impl Request {
            /// Decodes the body of message number `opcode`.
            ///
            /// # Errors
            /// [`DecodeError`] when there is no such message or the bytes are not one.
            pub fn decode(opcode: u16, body: &[u8]) -> Result<Self, DecodeError> {
                let mut from = Decoder::new(body);
                let request = match opcode {
                    $($op => Self::$name(Wire::decode(&mut from)?),)*
                    other => return Err(DecodeError::Invalid { what: "opcode", value: other.into() }),
                };
                from.finish()?;
                Ok(request)
            }

            /// The name of message number `opcode`.
            #[must_use]
            pub fn name_of(opcode: u16) -> Option<&'static str> {
                match opcode {
                    $($op => Some($name::NAME),)*
                    _ => None,
                }
            }

            /// The message's name.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $name::NAME),* }
            }

            /// Whether the client went on without an answer.
            #[must_use]
            pub fn is_pipelined(&self) -> bool {
                match self { $(Self::$name(_) => $name::PIPELINED),* }
            }
        }
    };
}

messages! {
    // --- session, devices, contexts
    /// First message of a session.
    1 round_trip GetFacts {} -> SessionFacts;
    /// `cuDevicePrimaryCtxRetain` (first retain) and `cuCtxCreate`.
    2 round_trip ContextCreate { ctx: ContextId, device: Device, flags: u32, primary: bool } -> ();
    /// Last release or reset of a primary context, `cuCtxDestroy`: takes everything the context owns with it.
    3 round_trip ContextDestroy { ctx: ContextId } -> ();
    /// `cuCtxSynchronize`.
    4 round_trip ContextSynchronize { ctx: ContextId } -> ();
    /// `cuCtxGetLimit`.
    5 round_trip ContextGetLimit { ctx: ContextId, limit: u32 } -> u64;
    /// `cuCtxSetLimit`.
    6 round_trip ContextSetLimit { ctx: ContextId, limit: u32, value: u64 } -> ();
    /// `cuCtxSetCacheConfig`.
    7 pipelined ContextSetCacheConfig { ctx: ContextId, config: u32 } -> ();
    /// `cuCtxEnablePeerAccess`.
    8 round_trip PeerAccess { ctx: ContextId, peer: ContextId, enable: bool } -> ();
    /// `cuDeviceCanAccessPeer`.
    9 round_trip CanAccessPeer { device: Device, peer: Device } -> bool;
    /// More of what the device has printed: the client asks after a reply that says there is, until one says there is not.
    10 round_trip TakeOutput {} -> ();
    /// Something that whoever runs the job should know: a call that is not supported. At most [`NOTICE_MAX`] bytes.
    11 pipelined Notice { text: String } -> ();

    // --- memory
    /// `cuMemAlloc`; answers the address.
    20 round_trip MemAlloc { ctx: ContextId, bytes: u64 } -> u64;
    /// `cuMemFree`; the client has checked the address against its table.
    21 pipelined MemFree { address: u64 } -> ();
    /// `cuMemGetInfo`; answers free and total bytes.
    22 round_trip MemInfo { ctx: ContextId } -> (u64, u64);
    /// `cuMemHostAlloc`: the server makes the file `pinned-<id>` in the session's folder, maps it and registers it; answers
    /// the address, where the client maps the same file. A small allocation is a piece of a *slab*, the file `slab-<base>` (in hexadecimal
    /// digits) that was made in the same way; the client maps it when it first hears of it. It goes with the context, if it is of one.
    23 round_trip PinnedAlloc { ctx: ContextId, pinned: PinnedId, bytes: u64, flags: u32 } -> PinnedPlace;
    /// `cuMemFreeHost`; answers the base of a slab that the client is to unmap, in which nothing is and nothing will be; 0 for none.
    24 round_trip PinnedFree { pinned: PinnedId } -> u64;
    /// `cuMemAllocManaged` of memory with shadow pages: the server makes the file `shadow-<id>` in the session's folder; answers the
    /// address, where the client maps the file; 0 where managed memory is to be coherent. It ends with [`MemFree`].
    25 round_trip ManagedAlloc { ctx: ContextId, managed: PinnedId, bytes: u64 } -> u64;
    /// The client has mapped it, and given its userfaultfd.
    26 round_trip ManagedKeep { address: u64 } -> ();
    /// The client is about to unmap it, and then to free it.
    27 round_trip ManagedLeave { address: u64 } -> ();
    /// The client has unmapped the slab that it was told to (0: none, a context has gone); answers the next, as [`PinnedFree`] does.
    28 round_trip SlabFree { slab: u64 } -> u64;
    /// The managed memory around an address is wanted on a device, or on the host: `cuMemPrefetchAsync`, `cuMemAdvise`.
    29 pipelined ManagedHint { address: u64, device: Option<Device> } -> ();

    /// `dormouse_exclude` and `dormouse_include`: the contents of a part of device memory need not be saved, or have to be. `NOT_SUPPORTED` of
    /// memory that always is, `INVALID_VALUE` where it is no device memory, `OUT_OF_MEMORY` when there are too many parts.
    19 round_trip Exclude { address: u64, bytes: u64, exclude: bool } -> ();

    // --- copies; addresses are device memory or pinned memory, the same in both processes
    /// A copy from bytes in the message (at most [`INLINE_MAX`]).
    30 pipelined CopyFromInline { ctx: ContextId, stream: Stream, dst: u64, data: Bytes } -> ();
    /// A copy from a staging slot of this thread's ring, which the client must not reuse before [`SlotWait`] answers.
    31 pipelined CopyFromSlot { ctx: ContextId, stream: Stream, dst: u64, slot: u32, bytes: u32 } -> ();
    /// Answers when nothing reads from the slot any more.
    32 round_trip SlotWait { slot: u32 } -> ();
    /// A copy of at most [`INLINE_MAX`] bytes to the host; answers the bytes when they are there.
    33 round_trip CopyToInline { ctx: ContextId, stream: Stream, src: u64, bytes: u32 } -> Bytes;
    /// A copy into a staging slot; [`CopyToSlotWait`] answers when it is there.
    34 pipelined CopyToSlot { ctx: ContextId, stream: Stream, src: u64, slot: u32, bytes: u32 } -> ();
    /// Answers when the last [`CopyToSlot`] into the slot is complete.
    35 round_trip CopyToSlotWait { slot: u32 } -> ();
    /// An asynchronous copy between device and pinned memory.
    36 pipelined Copy { ctx: ContextId, stream: Stream, dst: u64, src: u64, bytes: u64 } -> ();
    /// The same, answered when complete.
    37 round_trip CopyWait { ctx: ContextId, stream: Stream, dst: u64, src: u64, bytes: u64 } -> ();
    /// A pitched copy (`cuMemcpy2D`, `cuMemcpy3D`) between device and pinned memory.
    38 pipelined Copy3D { ctx: ContextId, stream: Stream, dst: Pitched, src: Pitched, width: u64, height: u64, depth: u64 } -> ();
    /// `cuMemset*`: `height` rows of `width` elements of `element` bytes (1, 2 or 4), `pitch` bytes apart.
    39 pipelined Fill { ctx: ContextId, stream: Stream, dst: u64, pitch: u64, element: u8, value: u32, width: u64, height: u64 } -> ();
    /// `cuMemcpyPeer*`: a copy between two contexts' devices.
    40 pipelined CopyPeer { dst_ctx: ContextId, src_ctx: ContextId, stream: Stream, dst: u64, src: u64, bytes: u64 } -> ();
    /// A pitched copy from a staging slot, in which the rows lie packed (`width` bytes from a row to the next, `height` rows
    /// from a slice to the next); as [`CopyFromSlot`] otherwise.
    41 pipelined CopyRowsFromSlot { ctx: ContextId, stream: Stream, dst: Pitched, slot: u32, width: u64, height: u64, depth: u64 } -> ();
    /// The same into a staging slot; as [`CopyToSlot`] otherwise.
    42 pipelined CopyRowsToSlot { ctx: ContextId, stream: Stream, src: Pitched, slot: u32, width: u64, height: u64, depth: u64 } -> ();

    // --- streams and events
    /// `cuStreamCreate(WithPriority)`.
    50 pipelined StreamCreate { ctx: ContextId, stream: StreamId, flags: u32, priority: i32 } -> ();
    /// `cuStreamDestroy`: what is in the stream still completes.
    51 pipelined StreamDestroy { stream: StreamId } -> ();
    /// `cuStreamSynchronize`.
    52 round_trip StreamSynchronize { ctx: ContextId, stream: Stream } -> ();
    /// `cuStreamQuery`; answers whether the stream is idle.
    53 round_trip StreamQuery { ctx: ContextId, stream: Stream } -> bool;
    /// `cuStreamWaitEvent`.
    54 pipelined StreamWaitEvent { ctx: ContextId, stream: Stream, event: EventId, flags: u32 } -> ();
    /// `cuEventCreate`.
    55 pipelined EventCreate { ctx: ContextId, event: EventId, flags: u32 } -> ();
    /// `cuEventDestroy`.
    56 pipelined EventDestroy { event: EventId } -> ();
    /// `cuEventRecord(WithFlags)`.
    57 pipelined EventRecord { ctx: ContextId, stream: Stream, event: EventId, flags: u32 } -> ();
    /// `cuEventQuery`; answers whether the event is complete.
    58 round_trip EventQuery { event: EventId } -> bool;
    /// `cuEventSynchronize`.
    59 round_trip EventSynchronize { event: EventId } -> ();
    /// `cuEventElapsedTime`, milliseconds.
    60 round_trip EventElapsed { start: EventId, end: EventId } -> f32;
    /// `cuStreamGetAttribute`.
    61 round_trip StreamGetAttribute { ctx: ContextId, stream: Stream, attribute: u32 } -> LaunchValue;
    /// `cuStreamSetAttribute`.
    62 round_trip StreamSetAttribute { ctx: ContextId, stream: Stream, attribute: u32, value: LaunchValue } -> ();

    // --- code
    /// `cuModuleLoadData(Ex)`, from the file `upload-<id>` in the session's folder, which the server
    /// takes and removes; `options` are JIT options and their values. Answers the JIT's info log, at most [`DETAIL_MAX`] bytes.
    /// Where the code has variables in managed memory, and `managed` is 0, nothing is loaded, and the file stays: the second part of the
    /// answer is then what they need, and the client asks again with the address of that much managed memory, all zeros.
    70 round_trip ModuleLoad {
        ctx: ContextId, module: ModuleId, upload: UploadId, options: Vec<(u32, u64)>, managed: u64,
    } -> (String, ManagedVariables);
    /// `cuModuleUnload`.
    71 round_trip ModuleUnload { module: ModuleId } -> ();
    /// `cuModuleGetFunction`.
    72 round_trip ModuleGetFunction { module: ModuleId, function: FunctionId, name: String } -> FunctionFacts;
    /// `cuModuleGetGlobal`; answers address and bytes.
    73 round_trip ModuleGetGlobal { module: ModuleId, name: String } -> (u64, u64);
    /// `cuModuleEnumerateFunctions`: at most `most` names, from number `first` on.
    74 round_trip ModuleListFunctions { module: ModuleId, first: u32, most: u32 } -> Names;
    /// `cuLibraryLoadData`.
    75 round_trip LibraryLoad { library: LibraryId, upload: UploadId, options: Vec<(u32, u64)> } -> ();
    /// `cuLibraryUnload`.
    76 round_trip LibraryUnload { library: LibraryId } -> ();
    /// `cuLibraryGetKernel`. `ctx` is the context to take attributes from.
    77 round_trip LibraryGetKernel { ctx: ContextId, library: LibraryId, kernel: KernelId, name: String } -> FunctionFacts;
    /// `cuLibraryGetGlobal`; answers address and bytes.
    78 round_trip LibraryGetGlobal { ctx: ContextId, library: LibraryId, name: String } -> (u64, u64);
    /// `cuLibraryEnumerateKernels`: at most `most` names, from number `first` on.
    79 round_trip LibraryListKernels { library: LibraryId, first: u32, most: u32 } -> Names;
    /// `cuLibraryGetModule`.
    80 round_trip LibraryGetModule { ctx: ContextId, library: LibraryId, module: ModuleId } -> ();
    /// `cuKernelGetFunction`.
    81 round_trip KernelGetFunction { ctx: ContextId, kernel: KernelId, function: FunctionId } -> FunctionFacts;
    /// `cuFuncGetAttribute`, `cuKernelGetAttribute`.
    82 round_trip FunctionGetAttribute { ctx: ContextId, callee: Callee, attribute: i32 } -> i32;
    /// `cuFuncSetAttribute`, `cuKernelSetAttribute`.
    83 round_trip FunctionSetAttribute { ctx: ContextId, callee: Callee, attribute: i32, value: i32 } -> ();
    /// `cuFuncSetCacheConfig`, `cuKernelSetCacheConfig`.
    84 pipelined FunctionSetCacheConfig { ctx: ContextId, callee: Callee, config: u32 } -> ();
    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor(WithFlags)`.
    85 round_trip OccupancyBlocks { ctx: ContextId, callee: Callee, block: u32, shared: u64, flags: u32 } -> i32;
    /// `cuOccupancyAvailableDynamicSMemPerBlock`.
    86 round_trip OccupancyShared { ctx: ContextId, callee: Callee, blocks: i32, block: i32 } -> u64;
    /// `cuOccupancyMaxPotentialClusterSize` and `cuOccupancyMaxActiveClusters`, by `active`.
    87 round_trip OccupancyClusters { callee: Callee, active: bool, config: Launch } -> i32;

    /// What a library's variables in managed memory need, as its code for a device says; there need be no context.
    88 round_trip LibraryManaged { device: Device, library: LibraryId } -> ManagedVariables;
    /// They lie in the managed memory that begins there, all zeros until now: sent before the library is used.
    89 round_trip LibraryBind { device: Device, library: LibraryId, managed: u64 } -> ();

    // --- execution
    /// `cuLaunchKernel`, `cuLaunchKernelEx`, `cuLaunchCooperativeKernel`.
    90 pipelined Launch {
        ctx: ContextId,
        stream: Stream,
        callee: Callee,
        /// Blocks.
        grid: [u32; 3],
        /// Threads.
        block: [u32; 3],
        /// Dynamic shared memory, bytes.
        shared: u32,
        /// Launch attributes other than those the client answers: id and the 64 bytes of its value.
        attributes: Vec<(u32, LaunchValue)>,
        /// The parameters, laid out as [`FunctionFacts::params`] says.
        params: Bytes,
    } -> ();
    /// `cuLaunchHostFunc`, `cuStreamAddCallback`: when the stream gets there, the server sends the id back and waits.
    91 pipelined HostFunction { ctx: ContextId, stream: Stream, callback: CallbackId } -> ();

    // --- executable graphs
    /// `cuGraphInstantiate`: `plan` is an encoded [`crate::GraphPlan`], whose conditions are those of `template`.
    100 round_trip GraphInstantiate {
        ctx: ContextId, exec: GraphExecId, template: Option<GraphTemplateId>, flags: u64, plan: GraphData,
    } -> ();
    /// `cuGraphExecUpdate`, `cuGraphExec…NodeSetParams`: `changes` is an encoded list of [`crate::GraphChange`].
    101 round_trip GraphUpdate { exec: GraphExecId, changes: GraphData } -> ();
    /// `cuGraphNodeSetEnabled`.
    102 round_trip GraphNodeEnable { exec: GraphExecId, node: u32, enabled: bool } -> ();
    /// `cuGraphUpload`.
    103 pipelined GraphUpload { ctx: ContextId, stream: Stream, exec: GraphExecId } -> ();
    /// `cuGraphLaunch`. A graph that is `wide` touches more than its stream: events, other contexts.
    104 pipelined GraphLaunch { ctx: ContextId, stream: Stream, exec: GraphExecId, wide: bool } -> ();
    /// `cuGraphExecDestroy`: a launch that is under way completes.
    105 pipelined GraphExecDestroy { exec: GraphExecId } -> ();
    /// Has the application run a callback when every launch of a graph so far is complete; at once where no graph is named.
    106 pipelined GraphRelease { exec: Option<GraphExecId>, callback: CallbackId } -> ();
    /// `cuGraphConditionalHandleCreate`: the template is made with its first condition. Answers what kernels know the condition by.
    107 round_trip GraphCondition { ctx: ContextId, template: GraphTemplateId, initial: Option<u32> } -> u64;
    /// The end of a graph with conditions; an executable graph made from it stays.
    108 pipelined GraphTemplateDestroy { template: GraphTemplateId } -> ();

    // --- memory pools
    /// `cuMemPoolCreate`; `max_bytes` 0 is no limit.
    200 round_trip PoolCreate { pool: PoolId, device: Device, max_bytes: u64 } -> ();
    /// `cuMemPoolDestroy`: what is allocated from the pool stays until it is freed.
    201 round_trip PoolDestroy { pool: PoolId } -> ();
    /// `cuMemPoolTrimTo`.
    202 round_trip PoolTrim { pool: Pool, keep: u64 } -> ();
    /// `cuMemPoolGetAttribute`, a `CUmemPool_attribute`.
    203 round_trip PoolGetAttribute { pool: Pool, attribute: u32 } -> u64;
    /// `cuMemPoolSetAttribute`.
    204 round_trip PoolSetAttribute { pool: Pool, attribute: u32, value: u64 } -> ();
    /// `cuMemAllocAsync`, `cuMemAllocFromPoolAsync`; answers the address, at once.
    205 round_trip MemAllocAsync { ctx: ContextId, stream: Stream, pool: Pool, bytes: u64 } -> u64;
    /// `cuMemFreeAsync`; the client has checked the address against its table.
    206 pipelined MemFreeAsync { ctx: ContextId, stream: Stream, address: u64 } -> ();

    // --- arrays, textures, surfaces
    /// `cuArrayCreate`, `cuArray3DCreate`.
    140 round_trip ArrayCreate { ctx: ContextId, array: ArrayId, desc: ArrayDesc } -> ();
    /// `cuArrayDestroy`.
    141 pipelined ArrayDestroy { array: ArrayId } -> ();
    /// `cuMipmappedArrayCreate`.
    142 round_trip MipmapCreate { ctx: ContextId, mipmap: MipmapId, desc: ArrayDesc, levels: u32 } -> ();
    /// `cuMipmappedArrayGetLevel`, the first time for a level.
    143 round_trip MipmapLevel { mipmap: MipmapId, level: u32, array: ArrayId } -> ();
    /// `cuMipmappedArrayDestroy`.
    144 pipelined MipmapDestroy { mipmap: MipmapId } -> ();
    /// A copy that has an array on a side. From a staging slot as [`CopyFromSlot`], into one as [`CopyToSlot`].
    145 pipelined CopyBox { ctx: ContextId, stream: Stream, dst: CopySide, src: CopySide, width: u64, height: u64, depth: u64 } -> ();
    /// `cuTexObjectCreate`; answers the object as kernels know it.
    146 round_trip TextureCreate { ctx: ContextId, texture: TextureDesc } -> u64;
    /// `cuTexObjectDestroy`.
    147 pipelined TextureDestroy { ctx: ContextId, texture: u64 } -> ();
    /// `cuSurfObjectCreate`; answers the object as kernels know it.
    148 round_trip SurfaceCreate { ctx: ContextId, array: ArrayId } -> u64;
    /// `cuSurfObjectDestroy`.
    149 pipelined SurfaceDestroy { ctx: ContextId, surface: u64 } -> ();
    /// `cuDeviceGetTexture1DLinearMaxWidth`.
    151 round_trip LinearTextureWidth { device: Device, format: u32, channels: u32 } -> u64;
    /// `cuTensorMapEncode*`, `cuTensorMapReplaceAddress`: what the device library makes of the arguments.
    150 round_trip TensorMapEncode { ctx: ContextId, request: TensorMapRequest } -> TensorMap;

    // --- stream memory operations
    /// `cuStreamWriteValue*`, `cuStreamWaitValue*`, `cuStreamBatchMemOp`: in this order.
    210 pipelined MemoryOperations { ctx: ContextId, stream: Stream, operations: Vec<MemoryOperation> } -> ();

    // --- virtual memory
    /// `cuMemAddressReserve`, at `wanted` if that can be had; answers the address.
    220 round_trip AddressReserve { bytes: u64, alignment: u64, wanted: u64 } -> u64;
    /// `cuMemAddressFree`.
    221 round_trip AddressFree { address: u64, bytes: u64 } -> ();
    /// `cuMemCreate`.
    222 round_trip PhysicalCreate { physical: PhysicalId, device: Device, bytes: u64, handle_types: u32, compressible: bool } -> ();
    /// `cuMemRelease`.
    223 round_trip PhysicalRelease { physical: PhysicalId } -> ();
    /// `cuMemRetainAllocationHandle`.
    224 round_trip PhysicalRetain { address: u64 } -> PhysicalId;
    /// `cuMemGetAllocationPropertiesFromHandle`: the device, the types of handles that were asked for, and whether it is compressible.
    225 round_trip PhysicalProperties { physical: PhysicalId } -> (Device, (u32, bool));
    /// `cuMemMap`.
    226 round_trip MemMap { address: u64, bytes: u64, physical: PhysicalId } -> ();
    /// `cuMemUnmap`.
    227 round_trip MemUnmap { address: u64, bytes: u64 } -> ();
    /// `cuMemSetAccess`, for one device; a `CUmemAccess_flags`.
    228 round_trip MemSetAccess { address: u64, bytes: u64, device: Device, access: u32 } -> ();
    /// `cuMemGetAccess`.
    229 round_trip MemGetAccess { address: u64, device: Device } -> u32;

    // --- green contexts
    /// `cuDeviceGetDevResource`, `cuCtxGetDevResource`, `cuGreenCtxGetDevResource`.
    250 round_trip SmResource { device: Device, of: SmSet } -> SmCount;
    /// `cuDevSmResourceSplitByCount`: the groups, and what is left.
    251 round_trip SmResourceSplit { device: Device, of: SmSet, split: SmSplit } -> (Vec<SmCount>, SmCount);
    /// `cuGreenCtxCreate`, in the device's primary context; makes the default stream too, which has the same number.
    252 round_trip GreenCreate { ctx: ContextId, green: GreenId, of: SmSet } -> ();
    /// `cuGreenCtxDestroy`; its streams end with it.
    253 round_trip GreenDestroy { green: GreenId } -> ();
    /// `cuGreenCtxStreamCreate`; the stream is non-blocking.
    254 pipelined GreenStreamCreate { green: GreenId, stream: StreamId, priority: i32 } -> ();
    /// `cuCtxRecordEvent`, and with a green context `cuGreenCtxRecordEvent`.
    255 pipelined ContextRecordEvent { ctx: ContextId, green: Option<GreenId>, event: EventId } -> ();
    /// `cuCtxWaitEvent`, and with a green context `cuGreenCtxWaitEvent`.
    256 pipelined ContextWaitEvent { ctx: ContextId, green: Option<GreenId>, event: EventId } -> ();

    // --- linking
    /// `cuLinkComplete`: the inputs (a `CUjitInputType`, a file as [`ModuleLoad`]'s, a name) in order, and JIT options; leaves
    /// the result in the file `upload-<output>` and answers its length, and the info log as for [`ModuleLoad`].
    230 round_trip Link { ctx: ContextId, inputs: Vec<(u32, (UploadId, String))>, options: Vec<(u32, u64)>, output: UploadId } -> (u64, String);

    // --- what processes of a job share
    /// `cuIpcGetMemHandle`: the allocation that an address lies in.
    240 round_trip IpcGetMem { address: u64 } -> Claim;
    /// `cuIpcOpenMemHandle`; answers the allocation's address here.
    241 round_trip IpcOpenMem { ctx: ContextId, claim: Claim } -> u64;
    /// `cuIpcCloseMemHandle`; answers whether nobody has the allocation open any more.
    242 round_trip IpcCloseMem { address: u64 } -> bool;
    /// `cuIpcGetEventHandle`.
    243 round_trip IpcGetEvent { event: EventId } -> ShareId;
    /// `cuIpcOpenEventHandle`.
    244 round_trip IpcOpenEvent { ctx: ContextId, event: EventId, share: ShareId } -> ();
    /// [`EventRecord`], of an event that other processes hold: it is recorded when this is answered.
    245 round_trip EventRecordNow { ctx: ContextId, stream: Stream, event: EventId, flags: u32 } -> ();
    /// `cuMemExportToShareableHandle`: the name, which the client puts into a file in memory of its own, the descriptor.
    246 round_trip PhysicalExport { physical: PhysicalId } -> ShareId;
    /// `cuMemImportFromShareableHandle`; answers the handle, which is another where this process has the piece already.
    247 round_trip PhysicalImport { physical: PhysicalId, share: ShareId } -> PhysicalId;

    // --- memory of the application's own
    /// `cuMemHostRegister`: the server makes a file as [`PinnedAlloc`]'s and maps it where the application has its memory, whole pages;
    /// the client moves its memory there. It ends with [`PinnedFree`].
    248 round_trip HostRegister { ctx: ContextId, pinned: PinnedId, address: u64, bytes: u64, flags: u32 } -> ();
    /// `cuMemHostUnregister`: answered when no work uses pinned memory any more.
    249 round_trip HostUnregister {} -> ();
}

/// The most bytes a copy message carries itself.
pub const INLINE_MAX: usize = 64 << 10;

/// The longest notice, bytes: what is beyond is cut off.
pub const NOTICE_MAX: usize = 1024;

/// The most bytes of device output a reply carries.
pub const OUTPUT_MAX: usize = 64 << 10;

/// The longest text about a failure that a reply carries, bytes: what is beyond is cut off.
pub const DETAIL_MAX: usize = 64 << 10;

/// The most bytes of names that a reply carries, but for a single longer one: the client asks for the others.
pub const NAMES_MAX: usize = 64 << 10;

/// One side of a pitched copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pitched {
    /// Where the first byte to be copied lies.
    pub address: u64,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Rows from a slice to the next.
    pub rows: u64,
}

impl Wire for Pitched {
    fn encode(&self, to: &mut Encoder<'_>) {
        (self.address, (self.pitch, self.rows)).encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (address, (pitch, rows)) = Wire::decode(from)?;
        Ok(Self { address, pitch, rows })
    }
}

/// The value of a launch attribute, as in `CUlaunchAttribute`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchValue(pub [u8; 64]);

impl Wire for LaunchValue {
    fn encode(&self, to: &mut Encoder<'_>) {
        to.put(&self.0);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut value = [0; 64];
        value.copy_from_slice(from.take(64)?);
        Ok(Self(value))
    }
}

impl Wire for () {
    fn encode(&self, _: &mut Encoder<'_>) {}
    fn decode(_: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}
