// CRUM's worst case (section 4.3 of the paper): millions of short kernels, one after the other. `many_kernels [COUNT [MICROSECONDS]]`;
// prints the seconds from the first CUDA call to the last, and what one kernel took of them.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "check.cuh"

__global__ void spin(unsigned long long *count, unsigned long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
    if (threadIdx.x == 0) *count += 1;
}

int main(int argc, char **argv) {
    long long kernels = argc > 1 ? atoll(argv[1]) : 9000000, microseconds = argc > 2 ? atoll(argv[2]) : 20;
    auto begin = std::chrono::steady_clock::now();
    unsigned long long *device, count = 0;
    CHECK(cudaMalloc(&device, sizeof *device));
    CHECK(cudaMemset(device, 0, sizeof *device));
    for (long long i = 0; i < kernels; i++) spin<<<1, 32>>>(device, microseconds * 1000);
    CHECK(cudaMemcpy(&count, device, sizeof count, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(device));
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (count != (unsigned long long)kernels) {
        fprintf(stderr, "%llu kernels have run, not %lld\n", count, kernels);
        return 1;
    }
    printf("%lld kernels of %lld us in %.3f s: %.3f us each\n", kernels, microseconds, seconds, seconds * 1e6 / kernels);
    return 0;
}
