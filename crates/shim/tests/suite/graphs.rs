//! Graphs: what they hold, what they take over, and when they let it go.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::fake::{Fake, start};
use cuda_abi::{CuError, sys};
use cuda_shim::api::{
    capture::*, context::*, copy::*, graph::*, graph_exec::*, graph_node::*, host_memory::*, memory::*,
    module::*, pool::*, set::*, stream::*,
};
use wire::Request;

fn graph() -> sys::CUgraph {
    let mut graph = null_mut();
    // SAFETY: the pointer is this function's.
    unsafe { cuGraphCreate(&raw mut graph, 0) }.unwrap();
    graph
}

fn empty_node(graph: sys::CUgraph) -> sys::CUgraphNode {
    let mut node = null_mut();
    // SAFETY: the pointer is this function's.
    unsafe { cuGraphAddEmptyNode(&raw mut node, graph, null(), 0) }.unwrap();
    node
}

fn instantiate(graph: sys::CUgraph) -> sys::CUgraphExec {
    let mut exec = null_mut();
    // SAFETY: the pointer is this function's.
    unsafe { cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) }.unwrap();
    exec
}

fn stream() -> sys::CUstream {
    let mut stream = null_mut();
    // SAFETY: the pointer is this function's.
    unsafe { cuStreamCreate(&raw mut stream, 1) }.unwrap();
    stream
}

fn device_memory(bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: the pointer is this function's.
    unsafe { cuMemAlloc_v2(&raw mut address, bytes) }.unwrap();
    address
}

/// A node that allocates, and its address.
fn memory_node(graph: sys::CUgraph) -> (sys::CUgraphNode, u64) {
    // SAFETY: plain data.
    let mut params: sys::CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    params.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    params.bytesize = 512;
    let mut node = null_mut();
    // SAFETY: the pointers are this function's.
    unsafe { cuGraphAddMemAllocNode(&raw mut node, graph, null(), 0, &raw mut params) }.unwrap();
    (node, params.dptr)
}

/// What a destructor knows: it notes its thread, when it has got the lock.
#[derive(Default)]
struct Fate {
    ran_by: AtomicU64,
    times: AtomicUsize,
    lock: Mutex<()>,
}

unsafe extern "C" fn destructor(data: *mut c_void) {
    // SAFETY: the reference that `held` gave away.
    let fate = unsafe { Arc::from_raw(data.cast_const().cast::<Fate>()) };
    let _locked = fate.lock.lock().unwrap();
    // SAFETY: always succeeds.
    fate.ran_by.store(unsafe { libc_gettid() }, Ordering::Release);
    fate.times.fetch_add(1, Ordering::Release);
}

unsafe fn libc_gettid() -> u64 {
    // SAFETY: always succeeds.
    unsafe { libc::syscall(libc::SYS_gettid) as u64 }
}

/// A user object that only this graph holds.
fn held_by(graph: sys::CUgraph) -> Arc<Fate> {
    let fate = Arc::<Fate>::default();
    let data = Arc::into_raw(Arc::clone(&fate)).cast_mut().cast();
    let mut object = null_mut();
    // SAFETY: the pointer is this function's, and the destructor takes what it is given.
    unsafe {
        cuUserObjectCreate(&raw mut object, data, Some(destructor), 1, 1).unwrap();
        cuGraphRetainUserObject(graph, object, 1, 1).unwrap();
    }
    fate
}

impl Fate {
    fn is_alive(&self) -> bool {
        // A destructor that should not have run has had its chance.
        std::thread::sleep(Duration::from_millis(20));
        self.times.load(Ordering::Acquire) == 0
    }

    fn ran(&self) {
        wait_until(|| self.times.load(Ordering::Acquire) == 1);
        // SAFETY: always succeeds.
        assert_ne!(self.ran_by.load(Ordering::Acquire), unsafe { libc_gettid() }, "by a thread of its own");
    }
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(20), "still not so");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn names(fake: &Fake) -> Vec<&'static str> {
    fake.picked(|(_, request)| Some(request.name()))
}

