// Sums hashed values with warp shuffles, shared memory and atomics; the host adds up the same values.
#include "guest.cuh"

constexpr int N = 1 << 17;
constexpr int THREADS = 256;

struct Totals {
    unsigned long long sum;
    uint32_t greatest;
    uint32_t parity;
};

__host__ __device__ uint32_t value(int i, int step, int work) { return guest::mix_rounds(i, step, work); }

__global__ void reduce(Totals *totals, int step, int work) {
    __shared__ unsigned long long warps[THREADS / 32];
    int i = blockIdx.x * THREADS + threadIdx.x;
    uint32_t mine = value(i, step, work);
    atomicMax(&totals->greatest, mine);
    atomicXor(&totals->parity, mine);

    unsigned long long sum = mine;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / 32; w++) sum += warps[w];
        atomicAdd(&totals->sum, sum);
    }
}

Totals on_host(int step, int work) {
    Totals totals{};
    for (int i = 0; i < N; i++) {
        uint32_t v = value(i, step, work);
        totals.sum += v;
        totals.greatest = v > totals.greatest ? v : totals.greatest;
        totals.parity ^= v;
    }
    return totals;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 4);
    Totals *totals;
    CUDA(cudaMalloc(&totals, sizeof *totals));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        CUDA(cudaMemset(totals, 0, sizeof *totals));
        reduce<<<N / THREADS, THREADS>>>(totals, step, work);
        LAUNCHED();
        Totals got;
        CUDA(cudaMemcpy(&got, totals, sizeof got, cudaMemcpyDeviceToHost));
        if (guest::report_at(step, steps)) {
            Totals wanted = on_host(step, work);
            guest::require(got.sum == wanted.sum, "the sum", step);
            guest::require(got.greatest == wanted.greatest, "the maximum", step);
            guest::require(got.parity == wanted.parity, "the parity", step);
        }
        sum = guest::fold(sum, &got, 1);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(totals));
    return guest::done(sum);
}
