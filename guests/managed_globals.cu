// Variables that host and device have in common (`__managed__`): scalars, arrays, a structure, pointers between them that either side sets, of the
// program and of a module that it loads, unloads and loads again. Kernels, threads of the host and system calls work on them in turn.
#include <cstring>
#include <thread>
#include <unistd.h>

#include "driver.cuh"

constexpr int N = 3000;
constexpr int THREADS = 3;
constexpr int WORDS = 300;

struct State {
    uint32_t steps;
    double mean;
    uint32_t *most;
    uint32_t ring[8];
};

__managed__ uint32_t counter = 5;
__managed__ uint32_t table[N];
__managed__ uint32_t primes[6] = {2, 3, 5, 7, 11, 13};
__managed__ State state = {7, 2.5, nullptr, {1, 2, 3}};
__managed__ uint32_t *by_device, *by_host;
static __managed__ char letters[16] = "managed";
__device__ uint32_t own = 9;

__host__ __device__ uint32_t combine(uint32_t mine, uint32_t step, int i, int work) {
    return guest::mix_rounds(mine + i, step, work);
}

// Works on all variables by name, and on one through a pointer that the host has set; sets another.
__global__ void stir(uint32_t step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        table[i] = combine(table[i], step, i, work) + primes[i % 6];
        if (i % 100 == 0) atomicAdd(&counter, table[i] & 0xff);
    }
    if (i == 0) {
        own = guest::mix(own, step);
        state.steps++;
        state.ring[step % 8] += own;
        state.mean = (state.mean + step) / 2;
        *by_host = guest::mix(*by_host, step);
        letters[step % 7] ^= 0x20;
        by_device = &primes[step % 6];
    }
}

// What all of that has to come to.
struct Expected {
    uint32_t counter = 5, own = 9, steps = 7, ring[8] = {1, 2, 3}, primes[6] = {2, 3, 5, 7, 11, 13};
    double mean = 2.5;
    std::vector<uint32_t> table = std::vector<uint32_t>(N);
    char letters[16] = "managed";

    void stir(uint32_t step, int work, uint32_t &by_host) {
        for (int i = 0; i < N; i++) {
            table[i] = combine(table[i], step, i, work) + primes[i % 6];
            if (i % 100 == 0) counter += table[i] & 0xff;
        }
        own = guest::mix(own, step);
        steps++;
        ring[step % 8] += own;
        mean = (mean + step) / 2;
        by_host = guest::mix(by_host, step);
        letters[step % 7] ^= 0x20;
    }

    void compare(int step) const {
        guest::require(::counter == counter, "a scalar", step);
        guest::require(memcmp(::table, table.data(), sizeof ::table) == 0, "an array", step);
        guest::require(memcmp(::primes, primes, sizeof primes) == 0, "an array that began with something", step);
        guest::require(state.steps == steps && state.mean == mean && memcmp(state.ring, ring, sizeof ring) == 0, "a structure", step);
        guest::require(memcmp(::letters, letters, sizeof letters) == 0, "a variable of one file", step);
    }
};

// The module, and where its variables lie.
struct Module {
    CUmodule module;
    uint32_t *words, **other;
    std::vector<uint32_t> expected;

    explicit Module(bool ptx) : expected(WORDS) {
        CUDA(cuModuleLoad(&module, guest::beside_program(ptx ? "delta.ptx" : "delta.fatbin").c_str()));
        words = reinterpret_cast<uint32_t *>(guest::global(module, "delta_words", WORDS * sizeof(uint32_t)));
        other = reinterpret_cast<uint32_t **>(guest::global(module, "delta_other", sizeof(uint32_t *)));
        uint32_t first[] = {3, 1, 4, 1, 5};
        memcpy(expected.data(), first, sizeof first);
        guest::require(memcmp(words, expected.data(), WORDS * 4) == 0 && !*other, "what a module's variables begin with", 0);
    }

