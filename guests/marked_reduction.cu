// Sums hashed values for many rounds in one kernel, with warp shuffles, shared memory and atomics; and once more by warps alone, which never wait
// for one another. The host adds up the same values.
#include "guest.cuh"

constexpr int BLOCKS = 8;
constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
// So many totals there are, which rounds use in turn.
constexpr int TOTALS = 64;
constexpr unsigned ALL = 0xffffffffu;

struct Total {
    unsigned long long sum;
    uint32_t greatest;
    uint32_t parity;
};

__host__ __device__ uint32_t value(int i, int round, int step) { return guest::mix(guest::mix(i, round), step); }

__global__ void reduce(Total *totals, int step, int rounds) {
    __shared__ unsigned long long warps[WARPS];
    int i = blockIdx.x * THREADS + threadIdx.x;
    for (int round = 0; round < rounds; round++) {
        Total &total = totals[round % TOTALS];
        uint32_t mine = value(i, round, step);
        unsigned long long sum = mine;
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(ALL, sum, offset);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 1; w < WARPS; w++) sum += warps[w];
            atomicAdd(&total.sum, sum);
        }
        atomicMax(&total.greatest, mine);
        __syncthreads();
#pragma CPT
    }
}

__global__ void reduce_by_warps(Total *totals, int step, int rounds) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    uint32_t seen = 0;
    for (int round = 0; round < rounds; round++) {
        uint32_t parity = value(i, round, step);
        for (int offset = 16; offset > 0; offset /= 2) parity ^= __shfl_xor_sync(ALL, parity, offset);
        seen += __popc(__ballot_sync(ALL, parity >> (threadIdx.x % 32) & 1));
        if (threadIdx.x % 32 == 0) atomicXor(&totals[round % TOTALS].parity, parity ^ seen);
#pragma CPT
    }
}

void reduce_on_host(Total *totals, int step, int rounds) {
    for (int warp = 0; warp < BLOCKS * WARPS; warp++) {
        uint32_t seen = 0;
        for (int round = 0; round < rounds; round++) {
            Total &total = totals[round % TOTALS];
            uint32_t parity = 0;
            for (int lane = 0; lane < 32; lane++) {
                uint32_t mine = value(warp * 32 + lane, round, step);
                parity ^= mine;
                total.sum += mine;
                if (mine > total.greatest) total.greatest = mine;
            }
            seen += __builtin_popcount(parity);
            total.parity ^= parity ^ seen;
        }
    }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 3, 1400);
    Total *totals;
    CUDA(cudaMalloc(&totals, TOTALS * sizeof *totals));
    CUDA(cudaMemset(totals, 0, TOTALS * sizeof *totals));
    std::vector<Total> wanted(TOTALS, Total{}), got(TOTALS);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        reduce<<<BLOCKS, THREADS>>>(totals, step, work);
        LAUNCHED();
        reduce_by_warps<<<BLOCKS, THREADS>>>(totals, step, work);
        LAUNCHED();
        bool is_checked = guest::checked_at(step, steps);
        if (is_checked) reduce_on_host(wanted.data(), step, work);
        CUDA(cudaMemcpy(got.data(), totals, TOTALS * sizeof *totals, cudaMemcpyDeviceToHost));
        for (int i = 0; is_checked && i < TOTALS; i++) {
            guest::require(got[i].sum == wanted[i].sum, "a sum", step);
            guest::require(got[i].greatest == wanted[i].greatest, "a maximum", step);
            guest::require(got[i].parity == wanted[i].parity, "a parity", step);
        }
        wanted = got;
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(totals));
    return guest::done(sum);
}
