// A kernel that mixes each value for so many rounds, in which it can be stopped.
#pragma once

#include "guest.cuh"

constexpr int BLOCKS = 4;
constexpr int THREADS = 64;
constexpr int N = BLOCKS * THREADS;

__global__ void hash(uint32_t *values, int rounds) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    uint32_t value = values[i];
    for (int round = 0; round < rounds; round++) {
        value = guest::mix_rounds(value, round, 3);
#pragma CPT
    }
    values[i] = value;
}

// The same on the host.
inline void hash_on_host(std::vector<uint32_t> &values, int rounds) {
    for (uint32_t &value : values) {
        for (int round = 0; round < rounds; round++) value = guest::mix_rounds(value, round, 3);
    }
}
