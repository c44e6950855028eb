// What the guests share: arguments, error checks, and checksums that depend on every value mixed in.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <unistd.h>

namespace guest {

// Every guest is called as `NAME [STEPS [WORK]]`: how many steps it makes, and how much it computes in each.
struct Args {
    int steps;
    int work;
};

inline Args args(int argc, char **argv, int steps, int work) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc > 1) steps = atoi(argv[1]);
    if (argc > 2) work = atoi(argv[2]);
    if (steps < 1 || work < 1) {
        fprintf(stderr, "usage: %s [STEPS [WORK]]\n", argv[0]);
        exit(2);
    }
    return {steps, work};
}

inline void check(cudaError_t error, const char *call, int line) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "line %d: %s: %s (%d)\n", line, call, cudaGetErrorString(error), int(error));
    exit(3);
}
#define CUDA(call) guest::check((call), #call, __LINE__)
#define LAUNCHED() guest::check(cudaGetLastError(), "kernel launch", __LINE__)

inline void require(bool held, const char *what, int step) {
    if (held) return;
    printf("step %d: WRONG: %s\n", step, what);
    exit(1);
}

// One round of an integer hash; the same on the host and on the device.
__host__ __device__ inline uint32_t mix(uint32_t hash, uint32_t value) {
    hash ^= value * 0x9e3779b1u;
    hash ^= hash >> 16;
    hash *= 0x85ebca6bu;
    hash ^= hash >> 13;
    hash *= 0xc2b2ae35u;
    return hash ^ (hash >> 16);
}

__host__ __device__ inline uint32_t mix_rounds(uint32_t hash, uint32_t value, int rounds) {
    for (int i = 0; i < rounds; i++) hash = mix(hash, value + i);
    return hash;
}

// Folds the bits of a host array into a checksum.
template <class T>
uint32_t fold(uint32_t hash, const T *values, size_t count) {
    static_assert(sizeof(T) % 4 == 0, "values are folded word by word");
    auto words = reinterpret_cast<const unsigned char *>(values);
    for (size_t i = 0; i < count * sizeof(T); i += 4) {
        uint32_t word;
        __builtin_memcpy(&word, words + i, 4);
        hash = mix(hash, word);
    }
    return hash;
}

// About twenty-five progress lines, however many steps there are.
inline bool report_at(int step, int steps) {
    int every = steps / 25;
    return every < 2 || step % every == 0;
}

// Steps that the host checks by doing the same: all, or of many a few, since it is slower than a GPU. What it has not checked it takes from the device.
inline bool checked_at(int step, int steps) {
    int every = steps / 4;
    return every < 2 || step % every == 0;
}

// Whoever has to be there until something else has happened is told by that of a file: it waits with its last line until the file is there.
inline void wait_until_told() {
    const char *file = getenv("GUEST_LAST_LINE_AFTER");
    while (file && access(file, F_OK) != 0) usleep(5000);
}

inline void progress(int step, int steps, uint32_t sum) {
    if (step == steps) wait_until_told();
    if (report_at(step, steps)) printf("step %d sum %08x\n", step, sum);
}

inline int done(uint32_t sum) {
    printf("done sum %08x\n", sum);
    return 0;
}

// A small deterministic random generator (xorshift).
struct Random {
    uint32_t state;
    uint32_t next() {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        return state;
    }
    uint32_t below(uint32_t bound) { return next() % bound; }
};

}  // namespace guest
