// What launches, waits and copies take where a device may be far away: launches that nobody waits for, a launch and a wait for it, a question,
// and pageable memory to the device and back. Prints a line for each figure: NAME UNIT MEDIAN.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "check.cuh"

__global__ void touch(unsigned *word, unsigned add) {
    if (threadIdx.x == 0) *word += add;
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The median of `rounds`, in seconds.
static double median(int rounds, const std::function<void()> &call) {
    std::vector<double> each;
    for (int round = 0; round < rounds; round++) {
        double begin = now();
        call();
        each.push_back(now() - begin);
    }
    std::sort(each.begin(), each.end());
    return each[each.size() / 2];
}

int main(int argc, char **argv) {
    unsigned launches = argc > 1 ? atoi(argv[1]) : 1000000;
    size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 256) << 20;
    auto wait = [] { CHECK(cudaDeviceSynchronize()); };
    unsigned *word, counted;
    CHECK(cudaMalloc(&word, 4));
    CHECK(cudaMemset(word, 0, 4));
    for (int i = 0; i < 1000; i++) touch<<<1, 32>>>(word, 1);
    wait();

    double begin = now();
    for (unsigned i = 0; i < launches; i++) touch<<<1, 32>>>(word, 1);
    double submitted = now();
    wait();
    double done = now();
    CHECK(cudaMemcpy(&counted, word, 4, cudaMemcpyDeviceToHost));
    if (counted != launches + 1000) {
        fprintf(stderr, "%u launches were counted of %u\n", counted, launches + 1000);
        return 1;
    }
    printf("launch us %.3f\n", (submitted - begin) / launches * 1e6);
    printf("launches s %.3f\n", done - begin);

    cudaEvent_t first, second;
    float milliseconds;
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&second));
    CHECK(cudaEventRecord(first));
    CHECK(cudaEventRecord(second));
    wait();
    printf("question us %.1f\n", median(50, [&] { CHECK(cudaEventElapsedTime(&milliseconds, first, second)); }) * 1e6);
    printf("launch_and_wait us %.1f\n", median(50, [&] {
               touch<<<1, 32>>>(word, 1);
               wait();
           }) * 1e6);

    char *device;
    std::vector<char> host(bytes);
    CHECK(cudaMalloc(&device, bytes));
    // What cannot be compressed.
    unsigned long long state = 1;
    for (size_t at = 0; at + 8 <= bytes; at += 8) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        *(unsigned long long *)&host[at] = state ^ state >> 29;
    }
    auto rate = [&](const char *name, const std::function<void()> &copy) {
        copy();
        printf("%s GB/s %.3f\n", name, bytes / median(3, copy) / 1e9);
    };
    rate("to_device", [&] { CHECK(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice)); });
    rate("to_host", [&] { CHECK(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost)); });
    return 0;
}
