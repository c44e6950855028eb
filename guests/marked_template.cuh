// A kernel that is a template in a header, marked for whatever it is made for.
#pragma once

#include <cstddef>

#include <dormouse.cuh>

// Evolves `count` states of `WIDTH` values each by a rule, one for each thread.
template <class T, int WIDTH, class Rule>
__global__ void evolve(T (*states)[WIDTH], size_t count, int rounds, Rule rule) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    T state[WIDTH];
    for (int k = 0; k < WIDTH; k++) state[k] = states[i][k];
    for (int round = 0; round < rounds; round++) {
        rule(state, round);
        DORMOUSE_CPT();
    }
    for (int k = 0; k < WIDTH; k++) states[i][k] = state[k];
}
