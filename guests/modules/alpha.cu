// A module that is loaded first and unloaded early; its table is larger than what others share a reservation with.
#include "../guest.cuh"

extern "C" {
__device__ uint32_t alpha_table[1 << 16];

__global__ void alpha_fill(uint32_t seed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    alpha_table[i] = guest::mix(seed, i);
}

__global__ void alpha_sum(uint32_t *out, int count) {
    uint32_t sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += alpha_table[i];
    atomicAdd(out, sum);
}
}
