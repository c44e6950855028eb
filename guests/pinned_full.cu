// Pins memory until there is no more, and goes on: what needs memory that application and GPU server share still works, in this thread
// and in another. It says `full`, and waits for the file `go` before it goes on.
#include <thread>
#include <unistd.h>

#include "guest.cuh"

constexpr int N = 1 << 22;

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

static uint32_t some_work(int step, int work) {
    std::vector<uint32_t> host(N, step), before(host);
    uint32_t *device;
    CUDA(cudaMalloc(&device, N * sizeof *device));
    CUDA(cudaMemcpy(device, host.data(), N * sizeof *device, cudaMemcpyHostToDevice));
    stir_all<<<N / 256, 256>>>(device, step, work);
    LAUNCHED();
    CUDA(cudaMemcpy(host.data(), device, N * sizeof *device, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++)
        guest::require(host[i] == guest::mix_rounds(before[i], step + i, work), "what was copied and computed", step);
    CUDA(cudaFree(device));
    return guest::fold(0, host.data(), N);
}

static std::vector<uint32_t *> pin_everything(size_t &pinned_bytes) {
    std::vector<uint32_t *> all;
    pinned_bytes = 0;
    for (size_t bytes : {8u << 20, 1u << 20, 64u << 10}) {
        uint32_t *pinned;
        cudaError_t error;
        while ((error = cudaMallocHost(&pinned, bytes)) == cudaSuccess) {
            // Every page is there.
            for (size_t at = 0; at < bytes / 4; at += 1024) pinned[at] = uint32_t(all.size());
            all.push_back(pinned);
            pinned_bytes += bytes;
        }
        guest::require(error == cudaErrorMemoryAllocation, "there is no more, and it is said", 0);
        cudaGetLastError();
    }
    return all;
}

int main(int argc, char **argv) {
    auto asked = guest::args(argc, argv, 2, 4);
    int steps = asked.steps, work = asked.work;
    CUDA(cudaSetDevice(0));
    size_t before, after;
    auto all = pin_everything(before);
    guest::require(all.size() > 3, "some is had", 0);
    printf("full\n");
    while (access("go", F_OK) != 0) usleep(2000);
    for (size_t at = 0; at < all.size(); at++) guest::require(*all[at] == at, "pinned memory keeps what it holds", 0);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        sum = guest::mix(sum, some_work(step, work));
        std::thread([&] { sum = guest::mix(sum, some_work(step + 1, work)); }).join();
    }
    for (uint32_t *each : all) CUDA(cudaFreeHost(each));
    pin_everything(after);
    // But for what copies have come to need meanwhile.
    guest::require(after + (48 << 20) > before, "what was freed is there again", steps);
    return guest::done(sum);
}
