// What every benchmark does with what a call answers.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                                                  \
    do {                                                                                                             \
        cudaError_t error = (call);                                                                                  \
        if (error != cudaSuccess) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error));                \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)
