// A host function that needs a lock which the main thread holds for HOLD milliseconds: `callback_lock [HOLD]`.
// Until then its stream is never idle.
#include <chrono>
#include <mutex>
#include <thread>

#include "guest.cuh"

std::mutex lock;

void CUDART_CB needs_the_lock(void *called) {
    std::lock_guard<std::mutex> guard(lock);
    *static_cast<int *>(called) += 1;
}

__global__ void add_one(uint32_t *word) { ++*word; }

int main(int argc, char **argv) {
    auto [hold, unused] = guest::args(argc, argv, 6000, 1);
    (void)unused;
    uint32_t *word, got;
    CUDA(cudaMalloc(&word, sizeof *word));
    CUDA(cudaMemset(word, 0, sizeof *word));
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaDeviceSynchronize());
    int called = 0;
    {
        std::lock_guard<std::mutex> guard(lock);
        add_one<<<1, 1, 0, stream>>>(word);
        CUDA(cudaLaunchHostFunc(stream, needs_the_lock, &called));
        add_one<<<1, 1, 0, stream>>>(word);
        LAUNCHED();
        printf("holding the lock\n");
        std::this_thread::sleep_for(std::chrono::milliseconds(hold));
    }
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(&got, word, sizeof got, cudaMemcpyDeviceToHost));
    guest::require(called == 1 && got == 2, "the host function and both kernels ran", 1);
    printf("done\n");
    return 0;
}
