// What a program may do to the mappings of managed memory: a region of which the middle is its own memory by now, one with holes and
// pages of other rights, and one of which nothing is mapped any more. When the file `move` is there, it moves a region to another address, which no
// program may, and reads it there.
#include <cerrno>
#include <sys/mman.h>
#include <unistd.h>

#include "guest.cuh"

constexpr size_t PAGE = 4096, PAGES = 512, WORDS = PAGES * PAGE / 4, PER_PAGE = PAGE / 4;

__global__ void stir(uint32_t *words, int first, int last, int step, int work) {
    int i = first + blockIdx.x * blockDim.x + threadIdx.x;
    if (i < last) words[i] = guest::mix_rounds(words[i] + i, step, work);
}

static void expect(uint32_t *words, int first, int last, int step, int work) {
    for (int i = first; i < last; i++) words[i] = guest::mix_rounds(words[i] + i, step, work);
}

static uint32_t *managed() {
    uint32_t *memory;
    CUDA(cudaMallocManaged(&memory, WORDS * 4));
    for (size_t i = 0; i < WORDS; i++) memory[i] = i;
    return memory;
}

static char *page(uint32_t *words, size_t number) { return (char *)words + number * PAGE; }

static void done(bool done, const char *what) {
    guest::require(done, what, errno);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 4);
    uint32_t *over = managed(), *holes = managed(), *none = managed();
    std::vector<uint32_t> expected(WORDS);
    for (size_t i = 0; i < WORDS; i++) expected[i] = i;
    done(munmap(none, WORDS * 4) == 0, "unmapping all");
    // Pages 200 to 231 are the program's own; 300 to 302 and the last one are not there.
    uint32_t *own = (uint32_t *)page(over, 200);
    done(mmap(own, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == own, "mapping over");
    done(munmap(page(holes, 300), 3 * PAGE) == 0 && munmap(page(holes, PAGES - 1), PAGE) == 0, "unmapping pages");
    done(mprotect(page(holes, 310), 2 * PAGE, PROT_READ) == 0, "protecting pages");
    done(mprotect(page(holes, 320), 2 * PAGE, PROT_NONE) == 0, "protecting pages");

    const int begins[] = {0, 232 * int(PER_PAGE), 400 * int(PER_PAGE)};
    const int ends[] = {200 * int(PER_PAGE), 300 * int(PER_PAGE), 511 * int(PER_PAGE)};
    uint32_t sum = 0;
    for (int step = 0; step < steps; step++) {
        for (int part = 0; part < 3; part++) {
            int blocks = (ends[part] - begins[part] + 127) / 128;
            stir<<<blocks, 128>>>(over, begins[part], ends[part], step, work);
            LAUNCHED();
            stir<<<blocks, 128>>>(holes, begins[part], ends[part], step, work);
            LAUNCHED();
            expect(expected.data(), begins[part], ends[part], step, work);
        }
        for (size_t i = 0; i < 32 * PER_PAGE; i++) own[i] += step + i;
        CUDA(cudaDeviceSynchronize());
        for (int part = 0; part < 3; part++)
            for (int i = begins[part]; i < ends[part]; i++)
                guest::require(over[i] == expected[i] && holes[i] == expected[i], "what a kernel has written", step);
        for (int i = step * 37 % 1000; i < 150 * int(PER_PAGE); i += 1000) over[i] = holes[i] = expected[i] = step ^ i;
        sum = guest::mix(guest::fold(guest::fold(sum, over, 200 * PER_PAGE), own, 32 * PER_PAGE), holes[300 * PER_PAGE - 1]);
        sum = guest::mix(sum, holes[310 * PER_PAGE]);
        guest::progress(step, steps, sum);
        if (access("move", F_OK) == 0) {
            void *moved = mremap(over, 100 * PAGE, 100 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, none);
            done(moved == none, "moving");
            guest::require(none[7] == expected[7], "what was moved", step);
        }
    }
    return guest::done(sum);
}
