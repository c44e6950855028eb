// A module with a global that others hold the address of.
#include "../guest.cuh"

extern "C" {
__device__ uint32_t beta_state[1 << 12] = {0xbe7a};
__constant__ uint32_t beta_key = 1;

__global__ void beta_advance(int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    beta_state[i] = guest::mix_rounds(beta_state[i] + beta_key, step + i, work);
}

// Leaves the address of this module's global in somebody else's memory.
__global__ void beta_tell(uint32_t **where) { *where = beta_state; }
}
