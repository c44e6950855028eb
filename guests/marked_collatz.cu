// Counts how long Collatz sequences are: each thread takes as many rounds as its numbers need, and none waits for another. The host counts, too.
#include <algorithm>

#include "guest.cuh"

constexpr int BLOCKS = 16;
constexpr int THREADS = 64;

__host__ __device__ uint64_t collatz(uint64_t n) { return n % 2 == 0 ? n / 2 : 3 * n + 1; }

__global__ void count(uint32_t first, uint32_t numbers, uint32_t *lengths, unsigned long long *longest) {
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < numbers; i += BLOCKS * THREADS) {
        uint64_t n = first + i;
        uint32_t length = 0;
        while (n != 1) {
            for (int k = 0; k < 8 && n != 1; k++, length++) n = collatz(n);
#pragma CPT
        }
        lengths[i] = length;
        atomicMax(longest, (unsigned long long)length << 32 | (first + i));
    }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 100);
    uint32_t numbers = work * BLOCKS * THREADS;
    uint32_t *lengths;
    unsigned long long *longest, wanted_longest = 0, got_longest;
    CUDA(cudaMalloc(&lengths, numbers * sizeof(uint32_t)));
    CUDA(cudaMalloc(&longest, sizeof *longest));
    CUDA(cudaMemset(longest, 0, sizeof *longest));
    std::vector<uint32_t> wanted(numbers), got(numbers);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        uint32_t first = 1 + (step - 1) * numbers;
        count<<<BLOCKS, THREADS>>>(first, numbers, lengths, longest);
        LAUNCHED();
        bool is_checked = guest::checked_at(step, steps);
        for (uint32_t i = 0; is_checked && i < numbers; i++) {
            wanted[i] = 0;
            for (uint64_t n = first + i; n != 1; wanted[i]++) n = collatz(n);
            wanted_longest = std::max(wanted_longest, (unsigned long long)wanted[i] << 32 | (first + i));
        }
        CUDA(cudaMemcpy(got.data(), lengths, numbers * sizeof(uint32_t), cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(&got_longest, longest, sizeof got_longest, cudaMemcpyDeviceToHost));
        guest::require(!is_checked || got == wanted, "a sequence's length", step);
        guest::require(!is_checked || got_longest == wanted_longest, "the longest", step);
        wanted_longest = got_longest;
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(lengths));
    CUDA(cudaFree(longest));
    return guest::done(sum);
}
