// Prints from the device and from the host in turn, while other threads wait for kernels of their own.
#include <atomic>
#include <thread>

#include "guest.cuh"

__global__ void nothing() {}

__global__ void tell(int step, int lines) {
    for (int line = 0; line < lines; line++) printf("device: step %d line %d of %d\n", step, line, lines);
}

int main(int argc, char **argv) {
    auto [steps, threads] = guest::args(argc, argv, 60, 2);
    std::atomic<bool> over{false};
    auto wait = [&over] {
        cudaStream_t stream;
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        while (!over) {
            nothing<<<1, 1, 0, stream>>>();
            LAUNCHED();
            CUDA(cudaStreamSynchronize(stream));
        }
        CUDA(cudaStreamDestroy(stream));
    };
    std::vector<std::thread> others;
    for (int i = 0; i < threads; i++) others.emplace_back(wait);
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int step = 1; step <= steps; step++) {
        // Now and then more than one answer carries.
        tell<<<1, 1, 0, stream>>>(step, step % 10 ? 3 : 4000);
        LAUNCHED();
        CUDA(cudaStreamSynchronize(stream));
        printf("host: step %d\n", step);
    }
    over = true;
    for (auto &other : others) other.join();
    return 0;
}