#[test]
fn an_executable_graph_takes_over_what_another_holds() {
    start();
    let (old, new) = (graph(), graph());
    let (a, b) = (held_by(old), held_by(new));
    empty_node(old);
    empty_node(new);
    let exec = instantiate(old);
    // SAFETY: handles.
    unsafe {
        cuGraphLaunch(exec, stream()).unwrap();
        cuGraphDestroy(old).unwrap();
        assert!(a.is_alive());
        // SAFETY: plain data.
        let mut info: sys::CUgraphExecUpdateResultInfo = std::mem::zeroed();
        cuGraphExecUpdate_v2(exec, new, &raw mut info).unwrap();
        a.ran();
        cuGraphDestroy(new).unwrap();
        assert!(b.is_alive());
        cuGraphExecDestroy(exec).unwrap();
        b.ran();
    }
}

#[test]
fn so_does_a_child_of_it() {
    start();
    let (parent, old, new) = (graph(), graph(), graph());
    empty_node(old);
    empty_node(new);
    let (kept, a, b) = (held_by(parent), held_by(old), held_by(new));
    let mut child = null_mut();
    // SAFETY: handles, and a pointer of this function's.
    unsafe {
        cuGraphAddChildGraphNode(&raw mut child, parent, null(), 0, old).unwrap();
        let exec = instantiate(parent);
        cuGraphDestroy(old).unwrap();
        cuGraphExecChildGraphNodeSetParams(exec, child, new).unwrap();
        cuGraphDestroy(new).unwrap();
        assert!(a.is_alive(), "the parent's child holds it");
        cuGraphDestroy(parent).unwrap();
        a.ran();
        assert!(b.is_alive() && kept.is_alive());
        cuGraphExecDestroy(exec).unwrap();
        b.ran();
        kept.ran();
    }
}

#[test]
fn a_destructor_may_take_a_lock_that_the_destroyer_holds() {
    start();
    let graph = graph();
    let fate = held_by(graph);
    let locked = fate.lock.lock().unwrap();
    // SAFETY: a handle.
    unsafe { cuGraphDestroy(graph) }.unwrap();
    drop(locked);
    fate.ran();
}

#[test]
fn a_capture_whose_stream_ends_leaves_no_graph() {
    start();
    let stream = stream();
    let (mut status, mut id, mut graph) = (0, 0, null_mut());
    // SAFETY: the pointers are this function's.
    unsafe {
        cuStreamBeginCapture_v2(stream, 2).unwrap();
        let nobody = (null_mut(), null_mut());
        let (status, id, graph) = (&raw mut status, &raw mut id, &raw mut graph);
        cuStreamGetCaptureInfo_v2(stream, status, id, graph, nobody.0, nobody.1).unwrap();
    }
    let fate = held_by(graph);
    // SAFETY: a handle.
    unsafe { cuStreamDestroy_v2(stream) }.unwrap();
    fate.ran();
}

