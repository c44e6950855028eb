// Threads that write pinned memory all the time, or with a third argument managed memory, and know from their own memory what every word of it is to hold: what they
// wrote behind a cut is not to be found in an image, and all that they wrote before. So do kernels, between calls.
#include <atomic>
#include <thread>

#include "guest.cuh"

constexpr int WORDS = 4 << 20, STRIDE = 64, THREADS = 2, COUNT = 1 << 12;

__global__ void advance(uint32_t *words, uint32_t expected, uint32_t *wrong) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (words[i] != expected) atomicAdd(wrong, 1);
    words[i] = expected + 1;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 2000, 1);
    bool managed = argc > 3;
    uint32_t *written, *zero_copy, *wrong;
    int count = managed ? WORDS / 8 : WORDS;
    size_t bytes = THREADS * count * sizeof *written;
    if (managed) {
        CUDA(cudaMallocManaged(&written, bytes));
    } else {
        CUDA(cudaMallocHost(&written, bytes));
    }
    CUDA(cudaMallocHost(&zero_copy, COUNT * sizeof *zero_copy));
    CUDA(cudaMallocHost(&wrong, sizeof *wrong));
    memset(written, 0, bytes);
    memset(zero_copy, 0, COUNT * sizeof *zero_copy);
    *wrong = 0;
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; thread++) {
        threads.emplace_back([&, own = written + thread * count] {
            volatile uint32_t *words = own;
            for (uint32_t turn = 0; !stop; turn++) {
                for (int i = 0; i < count; i += STRIDE) {
                    guest::require(words[i] == turn, "a word that a thread has written", i);
                    words[i] = turn + 1;
                }
            }
        });
    }
    for (int step = 0; step < steps; step++) {
        advance<<<COUNT / 128, 128>>>(zero_copy, step, wrong);
        LAUNCHED();
        if (step % 16 == 15) CUDA(cudaDeviceSynchronize());
        if (guest::report_at(step, steps)) {
            CUDA(cudaDeviceSynchronize());
            guest::require(*wrong == 0, "a word that a kernel has written", step);
        }
        guest::progress(step, steps, step);
        std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    stop = true;
    for (auto &thread : threads) thread.join();
    CUDA(cudaDeviceSynchronize());
    guest::require(*wrong == 0, "a word that a kernel has written", steps);
    return guest::done(steps);
}
