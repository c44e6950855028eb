// Four host threads, each with a stream and a buffer of its own, meet at a barrier after every step.
#include <pthread.h>

#include <thread>

#include "guest.cuh"

constexpr int THREADS = 4;
constexpr int N = 1 << 13;

__host__ __device__ uint32_t stir(uint32_t value, int thread, int step, int i, int work) {
    return guest::mix_rounds(value ^ thread, step * N + i, work);
}

__global__ void stir_all(uint32_t *buffer, int thread, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = stir(buffer[i], thread, step, i, work);
}

struct Shared {
    int steps, work;
    pthread_barrier_t barrier;
    uint32_t sums[THREADS];
};

void run(Shared &shared, int thread) {
    uint32_t *buffer, *host;
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMallocHost(&host, N * sizeof *host));
    CUDA(cudaMemsetAsync(buffer, 0, N * sizeof *buffer, stream));
    uint32_t first = 0;
    for (int step = 1; step <= shared.steps; step++) {
        stir_all<<<N / 128, 128, 0, stream>>>(buffer, thread, step, shared.work);
        LAUNCHED();
        CUDA(cudaMemcpyAsync(host, buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        first = stir(first, thread, step, 0, shared.work);
        guest::require(host[0] == first, "a thread's first word", step);
        shared.sums[thread] = guest::fold(shared.sums[thread], host, N);
        pthread_barrier_wait(&shared.barrier);
        if (thread == 0) guest::progress(step, shared.steps, guest::fold(0, shared.sums, THREADS));
        pthread_barrier_wait(&shared.barrier);
    }
    CUDA(cudaFreeHost(host));
    CUDA(cudaFree(buffer));
    CUDA(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    Shared shared{};
    shared.steps = steps;
    shared.work = work;
    pthread_barrier_init(&shared.barrier, nullptr, THREADS);
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++) threads.emplace_back([&shared, t] { run(shared, t); });
    for (auto &thread : threads) thread.join();
    return guest::done(guest::fold(0, shared.sums, THREADS));
}
