// A marked kernel that calls a function of another source, with which nvcc links it (-rdc=true). The host computes the same.
#include "marked_linked.cuh"

constexpr int BLOCKS = 4;
constexpr int THREADS = 64;
constexpr int N = BLOCKS * THREADS;

__global__ void work_in_rounds(uint32_t *values, int rounds) {
    assert(gridDim.x == BLOCKS);
    int i = blockIdx.x * THREADS + threadIdx.x;
    uint32_t value = values[i];
    for (int round = 0; round < rounds; round++) {
        value = advance(value, round);
#pragma CPT
    }
    values[i] = value;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 2400);
    std::vector<uint32_t> wanted(N), got(N);
    for (int i = 0; i < N; i++) wanted[i] = guest::mix(1, i);
    uint32_t *values;
    CUDA(cudaMalloc(&values, N * sizeof(uint32_t)));
    CUDA(cudaMemcpy(values, wanted.data(), N * sizeof(uint32_t), cudaMemcpyHostToDevice));
    unsigned long long wanted_calls = 0, got_calls;
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        work_in_rounds<<<BLOCKS, THREADS>>>(values, work);
        LAUNCHED();
        bool is_checked = guest::checked_at(step, steps);
        for (int i = 0; is_checked && i < N; i++) {
            for (int round = 0; round < work; round++) {
                wanted_calls += wanted[i] % 2 == 0;
                wanted[i] = advanced(wanted[i], round);
            }
        }
        CUDA(cudaMemcpy(got.data(), values, N * sizeof(uint32_t), cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpyFromSymbol(&got_calls, even_calls, sizeof got_calls));
        guest::require(!is_checked || got == wanted, "a value", step);
        guest::require(!is_checked || got_calls == wanted_calls, "the number of calls", step);
        wanted = got;
        wanted_calls = got_calls;
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(values));
    return guest::done(sum);
}
