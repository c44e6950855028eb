// What calls cost the program that makes them. Run natively and under Dormouse in one session; prints a line for each figure:
// NAME UNIT MEDIAN LOW HIGH (medians of rounds; the quartiles beside them).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "check.cuh"

__global__ void touch(unsigned *word, unsigned add) {
    if (threadIdx.x == 0) *word += add;
}

__global__ void spin(unsigned *word, long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
    if (threadIdx.x == 0) *word += 1;
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Rounds of `count` calls each; reports the time of one, in microseconds, or as a rate of `bytes`. `finish` belongs to the time,
// `prepare` and `afterwards` do not.
static void measure(const char *name, int rounds, int count, double bytes, const std::function<void()> &prepare,
                    const std::function<void()> &call, const std::function<void()> &finish = [] {},
                    const std::function<void()> &afterwards = [] {}) {
    std::vector<double> each;
    for (int round = 0; round < rounds + 2; round++) {
        prepare();
        double begin = now();
        for (int i = 0; i < count; i++) call();
        finish();
        double end = now();
        afterwards();
        // The first rounds warm everything up.
        if (round >= 2) each.push_back((end - begin) / count);
    }
    std::sort(each.begin(), each.end());
    auto show = [&](double seconds) { return bytes > 0 ? bytes / seconds / 1e9 : seconds * 1e6; };
    double median = show(each[each.size() / 2]), a = show(each[each.size() / 4]), b = show(each[each.size() * 3 / 4]);
    printf("%s %s %.3f %.3f %.3f\n", name, bytes > 0 ? "GB/s" : "us", median, std::min(a, b), std::max(a, b));
    fflush(stdout);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 40;
    size_t large = (size_t)(argc > 2 ? atoi(argv[2]) : 64) << 20;
    auto nothing = [] {};
    auto idle = [] { CHECK(cudaDeviceSynchronize()); };
    unsigned *word;
    CHECK(cudaMalloc(&word, 4));
    CHECK(cudaMemset(word, 0, 4));

    measure("launch_asynchronous", rounds, 256, 0, idle, [&] { touch<<<1, 32>>>(word, 1); }, nothing,
            idle);
    measure("launch_sustained", rounds / 4, 20000, 0, idle, [&] { touch<<<1, 32>>>(word, 1); }, idle);
    measure("launch_and_synchronize", rounds, 200, 0, idle, [&] {
        touch<<<1, 32>>>(word, 1);
        CHECK(cudaDeviceSynchronize());
    });
    cudaStream_t captured;
    cudaGraph_t graph;
    cudaGraphExec_t launched;
    CHECK(cudaStreamCreate(&captured));
    CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 100; i++) touch<<<1, 32, 0, captured>>>(word, 1);
    CHECK(cudaStreamEndCapture(captured, &graph));
    CHECK(cudaGraphInstantiate(&launched, graph, 0));
    measure("graph_of_100_kernels_and_synchronize", rounds, 50, 0, idle, [&] {
        CHECK(cudaGraphLaunch(launched, captured));
        CHECK(cudaStreamSynchronize(captured));
    });
    CHECK(cudaGraphExecDestroy(launched));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(captured));
    measure("kernels_of_20us", 5, 2000, 0, idle, [&] { spin<<<1, 32>>>(word, 20000); }, idle);

    unsigned value = 0;
    measure("copy_4_bytes_to_device", rounds, 200, 0, idle,
            [&] { CHECK(cudaMemcpy(word, &value, 4, cudaMemcpyHostToDevice)); });
    measure("copy_4_bytes_to_host", rounds, 200, 0, idle,
            [&] { CHECK(cudaMemcpy(&value, word, 4, cudaMemcpyDeviceToHost)); });

    measure("allocate_and_free_1MiB", rounds, 50, 0, idle, [&] {
        void *p;
        CHECK(cudaMalloc(&p, 1 << 20));
        CHECK(cudaFree(p));
    });
    measure("allocate_and_free_1GiB", rounds / 4, 5, 0, idle, [&] {
        void *p;
        CHECK(cudaMalloc(&p, 1 << 30));
        CHECK(cudaFree(p));
    });
    measure("stream_create_and_destroy", rounds, 50, 0, idle, [&] {
        cudaStream_t stream;
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaStreamDestroy(stream));
    });
    cudaEvent_t event;
    CHECK(cudaEventCreate(&event));
    measure("event_record_and_synchronize", rounds, 100, 0, idle, [&] {
        CHECK(cudaEventRecord(event));
        CHECK(cudaEventSynchronize(event));
    });
    measure("event_record", rounds, 50, 0, idle, [&] { CHECK(cudaEventRecord(event)); }, nothing, idle);
    measure("event_query", rounds, 200, 0, idle, [&] { CHECK(cudaEventQuery(event)); });
    cudaEvent_t later;
    CHECK(cudaEventCreate(&later));
    CHECK(cudaEventRecord(later));
    float milliseconds;
    measure("event_elapsed", rounds, 200, 0, idle, [&] { CHECK(cudaEventElapsedTime(&milliseconds, event, later)); });

    char *device, *pinned, *pageable = (char *)malloc(large);
    CHECK(cudaMalloc(&device, large));
    CHECK(cudaMallocHost(&pinned, large));
    memset(pageable, 1, large);
    memset(pinned, 2, large);
    double bytes = (double)large;
    auto rate = [&](const char *name, char *host, cudaMemcpyKind kind) {
        measure(name, rounds / 4, 1, bytes, idle, [&, host, kind] {
            CHECK(kind == cudaMemcpyHostToDevice ? cudaMemcpy(device, host, large, kind)
                                                 : cudaMemcpy(host, device, large, kind));
        });
    };
    rate("pinned_to_device", pinned, cudaMemcpyHostToDevice);
    rate("device_to_pinned", pinned, cudaMemcpyDeviceToHost);
    rate("pageable_to_device", pageable, cudaMemcpyHostToDevice);
    rate("device_to_pageable", pageable, cudaMemcpyDeviceToHost);
    measure("copy_64KiB_to_device", rounds, 50, 0, idle,
            [&] { CHECK(cudaMemcpy(device, pageable, 64 << 10, cudaMemcpyHostToDevice)); });
    measure("copy_64KiB_to_host", rounds, 50, 0, nothing,
            [&] { CHECK(cudaMemcpy(pageable, device, 64 << 10, cudaMemcpyDeviceToHost)); });
    CHECK(cudaDeviceSynchronize());
    return 0;
}
