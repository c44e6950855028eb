// What nvcc makes of CUDA C++: source of kernels.ptx, kernels-debug.ptx and kernels-lineinfo.ptx.
#include <cstdio>

struct Pair {
    double weight;
    int count;
};

__device__ int hits;
static __device__ unsigned long long seed = 88172645463325252ull;
__constant__ float taps[5] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
__managed__ int shared_with_host = 7;

__device__ int plus_one(int x) { return x + 1; }
__device__ int twice(int x) { return 2 * x; }
typedef int (*Step)(int);
__device__ Step steps[2] = {plus_one, twice};
__device__ const char *const words[2] = {"odd", "even"};

template <int N> __global__ void blur(const float *in, float *out, int width)
{
    __shared__ float tile[N + 4];
    extern __shared__ float spill[];
    int i = blockIdx.x * N + threadIdx.x;
    tile[threadIdx.x + 2] = i < width ? in[i] : 0.0f;
    if (threadIdx.x < 2) {
        tile[threadIdx.x] = i >= 2 ? in[i - 2] : 0.0f;
        tile[N + 2 + threadIdx.x] = i + N < width ? in[i + N] : 0.0f;
    }
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < 5; ++k) {
        sum += taps[k] * tile[threadIdx.x + k];
    }
    spill[threadIdx.x] = sum;
    if (i < width) {
        out[i] = spill[threadIdx.x];
    }
}
template __global__ void blur<128>(const float *, float *, int);

__global__ void __launch_bounds__(256, 2) tally(Pair pair, const int *values, int n, int kind)
{
    int total = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        switch (kind) {
        case 0: total += values[i]; break;
        case 1: total ^= values[i]; break;
        case 2: total -= values[i]; break;
        case 3: total = max(total, values[i]); break;
        case 4: total = steps[values[i] & 1](total); break;
        case 5: total += __popc(values[i]); break;
        default: total += pair.count; break;
        }
    }
    for (int offset = 16; offset; offset >>= 1) {
        total += __shfl_down_sync(0xffffffffu, total, offset);
    }
    if ((threadIdx.x & 31) == 0) {
        atomicAdd(&hits, total);
        printf("%s %d %f\n", words[total & 1], total, pair.weight);
    }
    asm volatile("{ .reg .pred p; setp.gt.s32 p, %0, 3; @p add.u64 %1, %1, 1; }" : : "r"(total), "l"(seed));
    asm volatile("{ .reg .pred p; setp.lt.s32 p, %0, 3; @p bra DONE; trap; DONE: }" : : "r"(total));
}

__global__ void grow(int **heads, int n)
{
    int *block = static_cast<int *>(malloc(n * sizeof(int)));
    block[threadIdx.x] = shared_with_host + static_cast<int>(seed);
    heads[blockIdx.x] = block;
}
