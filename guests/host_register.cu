// Works on its own memory from both sides: on the heap, on the stack, a variable of the program, and fresh pages, all of it registered
// (`cudaHostRegister`) and written by kernels, by copies and by the host in turn. Another thread counts on the same pages all the time,
// some of the memory is registered anew every few steps, and now and then a child is forked, whose memory is its own.
#include <atomic>
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "guest.cuh"

constexpr int N = 3000;
constexpr size_t BYTES = N * sizeof(uint32_t);

static uint32_t variable[N];

__host__ __device__ uint32_t combine(uint32_t mine, int step, int i, int work) { return guest::mix_rounds(mine + i, step, work); }

// Works on memory of the host where it lies.
__global__ void stir(uint32_t *words, int count, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) words[i] = combine(words[i], step, i, work);
    __threadfence_system();
}

// Registered memory, and what has to be in it.
struct Area {
    const char *name;
    uint32_t *words;
    int count;
    bool registered = false;
    std::vector<uint32_t> expected;

    Area(const char *name, uint32_t *words, int count) : name(name), words(words), count(count), expected(count) {
        memset(words, 0, count * sizeof *words);
        change(true);
    }
    void change(bool in) {
        if (in)
            CUDA(cudaHostRegister(words, count * sizeof *words, cudaHostRegisterMapped | cudaHostRegisterPortable));
        else
            CUDA(cudaHostUnregister(words));
        registered = in;
    }
    void step(int step, int work, cudaStream_t stream) {
        uint32_t *there;
        CUDA(cudaHostGetDevicePointer(reinterpret_cast<void **>(&there), words, 0));
        guest::require(there == words, name, step);
        words[step % count] += step;
        expected[step % count] += step;
        stir<<<(count + 127) / 128, 128, 0, stream>>>(there, count, step, work);
        LAUNCHED();
        for (int i = 0; i < count; i++) expected[i] = combine(expected[i], step, i, work);
    }
    void check(int step) const { guest::require(memcmp(words, expected.data(), count * sizeof *words) == 0, name, step); }
};

// A child has the memory as it was, and what either changes the other does not see.
static void fork_once(std::vector<Area *> &areas, volatile uint32_t *note, int step) {
    int there[2], back[2];
    char byte = 0;
    guest::require(pipe(there) == 0 && pipe(back) == 0, "pipes", step);
    *note = step;
    pid_t pid = fork();
    guest::require(pid >= 0, "a fork", step);
    if (pid == 0) {
        for (auto area : areas) {
            if (memcmp(area->words, area->expected.data(), area->count * sizeof(uint32_t)) != 0) _exit(1);
            memset(area->words, 0xee, area->count * sizeof(uint32_t));
        }
        if (write(back[1], &byte, 1) != 1 || read(there[0], &byte, 1) != 1) _exit(2);
        for (auto area : areas)
            for (int i = 0; i < area->count; i++)
                if (area->words[i] != 0xeeeeeeee) _exit(3);
        _exit(*note == uint32_t(step) ? 0 : 4);
    }
    guest::require(read(back[0], &byte, 1) == 1, "the child says that it has changed its memory", step);
    for (auto area : areas) area->check(step);
    *note = 0;
    guest::require(write(there[1], &byte, 1) == 1, "the child is told", step);
    int status;
    while (waitpid(pid, &status, 0) < 0) {
    }
    if (status != 0) fprintf(stderr, "the child ends with %#x\n", status);
    guest::require(status == 0, "the child's memory is its own", step);
    for (int end : {there[0], there[1], back[0], back[1]}) close(end);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 8);
    CUDA(cudaSetDeviceFlags(cudaDeviceMapHost));
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    // On the heap, between other things, and on no border of a page.
    auto heap = static_cast<char *>(malloc(3 * BYTES));
    auto beside = reinterpret_cast<std::atomic<uint64_t> *>((uintptr_t(heap) + 63) / 64 * 64);
    new (beside) std::atomic<uint64_t>(0);
    uint32_t local[300];
    volatile uint32_t note = 0;
    size_t much = 40 * 4096;
    // Away from where processes have their libraries: where the server has some of its own, memory is not mapped (docs/registered-memory.md).
    auto away = reinterpret_cast<void *>(0x6f0000000000);
    auto fresh = static_cast<uint32_t *>(mmap(away, much, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    Area a("the heap", reinterpret_cast<uint32_t *>(heap + 200), N);
    Area b("the stack", local, 300);
    Area c("a variable", variable, N);
    Area d("fresh pages", fresh, int(much / 4));
    std::vector<Area *> areas = {&a, &b, &c, &d};
    guest::require(cudaHostRegister(local + 1, 4, 0) == cudaErrorHostMemoryAlreadyRegistered, "once is enough", 0);
    guest::require(cudaHostUnregister(local + 1) == cudaErrorInvalidValue, "by its beginning", 0);
    cudaGetLastError();

    // Nothing of this may be lost, wherever the page is.
    std::atomic<bool> over{false};
    uint64_t counted = 0;
    std::thread counter([&] {
        while (!over.load(std::memory_order_relaxed)) {
            // No atomic step: whoever loses a write breaks the sum.
            beside->store(beside->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
            if (beside->load(std::memory_order_relaxed) != ++counted) _exit(5);
            if (counted % 64 == 0) usleep(200);
        }
    });

    uint32_t *device, *copy = static_cast<uint32_t *>(malloc(BYTES));
    CUDA(cudaMalloc(&device, BYTES));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        for (auto area : areas) area->step(step, work, stream);
        // By copies too: into the device, and back into registered memory.
        CUDA(cudaMemcpyAsync(device, a.words, BYTES, cudaMemcpyHostToDevice, stream));
        CUDA(cudaMemcpyAsync(c.words, device, BYTES, cudaMemcpyDeviceToHost, stream));
        c.expected = a.expected;
        CUDA(cudaStreamSynchronize(stream));
        for (auto area : areas) area->check(step);
        if (step % 7 == 0)
            for (auto area : {&a, &b}) {
                // What the device has done is there when it is no longer registered.
                area->step(step, work, stream);
                area->change(false);
                area->check(step);
                area->change(true);
                area->check(step);
            }
        if (step % 20 == 10) fork_once(areas, &note, step);
        CUDA(cudaMemcpy(copy, c.words, BYTES, cudaMemcpyHostToHost));
        sum = guest::fold(sum, copy, N);
        sum = guest::fold(sum, local, 300);
        guest::progress(step, steps, sum);
    }
    for (auto area : areas) area->change(false);
    over = true;
    counter.join();
    for (auto area : areas) area->check(steps);
    CUDA(cudaFree(device));
    munmap(fresh, much);
    free(heap);
    return guest::done(sum);
}
