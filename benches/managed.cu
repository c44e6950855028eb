// What managed memory costs: cycles of kernel, read and write, a fresh large region read, small allocations. Run natively and under Dormouse, with both
// kinds of managed memory; prints a line for each figure: NAME UNIT MEDIAN LOW HIGH (medians of rounds; the quartiles beside them). `managed MIB` has so large a
// region, and `managed 0` makes the cycles alone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "check.cuh"

__global__ void add(unsigned *words, size_t count, unsigned by) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        words[i] += by;
}

// Goes over all of it, and takes at least so long. The timer is read where it counts alone: many threads that read it wait for each other.
__global__ void sweep(unsigned *words, size_t count, unsigned long long nanoseconds) {
    unsigned long long begin = 0;
    if (nanoseconds) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    unsigned long long now = begin;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        words[i] += 1;
    while (now - begin < nanoseconds) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// `value` of each round, after two that warm up.
static void measure(const char *name, const char *unit, int rounds, const std::function<double()> &value) {
    std::vector<double> each;
    for (int round = 0; round < rounds + 2; round++) {
        double got = value();
        if (round >= 2) each.push_back(got);
    }
    std::sort(each.begin(), each.end());
    printf("%s %s %.3f %.3f %.3f\n", name, unit, each[each.size() / 2], each[each.size() / 4], each[each.size() * 3 / 4]);
    fflush(stdout);
}

static void wrong(const char *what) {
    fprintf(stderr, "%s: wrong bytes\n", what);
    exit(1);
}

// A kernel over all of a region that takes at least so long, a wait, the processor reads and then writes all of it.
static void cycle(const char *name, size_t bytes, unsigned long long nanoseconds = 0) {
    unsigned *words, turn = 0;
    size_t count = bytes / sizeof *words;
    CHECK(cudaMallocManaged(&words, bytes));
    for (size_t i = 0; i < count; i++) words[i] = 0;
    measure(name, "us", 200, [&] {
        double begin = now();
        sweep<<<std::min<size_t>(1024, (count + 255) / 256), 256>>>(words, count, nanoseconds);
        CHECK(cudaDeviceSynchronize());
        unsigned long long sum = 0;
        for (size_t i = 0; i < count; i++) sum += words[i];
        if (sum != count * (unsigned long long)(turn + 1)) wrong(name);
        turn += 2;
        for (size_t i = 0; i < count; i++) words[i] = turn;
        return (now() - begin) * 1e6;
    });
    CHECK(cudaFree(words));
}

int main(int argc, char **argv) {
    size_t large = (size_t)(argc > 1 ? atoi(argv[1]) : 1024) << 20;
    CHECK(cudaFree(0));
    cycle("cycle_12KiB", 12 << 10);
    cycle("cycle_64KiB", 64 << 10);
    cycle("cycle_128KiB", 128 << 10);
    cycle("cycle_12KiB_of_20us", 12 << 10, 20000);
    cycle("cycle_128KiB_of_20us", 128 << 10, 20000);
    cycle("cycle_1MiB", 1 << 20);
    cycle("cycle_2MiB", 2 << 20);
    cycle("cycle_8MiB", 8 << 20);
    if (!large) return 0;

    unsigned *words;
    size_t count = large / sizeof *words;
    CHECK(cudaMallocManaged(&words, large));
    unsigned turn = 0;
    measure("read_of_a_fresh_region", "GB/s", 3, [&] {
        add<<<1024, 256>>>(words, count, 1);
        CHECK(cudaDeviceSynchronize());
        turn++;
        double begin = now();
        unsigned long long sum = 0;
        for (size_t i = 0; i < count; i++) sum += words[i];
        double seconds = now() - begin;
        if (sum != count * (unsigned long long)turn) wrong("read_of_a_fresh_region");
        return large / seconds / 1e9;
    });
    // As HYPRE: kernels of 10 ms over nearly all of it, the processor reads a tenth after each.
    count = large / 10 * 9 / sizeof *words;
    measure("kernels_of_10ms_and_a_tenth_read", "ms", 1, [&] {
        double begin = now();
        for (int i = 0; i < 20; i++) {
            sweep<<<1024, 256>>>(words, count, 10000000);
            CHECK(cudaDeviceSynchronize());
            turn++;
            unsigned long long sum = 0;
            for (size_t j = i * (count / 20); j < i * (count / 20) + count / 10 && j < count; j++) sum += words[j] - turn;
            if (sum) wrong("kernels_of_10ms_and_a_tenth_read");
        }
        return (now() - begin) * 1e3 / 20;
    });
    // To and fro, and said beforehand: 256 MiB.
    size_t bytes = std::min<size_t>(large, 256 << 20);
    count = bytes / sizeof *words;
    cudaMemLocation device = {cudaMemLocationTypeDevice, 0}, host = {cudaMemLocationTypeHost, 0};
    turn = 0;
    CHECK(cudaMemset(words, 0, bytes));
    measure("to_and_fro_with_prefetches", "ms", 5, [&] {
        double begin = now();
        CHECK(cudaMemPrefetchAsync(words, bytes, device, 0, 0));
        add<<<1024, 256>>>(words, count, 1);
        CHECK(cudaMemPrefetchAsync(words, bytes, host, 0, 0));
        CHECK(cudaDeviceSynchronize());
        unsigned long long sum = 0;
        for (size_t i = 0; i < count; i++) sum += words[i];
        if (sum != count * (unsigned long long)(turn + 1)) wrong("to_and_fro_with_prefetches");
        turn += 2;
        for (size_t i = 0; i < count; i++) words[i] = turn;
        return (now() - begin) * 1e3;
    });
    CHECK(cudaFree(words));

    // Six regions of half that size, one after the other used by 32 kernels: with `--device-memory`, more than fits.
    bytes = large / 2;
    count = bytes / sizeof *words;
    std::vector<unsigned *> regions(6);
    for (unsigned *&region : regions) CHECK(cudaMallocManaged(&region, bytes));
    std::vector<unsigned> turns(regions.size());
    size_t phase = 0;
    measure("kernels_in_phases", "ms", 10, [&] {
        size_t at = phase++ % regions.size();
        double begin = now();
        for (int i = 0; i < 32; i++) {
            add<<<1024, 256>>>(regions[at], count, 1);
            CHECK(cudaDeviceSynchronize());
        }
        double each = (now() - begin) * 1e3 / 32;
        turns[at] += 32;
        if (regions[at][count - 1] != turns[at]) wrong("kernels_in_phases");
        return each;
    });
    for (unsigned *region : regions) CHECK(cudaFree(region));

    std::vector<void *> small(2000);
    measure("allocate_4KiB", "us", 3, [&] {
        double begin = now();
        for (void *&each : small) CHECK(cudaMallocManaged(&each, 4096));
        double seconds = now() - begin;
        for (void *each : small) CHECK(cudaFree(each));
        return seconds * 1e6 / small.size();
    });
    measure("free_4KiB", "us", 3, [&] {
        for (void *&each : small) CHECK(cudaMallocManaged(&each, 4096));
        double begin = now();
        for (void *each : small) CHECK(cudaFree(each));
        return (now() - begin) * 1e6 / small.size();
    });
    return 0;
}
