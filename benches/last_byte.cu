// A program that wants the last byte: `last_byte GIB SECONDS [held]`. Writes GIB GiB of the device's memory, then takes all that is left of it, down
// to pieces of 2 MiB, and gives it back, again and again for so many seconds; `held` keeps what was taken the first time. Prints what it got, in MiB,
// the first time, the least and the last time, and how long the longest turn took.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "check.cuh"

using Clock = std::chrono::steady_clock;

__global__ void fill(unsigned long long *words, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        // Does not compress.
        unsigned long long word = i * 0x9e3779b97f4a7c15;
        word ^= word >> 29;
        words[i] = word * 0xbf58476d1ce4e5b9;
    }
}

static size_t take(std::vector<void *> &all) {
    size_t taken = 0;
    for (size_t bytes = (size_t)1 << 30; bytes >= 2 << 20; bytes /= 2) {
        void *at;
        while (cudaMalloc(&at, bytes) == cudaSuccess) {
            all.push_back(at);
            taken += bytes;
        }
        cudaGetLastError();
    }
    return taken >> 20;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "last_byte GIB SECONDS [held]\n"), 2;
    size_t bytes = (size_t)(atof(argv[1]) * (1 << 30));
    unsigned long long *words;
    CHECK(cudaMalloc(&words, bytes));
    fill<<<1024, 256>>>(words, bytes / 8);
    CHECK(cudaDeviceSynchronize());
    std::vector<void *> all;
    size_t first = take(all), least = first, last = first;
    double longest = 0;
    auto end = Clock::now() + std::chrono::duration<double>(atof(argv[2]));
    auto at = Clock::now();
    printf("ready\n"), fflush(stdout);
    while (Clock::now() < end) {
        if (argc == 3) {
            for (void *each : all) CHECK(cudaFree(each));
            all.clear();
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            last = take(all);
            least = std::min(least, last);
        } else {
            // What it has, it uses.
            fill<<<1024, 256>>>(words, bytes / 8);
            CHECK(cudaDeviceSynchronize());
        }
        auto now = Clock::now();
        longest = std::max(longest, std::chrono::duration<double>(now - at).count());
        at = now;
    }
    printf("MiB: first %zu, least %zu, last %zu; longest turn %.0f ms\n", first, least, last, longest * 1e3);
    return 0;
}
