// Hands a buffer round a ring of streams, each waiting for an event of the one before, with copies both ways.
#include "guest.cuh"

constexpr int STREAMS = 4;
constexpr int N = 1 << 13;
constexpr size_t BYTES = N * sizeof(uint32_t);

__host__ __device__ uint32_t stir(uint32_t value, uint32_t key, int i, int work) {
    return guest::mix_rounds(value, key + i, work);
}

__global__ void stir_all(uint32_t *buffer, const uint32_t *key, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = stir(buffer[i], key[i % 32], i, work);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 24);
    uint32_t *buffer, *keys[STREAMS], *host_keys[STREAMS], *result;
    cudaStream_t streams[STREAMS];
    cudaEvent_t passed[STREAMS], copied;
    CUDA(cudaMalloc(&buffer, BYTES));
    CUDA(cudaMemset(buffer, 0, BYTES));
    CUDA(cudaHostAlloc(&result, BYTES, cudaHostAllocDefault));
    int lowest, highest;
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    for (int s = 0; s < STREAMS; s++) {
        CUDA(cudaStreamCreateWithPriority(&streams[s], s % 2 ? cudaStreamNonBlocking : cudaStreamDefault,
                                          s < 2 ? lowest : highest));
        CUDA(cudaEventCreateWithFlags(&passed[s], s % 2 ? cudaEventDisableTiming : cudaEventDefault));
        CUDA(cudaMalloc(&keys[s], 32 * sizeof(uint32_t)));
        CUDA(cudaHostAlloc(&host_keys[s], 32 * sizeof(uint32_t), cudaHostAllocDefault));
    }
    CUDA(cudaEventCreateWithFlags(&copied, cudaEventBlockingSync | cudaEventDisableTiming));
    CUDA(cudaDeviceSynchronize());

    uint32_t expected = 0, sum = 0;
    for (int step = 1; step <= steps; step++) {
        for (int s = 0; s < STREAMS; s++) {
            for (int k = 0; k < 32; k++) host_keys[s][k] = guest::mix(step, s * 32 + k);
            CUDA(cudaMemcpyAsync(keys[s], host_keys[s], 32 * sizeof(uint32_t), cudaMemcpyHostToDevice, streams[s]));
            if (s > 0) CUDA(cudaStreamWaitEvent(streams[s], passed[s - 1], 0));
            stir_all<<<N / 128, 128, 0, streams[s]>>>(buffer, keys[s], work);
            LAUNCHED();
            CUDA(cudaEventRecord(passed[s], streams[s]));
            expected = stir(expected, host_keys[s][0], 0, work);
        }
        cudaStream_t last = streams[STREAMS - 1];
        CUDA(cudaMemcpyAsync(result, buffer, BYTES, cudaMemcpyDeviceToHost, last));
        CUDA(cudaEventRecord(copied, last));
        if (step % 2) {
            CUDA(cudaEventSynchronize(copied));
        } else {
            cudaError_t state;
            while ((state = cudaStreamQuery(last)) == cudaErrorNotReady) {}
            CUDA(state);
        }
        guest::require(result[0] == expected, "the buffer's first word", step);
        sum = guest::fold(sum, result, N);
        guest::progress(step, steps, sum);
    }
    float ms;
    CUDA(cudaEventSynchronize(passed[2]));
    CUDA(cudaEventElapsedTime(&ms, passed[0], passed[2]));
    guest::require(ms >= 0, "time runs forward", steps);
    for (int s = 0; s < STREAMS; s++) {
        CUDA(cudaStreamDestroy(streams[s]));
        CUDA(cudaEventDestroy(passed[s]));
    }
    return guest::done(sum);
}
