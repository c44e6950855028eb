// Built with machine code for sm_90 and no PTX: runs on that chip, and nowhere else.
#include "guest.cuh"

__global__ void add_one(uint32_t *word) { ++*word; }

int main(int argc, char **argv) {
    guest::args(argc, argv, 1, 1);
    uint32_t *word, got;
    CUDA(cudaMalloc(&word, sizeof *word));
    CUDA(cudaMemset(word, 0, sizeof *word));
    add_one<<<1, 1>>>(word);
    LAUNCHED();
    CUDA(cudaMemcpy(&got, word, sizeof got, cudaMemcpyDeviceToHost));
    guest::require(got == 1, "the word", 1);
    return guest::done(got);
}
