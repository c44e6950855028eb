// Kernels of the software device's tests. kernels.ptx is what nvcc 13.0 makes of this file:
//   nvcc -std=c++17 -arch=compute_90 -ptx kernels.cu
#include <cassert>

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_awbarrier_primitives.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;
using u32 = unsigned;
using u64 = unsigned long long;

extern "C" {

// Lanes leave the loop at different times.
__global__ void collatz(u32* steps, u32 n) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 value = i + 1;
    u32 count = 0;
    while (value != 1) {
        value = value & 1 ? 3 * value + 1 : value / 2;
        ++count;
    }
    steps[i] = count;
}

// Every thread of every block takes the same lock.
__device__ int lock_word = 0;
__global__ void spin_lock(u32* counter, u32 rounds) {
    for (u32 i = 0; i < rounds; ++i) {
        bool done = false;
        while (!done) {
            if (atomicCAS(&lock_word, 0, 1) == 0) {
                __threadfence();
                volatile u32* value = counter;
                *value = *value + 1;
                __threadfence();
                atomicExch(&lock_word, 0);
                done = true;
            }
        }
    }
}

// Each block waits for the one after it, which starts later.
__global__ void wait_for_next(volatile u32* flags, u32 blocks) {
    if (threadIdx.x == 0) {
        if (blockIdx.x + 1 < blocks) {
            while (flags[blockIdx.x + 1] == 0) {
            }
        }
        flags[blockIdx.x] = blocks - blockIdx.x;
    }
}

__global__ void block_sum(const float* in, float* out, u32 n) {
    extern __shared__ float tile[];
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? in[i] : 0.0f;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) tile[threadIdx.x] += tile[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = tile[0];
}

__global__ void warp_ops(u32* out) {
    u32 t = threadIdx.x;
    u32* o = out + t * 16;
    o[0] = __shfl_down_sync(~0u, t * 10, 3, 16);
    o[1] = __shfl_up_sync(~0u, t * 10, 1, 8);
    o[2] = __shfl_xor_sync(~0u, t * 10, 5);
    o[3] = __shfl_sync(~0u, t * 10, 7, 8);
    o[4] = __ballot_sync(~0u, t % 3 == 0);
    o[5] = __any_sync(~0u, t == 77) * 2 + __all_sync(~0u, t < 99);
    o[6] = __match_any_sync(~0u, t / 5);
    int same;
    o[7] = __match_all_sync(~0u, 42, &same);
    o[8] = same;
    o[9] = __reduce_add_sync(~0u, t);
    o[10] = __reduce_max_sync(~0u, (int)t - 20);
    // Lanes that took different ways meet in a shuffle.
    u32 mask = t % 2 ? 0xaaaaaaaau : 0x55555555u;
    if (t % 2) {
        o[11] = __shfl_sync(mask, t, (t + 2) % 32);
    } else {
        o[11] = __shfl_sync(mask, t + 100, (t + 2) % 32);
    }
    o[12] = __activemask();
    cg::coalesced_group odd = cg::coalesced_threads();
    o[13] = odd.size();
    auto quad = cg::tiled_partition<4>(cg::this_thread_block());
    o[14] = cg::reduce(quad, t, cg::plus<u32>());
    o[15] = __syncthreads_count(t % 7 == 0);
}

// Part of the warp ends before the rest shuffles.
__global__ void early_exit(u32* out) {
    u32 t = threadIdx.x;
    if (t >= 20) return;
    out[t] = __shfl_down_sync(~0u, t, 1) + (__ballot_sync(~0u, 1) & 0xfffff);
}

__global__ void histogram(const unsigned char* data, u32* bins, u32 n) {
    __shared__ u32 local[64];
    if (threadIdx.x < 64) local[threadIdx.x] = 0;
    __syncthreads();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[data[i] / 4], 1);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

__global__ void atomics(u32* u, int* s, float* f, double* d, u64* l, __half2* h) {
    u32 t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&u[0], t);
    atomicMax(&u[1], t);
    atomicMin(&u[2], t);
    atomicInc(&u[3], 99);
    atomicDec(&u[4], 50);
    atomicAnd(&u[5], ~(1u << (t % 32)));
    atomicOr(&u[6], 1u << (t % 32));
    atomicXor(&u[7], t);
    atomicMin(&s[0], (int)t - 500);
    atomicMax(&s[1], (int)t - 500);
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
    atomicMax(l, (u64)t << 33);
    atomicAdd(h, __floats2half2_rn(0.0f, 0.5f));
}

__device__ __noinline__ u32 ackermann(u32 m, u32 n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

__global__ void recursion(u32* out) { out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x % 5); }

struct Pair {
    double a;
    u32 b;
};

__device__ __noinline__ Pair twice(Pair p) { return Pair{p.a * 2, p.b * 2}; }
__device__ __noinline__ Pair half_of(Pair p) { return Pair{p.a / 2, p.b / 2}; }
__device__ __noinline__ Pair add_one(Pair p) { return Pair{p.a + 1, p.b + 1}; }
__device__ Pair (*const table[3])(Pair) = {twice, half_of, add_one};
__device__ Pair (*chosen)(Pair) = half_of;

__global__ void indirect(double* a, u32* b, Pair first) {
    u32 t = threadIdx.x;
    Pair p{first.a + t, first.b + t};
    p = table[t % 3](p);
    p = chosen(p);
    a[t] = p.a;
    b[t] = p.b;
}

