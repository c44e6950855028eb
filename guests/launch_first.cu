// Begins with a launch, before any call that would make a context; all its memory is a __device__ array.
#include "guest.cuh"

constexpr int N = 1 << 13;

__device__ uint32_t state[N];

__global__ void stir_all(int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    state[i] = guest::mix_rounds(state[i], step + i, work);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 64);
    std::vector<uint32_t> host(N);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        stir_all<<<N / 128, 128>>>(step, work);
        LAUNCHED();
        CUDA(cudaMemcpyFromSymbol(host.data(), state, sizeof state));
        sum = guest::fold(sum, host.data(), N);
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
