// After STEPS good steps a kernel writes where nothing is. The error must come back, and stay.
#include "guest.cuh"

constexpr int N = 1 << 12;

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 64);
    uint32_t *buffer, sum = 0;
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    std::vector<uint32_t> host(N);
    for (int step = 1; step <= steps; step++) {
        stir_all<<<N / 128, 128>>>(buffer, step, work);
        LAUNCHED();
        CUDA(cudaMemcpy(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        guest::progress(step, steps, sum);
    }

    // A bad configuration is refused at once and spoils nothing.
    stir_all<<<1, 4096>>>(buffer, 0, 1);
    printf("too many threads: %s\n", cudaGetErrorName(cudaGetLastError()));
    printf("after it: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));

    stir_all<<<1, 128>>>(reinterpret_cast<uint32_t *>(0x10), 0, 1);
    printf("launch: %s\n", cudaGetErrorName(cudaGetLastError()));
    printf("synchronise: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    printf("malloc: %s\n", cudaGetErrorName(cudaMalloc(&buffer, 64)));
    printf("done sum %08x\n", sum);
    return 5;
}
