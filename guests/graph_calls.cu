// Every call of the driver API that makes, asks or changes a graph, and the captures that must come to nothing; what is built so is
// launched in a loop, and its nodes are asked again after each launch.
#include <cstring>
#include <string>

#include "driver.cuh"

constexpr int STATE = 1 << 12;

#define REQUIRE(held) guest::require((held), #held, __LINE__)
#define REFUSED(call, error) guest::require((call) == (error), #call " is " #error, __LINE__)

static uint32_t destroyed = 0;
static void CUDA_CB destroy(void *data) { destroyed += *static_cast<uint32_t *>(data); }
static void CUDA_CB count(void *data) { ++*static_cast<uint32_t *>(data); }

static CUgraphNodeType type_of(CUgraphNode node) {
    CUgraphNodeType type;
    CUDA(cuGraphNodeGetType(node, &type));
    return type;
}

static size_t nodes_of(CUgraph graph) {
    size_t nodes;
    CUDA(cuGraphGetNodes(graph, nullptr, &nodes));
    return nodes;
}

// User objects end with the last graph that holds them.
static void user_objects() {
    static uint32_t one = 1;
    CUuserObject object;
    CUgraph graph, clone;
    CUDA(cuUserObjectCreate(&object, &one, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CUDA(cuUserObjectRetain(object, 2));
    CUDA(cuGraphCreate(&graph, 0));
    CUDA(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CUDA(cuGraphRetainUserObject(graph, object, 1, 0));
    CUDA(cuGraphReleaseUserObject(graph, object, 1));
    CUDA(cuUserObjectRelease(object, 2));
    CUDA(cuGraphClone(&clone, graph));
    CUDA(cuGraphDestroy(graph));
    REQUIRE(destroyed == 0);
    CUDA(cuGraphDestroy(clone));
    for (int i = 0; i < 1000 && destroyed == 0; i++) usleep(1000);
    REQUIRE(destroyed == 1);
}

// Edges, with data and without.
static void edges() {
    CUgraph graph;
    CUgraphNode a, b, c, found[4], to[4];
    CUgraphEdgeData data[4];
    CUDA(cuGraphCreate(&graph, 0));
    CUDA(cuGraphAddEmptyNode(&a, graph, nullptr, 0));
    CUDA(cuGraphAddEmptyNode(&b, graph, &a, 1));
    CUDA(cuGraphAddEmptyNode(&c, graph, nullptr, 0));
    CUgraphNode from[] = {a, b}, both[] = {c, c};
    CUgraphEdgeData plain[2] = {};
    CUDA(cuGraphAddDependencies(graph, from, both, plain, 2));
    REFUSED(cuGraphAddDependencies(graph, from, both, plain, 1), CUDA_ERROR_INVALID_VALUE);
    size_t count = 4;
    CUDA(cuGraphGetEdges(graph, found, to, data, &count));
    REQUIRE(count == 3 && found[0] == a && to[0] == b);
    count = 4;
    CUDA(cuGraphNodeGetDependencies(c, found, data, &count));
    REQUIRE(count == 2 && found[0] == a && found[1] == b && found[2] == nullptr);
    count = 1;
    CUDA(cuGraphNodeGetDependentNodes(a, found, data, &count));
    REQUIRE(count == 1 && found[0] == b);
    CUDA(cuGraphRemoveDependencies(graph, &a, &c, nullptr, 1));
    count = 4;
    CUDA(cuGraphGetRootNodes(graph, found, &count));
    REQUIRE(count == 1 && found[0] == a);
    CUDA(cuGraphDestroyNode(b));
    count = 4;
    CUDA(cuGraphGetRootNodes(graph, found, &count));
    REQUIRE(count == 2 && nodes_of(graph) == 2);
    // A circle is found when the graph is made executable.
    CUgraphNode ring_from[] = {a, c}, ring_to[] = {c, a};
    CUDA(cuGraphAddDependencies(graph, ring_from, ring_to, nullptr, 2));
    CUgraphExec exec;
    REQUIRE(cuGraphInstantiate(&exec, graph, 0) != CUDA_SUCCESS);
    CUDA(cuGraphDestroy(graph));
}

// Captures that come to nothing, and what the streams can do afterwards.
static void captures(CUstream stream, CUstream blocking, CUevent event, CUdeviceptr memory, CUfunction kernel) {
    CUgraph graph;
    CUstreamCaptureStatus status;
    cuuint64_t id;
    REFUSED(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    // Waiting for work from outside.
    CUDA(cuEventRecord(event, blocking));
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    REFUSED(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_ILLEGAL_STATE);
    REFUSED(cuStreamWaitEvent(stream, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    CUDA(cuStreamIsCapturing(stream, &status));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    REFUSED(cuMemsetD8Async(memory, 0, 4, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    REQUIRE(graph == nullptr);
    // The legacy stream beside a stream that is in order with it.
    CUDA(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    REFUSED(cuMemsetD8Async(memory, 0, 4, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    REFUSED(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // An allocation while a capture of this thread minds it, and while it does not.
    CUdeviceptr other;
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUDA(cuThreadExchangeStreamCaptureMode(&mode));
    CUDA(cuMemAlloc(&other, 64));
    CUDA(cuThreadExchangeStreamCaptureMode(&mode));
    REQUIRE(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    REFUSED(cuMemFree(other), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUDA(cuMemFree(other));
    // Events of a capture, two captures, and the wrong end.
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUDA(cuEventRecord(event, stream));
    CUDA(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    REFUSED(cuStreamWaitEvent(blocking, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    REFUSED(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUDA(cuEventRecord(event, stream));
    CUDA(cuStreamWaitEvent(blocking, event, 0));
    REFUSED(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUDA(cuEventRecord(event, stream));
    REFUSED(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUDA(cuEventRecord(event, stream));
    CUDA(cuEventSynchronize(event));

    // One that is asked and changed on the way, into a graph that is there.
    CUgraphNode first;
    CUgraph into, captured;
    CUDA(cuGraphCreate(&into, 0));
    CUDA(cuGraphAddEmptyNode(&first, into, nullptr, 0));
    CUDA(cuStreamBeginCaptureToGraph(stream, into, &first, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    const CUgraphNode *after;
    const CUgraphEdgeData *data;
    size_t count;
    CUDA(cuStreamGetCaptureInfo(stream, &status, &id, &captured, &after, &data, &count));
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && captured == into && count == 1 && after[0] == first);
    CUDA(cuMemsetD32Async(memory, 1, 4, stream));
    CUDA(cuStreamUpdateCaptureDependencies(stream, &first, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    CUDA(cuMemsetD32Async(memory + 64, 2, 4, stream));
    CUDA(cuStreamEndCapture(stream, &graph));
    REQUIRE(graph == into && nodes_of(into) == 3);
    CUDA(cuGraphNodeGetDependentNodes(first, nullptr, nullptr, &count));
    REQUIRE(count == 2);
    CUDA(cuGraphDestroy(into));

    // Nobody asks for this one.
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUDA(cuMemsetD32Async(memory, 1, 4, stream));
    CUDA(cuStreamEndCapture(stream, nullptr));

    // A captured kernel has its stream's priority.
    CUstream urgent;
    int least, greatest;
    CUDA(cuCtxGetStreamPriorityRange(&least, &greatest));
    CUDA(cuStreamCreateWithPriority(&urgent, CU_STREAM_NON_BLOCKING, greatest));
    int zero = 0;
    void *none[] = {&zero, &zero};
    CUDA(cuStreamBeginCapture(urgent, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUDA(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, urgent, none, nullptr));
    CUDA(cuStreamEndCapture(urgent, &graph));
    count = 1;
    CUlaunchAttributeValue priority = {};
    CUDA(cuGraphGetNodes(graph, &first, &count));
    CUDA(cuGraphKernelNodeGetAttribute(first, CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority));
    REQUIRE(priority.priority == greatest);
    CUDA(cuGraphDestroy(graph));
    CUDA(cuStreamDestroy(urgent));

    // External events, and memory, are nodes of their own.
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUDA(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
    CUDA(cuMemAllocAsync(&other, 64, stream));
    CUDA(cuMemsetD8Async(other, 1, 64, stream));
    CUDA(cuMemFreeAsync(other, stream));
    CUDA(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    CUDA(cuStreamEndCapture(stream, &graph));
    CUgraphNode all[5];
    count = 5;
    CUDA(cuGraphGetNodes(graph, all, &count));
    REQUIRE(count == 5 && type_of(all[0]) == CU_GRAPH_NODE_TYPE_WAIT_EVENT &&
            type_of(all[1]) == CU_GRAPH_NODE_TYPE_MEM_ALLOC && type_of(all[3]) == CU_GRAPH_NODE_TYPE_MEM_FREE &&
            type_of(all[4]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    CUgraphExec exec;
    CUDA(cuGraphInstantiate(&exec, graph, 0));
    CUDA(cuGraphLaunch(exec, stream));
    CUDA(cuEventSynchronize(event));
    CUDA(cuGraphExecDestroy(exec));
    CUDA(cuGraphDestroy(graph));
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    CUDA(cuInit(0));
    CUdevice device;
    CUcontext context;
    CUDA(cuDeviceGet(&device, 0));
    CUDA(cuCtxCreate(&context, nullptr, 0, device));
    CUmodule beta;
    CUDA(cuModuleLoad(&beta, guest::beside_program("beta.ptx").c_str()));
    CUfunction advance = guest::function(beta, "beta_advance");
    CUdeviceptr state = guest::global(beta, "beta_state", STATE * sizeof(uint32_t));
    CUdeviceptr key_symbol = guest::global(beta, "beta_key", sizeof(uint32_t));
    CUdeviceptr memory;
    CUDA(cuMemAlloc(&memory, 4096));
    CUstream stream, blocking;
    CUevent event, other_event;
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CUDA(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUDA(cuEventCreate(&other_event, CU_EVENT_DISABLE_TIMING));
    user_objects();
    edges();
    captures(stream, blocking, event, memory, advance);

    // key from ordinary memory; the kernel; a word set; the word and the state to ordinary memory; a count on the host.
    uint32_t key = 0, calls = 0, other_calls = 0, word = 0;
    std::vector<uint32_t> result(STATE), expected(STATE);
    expected[0] = 0xbe7a;
    CUgraph graph;
    CUDA(cuGraphCreate(&graph, 0));
    CUgraphNode in, run, set, out, host, record, wait, word_out;
    CUDA_MEMCPY3D up = {};
    up.srcMemoryType = CU_MEMORYTYPE_HOST;
    up.srcHost = &key;
    up.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    up.dstDevice = key_symbol;
    up.WidthInBytes = sizeof key;
    up.Height = up.Depth = 1;
    CUDA(cuGraphAddMemcpyNode(&in, graph, nullptr, 0, &up, context));
    CUDA_MEMCPY3D asked;
    CUDA(cuGraphMemcpyNodeGetParams(in, &asked));
    REQUIRE(asked.srcHost == &key && asked.dstDevice == key_symbol && asked.WidthInBytes == sizeof key);
    CUDA(cuGraphMemcpyNodeSetParams(in, &asked));

    int step = 0;
    void *arguments[] = {&step, &work};
    CUDA_KERNEL_NODE_PARAMS kernel = {};
    kernel.func = advance;
    kernel.gridDimX = STATE / 256;
    kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.blockDimX = 256;
    kernel.kernelParams = arguments;
    CUDA(cuGraphAddKernelNode(&run, graph, &in, 1, &kernel));
    CUDA_KERNEL_NODE_PARAMS told;
    CUDA(cuGraphKernelNodeGetParams(run, &told));
    REQUIRE(told.func == advance && told.blockDimX == 256 && *static_cast<int *>(told.kernelParams[1]) == work);
    CUDA(cuGraphKernelNodeSetParams(run, &told));
    CUlaunchAttributeValue value = {}, back = {};
    value.priority = -1;
    CUDA(cuGraphKernelNodeSetAttribute(run, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    CUDA(cuGraphKernelNodeGetAttribute(run, CU_LAUNCH_ATTRIBUTE_PRIORITY, &back));
    REQUIRE(back.priority == -1);

    CUgraphNodeParams any = {};
    any.type = CU_GRAPH_NODE_TYPE_KERNEL;
    any.kernel.func = advance;
    any.kernel.gridDimX = any.kernel.gridDimY = any.kernel.gridDimZ = 1;
    any.kernel.blockDimX = any.kernel.blockDimY = any.kernel.blockDimZ = 1;
    any.kernel.kernelParams = arguments;
    CUgraphNode copy_of;
    CUDA(cuGraphAddNode(&copy_of, graph, &run, nullptr, 1, &any));
    CUDA(cuGraphKernelNodeCopyAttributes(copy_of, run));
    CUDA(cuGraphKernelNodeGetAttribute(copy_of, CU_LAUNCH_ATTRIBUTE_PRIORITY, &back));
    REQUIRE(back.priority == -1);
    CUDA(cuGraphDestroyNode(copy_of));

    CUDA_MEMSET_NODE_PARAMS filling = {};
    filling.dst = memory;
    filling.elementSize = 4;
    filling.value = 1;
    filling.width = 4;
    filling.height = 1;
    CUDA(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &filling, context));
    CUDA(cuGraphMemsetNodeGetParams(set, &filling));
    REQUIRE(filling.dst == memory && filling.value == 1 && filling.width == 4);
    filling.value = 2;
    CUDA(cuGraphMemsetNodeSetParams(set, &filling));
    CUDA_MEMCPY3D down = {};
    down.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    down.srcDevice = memory;
    down.dstMemoryType = CU_MEMORYTYPE_HOST;
    down.dstHost = &word;
    down.WidthInBytes = sizeof word;
    down.Height = down.Depth = 1;
    CUDA(cuGraphAddMemcpyNode(&word_out, graph, &set, 1, &down, context));
    CUDA_HOST_NODE_PARAMS counting = {count, &calls};
    CUgraphNode both[] = {run, word_out};
    CUDA(cuGraphAddHostNode(&host, graph, both, 2, &counting));
    CUDA(cuGraphHostNodeGetParams(host, &counting));
    REQUIRE(counting.userData == &calls);
    CUDA(cuGraphHostNodeSetParams(host, &counting));
    CUDA(cuGraphAddEventRecordNode(&record, graph, &host, 1, other_event));
    CUDA(cuGraphEventRecordNodeSetEvent(record, event));
    CUevent which;
    CUDA(cuGraphEventRecordNodeGetEvent(record, &which));
    REQUIRE(which == event);
    CUDA(cuGraphAddEventWaitNode(&wait, graph, &record, 1, event));
    CUDA(cuGraphEventWaitNodeSetEvent(wait, other_event));
    CUDA(cuGraphEventWaitNodeGetEvent(wait, &which));
    REQUIRE(which == other_event);
    down.srcDevice = state;
    down.dstHost = result.data();
    down.WidthInBytes = STATE * sizeof(uint32_t);
    CUDA(cuGraphAddMemcpyNode(&out, graph, &wait, 1, &down, context));

    // Memory of the graph's own, by every way to ask for it.
    CUDA_MEM_ALLOC_NODE_PARAMS own = {}, own_told;
    own.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    own.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    own.poolProps.location.id = device;
    own.bytesize = 1024;
    CUgraph with_memory;
    CUgraphNode allocate, release;
    CUDA(cuGraphCreate(&with_memory, 0));
    CUDA(cuGraphAddMemAllocNode(&allocate, with_memory, nullptr, 0, &own));
    CUDA(cuGraphMemAllocNodeGetParams(allocate, &own_told));
    REQUIRE(own_told.dptr == own.dptr && own_told.bytesize == 1024);
    REFUSED(cuGraphClone(&with_memory, with_memory), CUDA_ERROR_NOT_SUPPORTED);
    CUgraphExec memory_exec;
    CUDA(cuGraphInstantiate(&memory_exec, with_memory, 0));
    CUDA(cuGraphLaunch(memory_exec, stream));
    cuuint64_t used;
    CUDA(cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
    REQUIRE(used >= 1024);
    REFUSED(cuGraphLaunch(memory_exec, stream), CUDA_ERROR_INVALID_VALUE);
    CUDA(cuMemFreeAsync(own.dptr, stream));
    CUDA(cuGraphLaunch(memory_exec, stream));
    CUDA(cuStreamSynchronize(stream));
    CUDA(cuMemFree(own.dptr));
    CUDA(cuGraphExecDestroy(memory_exec));
    CUDA(cuGraphDestroy(with_memory));
    CUDA(cuGraphCreate(&with_memory, 0));
    CUDA(cuGraphAddMemAllocNode(&allocate, with_memory, nullptr, 0, &own));
    CUDA(cuGraphAddMemFreeNode(&release, with_memory, &allocate, 1, own.dptr));
    CUdeviceptr freed;
    CUDA(cuGraphMemFreeNodeGetParams(release, &freed));
    REQUIRE(freed == own.dptr);
    CUDA(cuGraphDestroy(with_memory));
    CUDA(cuDeviceGraphMemTrim(device));
    used = 0;
    CUDA(cuDeviceSetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));

    std::string dot = "graph_calls.dot";
    CUDA(cuGraphDebugDotPrint(graph, dot.c_str(), CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
    FILE *drawing = fopen(dot.c_str(), "r");
    char line[256] = "";
    REQUIRE(drawing != nullptr && fgets(line, sizeof line, drawing) != nullptr && strncmp(line, "digraph", 7) == 0);
    fclose(drawing);
    remove(dot.c_str());

    // A parent with the graph as its child is what runs.
    CUgraph parent, inner;
    CUgraphNode child, copied;
    CUDA(cuGraphCreate(&parent, 0));
    CUDA(cuGraphAddChildGraphNode(&child, parent, nullptr, 0, graph));
    CUDA(cuGraphChildGraphNodeGetGraph(child, &inner));
    CUDA(cuGraphNodeFindInClone(&copied, run, inner));
    REQUIRE(type_of(copied) == CU_GRAPH_NODE_TYPE_KERNEL && nodes_of(inner) == nodes_of(graph));
    auto in_child = [&](CUgraphNode node) {
        CUgraphNode found;
        CUDA(cuGraphNodeFindInClone(&found, node, inner));
        return found;
    };
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {};
    how.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    how.hUploadStream = stream;
    CUDA(cuGraphInstantiateWithParams(&exec, parent, &how));
    REQUIRE(how.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
    cuuint64_t flags;
    CUDA(cuGraphExecGetFlags(exec, &flags));
    REQUIRE(!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
    CUDA(cuGraphUpload(exec, stream));
    CUDA(cuEventRecord(other_event, stream));

    uint32_t sum = 0, fill = 2, made = 0;
    bool enabled = true;
    for (step = 1; step <= steps; step++) {
        key = guest::mix(step, work);
        kernel.kernelParams = arguments;
        CUDA(cuGraphExecKernelNodeSetParams(exec, in_child(run), &kernel));
        switch (step % 6) {
        case 0:
            counting.userData = &other_calls;
            CUDA(cuGraphExecHostNodeSetParams(exec, in_child(host), &counting));
            break;
        case 1:
            filling.value = fill = guest::mix(step, 1);
            CUDA(cuGraphExecMemsetNodeSetParams(exec, in_child(set), &filling, context));
            break;
        case 2:
            CUDA(cuGraphExecEventRecordNodeSetEvent(exec, in_child(record), event));
            CUDA(cuGraphExecEventWaitNodeSetEvent(exec, in_child(wait), other_event));
            CUDA(cuGraphExecMemcpyNodeSetParams(exec, in_child(in), &up, context));
            break;
        case 3: {
            CUgraphNodeParams host_params = {};
            host_params.type = CU_GRAPH_NODE_TYPE_HOST;
            host_params.host.fn = count;
            host_params.host.userData = &calls;
            CUDA(cuGraphExecNodeSetParams(exec, in_child(host), &host_params));
            CUDA(cuGraphNodeSetParams(host, &host_params));
            break;
        }
        case 4: {
            enabled = !enabled;
            unsigned is = 2;
            CUDA(cuGraphNodeSetEnabled(exec, in_child(set), enabled));
            CUDA(cuGraphNodeGetEnabled(exec, in_child(set), &is));
            REQUIRE(is == enabled);
            break;
        }
        case 5: {
            // The child as a whole, then the parent as a whole; both know nothing of the last changes but these.
            CUDA(cuGraphKernelNodeSetParams(run, &kernel));
            filling.value = fill;
            CUDA(cuGraphMemsetNodeSetParams(set, &filling));
            counting.userData = &calls;
            CUDA(cuGraphHostNodeSetParams(host, &counting));
            CUDA(cuGraphExecChildGraphNodeSetParams(exec, child, graph));
            CUgraph again;
            CUgraphNode only;
            CUgraphExecUpdateResultInfo info;
            CUDA(cuGraphCreate(&again, 0));
            CUDA(cuGraphAddChildGraphNode(&only, again, nullptr, 0, graph));
            CUDA(cuGraphExecUpdate(exec, again, &info));
            REQUIRE(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
            CUDA(cuGraphDestroy(again));
            break;
        }
        }
        if (!enabled) {
            CUDA(cuMemsetD32Async(memory, fill, 4, stream));
            // On an H200 (driver 580) what follows a disabled node in a graph may run before what the stream did before the graph.
            CUDA(cuStreamSynchronize(stream));
        }
        CUDA(cuGraphLaunch(exec, stream));
        CUDA(cuEventSynchronize(event));
        CUDA(cuStreamSynchronize(stream));
        for (int i = 0; i < STATE; i++) expected[i] = guest::mix_rounds(expected[i] + key, step + i, work);
        guest::require(memcmp(result.data(), expected.data(), STATE * sizeof(uint32_t)) == 0, "the state", step);
        guest::require(word == fill, "the word that was set", step);
        guest::require(calls + other_calls == ++made, "the calls of the host", step);
        REQUIRE(type_of(in_child(run)) == CU_GRAPH_NODE_TYPE_KERNEL);
        sum = guest::fold(sum, result.data(), STATE);
        sum = guest::mix(sum, word + other_calls);
        guest::progress(step, steps, sum);
    }
    CUDA(cuGraphExecDestroy(exec));
    CUDA(cuGraphDestroy(parent));
    CUDA(cuGraphDestroy(graph));
    CUDA(cuCtxSynchronize());
    CUDA(cuCtxDestroy(context));
    return guest::done(sum);
}
