// Builds a graph node by node: kernels, copies from and to ordinary memory, rows, sets, host functions, events, a child, memory of
// its own; launches it in a loop, changes its nodes, disables some, updates it from a copy. The host computes the same.
#include <cstring>

#include "guest.cuh"

constexpr int N = 1 << 10;
constexpr size_t BYTES = N * sizeof(uint32_t);
constexpr int ROWS = 8, WIDTH = 16;

__host__ __device__ uint32_t stir(uint32_t value, uint32_t key, int i, int work) {
    return guest::mix_rounds(value, key + i, work);
}

__global__ void stir_all(uint32_t *buffer, const uint32_t *key, uint32_t salt, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = stir(buffer[i], key[i % WIDTH] + salt, i, work);
}

__global__ void add(uint32_t *buffer, const uint32_t *scratch, uint32_t factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] += scratch[i] * factor;
}

struct Tally {
    uint32_t calls, weight;
};

void CUDART_CB tally(void *data) {
    auto t = static_cast<Tally *>(data);
    t->calls += t->weight;
}

struct Nodes {
    cudaGraphNode_t upload, rows, stir, alloc, set, add, free_, child, record, wait, host, download;
};

cudaGraphNode_t kernel(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, void *function, void **params) {
    cudaKernelNodeParams p = {};
    p.func = function;
    p.gridDim = dim3(N / 128);
    p.blockDim = dim3(128);
    p.kernelParams = params;
    cudaGraphNode_t node;
    CUDA(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &p));
    return node;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    uint32_t *buffer, *key, *pinned;
    CUDA(cudaMalloc(&buffer, BYTES));
    CUDA(cudaMalloc(&key, WIDTH * sizeof(uint32_t)));
    CUDA(cudaHostAlloc(&pinned, BYTES, cudaHostAllocDefault));
    CUDA(cudaMemset(buffer, 0, BYTES));
    size_t pitch;
    uint32_t *table;
    CUDA(cudaMallocPitch(&table, &pitch, WIDTH * sizeof(uint32_t), ROWS));
    std::vector<uint32_t> source(WIDTH * ROWS), result(N), rows(WIDTH * ROWS);
    static Tally t = {0, 1}, t2 = {0, 100};
    cudaStream_t stream, other;
    cudaEvent_t passed;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&passed, cudaEventDisableTiming));

    // ordinary memory -> table (pitched) -> key; stir; own memory: set to a pattern, added; child stirs again; out to ordinary memory.
    cudaGraph_t graph, child;
    Nodes n;
    CUDA(cudaGraphCreate(&graph, 0));
    CUDA(cudaGraphCreate(&child, 0));
    uint32_t salt = 7, child_salt = 11, factor = 3;
    void *stir_params[] = {&buffer, &key, &salt, &work};
    void *child_params[] = {&buffer, &key, &child_salt, &work};
    kernel(child, {}, (void *)stir_all, child_params);

    cudaMemcpy3DParms up = {};
    up.srcPtr = make_cudaPitchedPtr(source.data(), WIDTH * sizeof(uint32_t), WIDTH, ROWS);
    up.dstPtr = make_cudaPitchedPtr(table, pitch, WIDTH, ROWS);
    up.extent = make_cudaExtent(WIDTH * sizeof(uint32_t), ROWS, 1);
    up.kind = cudaMemcpyHostToDevice;
    CUDA(cudaGraphAddMemcpyNode(&n.upload, graph, nullptr, 0, &up));
    CUDA(cudaGraphAddMemcpyNode1D(&n.rows, graph, &n.upload, 1, key, reinterpret_cast<char *>(table) + 3 * pitch,
                                  WIDTH * sizeof(uint32_t), cudaMemcpyDeviceToDevice));
    n.stir = kernel(graph, {n.rows}, (void *)stir_all, stir_params);

    cudaMemAllocNodeParams own = {};
    own.poolProps.allocType = cudaMemAllocationTypePinned;
    own.poolProps.location = {cudaMemLocationTypeDevice, 0};
    own.bytesize = BYTES;
    CUDA(cudaGraphAddMemAllocNode(&n.alloc, graph, nullptr, 0, &own));
    auto scratch = static_cast<uint32_t *>(own.dptr);
    cudaMemsetParams set = {};
    set.dst = scratch;
    set.elementSize = 4;
    set.value = 0x01020304;
    set.width = N;
    set.height = 1;
    CUDA(cudaGraphAddMemsetNode(&n.set, graph, &n.alloc, 1, &set));
    void *add_params[] = {&buffer, &scratch, &factor};
    n.add = kernel(graph, {n.stir, n.set}, (void *)add, add_params);
    CUDA(cudaGraphAddMemFreeNode(&n.free_, graph, &n.add, 1, scratch));
    CUDA(cudaGraphAddChildGraphNode(&n.child, graph, &n.add, 1, child));
    CUDA(cudaGraphAddEventRecordNode(&n.record, graph, &n.child, 1, passed));
    cudaHostNodeParams host = {tally, &t};
    CUDA(cudaGraphAddHostNode(&n.host, graph, &n.record, 1, &host));
    CUDA(cudaGraphAddMemcpyNode1D(&n.download, graph, &n.host, 1, result.data(), buffer, BYTES, cudaMemcpyDeviceToHost));

    size_t count;
    CUDA(cudaGraphGetNodes(graph, nullptr, &count));
    guest::require(count == 11, "eleven nodes", 0);
    CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    guest::require(count == 10, "ten edges", 0);
    cudaGraphNodeType type;
    CUDA(cudaGraphNodeGetType(n.child, &type));
    guest::require(type == cudaGraphNodeTypeGraph, "the child is one", 0);
    cudaGraph_t inner;
    cudaGraphNode_t inner_node;
    CUDA(cudaGraphChildGraphNodeGetGraph(n.child, &inner));
    count = 1;
    CUDA(cudaGraphGetNodes(inner, &inner_node, &count));
    cudaKernelNodeParams got = {};
    CUDA(cudaGraphKernelNodeGetParams(n.stir, &got));
    guest::require(got.func == (void *)stir_all && *static_cast<uint32_t *>(got.kernelParams[2]) == salt,
                   "a node tells its kernel and its arguments", 0);

    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphUpload(exec, stream));

    // A graph of its own for the updates: the same, as a clone changes.
    cudaGraph_t plain, clone;
    CUDA(cudaGraphCreate(&plain, 0));
    cudaGraphNode_t first = kernel(plain, {}, (void *)stir_all, stir_params);
    cudaGraphNode_t second = kernel(plain, {first}, (void *)stir_all, child_params);
    cudaGraphExec_t plain_exec;
    CUDA(cudaGraphInstantiate(&plain_exec, plain, 0));

    std::vector<uint32_t> expected(N, 0);
    uint32_t sum = 0, weight = 1, calls = 0, plain_salts[2] = {salt, child_salt};
    bool enabled = true;
    for (int step = 1; step <= steps; step++) {
        for (int i = 0; i < WIDTH * ROWS; i++) source[i] = guest::mix(step, i);
        if (step % 5 == 0) {
            salt = guest::mix(step, 1);
            cudaKernelNodeParams p = {};
            p.func = (void *)stir_all;
            p.gridDim = dim3(N / 128);
            p.blockDim = dim3(128);
            p.kernelParams = stir_params;
            CUDA(cudaGraphExecKernelNodeSetParams(exec, n.stir, &p));
            child_salt = guest::mix(step, 2);
            p.kernelParams = child_params;
            CUDA(cudaGraphExecKernelNodeSetParams(exec, inner_node, &p));
        }
        if (step % 7 == 0) {
            weight = weight == 1 ? 100 : 1;
            cudaHostNodeParams h = {tally, weight == 1 ? &t : &t2};
            CUDA(cudaGraphExecHostNodeSetParams(exec, n.host, &h));
        }
        if (step % 6 == 0) {
            enabled = !enabled;
            CUDA(cudaGraphNodeSetEnabled(exec, n.add, enabled));
        }
        if (step % 4 == 0) {
            set.value = guest::mix(step, 3);
            CUDA(cudaGraphExecMemsetNodeSetParams(exec, n.set, &set));
        }
        if (step % 9 == 0) {
            // A clone with other arguments updates the second graph.
            CUDA(cudaGraphClone(&clone, plain));
            cudaGraphNode_t same;
            CUDA(cudaGraphNodeFindInClone(&same, second, clone));
            uint32_t changed = plain_salts[1] = guest::mix(step, 4);
            void *params[] = {&buffer, &key, &changed, &work};
            cudaKernelNodeParams p = {};
            CUDA(cudaGraphKernelNodeGetParams(same, &p));
            p.kernelParams = params;
            CUDA(cudaGraphKernelNodeSetParams(same, &p));
            cudaGraphExecUpdateResultInfo info;
            CUDA(cudaGraphExecUpdate(plain_exec, clone, &info));
            CUDA(cudaGraphDestroy(clone));
        }
        // What is disabled delivers nothing to ordinary memory; then everything goes on.
        if (step % 10 == 0) {
            cudaGraphNode_t only;
            cudaGraph_t delivery;
            cudaGraphExec_t delivers;
            uint32_t word = 0xdead, zero = 0;
            CUDA(cudaGraphCreate(&delivery, 0));
            CUDA(cudaGraphAddMemcpyNode1D(&only, delivery, nullptr, 0, &word, key, sizeof word, cudaMemcpyDeviceToHost));
            CUDA(cudaGraphInstantiate(&delivers, delivery, 0));
            for (unsigned on : {0u, 1u}) {
                CUDA(cudaGraphNodeSetEnabled(delivers, only, on));
                CUDA(cudaGraphLaunch(delivers, stream));
                CUDA(cudaStreamSynchronize(stream));
                CUDA(cudaMemcpy(&zero, key, sizeof zero, cudaMemcpyDeviceToHost));
                guest::require(word == (on ? zero : 0xdead), "only an enabled node delivers", step);
            }
            CUDA(cudaGraphExecDestroy(delivers));
            CUDA(cudaGraphDestroy(delivery));
        }
        CUDA(cudaGraphLaunch(exec, stream));
        CUDA(cudaStreamWaitEvent(other, passed, 0));
        CUDA(cudaMemcpyAsync(pinned, buffer, BYTES, cudaMemcpyDeviceToHost, other));
        CUDA(cudaStreamSynchronize(other));
        CUDA(cudaStreamSynchronize(stream));
        calls += weight;
        for (int i = 0; i < N; i++) {
            uint32_t k = source[3 * WIDTH + i % WIDTH], value = stir(expected[i], k + salt, i, work);
            if (enabled) value += set.value * factor;
            expected[i] = stir(value, k + child_salt, i, work);
        }
        guest::require(memcmp(result.data(), expected.data(), BYTES) == 0, "the buffer in ordinary memory", step);
        guest::require(memcmp(pinned, expected.data(), BYTES) == 0, "the buffer behind the event", step);
        guest::require(t.calls + t2.calls == calls, "the host functions' calls", step);
        CUDA(cudaMemcpy2D(rows.data(), WIDTH * sizeof(uint32_t), table, pitch, WIDTH * sizeof(uint32_t), ROWS,
                          cudaMemcpyDeviceToHost));
        guest::require(rows == source, "the rows", step);
        CUDA(cudaGraphLaunch(plain_exec, stream));
        CUDA(cudaStreamSynchronize(stream));
        for (int i = 0; i < N; i++) {
            uint32_t k = source[3 * WIDTH + i % WIDTH];
            for (uint32_t s : plain_salts) expected[i] = stir(expected[i], k + s, i, work);
        }
        sum = guest::mix(guest::fold(sum, expected.data(), N), calls);
        guest::progress(step, steps, sum);
    }

    // A graph of other form does not fit, and leaves the executable one as it is.
    CUDA(cudaGraphRemoveDependencies(plain, &first, &second, nullptr, 1));
    cudaGraphExecUpdateResultInfo info;
    guest::require(cudaGraphExecUpdate(plain_exec, plain, &info) == cudaErrorGraphExecUpdateFailure &&
                       info.result == cudaGraphExecUpdateErrorTopologyChanged,
                   "another topology is refused", steps);
    cudaGetLastError();
    CUDA(cudaGraphExecDestroy(plain_exec));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(plain));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphDestroy(child));
    CUDA(cudaDeviceGraphMemTrim(0));
    uint64_t reserved = 1;
    CUDA(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &reserved));
    guest::require(reserved == 0, "graphs have given their memory back", steps);
    CUDA(cudaDeviceSynchronize());
    return guest::done(sum);
}
