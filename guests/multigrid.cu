// Smooths a grid in V-cycles, on integers. Each cycle allocates scratch, a level at a time, keeps every iterate of the finest grid in it, mixes all of
// them into the result, and frees it again: there is little memory between cycles and much within them. The host does the same, and mixes at once, while
// the device holds all that it has made: most of the time there is much memory, however slow the device is.
#include "guest.cuh"

constexpr int SIDE = 512;
constexpr int LEVELS = 5;
constexpr int FIELDS = 3;

__host__ __device__ uint32_t smoothed(const uint32_t *u, const uint32_t *f, int side, int i) {
    int x = i % side, y = i / side, last = side - 1;
    uint32_t west = u[y * side + (x == 0 ? last : x - 1)], east = u[y * side + (x == last ? 0 : x + 1)];
    uint32_t north = u[(y == 0 ? last : y - 1) * side + x], south = u[(y == last ? 0 : y + 1) * side + x];
    return (west ^ east) + (north ^ south) + 5 * u[i] + f[i];
}

__host__ __device__ uint32_t coarse(const uint32_t *fine, int side, int i) {
    int x = i % side, y = i / side;
    const uint32_t *corner = fine + 2 * y * (2 * side) + 2 * x;
    return corner[0] + 3 * corner[1] + 5 * corner[2 * side] + 7 * corner[2 * side + 1];
}

__global__ void source(uint32_t *f, int count, uint32_t cycle) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) f[i] = guest::mix(f[i], cycle);
}

__global__ void smooth(const uint32_t *u, const uint32_t *f, uint32_t *out, int side) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < side * side) out[i] = smoothed(u, f, side, i);
}

__global__ void restrict_to(const uint32_t *fine, uint32_t *out, int side) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < side * side) out[i] = coarse(fine, side, i);
}

__global__ void prolong(const uint32_t *coarse, uint32_t *fine, int side) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < side * side) fine[i] += coarse[(i / side / 2) * (side / 2) + i % side / 2];
}

__global__ void combine(const uint32_t *history, uint32_t *u, int count, int iterates) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    uint32_t sum = u[i];
    for (int k = 0; k < iterates; k++) sum = sum * 3 + history[size_t(k) * count + i];
    u[i] = sum;
}

unsigned blocks(int count) { return unsigned((count + 255) / 256); }

using Grid = std::vector<uint32_t>;

void cycle_on_host(Grid &u, Grid &f, int cycle, int sweeps) {
    int count = SIDE * SIDE;
    for (auto &each : f) each = guest::mix(each, uint32_t(cycle));
    Grid mixed(count), next(count);
    uint32_t power = 1;
    for (int k = 0; k < sweeps; k++) {
        for (int i = 0; i < count; i++) next[i] = smoothed(u.data(), f.data(), SIDE, i);
        for (int i = 0; i < count; i++) mixed[i] = ((mixed[i] * 3 + u[i]) * 3 + next[i]) * 3 + f[i];
        power *= 27;
        std::swap(u, next);
    }
    std::vector<Grid> levels{u};
    for (int l = 1; l < LEVELS; l++) {
        int side = SIDE >> l;
        Grid grid(size_t(side) * side);
        for (int i = 0; i < side * side; i++) grid[i] = coarse(levels[l - 1].data(), side, i);
        levels.push_back(grid);
    }
    for (int l = LEVELS - 1; l > 0; l--) {
        int side = SIDE >> (l - 1);
        for (int i = 0; i < side * side; i++)
            levels[l - 1][i] += levels[l][(i / side / 2) * (side / 2) + i % side / 2];
    }
    u = levels[0];
    for (int i = 0; i < count; i++) u[i] = u[i] * power + mixed[i];
}

void cycle_on_both(uint32_t *u, uint32_t *f, Grid &host_u, Grid &host_f, int cycle, int sweeps) {
    int count = SIDE * SIDE;
    size_t bytes = count * sizeof(uint32_t);
    source<<<blocks(count), 256>>>(f, count, uint32_t(cycle));
    LAUNCHED();
    uint32_t *history, *next, *levels[LEVELS] = {u};
    CUDA(cudaMalloc(&history, FIELDS * sweeps * bytes));
    CUDA(cudaMalloc(&next, bytes));
    for (int k = 0; k < sweeps; k++) {
        uint32_t *kept = history + size_t(FIELDS) * k * count;
        CUDA(cudaMemcpyAsync(kept, u, bytes, cudaMemcpyDeviceToDevice));
        smooth<<<blocks(count), 256>>>(u, f, next, SIDE);
        LAUNCHED();
        CUDA(cudaMemcpyAsync(kept + count, next, bytes, cudaMemcpyDeviceToDevice));
        CUDA(cudaMemcpyAsync(kept + 2 * size_t(count), f, bytes, cudaMemcpyDeviceToDevice));
        CUDA(cudaMemcpyAsync(u, next, bytes, cudaMemcpyDeviceToDevice));
    }
    for (int l = 1; l < LEVELS; l++) {
        int side = SIDE >> l;
        CUDA(cudaMalloc(&levels[l], size_t(side) * side * sizeof(uint32_t)));
        restrict_to<<<blocks(side * side), 256>>>(levels[l - 1], levels[l], side);
        LAUNCHED();
    }
    for (int l = LEVELS - 1; l > 0; l--) {
        int side = SIDE >> (l - 1);
        prolong<<<blocks(side * side), 256>>>(levels[l], levels[l - 1], side);
        LAUNCHED();
        CUDA(cudaFree(levels[l]));
    }
    CUDA(cudaDeviceSynchronize());
    cycle_on_host(host_u, host_f, cycle, sweeps);
    combine<<<blocks(count), 256>>>(history, u, count, FIELDS * sweeps);
    LAUNCHED();
    // A checkpoint waits for the call that the program is in: it shall not be the one after these.
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(next));
    CUDA(cudaFree(history));
}

int main(int argc, char **argv) {
    auto [cycles, sweeps] = guest::args(argc, argv, 8, 24);
    int count = SIDE * SIDE;
    size_t bytes = count * sizeof(uint32_t);
    Grid u(count), f(count), got(count);
    for (int i = 0; i < count; i++) u[i] = guest::mix(3, i), f[i] = guest::mix(5, i);
    uint32_t *on_device, *source_term;
    CUDA(cudaMalloc(&on_device, bytes));
    CUDA(cudaMalloc(&source_term, bytes));
    CUDA(cudaMemcpy(on_device, u.data(), bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(source_term, f.data(), bytes, cudaMemcpyHostToDevice));
    uint32_t sum = 0;
    for (int cycle = 1; cycle <= cycles; cycle++) {
        cycle_on_both(on_device, source_term, u, f, cycle, sweeps);
        CUDA(cudaMemcpy(got.data(), on_device, bytes, cudaMemcpyDeviceToHost));
        guest::require(got == u, "the grid differs from the host's", cycle);
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(cycle, cycles, sum);
    }
    CUDA(cudaFree(on_device));
    CUDA(cudaFree(source_term));
    return guest::done(sum);
}
