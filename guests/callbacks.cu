// A pipeline of kernel, copy and host function; the host functions run in stream order and decide the next key.
#include <cstring>

#include "guest.cuh"

constexpr int N = 1 << 13;
constexpr int DEPTH = 3;

__global__ void stir_all(uint32_t *buffer, const uint32_t *key, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i] + *key, i, work);
}

struct Pipeline {
    uint32_t *key;     // pinned; written by host functions, copied to the device before each kernel
    uint32_t *result;  // pinned
    uint32_t sum = 0;
    int calls = 0;
    int steps;
};

struct Call {
    Pipeline *pipeline;
    int step;
};

void CUDART_CB observe(void *argument) {
    Call &call = *static_cast<Call *>(argument);
    Pipeline &p = *call.pipeline;
    guest::require(++p.calls == call.step, "host functions run in order", call.step);
    p.sum = guest::fold(p.sum, p.result, N);
    *p.key = p.sum;
    guest::progress(call.step, p.steps, p.sum);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 40);
    Pipeline pipeline{};
    pipeline.steps = steps;
    uint32_t *buffer, *key;
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMalloc(&key, sizeof *key));
    CUDA(cudaMallocHost(&pipeline.key, sizeof *key));
    CUDA(cudaMallocHost(&pipeline.result, N * sizeof *buffer));
    *pipeline.key = 1;
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMemsetAsync(buffer, 0, N * sizeof *buffer, stream));

    std::vector<Call> calls(steps);
    for (int step = 1; step <= steps; step++) {
        calls[step - 1] = {&pipeline, step};
        CUDA(cudaMemcpyAsync(key, pipeline.key, sizeof *key, cudaMemcpyHostToDevice, stream));
        stir_all<<<N / 128, 128, 0, stream>>>(buffer, key, work);
        LAUNCHED();
        CUDA(cudaMemcpyAsync(pipeline.result, buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaLaunchHostFunc(stream, observe, &calls[step - 1]));
        if (step % DEPTH == 0) CUDA(cudaStreamSynchronize(stream));
    }
    CUDA(cudaStreamSynchronize(stream));
    guest::require(pipeline.calls == steps, "every host function ran", steps);
    return guest::done(pipeline.sum);
}
