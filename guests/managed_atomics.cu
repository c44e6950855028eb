// Processor and device add to the same words of managed memory at the same time, with atomics of system scope, and so does a host function between kernels: none of it
// may be lost. Natively pages move to whoever adds; without Dormouse's --managed=exclusive one side's addition undoes the other's now and then.
#include "guest.cuh"

constexpr int WORDS = 1024, THREADS = 8 * WORDS;

struct Shared {
    uint32_t *words, *called;
};

// Each word gets one from each of `rounds` rounds of eight threads.
__global__ void add(Shared shared, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int round = 0; round < rounds; round++) atomicAdd_system(&shared.words[(i + round) % WORDS], 1u);
    if (i == 0) atomicAdd_system(shared.called, 1u);
}

static void CUDART_CB call(void *data) { __atomic_fetch_add((uint32_t *)data, 1u, __ATOMIC_SEQ_CST); }

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 4);
    Shared shared;
    // Larger than what is coherent by default, and the same in both.
    CUDA(cudaMallocManaged(&shared.words, 4 << 20));
    CUDA(cudaMallocManaged(&shared.called, 4 << 20));
    for (int i = 0; i < WORDS; i++) shared.words[i] = 0;
    *shared.called = 0;
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int step = 0; step < steps; step++) {
        add<<<THREADS / 256, 256, 0, stream>>>(shared, work);
        LAUNCHED();
        CUDA(cudaLaunchHostFunc(stream, call, shared.called));
        add<<<THREADS / 256, 256, 0, stream>>>(shared, work);
        LAUNCHED();
        for (int i = 0; i < WORDS; i++) __atomic_fetch_add(&shared.words[i], 1u, __ATOMIC_SEQ_CST);
        CUDA(cudaStreamSynchronize(stream));
        uint32_t expected = (uint32_t)(step + 1) * (2 * 8 * work + 1);
        for (int i = 0; i < WORDS; i++) guest::require(shared.words[i] == expected, "a word that both sides add to", step);
        guest::require(*shared.called == (uint32_t)(step + 1) * 3, "a word that a host function adds to", step);
        guest::progress(step, steps, shared.words[step % WORDS]);
    }
    return guest::done(shared.words[0]);
}
