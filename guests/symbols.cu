// Keeps its state in __device__ and __constant__ variables, some with initial values, one holding a pointer to another.
#include "guest.cuh"

constexpr int N = 1 << 14;

struct Coefficients {
    uint32_t factor[16];
    uint32_t offset;
};

__constant__ Coefficients coefficients;
__constant__ uint32_t primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__device__ uint32_t state[N];
__device__ uint32_t generation = 41;
__device__ uint32_t *state_alias = state;
static __device__ unsigned long long total;

__host__ __device__ uint32_t advance(uint32_t value, uint32_t generation, const Coefficients &c, uint32_t prime,
                                     int i, int work) {
    for (int k = 0; k < work; k++) value = (value + c.offset) * c.factor[(i + k) % 16] + prime * generation;
    return value;
}

__global__ void advance_all(int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t value = advance(state[i], generation, coefficients, primes[i % 8], i, work);
    state_alias[i] = value;
    atomicAdd(&total, (unsigned long long)value);
}

__global__ void next_generation() { generation++; }

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 64);
    const uint32_t host_primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
    std::vector<uint32_t> host(N), got(N);
    uint32_t *address;
    size_t bytes;
    CUDA(cudaGetSymbolAddress(reinterpret_cast<void **>(&address), state));
    CUDA(cudaGetSymbolSize(&bytes, state));
    guest::require(bytes == N * sizeof(uint32_t), "the size of a symbol", 0);

    uint32_t host_generation = 41, sum = 0;
    unsigned long long host_total = 0;
    for (int step = 1; step <= steps; step++) {
        Coefficients c;
        for (int k = 0; k < 16; k++) c.factor[k] = guest::mix(step, k) | 1;
        c.offset = step;
        CUDA(cudaMemcpyToSymbol(coefficients, &c, sizeof c));
        advance_all<<<N / 256, 256>>>(work);
        LAUNCHED();
        next_generation<<<1, 1>>>();
        LAUNCHED();
        for (int i = 0; i < N; i++) {
            host[i] = advance(host[i], host_generation, c, host_primes[i % 8], i, work);
            host_total += host[i];
        }
        host_generation++;
        if (!guest::report_at(step, steps)) continue;

        uint32_t got_generation;
        unsigned long long got_total;
        CUDA(cudaMemcpyFromSymbol(&got_generation, generation, sizeof got_generation));
        CUDA(cudaMemcpyFromSymbol(&got_total, total, sizeof got_total));
        CUDA(cudaMemcpy(got.data(), address, N * sizeof(uint32_t), cudaMemcpyDeviceToHost));
        guest::require(got_generation == host_generation, "the generation", step);
        guest::require(got_total == host_total, "the total", step);
        guest::require(got == host, "the state", step);
        sum = guest::fold(sum, got.data(), N);
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
