// Multiplies matrices with the shared runtime library (libcudart.so), which lies beside the program.
#include "guest.cuh"

constexpr int SIDE = 64;
constexpr int TILE = 16;

// Powers of a matrix of small integers, in arithmetic modulo 2^32: exact everywhere.
__global__ void multiply(const uint32_t *a, const uint32_t *b, uint32_t *c) {
    __shared__ uint32_t left[TILE][TILE], right[TILE][TILE];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    uint32_t sum = 0;
    for (int t = 0; t < SIDE; t += TILE) {
        left[threadIdx.y][threadIdx.x] = a[y * SIDE + t + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * SIDE + x];
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    c[y * SIDE + x] = sum;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 8);
    constexpr size_t BYTES = SIDE * SIDE * sizeof(uint32_t);
    std::vector<uint32_t> base(SIDE * SIDE), power, next(SIDE * SIDE), got(SIDE * SIDE);
    for (int i = 0; i < SIDE * SIDE; i++) base[i] = guest::mix(3, i) % 10;
    power = base;
    uint32_t *a, *b, *c;
    CUDA(cudaMalloc(&a, BYTES));
    CUDA(cudaMalloc(&b, BYTES));
    CUDA(cudaMalloc(&c, BYTES));
    CUDA(cudaMemcpy(a, base.data(), BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b, a, BYTES, cudaMemcpyDeviceToDevice));
    dim3 blocks(SIDE / TILE, SIDE / TILE), threads(TILE, TILE);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        for (int k = 0; k < work; k++) {
            multiply<<<blocks, threads>>>(a, b, c);
            LAUNCHED();
            std::swap(b, c);
            for (int y = 0; y < SIDE; y++)
                for (int x = 0; x < SIDE; x++) {
                    uint32_t element = 0;
                    for (int j = 0; j < SIDE; j++) element += base[y * SIDE + j] * power[j * SIDE + x];
                    next[y * SIDE + x] = element;
                }
            std::swap(power, next);
        }
        if (!guest::report_at(step, steps)) continue;
        CUDA(cudaMemcpy(got.data(), b, BYTES, cudaMemcpyDeviceToHost));
        guest::require(got == power, "the power of the matrix", step);
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
