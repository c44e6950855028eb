// A long kernel over managed memory, and beside it in another stream shorter ones over some more; meanwhile the host writes and reads in the
// pages of both.
#include <algorithm>

#include "marked_hash.cuh"

__global__ void stir(uint32_t *values, int turn, int rounds) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    values[i] = guest::mix_rounds(values[i], turn, rounds);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 4000);
    // The first half of each page is the device's, the second the host's.
    uint32_t *slow, *quick;
    for (uint32_t **memory : {&slow, &quick}) CUDA(cudaMallocManaged(memory, 2 * N * sizeof(uint32_t)));
    std::vector<uint32_t> values(N), stirred(N);
    for (int i = 0; i < N; i++) {
        values[i] = slow[i] = guest::mix(3, i);
        stirred[i] = quick[i] = guest::mix(4, i);
    }
    cudaStream_t one, other;
    for (cudaStream_t *stream : {&one, &other}) CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));

    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        hash<<<BLOCKS, THREADS, 0, one>>>(slow, work);
        LAUNCHED();
        for (int turn = 0; turn < 3 || cudaStreamQuery(one) == cudaErrorNotReady; turn++) {
            for (uint32_t *memory : {slow, quick}) {
                for (int i = 0; i < N; i++) memory[N + i] = guest::mix(step + turn, i);
            }
            stir<<<BLOCKS, THREADS, 0, other>>>(quick, step + turn, work / 4);
            LAUNCHED();
            CUDA(cudaStreamSynchronize(other));
            for (int i = 0; i < N; i++) {
                stirred[i] = guest::mix_rounds(stirred[i], step + turn, work / 4);
                guest::require(quick[i] == stirred[i], "what is stirred", step);
                for (uint32_t *memory : {slow, quick})
                    guest::require(memory[N + i] == guest::mix(step + turn, i), "what the host has written", step);
            }
        }
        CUDA(cudaStreamSynchronize(one));
        if (guest::checked_at(step, steps)) {
            hash_on_host(values, work);
            guest::require(std::equal(slow, slow + N, values.begin()), "what the long kernel has made", step);
        } else {
            values.assign(slow, slow + N);
        }
        sum = guest::fold(sum, slow, N);
        guest::progress(step, steps, sum);
    }
    for (cudaStream_t stream : {one, other}) CUDA(cudaStreamDestroy(stream));
    for (uint32_t *memory : {slow, quick}) CUDA(cudaFree(memory));
    return guest::done(sum);
}
