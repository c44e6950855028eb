// Adds to parts of 4 MiB of device memory, ten milliseconds apart, and leaves the processor to others meanwhile: `paced [STEPS [KERNELS]]`.
// Whoever only wants to know what it prints has it make no pauses, by GUEST_IN_A_HURRY in its environment.
#include <chrono>
#include <thread>

#include "guest.cuh"

constexpr int N = 1 << 20;

__global__ void fill(uint32_t *words) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    words[i] = guest::mix(3, i);
}

// A part of them, which moves.
__global__ void add(uint32_t *words, int first, uint32_t value) {
    words[(first + blockIdx.x * blockDim.x + threadIdx.x) % N] += value;
}

int main(int argc, char **argv) {
    auto [steps, kernels] = guest::args(argc, argv, 250, 1);
    constexpr int PART = 1 << 12;
    std::chrono::milliseconds pause(getenv("GUEST_IN_A_HURRY") ? 0 : 10);
    uint32_t *words;
    CUDA(cudaMalloc(&words, N * sizeof *words));
    fill<<<N / 256, 256>>>(words);
    LAUNCHED();
    std::vector<uint32_t> host(N), expected(N);
    for (int i = 0; i < N; i++) expected[i] = guest::mix(3, i);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        for (int k = 0; k < kernels; k++) {
            int first = guest::mix(step, k) % N;
            add<<<PART / 256, 256>>>(words, first, step);
            LAUNCHED();
            for (int i = 0; i < PART; i++) expected[(first + i) % N] += step;
        }
        std::this_thread::sleep_for(pause);
        if (!guest::report_at(step, steps)) continue;
        CUDA(cudaMemcpy(host.data(), words, N * sizeof *words, cudaMemcpyDeviceToHost));
        guest::require(host == expected, "the words differ from the host's", step);
        sum = guest::fold(sum, host.data(), PART);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(words));
    return guest::done(sum);
}
