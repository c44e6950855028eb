// A graph of kernels that can stop half-way and of what is around them: two side by side, what waits for both, a copy, a function of the host, and a third, whose
// arguments change and which is left out of some launches. Each step launches it in two streams, of which the second has to wait for the first.
#include <algorithm>

#include "marked_hash.cuh"

__global__ void join(uint32_t *joined, const uint32_t *a, const uint32_t *b) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    joined[i] = guest::mix(guest::mix(joined[i], a[i]), b[i]);
}

// The node that hashes for so many rounds.
cudaGraphNode_t node_of(cudaGraph_t graph, int rounds) {
    size_t count = 0;
    CUDA(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
    for (cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type;
        CUDA(cudaGraphNodeGetType(node, &type));
        if (type != cudaGraphNodeTypeKernel) continue;
        cudaKernelNodeParams params;
        CUDA(cudaGraphKernelNodeGetParams(node, &params));
        bool is_hash = params.func == reinterpret_cast<void *>(hash);
        if (is_hash && *static_cast<int *>(params.kernelParams[1]) == rounds) return node;
    }
    guest::require(false, "a node is not in the graph", 0);
    return nullptr;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 4000);
    constexpr size_t BYTES = N * sizeof(uint32_t);
    const int last_rounds = work / 4;
    std::vector<uint32_t> a(N), b(N), joined(N);
    for (int i = 0; i < N; i++) a[i] = guest::mix(5, i), b[i] = guest::mix(6, i);
    uint32_t *device_a, *device_b, *device_joined, *got;
    for (uint32_t **memory : {&device_a, &device_b, &device_joined}) CUDA(cudaMalloc(memory, BYTES));
    CUDA(cudaMallocHost(&got, BYTES));
    CUDA(cudaMemcpy(device_a, a.data(), BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(device_b, b.data(), BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(device_joined, 0, BYTES));
    cudaStream_t one, other;
    cudaEvent_t begun, done;
    for (cudaStream_t *stream : {&one, &other}) CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    for (cudaEvent_t *event : {&begun, &done}) CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));

    int told = 0;
    CUDA(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaEventRecord(begun, one));
    CUDA(cudaStreamWaitEvent(other, begun, 0));
    hash<<<BLOCKS, THREADS, 0, one>>>(device_a, work);
    LAUNCHED();
    hash<<<BLOCKS, THREADS, 0, other>>>(device_b, work);
    LAUNCHED();
    CUDA(cudaEventRecord(done, other));
    CUDA(cudaStreamWaitEvent(one, done, 0));
    join<<<BLOCKS, THREADS, 0, one>>>(device_joined, device_a, device_b);
    LAUNCHED();
    CUDA(cudaMemcpyAsync(got, device_joined, BYTES, cudaMemcpyDeviceToHost, one));
    CUDA(cudaLaunchHostFunc(one, [](void *told) { ++*static_cast<int *>(told); }, &told));
    hash<<<BLOCKS, THREADS, 0, one>>>(device_a, last_rounds);
    LAUNCHED();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamEndCapture(one, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    cudaGraphNode_t last = node_of(graph, last_rounds);

    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        int rounds = last_rounds + step;
        void *arguments[] = {&device_a, &rounds};
        cudaKernelNodeParams params = {};
        params.func = reinterpret_cast<void *>(hash);
        params.gridDim = dim3(BLOCKS);
        params.blockDim = dim3(THREADS);
        params.kernelParams = arguments;
        CUDA(cudaGraphExecKernelNodeSetParams(exec, last, &params));
        bool is_there = step % 3 != 0;
        CUDA(cudaGraphNodeSetEnabled(exec, last, is_there));
        for (cudaStream_t stream : {one, other}) CUDA(cudaGraphLaunch(exec, stream));
        bool is_checked = guest::checked_at(step, steps);
        for (int launch = 0; is_checked && launch < 2; launch++) {
            hash_on_host(a, work);
            hash_on_host(b, work);
            for (int i = 0; i < N; i++) joined[i] = guest::mix(guest::mix(joined[i], a[i]), b[i]);
            if (is_there) hash_on_host(a, rounds);
        }
        for (cudaStream_t stream : {one, other}) CUDA(cudaStreamSynchronize(stream));
        guest::require(told == 2 * step, "the function was called", step);
        guest::require(!is_checked || std::equal(got, got + N, joined.begin()), "what the graph joins", step);
        std::vector<uint32_t> left(N);
        CUDA(cudaMemcpy(left.data(), device_a, BYTES, cudaMemcpyDeviceToHost));
        guest::require(!is_checked || left == a, "what the last kernel leaves", step);
        if (!is_checked) {
            a = left;
            CUDA(cudaMemcpy(b.data(), device_b, BYTES, cudaMemcpyDeviceToHost));
            joined.assign(got, got + N);
        }
        sum = guest::fold(sum, got, N);
        sum = guest::fold(sum, left.data(), N);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    return guest::done(sum);
}