fn copy_to(dst: u64, src: *const c_void, bytes: usize) -> sys::CUDA_MEMCPY3D {
    let mut copy = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    let to = copy.as_mut_ptr();
    // SAFETY: plain data, zero but for what is written here, the types of memory among it.
    unsafe {
        (&raw mut (*to).srcMemoryType).write(sys::CUmemorytype::CU_MEMORYTYPE_HOST);
        (&raw mut (*to).dstMemoryType).write(sys::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        let mut copy = copy.assume_init();
        (copy.srcHost, copy.dstDevice) = (src, dst);
        (copy.WidthInBytes, copy.Height, copy.Depth) = (bytes, 1, 1);
        copy
    }
}

#[test]
fn staging_memory_goes_behind_the_launches_and_the_end_waits_for_nothing() {
    let fake = start();
    let mut context = null_mut();
    let (dst, src) = (device_memory(4096), vec![7u8; 4096]);
    let graph = graph();
    let mut node = null_mut();
    let copy = copy_to(dst, src.as_ptr().cast(), src.len());
    // SAFETY: the pointers are this function's.
    let exec = unsafe {
        cuCtxGetCurrent(&raw mut context).unwrap();
        cuGraphAddMemcpyNode(&raw mut node, graph, null(), 0, &raw const copy, context).unwrap();
        let exec = instantiate(graph);
        // Pinned memory is the application's too.
        let mut pinned = null_mut();
        cuMemHostAlloc(&raw mut pinned, 4096, 0).unwrap();
        let pinned = copy_to(dst, pinned, 4096);
        cuGraphExecMemcpyNodeSetParams(exec, node, &raw const pinned, context).unwrap();
        cuGraphExecMemcpyNodeSetParams(exec, node, &raw const copy, context).unwrap();
        exec
    };
    let before = names(fake).len();
    // SAFETY: handles.
    unsafe {
        cuGraphLaunch(exec, stream()).unwrap();
        cuGraphExecDestroy(exec).unwrap();
    }
    let place = |name| names(fake).iter().skip(before).position(|each| *each == name);
    wait_until(|| place("GraphExecDestroy").is_some());
    assert!(
        place("GraphRelease").unwrap() < place("GraphExecDestroy").unwrap(),
        "the server has to know it still"
    );
    assert_eq!((place("ContextSynchronize"), place("StreamSynchronize")), (None, None));
    // It is given back by the next call that can.
    wait_until(|| {
        instantiate(graph);
        place("PinnedFree").is_some()
    });
    assert!(place("GraphRelease") < place("PinnedFree"));
}

#[test]
fn parameters_that_were_told_outlive_a_change_of_attributes() {
    start();
    let (mut module, mut function, mut node) = (null_mut(), null_mut(), null_mut());
    let graph = graph();
    let (pointer, value) = (0x1234u64, 77i32);
    let mut arguments =
        [(&raw const pointer).cast_mut().cast(), (&raw const value).cast_mut().cast::<c_void>()];
    // SAFETY: plain data, and pointers of this function's.
    unsafe {
        cuModuleLoadData(&raw mut module, c".version 8.0".as_ptr().cast()).unwrap();
        cuModuleGetFunction(&raw mut function, module, c"kernel".as_ptr()).unwrap();
        let mut params: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        params.func = function;
        (params.gridDimX, params.gridDimY, params.gridDimZ) = (1, 1, 1);
        (params.blockDimX, params.blockDimY, params.blockDimZ) = (1, 1, 1);
        params.kernelParams = arguments.as_mut_ptr();
        cuGraphAddKernelNode_v2(&raw mut node, graph, null(), 0, &raw const params).unwrap();
        let told = || {
            let mut told: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
            cuGraphKernelNodeGetParams_v2(node, &raw mut told).unwrap();
            told.kernelParams
        };
        let before = told();
        let priority: sys::CUkernelNodeAttrValue = std::mem::zeroed();
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY as u32;
        cuGraphKernelNodeSetAttribute(node, id, &raw const priority).unwrap();
        assert_eq!(told(), before, "the node has the same parameters");
        assert_eq!(before.read().cast::<u64>().read_unaligned(), pointer);
        assert_eq!(before.add(1).read().cast::<i32>().read_unaligned(), value);
    }
}

#[test]
fn graphs_with_memory_nodes_are_refused_where_cuda_refuses_them() {
    start();
    let graph = graph();
    let (from, _) = memory_node(graph);
    let to = empty_node(graph);
    // SAFETY: handles.
    unsafe {
        cuGraphAddDependencies(graph, &raw const from, &raw const to, 1).unwrap();
        let removed = cuGraphRemoveDependencies(graph, &raw const from, &raw const to, 1);
        assert_eq!(removed, Err(CuError::NOT_SUPPORTED));
        let exec = instantiate(graph);
        let stream = stream();
        cuStreamBeginCapture_v2(stream, 2).unwrap();
        assert_eq!(cuGraphLaunch(exec, stream), Err(CuError::NOT_SUPPORTED));
        let mut captured = null_mut();
        cuStreamEndCapture(stream, &raw mut captured).unwrap();
        cuGraphDestroy(captured).unwrap();
    }
}

#[test]
fn what_cannot_be_captured_leaves_the_order_of_what_can() {
    start();
    let (parent, child, stream, memory) = (graph(), graph(), stream(), device_memory(64));
    let (mut node, mut address, mut count) = (null_mut(), 0, 0);
    // SAFETY: plain data, handles, and pointers of this function's.
    unsafe {
        let mut params: sys::CUgraphNodeParams = std::mem::zeroed();
        params.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH;
        params.__bindgen_anon_1.graph.graph = child;
        params.__bindgen_anon_1.graph.ownership =
            sys::CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
        cuGraphAddNode_v2(&raw mut node, parent, null(), null(), 0, &raw mut params).unwrap();
        cuStreamBeginCaptureToGraph(stream, child, null(), null(), 0, 2).unwrap();
        cuMemsetD8Async(memory, 1, 64, stream).unwrap();
        // A graph that was moved into a node has no memory of its own.
        assert_eq!(cuMemAllocAsync(&raw mut address, 64, stream), Err(CuError::NOT_SUPPORTED));
        cuMemsetD8Async(memory, 2, 64, stream).unwrap();
        let mut captured = null_mut();
        cuStreamEndCapture(stream, &raw mut captured).unwrap();
        assert_eq!(captured, child);
        let nobody = (null_mut(), null_mut());
        cuGraphGetEdges_v2(child, nobody.0, nobody.1, null_mut(), &raw mut count).unwrap();
        assert_eq!(count, 1, "the second waits for the first");
        cuGraphDestroy(parent).unwrap();
    }
}

/// The order of access to the source of a batch's copies: `CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL`.
#[test]
fn a_batch_has_read_its_sources_when_it_was_told_to() {
    let fake = start();
    let (mut dst, mut src, mut bytes) = (device_memory(512), device_memory(512), 512);
    let stream = stream();
    let mut batch = |order| {
        // SAFETY: plain data, and pointers of this function's.
        unsafe {
            let mut attributes: sys::CUmemcpyAttributes = std::mem::zeroed();
            attributes.srcAccessOrder = order;
            let (attributes, mut first) = (&raw mut attributes, 0);
            let (dst, src, bytes) = (&raw mut dst, &raw mut src, &raw mut bytes);
            cuMemcpyBatchAsync_v2(dst, src, bytes, 1, attributes, &raw mut first, 1, stream).unwrap();
        }
    };
    let synchronised = || names(fake).iter().filter(|name| **name == "StreamSynchronize").count();
    batch(sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    let before = synchronised();
    batch(sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
    assert_eq!(synchronised(), before + 1);
}

/// Last, since it lets addresses come again.
#[test]
fn memory_of_a_node_is_given_back_once_and_nobody_elses() {
    let fake = start();
    let (mut usual, mut other) = (null_mut(), null_mut());
    let (first, second) = (graph(), graph());
    // SAFETY: handles, and pointers of this function's.
    unsafe {
        cuCtxGetCurrent(&raw mut usual).unwrap();
        cuCtxCreate_v2(&raw mut other, 0, 0).unwrap();
        let (_, address) = memory_node(first);
        cuCtxDestroy_v2(other).unwrap();
        cuCtxSetCurrent(usual).unwrap();
        // The context took its memory along, and the address is another's now.
        fake.next.store(address, Ordering::Relaxed);
        assert_eq!(memory_node(second).1, address);
        let freed = || {
            fake.picked(|(_, request)| match request {
                Request::MemFree(m) if m.address == address => Some(()),
                _ => None,
            })
        };
        cuGraphDestroy(first).unwrap();
        instantiate(graph());
        let third = graph();
        memory_node(third);
        assert_eq!(freed().len(), 0);
        cuGraphDestroy(second).unwrap();
        memory_node(third);
        wait_until(|| freed().len() == 1);
    }
}
