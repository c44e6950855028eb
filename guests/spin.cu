// A kernel that spins on a word of mapped memory until the host, HOLD milliseconds later, tells it to stop: `spin [HOLD [REST]]`.
// Until then the device is never idle; from then on it is, for REST milliseconds.
#include <chrono>
#include <thread>

#include "guest.cuh"

__global__ void spin(volatile uint32_t *stop, uint32_t *turns) {
    while (*stop == 0) ++*turns;
}

int main(int argc, char **argv) {
    auto [hold, rest] = guest::args(argc, argv, 6000, 1);
    uint32_t *stop, *device_stop, *turns, counted;
    CUDA(cudaHostAlloc(&stop, sizeof *stop, cudaHostAllocMapped));
    CUDA(cudaHostGetDevicePointer(&device_stop, stop, 0));
    CUDA(cudaMalloc(&turns, sizeof *turns));
    CUDA(cudaMemset(turns, 0, sizeof *turns));
    *stop = 0;
    spin<<<1, 1>>>(device_stop, turns);
    LAUNCHED();
    printf("spinning\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(hold));
    __atomic_store_n(stop, 1, __ATOMIC_RELEASE);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(&counted, turns, sizeof counted, cudaMemcpyDeviceToHost));
    guest::require(counted > 0, "the kernel span", 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(rest));
    printf("done\n");
    return 0;
}
