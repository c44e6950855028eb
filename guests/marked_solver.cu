// Solves systems of equations by iteration, each in one block and all in one launch, however many rounds it takes until nothing moves any more; the
// host solves them in the same order of operations. Built without fused multiplication and addition, so that both agree to the bit.
#include <algorithm>

#include "guest.cuh"

constexpr int SYSTEMS = 48;
constexpr int UNKNOWNS = 128;
constexpr float LIMIT = 1e-4f;

// Jacobi's iteration: x[i] = b[i] + half * (x[i - 1] + x[i + 1]).
template <class X>
__host__ __device__ float next(const X &x, int i, float b, float half) {
    float left = i == 0 ? 0.0f : x[i - 1], right = i == UNKNOWNS - 1 ? 0.0f : x[i + 1];
    return b + half * (left + right);
}

__host__ __device__ bool moves(float from, float to) { return (to > from ? to - from : from - to) > LIMIT; }

__global__ void solve(const float *b, float *solutions, uint32_t *rounds, float half) {
    __shared__ float x[UNKNOWNS];
    int i = threadIdx.x;
    float mine = b[blockIdx.x * UNKNOWNS + i], value = 0.0f;
    x[i] = 0.0f;
    uint32_t count = 0;
    bool any = true;
    while (any) {
        __syncthreads();
        float before = value;
        value = next(x, i, mine, half);
        any = __syncthreads_or(moves(before, value));
        x[i] = value;
        count++;
#pragma CPT
    }
    solutions[blockIdx.x * UNKNOWNS + i] = value;
    if (i == 0) rounds[blockIdx.x] = count;
}

uint32_t solve_on_host(const float *b, float *x, float half) {
    float values[UNKNOWNS];
    for (int i = 0; i < UNKNOWNS; i++) x[i] = 0.0f;
    for (uint32_t count = 1;; count++) {
        bool any = false;
        for (int i = 0; i < UNKNOWNS; i++) {
            values[i] = next(x, i, b[i], half);
            any |= moves(x[i], values[i]);
        }
        std::copy(values, values + UNKNOWNS, x);
        if (!any) return count;
    }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 150);
    // The more work, the slower it converges.
    float half = 0.5f - 0.25f / work;
    constexpr int N = SYSTEMS * UNKNOWNS;
    std::vector<float> b(N), wanted(N), got(N);
    std::vector<uint32_t> wanted_rounds(SYSTEMS), got_rounds(SYSTEMS);
    float *device_b, *solutions;
    uint32_t *rounds;
    CUDA(cudaMalloc(&device_b, N * sizeof(float)));
    CUDA(cudaMalloc(&solutions, N * sizeof(float)));
    CUDA(cudaMalloc(&rounds, SYSTEMS * sizeof(uint32_t)));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        for (int i = 0; i < N; i++) b[i] = float(guest::mix(step, i) % (10 << i / UNKNOWNS % 12)) / 16.0f;
        CUDA(cudaMemcpy(device_b, b.data(), N * sizeof(float), cudaMemcpyHostToDevice));
        solve<<<SYSTEMS, UNKNOWNS>>>(device_b, solutions, rounds, half);
        LAUNCHED();
        bool is_checked = guest::checked_at(step, steps);
        for (int system = 0; is_checked && system < SYSTEMS; system++)
            wanted_rounds[system] = solve_on_host(&b[system * UNKNOWNS], &wanted[system * UNKNOWNS], half);
        CUDA(cudaMemcpy(got.data(), solutions, N * sizeof(float), cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(got_rounds.data(), rounds, SYSTEMS * sizeof(uint32_t), cudaMemcpyDeviceToHost));
        guest::require(!is_checked || got_rounds == wanted_rounds, "how many rounds it took", step);
        guest::require(!is_checked || got == wanted, "a solution", step);
        sum = guest::fold(guest::fold(sum, got.data(), got.size()), got_rounds.data(), got_rounds.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(device_b));
    CUDA(cudaFree(solutions));
    CUDA(cudaFree(rounds));
    return guest::done(sum);
}
