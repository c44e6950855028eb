// Prints from the device and from the host in turn.
#include "guest.cuh"

constexpr int N = 1 << 14;

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

__global__ void tell(const uint32_t *buffer, int step) {
    printf("device: step %3d %s word %08x of %u, half %.3f, wide %llu, sign %+d%c\n", step, step % 2 ? "odd" : "even",
           buffer[step % N], N, step * 0.5, (unsigned long long)buffer[0] << 20, -step, '!');
    if (step % 5 == 0) printf("device: a fifth line, 100%%, pointer to nothing %p\n", (void *)nullptr);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 40);
    uint32_t *buffer;
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    std::vector<uint32_t> host(N);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        stir_all<<<N / 256, 256>>>(buffer, step, work);
        LAUNCHED();
        if (!guest::report_at(step, steps)) continue;
        tell<<<1, 1>>>(buffer, step);
        LAUNCHED();
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(buffer));
    return guest::done(sum);
}
