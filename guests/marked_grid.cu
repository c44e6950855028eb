// Jacobi's iteration over one grid by all blocks of a cooperative launch, which wait for one another in every round; the host iterates over a copy.
#include <cooperative_groups.h>

#include <algorithm>

#include "guest.cuh"

namespace groups = cooperative_groups;

constexpr int BLOCKS = 4;
constexpr int THREADS = 64;
constexpr int SIDE = 32;
constexpr int CELLS = SIDE * SIDE;

// Additions and one multiplication: nothing a compiler may fuse, so host and device agree to the bit.
__host__ __device__ float next(const float *cells, int i) {
    int x = i % SIDE, y = i / SIDE;
    auto at = [&](int x, int y) { return x < 0 || y < 0 || x >= SIDE || y >= SIDE ? 100.0f : cells[y * SIDE + x]; };
    return 0.25f * ((at(x - 1, y) + at(x + 1, y)) + (at(x, y - 1) + at(x, y + 1)));
}

__global__ void iterate(float *cells, float *spare, int rounds) {
    groups::grid_group grid = groups::this_grid();
    for (int round = 0; round < rounds; round++) {
        for (int i = blockIdx.x * THREADS + threadIdx.x; i < CELLS; i += BLOCKS * THREADS) spare[i] = next(cells, i);
        float *made = spare;
        spare = cells, cells = made;
        grid.sync();
#pragma CPT
    }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 1000);
    constexpr size_t BYTES = CELLS * sizeof(float);
    // What was made last lies where it began.
    int rounds = 2 * work;
    std::vector<float> wanted(CELLS), made(CELLS), got(CELLS);
    for (int i = 0; i < CELLS; i++) wanted[i] = float(guest::mix(9, i) % 100000);
    float *cells, *spare;
    CUDA(cudaMalloc(&cells, BYTES));
    CUDA(cudaMalloc(&spare, BYTES));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        // It would come to rest otherwise.
        for (int i = step; i < CELLS; i += 17) wanted[i] += float(guest::mix(step, i) % 100000);
        CUDA(cudaMemcpy(cells, wanted.data(), BYTES, cudaMemcpyHostToDevice));
        void *args[] = {&cells, &spare, &rounds};
        CUDA(cudaLaunchCooperativeKernel(iterate, dim3(BLOCKS), dim3(THREADS), args, 0, 0));
        bool is_checked = guest::checked_at(step, steps);
        for (int round = 0; is_checked && round < rounds; round++) {
            for (int i = 0; i < CELLS; i++) made[i] = next(wanted.data(), i);
            std::swap(made, wanted);
        }
        CUDA(cudaMemcpy(got.data(), cells, BYTES, cudaMemcpyDeviceToHost));
        guest::require(!is_checked || got == wanted, "the grid", step);
        wanted = got;
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(cells));
    CUDA(cudaFree(spare));
    return guest::done(sum);
}
