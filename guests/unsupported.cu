// Asks for something rare (an external semaphore), takes the refusal as programs should, and goes on without.
#include "guest.cuh"

constexpr int N = 1 << 12;

__global__ void stir_all(uint32_t *buffer, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix(buffer[i], step + i);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 10, 1);
    (void)work;
    uint32_t *buffer;
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    cudaExternalSemaphoreHandleDesc description{};
    description.type = cudaExternalSemaphoreHandleTypeOpaqueFd;
    description.handle.fd = -1;
    cudaExternalSemaphore_t semaphore;
    bool refused = cudaImportExternalSemaphore(&semaphore, &description) != cudaSuccess;
    cudaGetLastError();
    guest::require(refused, "a semaphore that is none is refused", 0);
    std::vector<uint32_t> host(N);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        stir_all<<<N / 128, 128>>>(buffer, step);
        LAUNCHED();
        CUDA(cudaMemcpy(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
