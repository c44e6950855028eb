// One region of nine tenths of what the device has free. A fill and kernels go over all of it, the host over a gibibyte at most, in steps; what is in it repeats every
// 2 MiB.
#include <algorithm>

#include "guest.cuh"

constexpr size_t STRIDE = 1024, PERIOD = 512, MOST = (size_t(1) << 30) / 4096;

// The first word of each page is made of the two that were there, and of the page's place in the period.
__host__ __device__ uint32_t make(uint32_t first, uint32_t second, size_t page, int step, int work) {
    return guest::mix_rounds(first + second, step + page % PERIOD, work);
}

__global__ void stir(uint32_t *words, size_t pages, int step, int work) {
    size_t page = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (page >= pages) return;
    uint32_t *word = words + page * STRIDE;
    word[0] = make(word[0], word[1], page, step, work);
}

// How many pages do not begin as they have to: as `within` says between two pages, as `beside` says elsewhere.
__global__ void count_wrong(const uint32_t *words, size_t pages, size_t from, size_t to, const uint32_t *within, const uint32_t *beside, unsigned *wrong) {
    size_t page = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (page >= pages) return;
    uint32_t expected = (page >= from && page < to ? within : beside)[page % PERIOD];
    if (words[page * STRIDE] != expected) atomicAdd(wrong, 1);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 40, 8);
    size_t free = 0, total = 0;
    CUDA(cudaMemGetInfo(&free, &total));
    uint32_t *words, *within, *beside;
    unsigned *wrong;
    CUDA(cudaMallocManaged(&within, PERIOD * sizeof *within));
    CUDA(cudaMallocManaged(&beside, PERIOD * sizeof *beside));
    CUDA(cudaMallocManaged(&wrong, sizeof *wrong));
    size_t pages = free / 10 * 9 / 4096;
    CUDA(cudaMallocManaged(&words, pages * 4096));
    // What the host goes over in all, and in a step.
    size_t touched = std::min(pages / 2 / PERIOD * PERIOD, MOST), each = std::max(touched / steps / PERIOD, size_t(1)) * PERIOD;
    unsigned blocks = unsigned((pages + 127) / 128);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        int byte = step % 255 + 1;
        uint32_t filled = byte * 0x1010101u;
        CUDA(cudaMemsetAsync(words, byte, pages * 4096));
        CUDA(cudaDeviceSynchronize());
        size_t from = (step - 1) * each % touched, to = std::min(from + each, touched);
        for (size_t page = from; page < to; page++) words[page * STRIDE + 1] += step;
        stir<<<blocks, 128>>>(words, pages, step, work);
        LAUNCHED();
        for (size_t place = 0; place < PERIOD; place++) {
            within[place] = make(filled, filled + step, place, step, work);
            beside[place] = make(filled, filled, place, step, work);
        }
        *wrong = 0;
        count_wrong<<<blocks, 128>>>(words, pages, from, to, within, beside, wrong);
        LAUNCHED();
        CUDA(cudaDeviceSynchronize());
        guest::require(*wrong == 0, "all of it", step);
        for (size_t page = from; page < to; page++) {
            guest::require(words[page * STRIDE] == within[page % PERIOD], "what a kernel made of what the host wrote", step);
            guest::require(words[page * STRIDE + 2] == filled, "what was filled", step);
        }
        guest::require(words[pages * STRIDE - 1] == filled, "the end", step);
        sum = guest::fold(guest::fold(sum, within, PERIOD), beside, PERIOD);
        guest::progress(step, steps, sum);
    }
    for (auto memory : {words, within, beside, reinterpret_cast<uint32_t *>(wrong)}) CUDA(cudaFree(memory));
    return guest::done(sum);
}
