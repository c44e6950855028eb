// More managed memory than the device has, where that has few MiB, used in phases: a few regions at a time, by kernels and by the host, some of them prefetched;
// and memory of the device that comes and goes between.
#include <algorithm>

#include "guest.cuh"

constexpr int REGIONS = 14, TOGETHER = 4, PHASE = 3;
constexpr size_t MOST = 64 << 20, STRIDE = 1024;

// Each `STRIDE`th word of a region, with the one behind it, and a word of other memory where there is some.
__global__ void stir(uint32_t *words, int count, int step, int work, const uint32_t *more) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    uint32_t with = words[i * STRIDE + 1] + (more ? more[i] : 0);
    words[i * STRIDE] = guest::mix_rounds(words[i * STRIDE] + with, step + i, work);
}

__global__ void number(uint32_t *words, int count, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) words[i] = step * 3 + i;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 200, 64);
    size_t free = 0, total = 0;
    CUDA(cudaMemGetInfo(&free, &total));
    size_t bytes = std::min(total, MOST) / 10;
    int count = int(bytes / sizeof(uint32_t) / STRIDE);
    cudaMemLocation device = {cudaMemLocationTypeDevice, 0};
    std::vector<uint32_t *> regions(REGIONS);
    std::vector<std::vector<uint32_t>> expected(REGIONS, std::vector<uint32_t>(count, 0));
    std::vector<uint32_t> written(REGIONS, 0);
    for (auto &region : regions) {
        CUDA(cudaMallocManaged(&region, count * STRIDE * sizeof(uint32_t)));
        for (int i = 0; i < count; i++) region[i * STRIDE] = region[i * STRIDE + 1] = 0;
    }
    uint32_t *more = nullptr, numbered = 0, sum = 0;
    for (int step = 0; step < steps; step++) {
        int phase = step / PHASE;
        if (step % PHASE == 0 && phase % 3 == 1) {
            CUDA(cudaMalloc(&more, bytes * 2));
            number<<<(count + 127) / 128, 128>>>(more, count, step);
            LAUNCHED();
            numbered = step;
        } else if (step % PHASE == 0 && more) {
            CUDA(cudaFree(more));
            more = nullptr;
        }
        for (int next = 0; next < TOGETHER; next++) {
            int at = (phase * TOGETHER + next) % REGIONS;
            auto region = regions[at];
            if (phase % 2 == 1 && step % PHASE == 0) CUDA(cudaMemPrefetchAsync(region, count * STRIDE * sizeof(uint32_t), device, 0, 0));
            if (step % 2 == 0) {
                written[at] = step + 1;
                for (int i = 0; i < count; i++) region[i * STRIDE + 1] = written[at] * i;
            }
            stir<<<(count + 127) / 128, 128>>>(region, count, step, work, more);
            LAUNCHED();
            for (int i = 0; i < count; i++) {
                uint32_t with = written[at] * i + (more ? numbered * 3 + i : 0);
                expected[at][i] = guest::mix_rounds(expected[at][i] + with, step + i, work);
            }
        }
        CUDA(cudaDeviceSynchronize());
        int at = phase * TOGETHER % REGIONS;
        for (int i = 0; i < count; i++)
            guest::require(regions[at][i * STRIDE] == expected[at][i], "what a kernel made of a region", step);
        sum = guest::mix(sum, guest::fold(step, expected[at].data(), count));
        guest::progress(step, steps, sum);
    }
    for (int at = 0; at < REGIONS; at++) {
        for (int i = 0; i < count; i++)
            guest::require(regions[at][i * STRIDE] == expected[at][i], "a region in the end", at);
        sum = guest::mix(sum, guest::fold(at, expected[at].data(), count));
        CUDA(cudaFree(regions[at]));
    }
    if (more) CUDA(cudaFree(more));
    printf("sum %08x\n", sum);
}
