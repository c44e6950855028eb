// Diffuses heat over a square grid, tile by tile in shared memory; the host diffuses a copy.
#include "guest.cuh"

constexpr int SIDE = 192;
constexpr int TILE = 16;

// Additions and one multiplication: nothing a compiler may fuse, so host and device agree to the bit.
__host__ __device__ float average(float centre, float north, float south, float east, float west) {
    return 0.2f * ((north + south) + (east + west) + centre);
}

__global__ void diffuse(const float *in, float *out) {
    __shared__ float tile[TILE + 2][TILE + 2];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    auto at = [&](int column, int row) {
        return column < 0 || row < 0 || column >= SIDE || row >= SIDE ? 0.0f : in[row * SIDE + column];
    };
    tile[ty][tx] = at(x, y);
    if (threadIdx.x == 0) tile[ty][0] = at(x - 1, y);
    if (threadIdx.x == TILE - 1) tile[ty][TILE + 1] = at(x + 1, y);
    if (threadIdx.y == 0) tile[0][tx] = at(x, y - 1);
    if (threadIdx.y == TILE - 1) tile[TILE + 1][tx] = at(x, y + 1);
    __syncthreads();
    out[y * SIDE + x] =
        average(tile[ty][tx], tile[ty - 1][tx], tile[ty + 1][tx], tile[ty][tx + 1], tile[ty][tx - 1]);
}

void diffuse_on_host(const std::vector<float> &in, std::vector<float> &out) {
    auto at = [&](int x, int y) {
        return x < 0 || y < 0 || x >= SIDE || y >= SIDE ? 0.0f : in[y * SIDE + x];
    };
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            out[y * SIDE + x] = average(at(x, y), at(x, y - 1), at(x, y + 1), at(x + 1, y), at(x - 1, y));
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 8);
    constexpr size_t BYTES = SIDE * SIDE * sizeof(float);
    std::vector<float> host(SIDE * SIDE), next(SIDE * SIDE), got(SIDE * SIDE);
    for (int i = 0; i < SIDE * SIDE; i++) host[i] = float(guest::mix(7, i) % 1000);

    float *a, *b;
    CUDA(cudaMalloc(&a, BYTES));
    CUDA(cudaMalloc(&b, BYTES));
    CUDA(cudaMemcpy(a, host.data(), BYTES, cudaMemcpyHostToDevice));
    dim3 blocks(SIDE / TILE, SIDE / TILE), threads(TILE, TILE);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        for (int k = 0; k < work; k++) {
            diffuse<<<blocks, threads>>>(a, b);
            LAUNCHED();
            std::swap(a, b);
            diffuse_on_host(host, next);
            std::swap(host, next);
        }
        if (!guest::report_at(step, steps)) continue;
        CUDA(cudaMemcpy(got.data(), a, BYTES, cudaMemcpyDeviceToHost));
        guest::require(got == host, "the grid differs from the host's", step);
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    return guest::done(sum);
}
