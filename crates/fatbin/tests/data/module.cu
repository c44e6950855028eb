// The module that every fixture in this folder is made of.
#include <cstdio>

#ifndef WIDE
#define WIDE 1000
#endif

struct Wide {
    char bytes[WIDE];
    int last;
};

__device__ int counter;
__device__ float weights[4] = {1.0f, 2.0f, 3.0f, 4.0f};
static __device__ int hidden[7];
__constant__ float taps[5] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
static __constant__ short limits[3];
__managed__ long long total = 5;

extern "C" __global__ void small(char flag, double scale, const float *in, float *out)
{
    hidden[threadIdx.x % 7] += flag;
    out[threadIdx.x] = static_cast<float>(in[threadIdx.x] * scale) * taps[hidden[0] % 5] + weights[limits[1] & 3];
    total += counter;
}

extern "C" __global__ void wide(Wide argument, int *out) { *out = argument.bytes[counter] + argument.last; }

extern "C" __global__ void heap(int **out)
{
    *out = static_cast<int *>(malloc(16));
    printf("%p\n", static_cast<void *>(*out));
}
