// Diffuses heat over tiles, each of which one block keeps in shared memory for many rounds, with barriers between reading and writing; the host
// diffuses copies.
#include "guest.cuh"

constexpr int TILES = 16;
constexpr int SIDE = 16;
constexpr int CELLS = SIDE * SIDE;

// Additions and one multiplication: nothing a compiler may fuse, so host and device agree to the bit.
__host__ __device__ float average(float centre, float north, float south, float east, float west) {
    return 0.2f * ((north + south) + (east + west) + centre);
}

// A tile's edges meet, so that nothing gets lost.
template <class Tile>
__host__ __device__ float next(const Tile &tile, int x, int y) {
    int east = (x + 1) % SIDE, west = (x + SIDE - 1) % SIDE, south = (y + 1) % SIDE, north = (y + SIDE - 1) % SIDE;
    return average(tile[y][x], tile[north][x], tile[south][x], tile[y][east], tile[y][west]);
}

__global__ void diffuse(float *cells, int rounds, float *greatest) {
    __shared__ float tile[SIDE][SIDE];
    int x = threadIdx.x, y = threadIdx.y;
    float *cell = cells + blockIdx.x * CELLS + y * SIDE + x;
    tile[y][x] = *cell;
    float most = 0.0f;
    __syncthreads();
    for (int round = 0; round < rounds; round++) {
        float value = next(tile, x, y);
        __syncthreads();
        // A source that wanders, so that it never gets even.
        if ((round + blockIdx.x) % CELLS == y * SIDE + x) value += 64.0f;
        tile[y][x] = value;
        most = value > most ? value : most;
        __syncthreads();
#pragma CPT
    }
    *cell = tile[y][x];
    greatest[blockIdx.x * CELLS + y * SIDE + x] = most;
}

void diffuse_on_host(float *cells, int rounds, int block, float *greatest) {
    float tile[SIDE][SIDE], values[SIDE][SIDE];
    for (int i = 0; i < CELLS; i++) tile[i / SIDE][i % SIDE] = cells[i], greatest[i] = 0.0f;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < CELLS; i++) values[i / SIDE][i % SIDE] = next(tile, i % SIDE, i / SIDE);
        int source = (round + block) % CELLS;
        values[source / SIDE][source % SIDE] += 64.0f;
        for (int i = 0; i < CELLS; i++) {
            float value = tile[i / SIDE][i % SIDE] = values[i / SIDE][i % SIDE];
            if (value > greatest[i]) greatest[i] = value;
        }
    }
    for (int i = 0; i < CELLS; i++) cells[i] = tile[i / SIDE][i % SIDE];
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 900);
    constexpr int N = TILES * CELLS;
    std::vector<float> wanted(N), greatest(N), got(N), got_greatest(N);
    for (int i = 0; i < N; i++) wanted[i] = float(guest::mix(7, i) % 1000);
    float *cells, *most;
    CUDA(cudaMalloc(&cells, N * sizeof(float)));
    CUDA(cudaMalloc(&most, N * sizeof(float)));
    CUDA(cudaMemcpy(cells, wanted.data(), N * sizeof(float), cudaMemcpyHostToDevice));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        diffuse<<<TILES, dim3(SIDE, SIDE)>>>(cells, work, most);
        LAUNCHED();
        bool is_checked = guest::checked_at(step, steps);
        for (int tile = 0; is_checked && tile < TILES; tile++)
            diffuse_on_host(&wanted[tile * CELLS], work, tile, &greatest[tile * CELLS]);
        CUDA(cudaMemcpy(got.data(), cells, N * sizeof(float), cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(got_greatest.data(), most, N * sizeof(float), cudaMemcpyDeviceToHost));
        guest::require(!is_checked || got == wanted, "the cells", step);
        guest::require(!is_checked || got_greatest == greatest, "their greatest values", step);
        wanted = got;
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(cells));
    CUDA(cudaFree(most));
    return guest::done(sum);
}
