// A module with variables that the host uses too: it is loaded while the program runs, and knows only its own.
#include "../guest.cuh"

extern "C" {
__managed__ uint32_t delta_words[300] = {3, 1, 4, 1, 5};
__managed__ uint32_t *delta_other;

// Stirs its words, and one of whatever the host has given it.
__global__ void delta_stir(uint32_t step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 300) delta_words[i] = guest::mix(delta_words[i] + i, step);
    if (i == 0) *delta_other = guest::mix(*delta_other, step);
}
}