    // Has the kernel stir, with what it is given set by the host; both changed the words in turn.
    uint32_t stir(uint32_t step, uint32_t *given, cudaStream_t stream) {
        words[step % WORDS] += step;
        expected[step % WORDS] += step;
        *other = given;
        void *arguments[] = {&step};
        CUDA(cuLaunchKernel(guest::function(module, "delta_stir"), 3, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr));
        CUDA(cudaStreamSynchronize(stream));
        for (int i = 0; i < WORDS; i++) expected[i] = guest::mix(expected[i] + i, step);
        guest::require(memcmp(words, expected.data(), WORDS * 4) == 0, "a module's variables", step);
        return guest::fold(step, words, WORDS);
    }

    void unload() {
        CUDA(cuModuleUnload(module));
    }
};

// What the runtime says of such a variable.
static void attributes() {
    cudaPointerAttributes of{};
    CUDA(cudaPointerGetAttributes(&of, &table[3]));
    guest::require(of.type == cudaMemoryTypeManaged && of.hostPointer == &table[3] && of.devicePointer == &table[3], "a pointer", 0);
    void *address;
    CUDA(cudaGetSymbolAddress(&address, table));
    guest::require(address == table, "one address", 0);
    guest::require(cudaFree(table) != cudaSuccess && cudaFree(&counter) != cudaSuccess, "it is not freed", 0);
    cudaGetLastError();
    cudaMemLocation device{cudaMemLocationTypeDevice, 0};
    CUDA(cudaMemAdvise(table, sizeof table, cudaMemAdviseSetPreferredLocation, device));
    CUDA(cudaMemPrefetchAsync(table, sizeof table, device, 0, 0));
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 8);
    // Before the first call of the runtime.
    Expected expected;
    expected.compare(0);
    CUDA(cudaFree(nullptr));
    attributes();
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int pipes[2];
    guest::require(pipe(pipes) == 0, "a pipe", 0);
    uint32_t *heap, given = 1, sum = 0;
    CUDA(cudaMallocManaged(&heap, sizeof *heap));
    *heap = given;
    by_host = heap;
    state.most = table;
    Module module(false);
    for (int step = 1; step <= steps; step++) {
        stir<<<(N + 127) / 128, 128, 0, stream>>>(step, work);
        LAUNCHED();
        CUDA(cudaStreamSynchronize(stream));
        expected.stir(step, work, given);
        expected.compare(step);
        guest::require(*by_host == given && by_device == &primes[step % 6], "pointers", step);

        // The host with several threads, and through the pointers.
        std::thread writers[THREADS];
        for (int t = 0; t < THREADS; t++)
            writers[t] = std::thread([=] {
                for (int i = t; i < N; i += THREADS) state.most[i] += step * i;
            });
        for (auto &writer : writers) writer.join();
        for (int i = 0; i < N; i++) expected.table[i] += step * i;
        *by_device += 2;
        expected.primes[step % 6] += 2;
        counter ^= step;
        expected.counter ^= step;

        // System calls, and copies by name.
        guest::require(write(pipes[1], table, 400) == 400 && read(pipes[0], &table[200], 400) == 400, "system calls", step);
        memcpy(&expected.table[200], expected.table.data(), 400);
        if (step % 3 == 0) {
            uint32_t seen[6];
            CUDA(cudaMemcpyFromSymbol(seen, primes, sizeof seen));
            guest::require(memcmp(seen, expected.primes, sizeof seen) == 0, "a copy from a variable", step);
            seen[0] ^= step;
            CUDA(cudaMemcpyToSymbol(primes, seen, sizeof seen));
            expected.primes[0] ^= step;
            CUDA(cudaMemset(&table[1000], step, 400));
            memset(&expected.table[1000], step, 400);
        }

        // Another module's, from time to time with new ones.
        if (step % 10 == 0) {
            module.unload();
            module = Module(step % 20 == 0);
        }
        sum = guest::mix(sum, module.stir(step, &counter, stream));
        expected.counter = guest::mix(expected.counter, step);
        expected.compare(step);
        sum = guest::mix(guest::fold(sum, table, N), counter + state.ring[step % 8] + letters[step % 7] + *by_host);
        guest::progress(step, steps, sum);
    }
    module.unload();
    CUDA(cudaFree(heap));
    return guest::done(sum);
}
