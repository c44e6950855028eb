// Adds vectors in one kernel whose values lie in every kind of variable: registers, an array of the thread's own, shared memory of both
// kinds, device memory and what the kernel has allocated, and in pointers that lead to each of them. The host does the same to a copy.
#include <algorithm>

#include "guest.cuh"

constexpr int BLOCKS = 8;
constexpr int THREADS = 64;
constexpr int N = BLOCKS * THREADS;
constexpr int OWN = 8;
// Where a pointer may lead.
constexpr int KINDS = 5;

// What a thread does in a round: the word that one pointer leads to goes into `mine`, and that to what another one leads to.
__host__ __device__ void add_by_pointers(uint32_t *const *kinds, uint32_t &mine, int round) {
    const uint32_t *from = kinds[mine % KINDS];
    uint32_t *to = kinds[mine / KINDS % KINDS];
    mine = guest::mix(mine, *from + round);
    *to += mine;
}

__global__ void add(const uint32_t *a, const uint32_t *b, uint32_t *sums, int rounds) {
    __shared__ uint32_t fixed[THREADS];
    extern __shared__ uint32_t dynamic[];
    uint32_t own[OWN];
    int t = threadIdx.x, i = blockIdx.x * THREADS + t;
    for (int k = 0; k < OWN; k++) own[k] = a[i] + k;
    fixed[t] = b[i];
    dynamic[t] = a[i] ^ b[i];
    uint32_t mine = a[i] + b[i];
    uint32_t *heap = static_cast<uint32_t *>(malloc(sizeof(uint32_t)));
    if (heap == nullptr) __trap();
    *heap = a[i] & b[i];
    uint32_t *kinds[KINDS] = {own, &fixed[t], &dynamic[t], &sums[i], heap};
    for (int round = 0; round < rounds; round++) {
        kinds[0] = &own[mine % OWN];
        add_by_pointers(kinds, mine, round);
        __syncthreads();
        uint32_t neighbours = fixed[(t + 1) % THREADS] + dynamic[(t + THREADS - 1) % THREADS];
        __syncthreads();
        fixed[t] ^= neighbours;
#pragma CPT
    }
    for (int k = 0; k < OWN; k++) mine = guest::mix(mine, own[k]);
    sums[i] += mine + fixed[t] + dynamic[t] + *heap;
    free(heap);
}

// The same on the host, for all threads of a block.
void add_on_host(const uint32_t *a, const uint32_t *b, uint32_t *sums, int rounds) {
    uint32_t fixed[THREADS], dynamic[THREADS], before[THREADS], heap[THREADS], own[THREADS][OWN], mine[THREADS];
    for (int t = 0; t < THREADS; t++) {
        for (int k = 0; k < OWN; k++) own[t][k] = a[t] + k;
        fixed[t] = b[t];
        dynamic[t] = a[t] ^ b[t];
        mine[t] = a[t] + b[t];
        heap[t] = a[t] & b[t];
    }
    for (int round = 0; round < rounds; round++) {
        for (int t = 0; t < THREADS; t++) {
            uint32_t *const kinds[KINDS] = {&own[t][mine[t] % OWN], &fixed[t], &dynamic[t], &sums[t], &heap[t]};
            add_by_pointers(kinds, mine[t], round);
        }
        std::copy(fixed, fixed + THREADS, before);
        for (int t = 0; t < THREADS; t++)
            fixed[t] ^= before[(t + 1) % THREADS] + dynamic[(t + THREADS - 1) % THREADS];
    }
    for (int t = 0; t < THREADS; t++) {
        for (int k = 0; k < OWN; k++) mine[t] = guest::mix(mine[t], own[t][k]);
        sums[t] += mine[t] + fixed[t] + dynamic[t] + heap[t];
    }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 2400);
    constexpr size_t BYTES = N * sizeof(uint32_t);
    std::vector<uint32_t> a(N), b(N), wanted(N), got(N);
    for (int i = 0; i < N; i++) {
        a[i] = guest::mix(1, i);
        b[i] = guest::mix(2, i);
    }
    uint32_t *device_a, *device_b, *sums;
    for (uint32_t **memory : {&device_a, &device_b, &sums}) CUDA(cudaMalloc(memory, BYTES));
    CUDA(cudaMemcpy(device_a, a.data(), BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(device_b, b.data(), BYTES, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(sums, 0, BYTES));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        add<<<BLOCKS, THREADS, THREADS * sizeof(uint32_t)>>>(device_a, device_b, sums, work);
        LAUNCHED();
        bool is_checked = guest::checked_at(step, steps);
        for (int i = 0; is_checked && i < N; i += THREADS) add_on_host(&a[i], &b[i], &wanted[i], work);
        CUDA(cudaMemcpy(got.data(), sums, BYTES, cudaMemcpyDeviceToHost));
        guest::require(!is_checked || got == wanted, "the sums", step);
        wanted = got;
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    for (uint32_t *memory : {device_a, device_b, sums}) CUDA(cudaFree(memory));
    return guest::done(sum);
}
