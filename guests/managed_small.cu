// Thousands of small managed regions, each with a struct of its own, allocated, freed and allocated again while kernels and the host work on all of them.
#include <cstring>

#include "guest.cuh"

struct Cell {
    uint32_t value;
    uint32_t words[7];
};

__global__ void stir(Cell **cells, int count, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    Cell *cell = cells[i];
    cell->value = guest::mix(cell->value, step + i);
    cell->words[cell->value % 7] += step;
}

static void stir_here(Cell &cell, int i, int step) {
    cell.value = guest::mix(cell.value, step + i);
    cell.words[cell.value % 7] += step;
}

static Cell *fresh(uint32_t value) {
    Cell *cell;
    CUDA(cudaMallocManaged(&cell, sizeof *cell));
    *cell = {value, {}};
    return cell;
}

int main(int argc, char **argv) {
    auto [steps, count] = guest::args(argc, argv, 60, 2000);
    Cell **cells;
    CUDA(cudaMallocManaged(&cells, count * sizeof *cells));
    std::vector<Cell> expected(count);
    for (int i = 0; i < count; i++) {
        cells[i] = fresh(i);
        expected[i] = {uint32_t(i), {}};
    }
    guest::Random random{7};
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        stir<<<(count + 127) / 128, 128>>>(cells, count, step);
        LAUNCHED();
        CUDA(cudaDeviceSynchronize());
        for (int i = 0; i < count; i++) stir_here(expected[i], i, step);
        for (int turn = 0; turn < count / 50; turn++) {
            int i = random.below(count);
            // Replaced by one that may be where the last one was.
            if (turn % 2 == 0) {
                CUDA(cudaFree(cells[i]));
                cells[i] = fresh(step);
                expected[i] = {uint32_t(step), {}};
            } else {
                stir_here(*cells[i], i, step);
                stir_here(expected[i], i, step);
            }
        }
        for (int i = 0; i < count; i++) {
            guest::require(memcmp(cells[i], &expected[i], sizeof(Cell)) == 0, "a region", step);
            sum = guest::mix(sum, cells[i]->value);
        }
        guest::progress(step, steps, sum);
    }
    for (int i = 0; i < count; i++) CUDA(cudaFree(cells[i]));
    CUDA(cudaFree(cells));
    return guest::done(sum);
}
