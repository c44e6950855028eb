// Stream-ordered memory as PyTorch's cudaMallocAsync backend uses it: the default pool keeps all it has, memory used by several streams
// is freed in a stream that waits for them, a captured graph allocates and frees, and now and then the pool is trimmed and asked.
#include "guest.cuh"

constexpr int STREAMS = 3;

__global__ void stir(uint32_t *words, size_t count, uint32_t seed, int work) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        words[i] = guest::mix_rounds(words[i], seed + uint32_t(i), work);
}

__global__ void gather(const uint32_t *words, size_t count, uint32_t *sum) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        atomicAdd(sum, guest::mix(words[i], uint32_t(i)));
}

struct Tensor {
    uint32_t *words;
    size_t count;
    int home;
    bool shared;
};

static cudaStream_t streams[STREAMS], unifier;

// `dependent` waits for what `dependency` has been given so far.
static void join(cudaStream_t dependency, cudaStream_t dependent) {
    cudaEvent_t event;
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA(cudaEventRecord(event, dependency));
    CUDA(cudaStreamWaitEvent(dependent, event, 0));
    CUDA(cudaEventDestroy(event));
}

static void release(const Tensor &tensor) {
    if (!tensor.shared) {
        CUDA(cudaFreeAsync(tensor.words, streams[tensor.home]));
        return;
    }
    for (cudaStream_t stream : streams) join(stream, unifier);
    CUDA(cudaFreeAsync(tensor.words, unifier));
}

static uint64_t ask(cudaMemPool_t pool, cudaMemPoolAttr which) {
    uint64_t value = 0;
    CUDA(cudaMemPoolGetAttribute(pool, which, &value));
    return value;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 80, 8);
    cudaMemPool_t pool;
    CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
    uint64_t threshold = UINT64_MAX, zero = 0;
    CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    int enable = 1;
    CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseFollowEventDependencies, &enable));
    CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &enable));
    CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &enable));
    for (auto &stream : streams) CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&unifier, cudaStreamNonBlocking));
    uint32_t *sum_on_device, sum = 0;
    CUDA(cudaMallocAsync(&sum_on_device, sizeof sum, streams[0]));
    CUDA(cudaMemsetAsync(sum_on_device, 0, sizeof sum, streams[0]));

    // A graph with memory of its own, part of it used and freed in a second stream that joins again.
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    constexpr size_t OWN = 1 << 14;
    CUDA(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
    uint32_t *one, *two;
    CUDA(cudaMallocAsync(&one, OWN * 4, streams[0]));
    CUDA(cudaMemsetAsync(one, 1, OWN * 4, streams[0]));
    join(streams[0], streams[1]);
    CUDA(cudaMallocAsync(&two, OWN * 4, streams[1]));
    CUDA(cudaMemcpyAsync(two, one, OWN * 4, cudaMemcpyDeviceToDevice, streams[1]));
    stir<<<4, 128, 0, streams[1]>>>(two, OWN, 5, work);
    LAUNCHED();
    gather<<<4, 128, 0, streams[1]>>>(two, OWN, sum_on_device);
    LAUNCHED();
    CUDA(cudaFreeAsync(two, streams[1]));
    join(streams[1], streams[0]);
    CUDA(cudaFreeAsync(one, streams[0]));
    CUDA(cudaStreamEndCapture(streams[0], &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));

    guest::Random random{2718};
    std::vector<Tensor> tensors;
    for (int step = 1; step <= steps; step++) {
        for (int i = 0; i < 4; i++) {
            Tensor made{nullptr, 256 + random.below(1 << 17), int(random.below(STREAMS)), false};
            CUDA(cudaMallocAsync(&made.words, made.count * 4, streams[made.home]));
            CUDA(cudaMemsetAsync(made.words, step, made.count * 4, streams[made.home]));
            tensors.push_back(made);
        }
        for (auto &tensor : tensors) {
            int user = random.below(4) ? tensor.home : int(random.below(STREAMS));
            if (user != tensor.home) {
                tensor.shared = true;
                join(streams[tensor.home], streams[user]);
            }
            stir<<<4, 128, 0, streams[user]>>>(tensor.words, tensor.count, step, work);
            LAUNCHED();
            if (user != tensor.home) join(streams[user], streams[tensor.home]);
        }
        CUDA(cudaGraphLaunch(exec, streams[0]));
        while (tensors.size() > 24) {
            size_t which = random.below(uint32_t(tensors.size()));
            join(streams[tensors[which].home], streams[0]);
            gather<<<4, 128, 0, streams[0]>>>(tensors[which].words, tensors[which].count, sum_on_device);
            LAUNCHED();
            join(streams[0], streams[tensors[which].home]);
            release(tensors[which]);
            tensors.erase(tensors.begin() + which);
        }
        uint32_t now;
        CUDA(cudaMemcpyAsync(&now, sum_on_device, sizeof now, cudaMemcpyDeviceToHost, streams[0]));
        CUDA(cudaStreamSynchronize(streams[0]));
        sum = guest::mix(sum, now);
        if (step % 8 == 0) {
            CUDA(cudaDeviceSynchronize());
            uint64_t used = sizeof sum;
            for (auto &tensor : tensors) used += tensor.count * 4;
            guest::require(ask(pool, cudaMemPoolAttrUsedMemCurrent) >= used, "what is used is counted", step);
            CUDA(cudaMemPoolTrimTo(pool, 0));
            guest::require(ask(pool, cudaMemPoolAttrReservedMemCurrent) >= used, "what is used stays", step);
            CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
            CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &zero));
            guest::require(ask(pool, cudaMemPoolAttrUsedMemHigh) >= used, "the most begins anew", step);
        }
        guest::require(ask(pool, cudaMemPoolAttrReleaseThreshold) == threshold, "the threshold", step);
        guest::progress(step, steps, sum);
    }
    for (auto &tensor : tensors) release(tensor);
    CUDA(cudaFreeAsync(sum_on_device, streams[0]));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemPoolTrimTo(pool, 0));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    return guest::done(sum);
}
