// Nodes of the rarer kinds: copies to, from and between arrays, operations on words of memory, and a child that is the graph itself
// with memory of its own; added and captured, changed in the executable graph, and updated from a graph whose nodes were made in
// another order.
#include <atomic>
#include <cstring>

#include "driver.cuh"

constexpr uint32_t WIDTH = 16, ROWS = 4, WORDS = WIDTH * ROWS;
constexpr size_t ROW = WIDTH * sizeof(uint32_t), BYTES = WORDS * sizeof(uint32_t);

#define REFUSED(call) guest::require((call) != CUDA_SUCCESS, #call " is refused", __LINE__)

__global__ void stir(uint32_t *values, const uint32_t *word, int rounds) {
    values[threadIdx.x] = guest::mix_rounds(values[threadIdx.x], *word, rounds);
}

__global__ void add(uint32_t *to, const uint32_t *values) {
    for (uint32_t i = 0; i < WORDS; i++) to[i] += values[i];
}

static CUdeviceptr address(const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

static CUDA_MEMCPY3D box() {
    CUDA_MEMCPY3D copy = {};
    copy.WidthInBytes = ROW;
    copy.Height = ROWS;
    copy.Depth = 1;
    return copy;
}

static CUarray array() {
    CUDA_ARRAY3D_DESCRIPTOR desc = {};
    desc.Width = WIDTH;
    desc.Height = ROWS;
    desc.Format = CU_AD_FORMAT_UNSIGNED_INT32;
    desc.NumChannels = 1;
    CUarray made;
    CUDA(cuArray3DCreate(&made, &desc));
    return made;
}

static CUstreamBatchMemOpParams write_word(const void *word, uint32_t value) {
    CUstreamBatchMemOpParams params = {};
    params.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    params.writeValue.address = address(word);
    params.writeValue.value = value;
    return params;
}

static CUstreamBatchMemOpParams wait_for(const void *word, uint32_t value) {
    CUstreamBatchMemOpParams params = {};
    params.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    params.waitValue.address = address(word);
    params.waitValue.value = value;
    params.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return params;
}

// A graph with memory of its own: a copy of the values is stirred once more, and added to the sums.
static CUgraph with_memory(CUdevice device, CUfunction stirring, CUfunction adding, const uint32_t *values,
                           const uint32_t *word, uint32_t *sums, int work) {
    CUgraph graph;
    CUgraphNode allocate, copy, first, second, release;
    CUDA(cuGraphCreate(&graph, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {};
    memory.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    memory.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    memory.poolProps.location.id = device;
    memory.bytesize = BYTES;
    CUDA(cuGraphAddMemAllocNode(&allocate, graph, nullptr, 0, &memory));
    CUDA_MEMCPY3D from = box();
    from.srcMemoryType = from.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    from.srcDevice = address(values);
    from.dstDevice = memory.dptr;
    from.srcPitch = from.dstPitch = ROW;
    CUDA(cuGraphAddMemcpyNode(&copy, graph, &allocate, 1, &from, nullptr));
    uint32_t *own = reinterpret_cast<uint32_t *>(memory.dptr);
    void *stir_arguments[] = {&own, &word, &work}, *add_arguments[] = {&sums, &own};
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = stirring;
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    params.blockDimX = WORDS;
    params.kernelParams = stir_arguments;
    CUDA(cuGraphAddKernelNode(&first, graph, &copy, 1, &params));
    params.func = adding;
    params.blockDimX = 1;
    params.kernelParams = add_arguments;
    CUDA(cuGraphAddKernelNode(&second, graph, &first, 1, &params));
    CUDA(cuGraphAddMemFreeNode(&release, graph, &second, 1, memory.dptr));
    return graph;
}

// Two fills that a third node waits for, in either order of making: the fill of 1 is the first that it waits for.
static CUgraph two_fills(CUcontext context, const uint32_t *to, uint32_t value, bool other_way) {
    CUgraph graph;
    CUgraphNode fills[2], end;
    CUDA(cuGraphCreate(&graph, 0));
    for (int i = 0; i < 2; i++) {
        int which = other_way ? 1 - i : i;
        CUDA_MEMSET_NODE_PARAMS fill = {};
        fill.dst = address(to + which);
        fill.elementSize = 4;
        fill.value = value + which;
        fill.width = fill.height = 1;
        CUDA(cuGraphAddMemsetNode(&fills[which], graph, nullptr, 0, &fill, context));
    }
    CUDA(cuGraphAddEmptyNode(&end, graph, fills, 2));
    return graph;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 16);
    uint32_t *values, *sums, *marks, *shared;
    CUDA(cudaMalloc(&values, BYTES));
    CUDA(cudaMalloc(&sums, BYTES));
    CUDA(cudaMalloc(&marks, 4096));
    CUDA(cudaHostAlloc(&shared, 4096, cudaHostAllocMapped));
    memset(shared, 0, 4096);
    CUDA(cudaMemset(sums, 0, BYTES));
    CUDA(cudaMemset(marks, 0, 4096));
    CUDA(cudaDeviceSynchronize());
    CUcontext context;
    CUdevice device;
    CUDA(cuCtxGetCurrent(&context));
    CUDA(cuCtxGetDevice(&device));
    CUfunction stirring, adding;
    CUDA(cudaGetFuncBySymbol(&stirring, reinterpret_cast<void *>(stir)));
    CUDA(cudaGetFuncBySymbol(&adding, reinterpret_cast<void *>(add)));
    CUarray one = array(), other = array();
    CUstream stream;
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    auto *seen = reinterpret_cast<std::atomic<uint32_t> *>(shared), *go = seen + 1;
    uint32_t *word = shared + 2;

    // Ordinary memory to an array, to the other, to the device; a word is told to the host and another waited for; the kernel; and all the way back.
    std::vector<uint32_t> input(WORDS), output(WORDS), expected(WORDS, 0), total(WORDS, 0), sum_now(WORDS);
    CUgraph graph;
    CUgraphNode in, across, down, tell, run, child, up, out;
    CUDA(cuGraphCreate(&graph, 0));
    CUDA_MEMCPY3D copy = box();
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = input.data();
    copy.srcPitch = ROW;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = one;
    CUDA(cuGraphAddMemcpyNode(&in, graph, nullptr, 0, &copy, context));
    copy = box();
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = one;
    copy.dstArray = other;
    CUDA(cuGraphAddMemcpyNode(&across, graph, &in, 1, &copy, context));
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcArray = other;
    copy.dstArray = nullptr;
    copy.dstDevice = address(values);
    copy.dstPitch = ROW;
    CUDA(cuGraphAddMemcpyNode(&down, graph, &across, 1, &copy, context));
    CUDA_MEMCPY3D told;
    CUDA(cuGraphMemcpyNodeGetParams(across, &told));
    guest::require(told.srcArray == one && told.dstArray == other && told.WidthInBytes == ROW, "what a node copies", -1);

    CUstreamBatchMemOpParams operations[] = {write_word(shared, 0), wait_for(go, 0)};
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch = {context, 2, operations, 0}, batch_told;
    CUDA(cuGraphAddBatchMemOpNode(&tell, graph, &down, 1, &batch));
    CUDA(cuGraphBatchMemOpNodeGetParams(tell, &batch_told));
    guest::require(batch_told.count == 2 && batch_told.paramArray[1].waitValue.address == address(go), "a batch", -1);
    // Not from the array that the node owns: the driver frees that before it reads from it.
    CUDA(cuGraphBatchMemOpNodeSetParams(tell, &batch));
    const uint32_t *device_word = word;
    void *arguments[] = {&values, &device_word, &work};
    CUDA_KERNEL_NODE_PARAMS kernel = {};
    kernel.func = stirring;
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.blockDimX = WORDS;
    kernel.kernelParams = arguments;
    CUDA(cuGraphAddKernelNode(&run, graph, &tell, 1, &kernel));
    CUgraph moved = with_memory(device, stirring, adding, values, device_word, sums, work);
    REFUSED(cuGraphAddChildGraphNode(&child, graph, &run, 1, moved));
    CUgraphNodeParams owned = {};
    owned.type = CU_GRAPH_NODE_TYPE_GRAPH;
    owned.graph.graph = moved;
    owned.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    CUDA(cuGraphAddNode(&child, graph, &run, nullptr, 1, &owned));
    CUgraph inside;
    CUDA(cuGraphChildGraphNodeGetGraph(child, &inside));
    guest::require(inside == moved, "the child is the graph itself", -1);
    REFUSED(cuGraphDestroy(moved));
    CUgraphExec exec;
    REFUSED(cuGraphInstantiate(&exec, moved, 0));
    copy = box();
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = address(values);
    copy.srcPitch = ROW;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = one;
    CUDA(cuGraphAddMemcpyNode(&up, graph, &child, 1, &copy, context));
    copy = box();
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = one;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = output.data();
    copy.dstPitch = ROW;
    CUDA(cuGraphAddMemcpyNode(&out, graph, &up, 1, &copy, context));
    CUDA(cuGraphInstantiate(&exec, graph, 0));
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = address(values);
    copy.srcPitch = ROW;
    REFUSED(cuGraphExecMemcpyNodeSetParams(exec, out, &copy, context));

    // The same kinds captured: an array to ordinary memory, a word written and waited for.
    CUgraph captured;
    CUgraphExec captured_exec;
    std::vector<uint32_t> second(WORDS);
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUDA(cuStreamWriteValue32(stream, address(marks + 2), 77, CU_STREAM_WRITE_VALUE_DEFAULT));
    CUDA(cuStreamWaitValue32(stream, address(marks + 2), 77, CU_STREAM_WAIT_VALUE_EQ));
    CUDA_MEMCPY2D flat = {};
    flat.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    flat.srcArray = one;
    flat.dstMemoryType = CU_MEMORYTYPE_HOST;
    flat.dstHost = second.data();
    flat.dstPitch = ROW;
    flat.WidthInBytes = ROW;
    flat.Height = ROWS;
    CUDA(cuMemcpy2DAsync(&flat, stream));
    CUDA(cuStreamEndCapture(stream, &captured));
    CUDA(cuGraphInstantiate(&captured_exec, captured, 0));

    CUgraph fills = two_fills(context, marks, 0, false);
    CUgraphExec fills_exec;
    CUDA(cuGraphInstantiate(&fills_exec, fills, 0));

    uint32_t sum = 0;
    for (uint32_t step = 1; step <= uint32_t(steps); step++) {
        for (uint32_t i = 0; i < WORDS; i++) input[i] = expected[i] + i;
        *word = step;
        operations[0] = write_word(shared, step);
        operations[1] = wait_for(go, step);
        CUDA(cuGraphExecBatchMemOpNodeSetParams(exec, tell, &batch));
        // Before the launch: the driver may copy ordinary memory in it, behind the wait.
        go->store(step);
        CUDA(cuGraphLaunch(exec, stream));
        CUDA(cuGraphLaunch(captured_exec, stream));
        // Made in the other order every other time; the first edge decides which is which.
        CUgraph update = two_fills(context, marks, 2 * step, step % 2);
        CUgraphExecUpdateResultInfo info;
        CUDA(cuGraphExecUpdate(fills_exec, update, &info));
        CUDA(cuGraphDestroy(update));
        CUDA(cuGraphLaunch(fills_exec, stream));
        CUDA(cuStreamSynchronize(stream));
        for (uint32_t i = 0; i < WORDS; i++) {
            expected[i] = guest::mix_rounds(input[i], step, work);
            total[i] += guest::mix_rounds(expected[i], step, work);
        }
        guest::require(seen->load() == step, "the graph tells the host", step);
        guest::require(output == expected && second == expected, "what came back through the arrays", step);
        CUDA(cudaMemcpy(sum_now.data(), sums, BYTES, cudaMemcpyDeviceToHost));
        guest::require(sum_now == total, "what the child added", step);
        uint32_t fill[3];
        CUDA(cudaMemcpy(fill, marks, sizeof fill, cudaMemcpyDeviceToHost));
        guest::require(fill[0] == 2 * step && fill[1] == 2 * step + 1 && fill[2] == 77, "the words that were set", step);
        sum = guest::fold(sum, output.data(), WORDS);
        guest::progress(int(step), steps, sum);
    }
    return guest::done(sum);
}
