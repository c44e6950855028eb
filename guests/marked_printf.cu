// A kernel that prints while it computes: each line is to come once, and in its place, wherever it is stopped.
#include "guest.cuh"

constexpr int N = 64;
constexpr int LINES = 8;

__host__ __device__ uint32_t next(uint32_t own, uint32_t other) { return own * 1664525u + (other >> 7) + 1013904223u; }

__global__ void tell(uint32_t *numbers, int step, int rounds) {
    __shared__ uint32_t row[N];
    uint32_t number = numbers[threadIdx.x];
    for (int line = 1; line <= LINES; line++) {
        for (int round = 0; round < rounds; round++) {
            row[threadIdx.x] = number;
            __syncthreads();
            number = next(number, row[(threadIdx.x + 1) % N]);
            __syncthreads();
#pragma CPT
        }
        if (threadIdx.x == 0) printf("device: step %d line %d of %d number %08x\n", step, line, LINES, number);
    }
    numbers[threadIdx.x] = number;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 300);
    std::vector<uint32_t> host(N);
    for (int i = 0; i < N; i++) host[i] = i;
    uint32_t *numbers, sum = 0;
    CUDA(cudaMalloc(&numbers, N * sizeof *numbers));
    CUDA(cudaMemcpy(numbers, host.data(), N * sizeof *numbers, cudaMemcpyHostToDevice));
    for (int step = 1; step <= steps; step++) {
        tell<<<1, N>>>(numbers, step, work);
        LAUNCHED();
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(host.data(), numbers, N * sizeof *numbers, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(numbers));
    return guest::done(sum);
}
