// CRUM's synthetic benchmark: two vectors of random floats, and their dot product again and again. Arguments: GiB in all (32), where they lie
// (managed or device), how many products (600). Prints each; every one must be the same, since sums are of integers.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.cuh"

typedef unsigned long long u64;

// Between 0 and 1, with as many random bits as a float keeps.
__global__ void fill(float *vector, size_t count, u64 seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        u64 x = (i + seed) * 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        vector[i] = (float)((x ^ (x >> 31)) >> 40) / (1 << 24);
    }
}

// In units of 2^-20, so that the order of additions does not show.
__global__ void dot(const float *a, const float *b, size_t count, u64 *sum) {
    u64 own = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        own += (u64)(a[i] * b[i] * (1 << 20));
    atomicAdd(sum, own);
}

int main(int argc, char **argv) {
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 32) << 29, count = bytes / sizeof(float);
    bool managed = argc <= 2 || !strcmp(argv[2], "managed");
    int products = argc > 3 ? atoi(argv[3]) : 600;
    float *a, *b;
    u64 *sum, first = 0;
    for (float **vector : {&a, &b}) CHECK(managed ? cudaMallocManaged(vector, bytes) : cudaMalloc(vector, bytes));
    CHECK(cudaMalloc(&sum, sizeof *sum));
    fill<<<1024, 256>>>(a, count, 1);
    fill<<<1024, 256>>>(b, count, 2);
    for (int i = 0; i < products; i++) {
        u64 now;
        auto begin = std::chrono::steady_clock::now();
        CHECK(cudaMemset(sum, 0, sizeof *sum));
        dot<<<1024, 256>>>(a, b, count, sum);
        CHECK(cudaMemcpy(&now, sum, sizeof now, cudaMemcpyDeviceToHost));
        double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (i == 0) first = now;
        if (now != first) {
            fprintf(stderr, "product %d is %llu, the first was %llu\n", i, now, first);
            return 1;
        }
        printf("%d: %.6f in %.3f ms\n", i, now / (double)(1 << 20), seconds * 1e3);
        fflush(stdout);
    }
    return 0;
}
