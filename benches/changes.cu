// How long a checkpoint of memory takes of which little has changed: `changes GIB FOLDER`. Fills GIB of device memory with random words, says so, and multiplies until there
// is a file `stop` in the folder. A file `go` there with `PERCENT contiguous|scattered|zero` has it change a word of so many of its chunks of 2 MiB, side by side or spread, or clear them, remove the file and
// say so. At the end it tells what its steps took, in ms: the median, the 99th of a hundred, and the longest.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

#include "check.cuh"

using Clock = std::chrono::steady_clock;
constexpr size_t CHUNK = 2 << 20;
constexpr int SIDE = 2048;

__device__ unsigned long long scrambled(unsigned long long word) {
    word = (word ^ word >> 33) * 0xff51afd7ed558ccdull;
    word = (word ^ word >> 33) * 0xc4ceb9fe1a85ec53ull;
    return word ^ word >> 33;
}

__global__ void fill(unsigned long long *words, size_t count) {
    size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += step) words[at] = scrambled(at + 1);
}

__global__ void change(char *chunks, size_t stride, unsigned turn) {
    *reinterpret_cast<unsigned *>(chunks + blockIdx.x * stride * CHUNK + (turn * 4096 + blockIdx.x * 64) % CHUNK) += turn;
}

__global__ void multiply(const float *a, const float *b, float *c) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < SIDE; k++) sum += a[row * SIDE + k] * b[k * SIDE + column];
    c[row * SIDE + column] = sum;
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: changes GIB FOLDER\n"), 2;
    size_t bytes = size_t(atoi(argv[1])) << 30, chunks = bytes / CHUNK;
    std::string folder = argv[2], go = folder + "/go", stop = folder + "/stop";
    char *memory;
    float *matrices;
    CHECK(cudaMalloc(&memory, bytes));
    CHECK(cudaMalloc(&matrices, 3 * SIDE * SIDE * sizeof(float)));
    CHECK(cudaMemset(matrices, 0, 3 * SIDE * SIDE * sizeof(float)));
    fill<<<4096, 256>>>(reinterpret_cast<unsigned long long *>(memory), bytes / 8);
    CHECK(cudaDeviceSynchronize());
    puts("ready");
    fflush(stdout);
    std::vector<double> steps;
    auto last = Clock::now();
    for (unsigned turn = 1; access(stop.c_str(), F_OK) != 0;) {
        multiply<<<dim3(SIDE / 32, SIDE / 32), dim3(32, 32)>>>(matrices, matrices + SIDE * SIDE, matrices + 2 * SIDE * SIDE);
        CHECK(cudaDeviceSynchronize());
        auto now = Clock::now();
        steps.push_back(std::chrono::duration<double, std::milli>(now - last).count());
        last = now;
        FILE *file = fopen(go.c_str(), "r");
        if (!file) continue;
        double percent;
        char how[16];
        bool read = fscanf(file, "%lf %15s", &percent, how) == 2;
        fclose(file);
        if (!read) continue;
        size_t count = std::max<size_t>(1, size_t(chunks * percent / 100));
        if (strcmp(how, "zero") == 0) CHECK(cudaMemset(memory, 0, count * CHUNK));
        else if (percent > 0) change<<<count, 1>>>(memory, strcmp(how, "scattered") == 0 ? chunks / count : 1, turn++);
        CHECK(cudaDeviceSynchronize());
        unlink(go.c_str());
        puts("changed");
        fflush(stdout);
        last = Clock::now();
    }
    std::sort(steps.begin(), steps.end());
    printf("steps of %.2f ms, 99 of 100 within %.2f, the longest %.1f\n", steps[steps.size() / 2], steps[steps.size() * 99 / 100], steps.back());
}
