// A module that works on another module's memory through an address it finds in memory.
#include "../guest.cuh"

extern "C" {
__device__ uint32_t gamma_calls;

__global__ void gamma_stir(uint32_t **where, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t *state = *where;
    state[i] = guest::mix_rounds(state[i], step * 3 + i, work);
    if (i == 0) gamma_calls++;
}

// Transposes a square of `side` words (a multiple of 16) through dynamic shared memory, in tiles of 16 x 16.
__global__ void gamma_transpose(const uint32_t *in, uint32_t *out, int side, int in_pitch) {
    extern __shared__ uint32_t tile[];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    tile[threadIdx.y * 17 + threadIdx.x] = in[y * in_pitch + x];
    __syncthreads();
    int tx = blockIdx.y * 16 + threadIdx.x, ty = blockIdx.x * 16 + threadIdx.y;
    out[ty * side + tx] = tile[threadIdx.x * 17 + threadIdx.y];
}
}