// Local arrays with run-time indices, and their generic addresses.
__device__ __noinline__ void fill(int* where, int n, int seed) {
    for (int i = 0; i < n; ++i) where[i] = seed * i;
}

__global__ void locals(int* out) {
    int t = threadIdx.x;
    int mine[20];
    __shared__ int ours[64];
    fill(mine, 20, t);
    fill(ours, 64, 3);
    __syncthreads();
    int* either = t & 1 ? mine : ours;
    out[t] = mine[t % 20] + either[t % 16] + ours[63 - t % 64];
}

__global__ void switches(int* out) {
    int t = threadIdx.x;
    int value;
    switch (t % 9) {
        case 0: value = t * 3; break;
        case 1: value = t - 100; break;
        case 2: value = t ^ 0x55; break;
        case 3: value = t << 4; break;
        case 4: value = -t; break;
        case 5: value = t * t; break;
        case 6: value = t / 3; break;
        case 7: value = t % 4; break;
        default: value = 0;
    }
    out[t] = value;
}

__constant__ float weights[4] = {0.5f, 1.5f, -2.0f, 0.25f};
__device__ float bias = 3.0f;
__device__ float* const bias_address = &bias;

__global__ void symbols(float* out) {
    int t = threadIdx.x;
    out[t] = weights[t % 4] * t + *bias_address;
}

__global__ void halves(const float* in, float* out, u32 n) {
    u32 i = threadIdx.x;
    if (i >= n) return;
    __half h = __float2half_rn(in[i]);
    __nv_bfloat16 b = __float2bfloat16_rn(in[i]);
    out[4 * i] = __half2float(h);
    out[4 * i + 1] = __bfloat162float(b);
    out[4 * i + 2] = __half2float(__hfma(h, h, __float2half_rn(1.0f)));
    out[4 * i + 3] = __half2float(__hmul(h, __float2half_rn(3.0f)));
}

__global__ void mathematics(const double* in, double* out, u32 n) {
    u32 i = threadIdx.x;
    if (i >= n) return;
    double x = in[i];
    float f = (float)x;
    double* o = out + 12 * i;
    o[0] = sin(x), o[1] = exp(x), o[2] = log(fabs(x) + 1), o[3] = pow(fabs(x), 1.7), o[4] = sqrt(fabs(x));
    o[5] = sinf(f), o[6] = expf(f), o[7] = logf(fabsf(f) + 1), o[8] = powf(fabsf(f), 1.7f), o[9] = tanhf(f);
    o[10] = floor(x) + ceil(x) + rint(x) + trunc(x) + round(x), o[11] = fmod(x, 0.7) + erf(x) + cbrt(x);
}

// All blocks of the grid meet.
__global__ void grid_sync(u32* values, u32* sums) {
    cg::grid_group grid = cg::this_grid();
    u32 rank = grid.thread_rank(), size = grid.size();
    for (u32 round = 0; round < 4; ++round) {
        values[rank] = rank + round;
        grid.sync();
        if (threadIdx.x == 0) atomicAdd(&sums[round], values[(rank + size / 2) % size]);
        grid.sync();
    }
}

__global__ void print(int n) {
    if (threadIdx.x < n) printf("thread %d of %u: %5.2f %s %c %llx\n", threadIdx.x, blockDim.x, threadIdx.x * 0.5, "text", 'a' + threadIdx.x, 1ull << 40);
}

__global__ void fails_assert(int limit) { assert(threadIdx.x < limit); }

__global__ void traps() { __trap(); }

__global__ void misaligned(char* where) { *(int*)(where + 1) = 3; }

// Warps that never meet.
__global__ void deadlock() {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
    else asm volatile("bar.sync 2, 64;");
}

// Producer and consumer warps with named barriers.
__global__ void named_barriers(u32* out) {
    __shared__ u32 box[32];
    u32 lane = threadIdx.x % 32;
    for (u32 round = 0; round < 8; ++round) {
        if (threadIdx.x < 32) {
            box[lane] = lane * round;
            asm volatile("bar.arrive 1, 64;" ::: "memory");
            asm volatile("bar.sync 2, 64;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            out[round * 32 + lane] = box[31 - lane];
            asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
}

// Threads that do not wait where they arrive.
__global__ void split_barrier(u32* out) {
    __shared__ __mbarrier_t barrier;
    __shared__ u32 box[96];
    u32 t = threadIdx.x, n = blockDim.x, sum = 0;
    if (t == 0) __mbarrier_init(&barrier, n);
    __syncthreads();
    for (u32 round = 1; round <= 5; ++round) {
        box[t] = t * round;
        __mbarrier_token_t written = __mbarrier_arrive(&barrier);
        sum += round;
        while (!__mbarrier_test_wait(&barrier, written)) {
        }
        sum += box[(t + 1) % n];
        __mbarrier_token_t read = __mbarrier_arrive(&barrier);
        while (!__mbarrier_try_wait(&barrier, read, 1000)) {
        }
    }
    out[t] = sum;
}

__global__ void matmul(const float* a, const float* b, float* c, u32 n) {
    __shared__ float as[16][16], bs[16][16];
    u32 x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    float sum = 0;
    for (u32 k = 0; k < n; k += 16) {
        as[threadIdx.y][threadIdx.x] = a[y * n + k + threadIdx.x];
        bs[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + x];
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 16; ++i) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
        __syncthreads();
    }
    c[y * n + x] = sum;
}

}  // extern "C"
