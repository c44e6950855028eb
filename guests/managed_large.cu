// More managed memory than the device has, where that has few MiB: regions of a tenth of it, twelve in all, each used by kernels and by the host in
// turn, page by page; some are freed and come again on the way.
#include <algorithm>

#include "guest.cuh"

constexpr int REGIONS = 12;
constexpr size_t MOST = 64 << 20, STRIDE = 1024;

// Each `STRIDE`th word of a region, and the one behind it.
__global__ void stir(uint32_t *words, int count, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) words[i * STRIDE] = guest::mix_rounds(words[i * STRIDE] + words[i * STRIDE + 1], step + i, work);
}

struct Region {
    uint32_t *words = nullptr;
    std::vector<uint32_t> expected;
    int count = 0;

    void allocate(size_t bytes) {
        count = int(bytes / sizeof(uint32_t) / STRIDE);
        CUDA(cudaMallocManaged(&words, count * STRIDE * sizeof(uint32_t)));
        expected.assign(count, 0);
        for (int i = 0; i < count; i++) words[i * STRIDE] = words[i * STRIDE + 1] = 0;
    }

    void compute(int step, int work) {
        stir<<<(count + 127) / 128, 128>>>(words, count, step, work);
        LAUNCHED();
        for (int i = 0; i < count; i++) expected[i] = guest::mix_rounds(expected[i] + words_before(i, step), step + i, work);
    }

    // What the host wrote before the step.
    static uint32_t words_before(int i, int step) { return step == 0 ? 0 : uint32_t(i * step); }

    uint32_t check(int step) {
        for (int i = 0; i < count; i++) {
            guest::require(words[i * STRIDE] == expected[i], "what a kernel made of a region", step);
        }
        return guest::fold(step, expected.data(), expected.size());
    }
};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 200, 64);
    size_t free = 0, total = 0;
    CUDA(cudaMemGetInfo(&free, &total));
    size_t bytes = std::min(total, MOST) / 10;
    std::vector<Region> regions(REGIONS);
    for (auto &region : regions) region.allocate(bytes);
    uint32_t sum = 0;
    std::vector<int> since(REGIONS, 0);
    for (int step = 0; step < steps; step++) {
        auto &region = regions[step % REGIONS];
        auto &own = since[step % REGIONS];
        for (int i = 0; i < region.count; i++) region.words[i * STRIDE + 1] = Region::words_before(i, own);
        region.compute(own++, work);
        CUDA(cudaDeviceSynchronize());
        sum = guest::mix(sum, region.check(step));
        if (step % 29 == 28) {
            CUDA(cudaFree(region.words));
            region.allocate(bytes);
            own = 0;
        }
        size_t now = 0;
        CUDA(cudaMemGetInfo(&free, &now));
        guest::require(now == total && free <= now, "as much memory as before", step);
        guest::progress(step, steps, sum);
    }
    for (auto &region : regions) {
        sum = guest::mix(sum, region.check(steps));
        CUDA(cudaFree(region.words));
    }
    printf("sum %08x\n", sum);
}
