// Two long kernels at once, in two streams, and what waits for both: a kernel behind an event, a copy behind that, and a host callback.
#include <algorithm>

#include "marked_hash.cuh"

// Each value takes its neighbour's.
__global__ void pass_on(uint32_t *values, int rounds) {
    __shared__ uint32_t ring[THREADS];
    int t = threadIdx.x, i = blockIdx.x * THREADS + t;
    ring[t] = values[i];
    for (int round = 0; round < rounds; round++) {
        __syncthreads();
        uint32_t value = guest::mix_rounds(ring[(t + 1) % THREADS], round, 2);
        __syncthreads();
        ring[t] = value;
#pragma CPT
    }
    values[i] = ring[t];
}

__global__ void join(uint32_t *joined, const uint32_t *a, const uint32_t *b) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    joined[i] = guest::mix(guest::mix(joined[i], a[i]), b[i]);
}

void on_host(std::vector<uint32_t> &a, std::vector<uint32_t> &b, std::vector<uint32_t> &joined, int rounds) {
    hash_on_host(a, rounds);
    for (int block = 0; block < N; block += THREADS) {
        for (int round = 0; round < rounds; round++) {
            uint32_t before[THREADS];
            for (int t = 0; t < THREADS; t++) before[t] = b[block + t];
            for (int t = 0; t < THREADS; t++)
                b[block + t] = guest::mix_rounds(before[(t + 1) % THREADS], round, 2);
        }
    }
    for (int i = 0; i < N; i++) joined[i] = guest::mix(guest::mix(joined[i], a[i]), b[i]);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 4000);
    constexpr size_t BYTES = N * sizeof(uint32_t);
    std::vector<uint32_t> a(N), b(N), joined(N);
    for (int i = 0; i < N; i++) a[i] = guest::mix(3, i), b[i] = guest::mix(4, i);
    uint32_t *device_a, *device_b, *device_joined, *got;
    for (uint32_t **memory : {&device_a, &device_b, &device_joined}) CUDA(cudaMalloc(memory, BYTES));
    CUDA(cudaMallocHost(&got, BYTES));
    CUDA(cudaMemcpy(device_a, a.data(), BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(device_b, b.data(), BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(device_joined, 0, BYTES));
    cudaStream_t one, other;
    cudaEvent_t done, read;
    for (cudaStream_t *stream : {&one, &other}) CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    for (cudaEvent_t *event : {&done, &read}) CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    CUDA(cudaDeviceSynchronize());

    int told = 0;
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        hash<<<BLOCKS, THREADS, 0, one>>>(device_a, work);
        LAUNCHED();
        pass_on<<<BLOCKS, THREADS, 0, other>>>(device_b, work);
        LAUNCHED();
        CUDA(cudaEventRecord(done, other));
        CUDA(cudaStreamWaitEvent(one, done, 0));
        join<<<BLOCKS, THREADS, 0, one>>>(device_joined, device_a, device_b);
        LAUNCHED();
        CUDA(cudaMemcpyAsync(got, device_joined, BYTES, cudaMemcpyDeviceToHost, one));
        CUDA(cudaLaunchHostFunc(one, [](void *told) { ++*static_cast<int *>(told); }, &told));
        CUDA(cudaEventRecord(read, one));
        bool is_checked = guest::checked_at(step, steps);
        if (is_checked) on_host(a, b, joined, work);
        CUDA(cudaEventSynchronize(read));
        guest::require(told == step, "the callback came", step);
        guest::require(!is_checked || std::equal(got, got + N, joined.begin()), "what both streams made", step);
        if (!is_checked) {
            CUDA(cudaMemcpy(a.data(), device_a, BYTES, cudaMemcpyDeviceToHost));
            CUDA(cudaMemcpy(b.data(), device_b, BYTES, cudaMemcpyDeviceToHost));
            joined.assign(got, got + N);
        }
        sum = guest::fold(sum, got, N);
        guest::progress(step, steps, sum);
    }
    for (cudaEvent_t event : {done, read}) CUDA(cudaEventDestroy(event));
    for (cudaStream_t stream : {one, other}) CUDA(cudaStreamDestroy(stream));
    for (uint32_t *memory : {device_a, device_b, device_joined}) CUDA(cudaFree(memory));
    CUDA(cudaFreeHost(got));
    return guest::done(sum);
}
