// Works on managed memory from both sides: kernels and several threads of the host in turn, in every order, whole regions and parts of pages,
// a list whose nodes point to each other, a vector, system calls that read into it and write from it, and hints on the way.
#include <cstring>
#include <fcntl.h>
#include <new>
#include <thread>
#include <unistd.h>

#include "guest.cuh"

constexpr int N = 5000;
constexpr size_t BYTES = N * sizeof(uint32_t);
constexpr int THREADS = 3;

template <class T>
T *managed(size_t count, unsigned flags = cudaMemAttachGlobal) {
    T *memory;
    CUDA(cudaMallocManaged(&memory, count * sizeof(T), flags));
    return memory;
}

// Gives a vector managed memory.
template <class T>
struct Allocator {
    using value_type = T;
    Allocator() = default;
    template <class U>
    Allocator(const Allocator<U> &) {}
    T *allocate(size_t count) { return managed<T>(count); }
    void deallocate(T *memory, size_t) { CUDA(cudaFree(memory)); }
    template <class U>
    bool operator==(const Allocator<U> &) const { return true; }
    template <class U>
    bool operator!=(const Allocator<U> &) const { return false; }
};

struct Node {
    Node *next;
    uint32_t value;
};

__host__ __device__ uint32_t combine(uint32_t mine, int step, int i, int work) { return guest::mix_rounds(mine + i, step, work); }

__global__ void stir(uint32_t *words, int first, int count, int step, int work) {
    int i = first + blockIdx.x * blockDim.x + threadIdx.x;
    if (i < first + count) words[i] = combine(words[i], step, i, work);
}

// Walks the list where it lies, and changes it.
__global__ void walk(Node *head, uint32_t *sum, int step) {
    uint32_t hash = 0;
    for (Node *node = head; node; node = node->next) {
        node->value = guest::mix(node->value, step);
        hash = guest::mix(hash, node->value);
    }
    *sum = hash;
}

static void launch(uint32_t *words, int first, int count, int step, int work, cudaStream_t stream) {
    stir<<<(count + 127) / 128, 128, 0, stream>>>(words, first, count, step, work);
    LAUNCHED();
}

static int attribute(cudaMemRangeAttribute which, const void *memory, size_t bytes) {
    int value = -7;
    CUDA(cudaMemRangeGetAttribute(&value, sizeof value, which, memory, bytes));
    return value;
}

// What is said of memory can be asked for, page by page.
static void hints(uint32_t *words, int step, cudaStream_t stream) {
    cudaMemLocation device{cudaMemLocationTypeDevice, 0}, host{cudaMemLocationTypeHost, 0};
    CUDA(cudaMemAdvise(words, 4096, cudaMemAdviseSetReadMostly, device));
    CUDA(cudaMemAdvise(words, BYTES, cudaMemAdviseSetPreferredLocation, step % 2 ? device : host));
    CUDA(cudaMemAdvise(words, BYTES, cudaMemAdviseSetAccessedBy, device));
    CUDA(cudaMemPrefetchAsync(words, BYTES, step % 2 ? device : host, 0, stream));
    guest::require(attribute(cudaMemRangeAttributeReadMostly, words, 4096) == 1, "mostly read", step);
    guest::require(attribute(cudaMemRangeAttributeReadMostly, words, 4097) == 0, "not all of it", step);
    int home = step % 2 ? 0 : cudaCpuDeviceId;
    guest::require(attribute(cudaMemRangeAttributePreferredLocation, words, BYTES) == home, "preferred", step);
    guest::require(attribute(cudaMemRangeAttributeLastPrefetchLocation, words, BYTES) == home, "prefetched", step);
    int by[2];
    CUDA(cudaMemRangeGetAttribute(by, sizeof by, cudaMemRangeAttributeAccessedBy, words, BYTES));
    guest::require(by[0] == 0 && by[1] == cudaInvalidDeviceId, "accessed by", step);
    CUDA(cudaMemAdvise(words, 4096, cudaMemAdviseUnsetReadMostly, device));
    CUDA(cudaMemAdvise(words, BYTES, cudaMemAdviseUnsetAccessedBy, device));
}

