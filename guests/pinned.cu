// Works on page-locked memory from both sides: kernels read and write mapped host memory while the host does so between.
#include <cstring>

#include "guest.cuh"

constexpr int N = 1 << 14;
constexpr size_t BYTES = N * sizeof(uint32_t);

__host__ __device__ uint32_t combine(uint32_t mine, uint32_t other, int i, int work) {
    return guest::mix_rounds(mine + other, i, work);
}

// Reads the host's words where they lie, and leaves its own beside them.
__global__ void answer(const uint32_t *question, uint32_t *reply, uint32_t *device_copy, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t value = combine(device_copy[i], question[i], i, work);
    device_copy[i] = value;
    reply[i] = value;
    __threadfence_system();
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    uint32_t *question, *reply, *device_copy, *snapshot, *device_question, *device_reply;
    CUDA(cudaSetDeviceFlags(cudaDeviceMapHost));
    CUDA(cudaHostAlloc(&question, BYTES, cudaHostAllocMapped | cudaHostAllocWriteCombined));
    CUDA(cudaHostAlloc(&reply, BYTES, cudaHostAllocMapped | cudaHostAllocPortable));
    CUDA(cudaMallocHost(&snapshot, BYTES));
    CUDA(cudaHostGetDevicePointer(&device_question, question, 0));
    CUDA(cudaHostGetDevicePointer(&device_reply, reply, 0));
    CUDA(cudaMalloc(&device_copy, BYTES));
    CUDA(cudaMemset(device_copy, 0, BYTES));
    memset(reply, 0, BYTES);
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));

    std::vector<uint32_t> expected(N);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        for (int i = 0; i < N; i++) {
            uint32_t asked = guest::mix(reply[i], step);
            question[i] = asked;
            expected[i] = combine(expected[i], asked, i, work);
        }
        answer<<<N / 256, 256, 0, stream>>>(device_question, device_reply, device_copy, work);
        LAUNCHED();
        CUDA(cudaMemcpyAsync(snapshot, device_copy, BYTES, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        guest::require(memcmp(reply, expected.data(), BYTES) == 0, "mapped memory", step);
        guest::require(memcmp(snapshot, expected.data(), BYTES) == 0, "the copy in pinned memory", step);
        sum = guest::fold(sum, snapshot, N);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFreeHost(question));
    CUDA(cudaFreeHost(reply));
    CUDA(cudaFreeHost(snapshot));
    CUDA(cudaFree(device_copy));
    return guest::done(sum);
}
