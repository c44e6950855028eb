// Multiplies and adds long vectors over and over; the host repeats the arithmetic of some elements.
#include <cmath>

#include "guest.cuh"

constexpr int N = 1 << 16;
constexpr int SAMPLES = 64;

__host__ __device__ float start(int i) { return 1.0f + (i % 1021) * 0.001f; }

__host__ __device__ float advance(float value, int i, int step, int work) {
    for (int k = 0; k < work; k++) value = fmaf(value, 0.75f, (i % 127 + step % 31 + k % 7) * 0.0625f);
    return value;
}

__global__ void fill(float *v) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) v[i] = start(i);
}

__global__ void multiply_add(const float *in, float *out, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = advance(in[i], i, step, work);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 200, 40);
    float *a, *b;
    CUDA(cudaMalloc(&a, N * sizeof *a));
    CUDA(cudaMalloc(&b, N * sizeof *b));
    fill<<<N / 256, 256>>>(a);
    LAUNCHED();

    std::vector<float> host(N), expected(SAMPLES);
    for (int s = 0; s < SAMPLES; s++) expected[s] = start(s * (N / SAMPLES));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        multiply_add<<<N / 256, 256>>>(a, b, step, work);
        LAUNCHED();
        std::swap(a, b);
        for (int s = 0; s < SAMPLES; s++) expected[s] = advance(expected[s], s * (N / SAMPLES), step, work);
        if (!guest::report_at(step, steps)) continue;
        CUDA(cudaMemcpy(host.data(), a, N * sizeof *a, cudaMemcpyDeviceToHost));
        for (int s = 0; s < SAMPLES; s++)
            guest::require(host[s * (N / SAMPLES)] == expected[s], "an element differs from the host's", step);
        sum = guest::fold(sum, host.data(), N);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    return guest::done(sum);
}
