// Allocates and frees device memory at random (but the same every time), with a pattern in each allocation that is checked
// before it is freed. The device keeps a table of the addresses too: they must stay what they were.
#include "guest.cuh"

constexpr int SLOTS = 48;

struct Allocation {
    uint32_t *words = nullptr;
    uint32_t count = 0;
    uint32_t seed = 0;
};

__global__ void fill(uint32_t **table, int slot, uint32_t *words, uint32_t count, uint32_t seed) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) table[slot] = words;
    for (; i < count; i += gridDim.x * blockDim.x) words[i] = guest::mix(seed, i);
}

__global__ void check(uint32_t **table, int slot, uint32_t *words, uint32_t count, uint32_t seed, uint32_t *wrong) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0 && table[slot] != words) atomicAdd(wrong, 1u);
    for (; i < count; i += gridDim.x * blockDim.x)
        if (words[i] != guest::mix(seed, i)) atomicAdd(wrong, 1u);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 400, 32);
    guest::Random random{20251121};
    Allocation slots[SLOTS];
    uint32_t **table, *wrong, sum = 0;
    CUDA(cudaMalloc(&table, SLOTS * sizeof *table));
    CUDA(cudaMalloc(&wrong, sizeof *wrong));
    CUDA(cudaMemset(wrong, 0, sizeof *wrong));

    for (int step = 1; step <= steps; step++) {
        int slot = random.below(SLOTS);
        Allocation &a = slots[slot];
        if (a.words) {
            check<<<work, 128>>>(table, slot, a.words, a.count, a.seed, wrong);
            LAUNCHED();
            CUDA(cudaFree(a.words));
            a = {};
        } else {
            // Mostly small, now and then megabytes; never a round number of anything.
            a.count = random.below(16) == 0 ? 1 + random.below(1 << 20) : 1 + random.below(1 << 14);
            a.seed = random.next();
            CUDA(cudaMalloc(&a.words, a.count * sizeof(uint32_t)));
            fill<<<work, 128>>>(table, slot, a.words, a.count, a.seed);
            LAUNCHED();
        }
        sum = guest::mix(guest::mix(sum, slot), a.count);
        if (!guest::report_at(step, steps)) continue;
        uint32_t mistakes;
        CUDA(cudaMemcpy(&mistakes, wrong, sizeof mistakes, cudaMemcpyDeviceToHost));
        guest::require(mistakes == 0, "memory changed under us", step);
        guest::progress(step, steps, sum);
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        Allocation &a = slots[slot];
        if (!a.words) continue;
        check<<<work, 128>>>(table, slot, a.words, a.count, a.seed, wrong);
        LAUNCHED();
        CUDA(cudaFree(a.words));
    }
    uint32_t mistakes;
    CUDA(cudaMemcpy(&mistakes, wrong, sizeof mistakes, cudaMemcpyDeviceToHost));
    guest::require(mistakes == 0, "memory changed under us", steps);
    return guest::done(sum);
}
