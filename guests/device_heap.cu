// Kernels that allocate for themselves, with malloc and with new: a list for each thread, which grows and shrinks from step to
// step and lives in the device's heap alone. Every node is checked against what the host knows it to hold.
#include "guest.cuh"

constexpr int THREADS = 256;

struct Node {
    Node *next;
    uint32_t value;
    uint32_t count;
    uint32_t *words;
};

__device__ Node *heads[THREADS];
__device__ uint32_t wrong;

__global__ void grow(uint32_t step, uint32_t most) {
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    Node *node = new Node;
    uint32_t count = 1 + guest::mix(step, thread) % most;
    uint32_t *words = static_cast<uint32_t *>(malloc(count * sizeof *words));
    if (node == nullptr || words == nullptr) {
        atomicAdd(&wrong, 1u);
        return;
    }
    for (uint32_t i = 0; i < count; i++) words[i] = guest::mix(step * 31 + thread, i);
    node->value = step;
    node->count = count;
    node->words = words;
    node->next = heads[thread];
    heads[thread] = node;
}

// Adds up what the thread's list holds, checking it.
__global__ void check_all(uint32_t *sums) {
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (Node *node = heads[thread]; node != nullptr; node = node->next) {
        for (uint32_t i = 0; i < node->count; i++) {
            if (node->words[i] != guest::mix(node->value * 31 + thread, i)) atomicAdd(&wrong, 1u);
            sum = guest::mix(sum, node->words[i]);
        }
    }
    sums[thread] = sum;
}

// Keeps the newest nodes and gives the others back.
__global__ void shrink(int keep) {
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    Node **end = &heads[thread];
    for (; keep > 0 && *end != nullptr; keep--) end = &(*end)->next;
    Node *node = *end;
    *end = nullptr;
    while (node != nullptr) {
        Node *next = node->next;
        free(node->words);
        delete node;
        node = next;
    }
}

__global__ void ask_too_much(size_t bytes) {
    if (malloc(bytes) != nullptr) atomicAdd(&wrong, 1u);
    free(nullptr);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 16);
    constexpr size_t HEAP = 32 << 20;
    CUDA(cudaDeviceSetLimit(cudaLimitMallocHeapSize, HEAP));
    size_t heap;
    CUDA(cudaDeviceGetLimit(&heap, cudaLimitMallocHeapSize));
    guest::require(heap >= HEAP, "the heap is as large as was asked for", 0);
    uint32_t *sums, sum = 0, mistakes;
    CUDA(cudaMalloc(&sums, THREADS * sizeof *sums));
    std::vector<uint32_t> host(THREADS);
    guest::Random random{1234};
    for (int step = 1; step <= steps; step++) {
        grow<<<THREADS / 64, 64>>>(step, work);
        LAUNCHED();
        if (random.below(4) == 0) shrink<<<THREADS / 64, 64>>>(int(random.below(6)));
        LAUNCHED();
        ask_too_much<<<1, 1>>>(2 * heap);
        LAUNCHED();
        check_all<<<THREADS / 64, 64>>>(sums);
        LAUNCHED();
        CUDA(cudaMemcpy(host.data(), sums, THREADS * sizeof *sums, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpyFromSymbol(&mistakes, wrong, sizeof mistakes));
        guest::require(mistakes == 0, "every node holds what was put into it", step);
        sum = guest::fold(sum, host.data(), THREADS);
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
