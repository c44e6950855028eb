// What marks cost, for docs/benchmarks.md: `marked [MS]` runs kernels with a mark in each round of their loop, and the same without, in turn, MS (20) a launch each, for rounds of 0.1 to 100 us. Each line: the kernel, the
// length of a round in us, the launch's time without marks in ms, with marks, and the ratio: medians of seven.
// `marked hold KERNEL ROUND_US SECONDS` launches one kernel with marks again and again until SECONDS have passed, each launch a second long, so that checkpoints come into its middle, and prints how
// many there were.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dormouse.cuh>
#include <vector>

#include "check.cuh"

constexpr int THREADS = 256;

// Each thread for itself: no barrier, no shared memory.
template <bool MARKED>
__global__ void alone(unsigned *out, int rounds, int work) {
    size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned x = out[at], y = x + unsigned(at);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < work; i++) x = x * 1664525u + y, y ^= x >> 13;
        if (MARKED) { DORMOUSE_CPT(); }
    }
    out[at] = x + y;
}

// Blocks with shared memory and a barrier in each round.
template <bool MARKED>
__global__ void tiles(unsigned *out, int rounds, int work) {
    __shared__ unsigned tile[THREADS];
    size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned x = out[at], y = x + unsigned(at);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < work; i++) x = x * 1664525u + y, y ^= x >> 13;
        tile[threadIdx.x] = x;
        __syncthreads();
        y += tile[(threadIdx.x + 1) % THREADS];
        __syncthreads();
        if (MARKED) { DORMOUSE_CPT(); }
    }
    out[at] = x + y;
}

using Kernel = void (*)(unsigned *, int, int);

struct Kind {
    const char *name;
    Kernel plain, marked;
};

const Kind KINDS[] = {{"alone", alone<false>, alone<true>}, {"tiles", tiles<false>, tiles<true>}};

struct Bench {
    int blocks;
    unsigned *out;

    Bench() {
        cudaDeviceProp properties;
        CHECK(cudaGetDeviceProperties(&properties, 0));
        // A device that is full, whatever a kernel's registers are.
        blocks = properties.multiProcessorCount * 4;
        CHECK(cudaMalloc(&out, size_t(blocks) * THREADS * sizeof(unsigned)));
        CHECK(cudaMemset(out, 0, size_t(blocks) * THREADS * sizeof(unsigned)));
    }

    // Milliseconds from the launch to its end.
    double run(Kernel kernel, int rounds, int work) {
        auto start = std::chrono::steady_clock::now();
        kernel<<<blocks, THREADS>>>(out, rounds, work);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    }

    // How much work makes a round without marks that long, in launches of this length.
    int work_for(Kernel kernel, double round_us, double launch_ms) {
        int rounds = std::max(1, int(launch_ms * 1e3 / round_us));
        double us[2];
        int work[2] = {200, 2000};
        run(kernel, 10, 10);
        for (int i : {0, 1}) us[i] = run(kernel, 200, work[i]) * 1e3 / 200;
        auto between = [&] {
            double slope = (us[1] - us[0]) / (work[1] - work[0]);
            return std::max(1, int((round_us - us[0]) / slope + work[0] + 0.5));
        };
        // The clock is another one in long launches.
        work[0] = between();
        us[0] = run(kernel, rounds, work[0]) * 1e3 / rounds;
        work[1] = work[0] * 5 / 4 + 1;
        us[1] = run(kernel, rounds, work[1]) * 1e3 / rounds;
        return us[1] > us[0] ? between() : work[0];
    }
};

double median(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

int main(int argc, char **argv) {
    Bench bench;
    if (argc == 5 && !strcmp(argv[1], "hold")) {
        const Kind &kind = KINDS[strcmp(argv[2], "tiles") == 0];
        double round_us = atof(argv[3]), seconds = atof(argv[4]);
        int work = bench.work_for(kind.plain, round_us, 100), rounds = int(1e6 / round_us), launches = 0;
        CHECK(cudaMemset(bench.out, 0, size_t(bench.blocks) * THREADS * sizeof(unsigned)));
        printf("ready\n"), fflush(stdout);
        for (double total = 0; total < seconds; launches++) total += bench.run(kind.marked, rounds, work) / 1e3;
        printf("%d launches\n", launches);
        return 0;
    }
    double launch_ms = argc > 1 ? atof(argv[1]) : 20;
    for (const Kind &kind : KINDS) {
        int last = 0;
        for (double round_us : {0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0}) {
            int work = bench.work_for(kind.plain, round_us, launch_ms), rounds = std::max(1, int(launch_ms * 1e3 / round_us));
            // A round has at least the work of one step.
            if (work == last) continue;
            last = work;
            std::vector<double> plain, marked, ratio;
            for (int turn = 0; turn < 7; turn++) {
                plain.push_back(bench.run(kind.plain, rounds, work));
                marked.push_back(bench.run(kind.marked, rounds, work));
                ratio.push_back(marked.back() / plain.back());
            }
            printf("%s %.2f %.2f %.2f %.4f\n", kind.name, median(plain) * 1e3 / rounds, median(plain), median(marked), median(ratio));
            fflush(stdout);
        }
    }
    CHECK(cudaFree(bench.out));
    return 0;
}
