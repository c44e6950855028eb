// Built with --default-stream per-thread: two host threads use "the default stream", and each has one of its own.
#include <pthread.h>

#include <thread>

#include "guest.cuh"

constexpr int THREADS = 2;
constexpr int N = 1 << 13;

__host__ __device__ uint32_t stir(uint32_t value, uint32_t key, int i, int work) {
    return guest::mix_rounds(value, key + i, work);
}

__global__ void stir_all(uint32_t *buffer, const uint32_t *key, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = stir(buffer[i], *key, i, work);
}

struct Shared {
    int steps, work;
    pthread_barrier_t barrier;
    uint32_t sums[THREADS];
};

void run(Shared &shared, int thread) {
    uint32_t *buffer, *key, first = 0;
    std::vector<uint32_t> host(N);
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMalloc(&key, sizeof *key));
    CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    for (int step = 1; step <= shared.steps; step++) {
        uint32_t now = guest::mix(thread, step);
        CUDA(cudaMemcpyAsync(key, &now, sizeof now, cudaMemcpyHostToDevice));
        stir_all<<<N / 128, 128>>>(buffer, key, shared.work);
        LAUNCHED();
        CUDA(cudaMemcpyAsync(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost, cudaStreamPerThread));
        CUDA(cudaStreamSynchronize(cudaStreamPerThread));
        first = stir(first, now, 0, shared.work);
        guest::require(host[0] == first, "a thread's first word", step);
        shared.sums[thread] = guest::fold(shared.sums[thread], host.data(), N);
        pthread_barrier_wait(&shared.barrier);
        if (thread == 0) guest::progress(step, shared.steps, guest::fold(0, shared.sums, THREADS));
        pthread_barrier_wait(&shared.barrier);
    }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 48);
    Shared shared{};
    shared.steps = steps;
    shared.work = work;
    pthread_barrier_init(&shared.barrier, nullptr, THREADS);
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++) threads.emplace_back([&shared, t] { run(shared, t); });
    for (auto &thread : threads) thread.join();
    CUDA(cudaDeviceSynchronize());
    return guest::done(guest::fold(0, shared.sums, THREADS));
}
