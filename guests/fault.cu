// After STEPS good steps a kernel does what none may: `fault [STEPS [WORK [KIND]]]`. The error must come back, and stay: in other
// calls, other threads and other contexts.
#include <cassert>
#include <cstring>
#include <thread>

#include "guest.cuh"

constexpr int N = 1 << 12;

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

__global__ void misaligned(char *buffer) { *reinterpret_cast<uint64_t *>(buffer + 4) = 1; }

__global__ void trapped() { asm volatile("trap;"); }

__global__ void asserted(const uint32_t *buffer) { assert(buffer == nullptr); }

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 64);
    const char *kind = argc > 3 ? argv[3] : "address";
    auto is = [kind](const char *name) { return strcmp(kind, name) == 0; };
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

    if (is("address")) stir_all<<<1, 128>>>(reinterpret_cast<uint32_t *>(0x10), 0, 1);
    if (is("misaligned")) misaligned<<<1, 1>>>(reinterpret_cast<char *>(buffer));
    if (is("trap")) trapped<<<1, 1>>>();
    if (is("assert")) asserted<<<1, 1>>>(buffer);
    // Beside other programs the driver calls a failed assertion a failed launch at times.
    auto told = [assertion = is("assert")](cudaError_t error) {
        return cudaGetErrorName(assertion && error == cudaErrorLaunchFailure ? cudaErrorAssert : error);
    };
    printf("launch: %s\n", told(cudaGetLastError()));
    printf("synchronise: %s\n", told(cudaDeviceSynchronize()));
    printf("malloc: %s\n", told(cudaMalloc(&buffer, 64)));
    std::thread([&] { printf("elsewhere: %s\n", told(cudaMemset(buffer, 0, 64))); }).join();
    printf("copy: %s\n", told(cudaMemcpy(host.data(), buffer, 64, cudaMemcpyDeviceToHost)));
    printf("done sum %08x\n", sum);
    return 5;
}