// Several at once; and that contents are of no use until they are written again.
static void hints_together(uint32_t *words, uint32_t *spare, int step, int work, cudaStream_t stream) {
    cudaMemLocation places[] = {{cudaMemLocationTypeDevice, 0}, {cudaMemLocationTypeHost, 0}};
    void *both[] = {words, spare};
    size_t sizes[] = {BYTES, BYTES}, firsts[] = {0, 1};
    CUDA(cudaMemPrefetchBatchAsync(both, sizes, 2, places, firsts, 2, 0, stream));
    int mostly = -7, preferred = -7;
    void *answers[] = {&mostly, &preferred};
    size_t lengths[] = {sizeof mostly, sizeof preferred};
    cudaMemRangeAttribute which[] = {cudaMemRangeAttributeReadMostly, cudaMemRangeAttributePreferredLocation};
    CUDA(cudaMemRangeGetAttributes(answers, lengths, which, 2, words, BYTES));
    guest::require(mostly == 0 && preferred == (step % 2 ? 0 : cudaCpuDeviceId), "attributes together", step);

    // Prefetched again before it is written: by the reference to write it would do, but NVIDIA's driver (580) has lost what was written, after some forty times.
    if (step % 2) {
        CUDA(cudaMemDiscardBatchAsync(both + 1, sizes, 1, 0, stream));
        CUDA(cudaMemPrefetchBatchAsync(both + 1, sizes, 1, places + 1, firsts, 1, 0, stream));
    } else {
        CUDA(cudaMemDiscardAndPrefetchBatchAsync(both + 1, sizes, 1, places, firsts, 1, 0, stream));
    }
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < N; i++) spare[i] = step * i;
    launch(spare, 0, N, step, work, stream);
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < N; i++) guest::require(spare[i] == combine(step * i, step, i, work), "what was discarded", step);
}

