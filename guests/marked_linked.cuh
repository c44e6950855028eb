// What the two sources of marked_linked share.
#pragma once

#include <cassert>

#include "guest.cuh"

// What the other source has: a function that is called in each round, and how many of its calls were for an even value.
__device__ uint32_t advance(uint32_t value, int round);
extern __device__ unsigned long long even_calls;

// What both compute in a round.
__host__ __device__ inline uint32_t advanced(uint32_t value, int round) { return guest::mix_rounds(value, round, 3); }