static void bad_input(uint32_t *words) {
    cudaMemLocation device{cudaMemLocationTypeDevice, 0}, nowhere{cudaMemLocationTypeDevice, 99};
    uint32_t *plain, *freed = managed<uint32_t>(N);
    CUDA(cudaMalloc(&plain, 4096));
    CUDA(cudaFree(freed));
    guest::require(cudaFree(freed) != cudaSuccess, "free is once", 0);
    guest::require(cudaFree(words + 1) != cudaSuccess, "free is by the beginning", 0);
    guest::require(cudaMemPrefetchAsync(words + 1, BYTES, device, 0, 0) != cudaSuccess, "beyond the end", 0);
    guest::require(cudaMemPrefetchAsync(plain, 4, device, 0, 0) != cudaSuccess, "not managed", 0);
    guest::require(cudaMemPrefetchAsync(words, 4, nowhere, 0, 0) != cudaSuccess, "no such device", 0);
    guest::require(cudaMemAdvise(words, 0, cudaMemAdviseSetReadMostly, device) != cudaSuccess, "nothing", 0);
    cudaGetLastError();
    cudaPointerAttributes of{};
    CUDA(cudaPointerGetAttributes(&of, words + 3));
    guest::require(of.type == cudaMemoryTypeManaged && of.hostPointer == words + 3 && of.devicePointer == words + 3, "a pointer", 0);
    CUDA(cudaFree(plain));
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 8);
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint32_t *words = managed<uint32_t>(N), *attached = managed<uint32_t>(N, cudaMemAttachHost), *walked = managed<uint32_t>(1), *spare = managed<uint32_t>(N);
    memset(words, 0, BYTES);
    memset(attached, 0, BYTES);
    CUDA(cudaStreamAttachMemAsync(stream, attached));
    bad_input(words);
    std::vector<uint32_t, Allocator<uint32_t>> grown;
    std::vector<uint32_t> expected(N), beside(N), grown_expected;
    Node *head = nullptr;
    int nodes = 0;
    int pipes[2];
    guest::require(pipe(pipes) == 0, "a pipe", 0);

    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        // Kernel, read, write; and the other way round: written and read again with no kernel between.
        launch(words, 0, N, step, work, stream);
        CUDA(cudaStreamSynchronize(stream));
        for (int i = 0; i < N; i++) expected[i] = combine(expected[i], step, i, work);
        guest::require(memcmp(words, expected.data(), BYTES) == 0, "what the kernel wrote", step);
        words[step % N] ^= step;
        expected[step % N] ^= step;
        guest::require(words[step % N] == expected[step % N], "what the host wrote", step);

        // Both write parts of the same pages, the host with several threads.
        launch(words, 100, 900, step, work, stream);
        CUDA(cudaStreamSynchronize(stream));
        for (int i = 100; i < 1000; i++) expected[i] = combine(expected[i], step, i, work);
        std::thread writers[THREADS];
        for (int t = 0; t < THREADS; t++)
            writers[t] = std::thread([&, t] {
                for (int i = 1000 + t; i < N; i += THREADS) words[i] += step * i;
            });
        for (auto &writer : writers) writer.join();
        for (int i = 1000; i < N; i++) expected[i] += step * i;
        launch(words, 0, N, step + 1, 1, stream);
        for (int i = 0; i < N; i++) expected[i] = combine(expected[i], step + 1, i, 1);

        // Attached to the stream, touched by the host when that is idle.
        launch(attached, 0, N, step, 1, stream);
        CUDA(cudaStreamSynchronize(stream));
        for (int i = 0; i < N; i++) beside[i] = combine(beside[i], step, i, 1);
        guest::require(memcmp(words, expected.data(), BYTES) == 0, "parts of pages", step);
        guest::require(memcmp(attached, beside.data(), BYTES) == 0, "attached memory", step);

        // Copies in all directions.
        if (step % 3 == 0) {
            CUDA(cudaMemcpyAsync(words, attached, BYTES / 2, cudaMemcpyDefault, stream));
            CUDA(cudaMemsetAsync(words + N / 2, step, 400, stream));
            CUDA(cudaStreamSynchronize(stream));
            memcpy(expected.data(), beside.data(), BYTES / 2);
            memset(expected.data() + N / 2, step, 400);
            // Those that wait are over when they return, behind whatever the stream had to do.
            launch(attached, 0, N, step, work, 0);
            CUDA(cudaMemcpy(attached, expected.data(), BYTES, cudaMemcpyHostToDevice));
            guest::require(memcmp(attached, expected.data(), BYTES) == 0, "a copy that has returned", step);
            launch(attached, 0, N, step, work, 0);
            CUDA(cudaMemset(attached, step, BYTES));
            guest::require(attached[0] == 0x1010101u * uint8_t(step), "a fill that has returned", step);
            memcpy(attached, expected.data(), BYTES);
            beside = expected;
            CUDA(cudaMemcpy(beside.data(), words, BYTES, cudaMemcpyDeviceToHost));
            guest::require(beside == expected, "copies", step);
        }

        // System calls read from it and write into it.
        guest::require(write(pipes[1], words, 4096) == 4096, "written from", step);
        guest::require(read(pipes[0], attached, 4096) == 4096, "read into", step);
        memcpy(beside.data(), expected.data(), 4096);

        // A list that grows at its head, walked by the device and by the host.
        if (nodes < 60) head = new (managed<Node>(1)) Node{head, uint32_t(step)}, nodes++;
        walk<<<1, 1, 0, stream>>>(head, walked, step);
        LAUNCHED();
        CUDA(cudaStreamSynchronize(stream));
        uint32_t hash = 0;
        for (Node *node = head; node; node = node->next) hash = guest::mix(hash, node->value);
        guest::require(hash == *walked, "a list", step);

        // A vector that moves when it grows.
        for (int i = 0; i < 40; i++) grown.push_back(step * i), grown_expected.push_back(step * i);
        launch(grown.data(), 0, int(grown.size()), step, 1, stream);
        for (size_t i = 0; i < grown_expected.size(); i++) grown_expected[i] = combine(grown_expected[i], step, i, 1);
        if (step % 5 == 0) {
            hints(words, step, stream);
            hints_together(words, spare, step, work, stream);
        }
        CUDA(cudaStreamSynchronize(stream));
        guest::require(memcmp(grown.data(), grown_expected.data(), grown.size() * 4) == 0, "a vector", step);
        sum = guest::fold(sum, words, N);
        sum = guest::mix(guest::fold(sum, attached, N), *walked);
        guest::progress(step, steps, sum);
    }
    while (head) {
        Node *next = head->next;
        CUDA(cudaFree(head));
        head = next;
    }
    for (auto memory : {words, attached, walked, spare}) CUDA(cudaFree(memory));
    return guest::done(sum);
}
