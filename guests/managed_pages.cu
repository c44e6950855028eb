// Both sides at once in the same pages of managed memory: while a kernel changes every fourth word, three threads change the others, by
// loads and stores and by system calls. Beside that: a tree of many small allocations, walked by both; a large array that the host goes through
// forwards and backwards; host functions and events by which the host learns that a kernel has ended without waiting for a stream.
#include <cstring>
#include <new>
#include <thread>
#include <unistd.h>

#include "guest.cuh"

constexpr int WORDS = 9000, LARGE = 700000, LANES = 4, NODES = 255;

struct Node {
    Node *left, *right;
    uint32_t value;
};

template <class T>
T *managed(size_t count) {
    T *memory;
    CUDA(cudaMallocManaged(&memory, count * sizeof(T)));
    return memory;
}

__global__ void stir(uint32_t *words, int count, int stride, int step, int work) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * stride;
    if (i < count) words[i] = guest::mix_rounds(words[i] + i, step, work);
}

static void launch(uint32_t *words, int count, int stride, int step, int work, cudaStream_t stream) {
    stir<<<(count / stride + 128) / 128, 128, 0, stream>>>(words, count, stride, step, work);
    LAUNCHED();
}

static void expect(std::vector<uint32_t> &words, int stride, int step, int work) {
    for (size_t i = 0; i < words.size(); i += stride) words[i] = guest::mix_rounds(words[i] + i, step, work);
}

// In order, with a stack of its own; changes what it finds.
__host__ __device__ uint32_t walk(Node *root, int step) {
    Node *stack[16];
    int depth = 0;
    uint32_t hash = step;
    for (Node *node = root; node || depth;) {
        for (; node; node = node->left) stack[depth++] = node;
        node = stack[--depth];
        node->value = guest::mix(node->value, step);
        hash = guest::mix(hash, node->value);
        node = node->right;
    }
    return hash;
}

__global__ void walk_on_device(Node *root, int step, uint32_t *hash) { *hash = walk(root, step); }

static Node *plant(int nodes) {
    if (nodes == 0) return nullptr;
    int left = (nodes - 1) / 2;
    return new (managed<Node>(1)) Node{plant(left), plant(nodes - 1 - left), uint32_t(nodes)};
}

// A thread's words: by stores, or through a pipe into and out of them.
static void change(uint32_t *words, uint32_t *scratch, int lane, int step, int *pipes) {
    for (int i = lane; i < WORDS; i += LANES) words[i] += step * i;
    if (step % 2) return;
    size_t bytes = 512 + lane * 4;
    guest::require(write(pipes[1], scratch, bytes) == ssize_t(bytes), "written from", step);
    guest::require(read(pipes[0], scratch + 2000, bytes) == ssize_t(bytes), "read into", step);
}

struct Seen {
    const uint32_t *word;
    uint32_t *told;
    uint32_t value;
};

static void look(void *data) {
    auto seen = static_cast<Seen *>(data);
    seen->value = *seen->word;
    *seen->told = seen->value + 1;
}

__global__ void pass_on(const uint32_t *from, uint32_t *to) { *to = *from; }

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 8);
    cudaStream_t streams[2];
    cudaEvent_t event;
    for (auto &stream : streams) CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    uint32_t *words = managed<uint32_t>(WORDS + 2), *large = managed<uint32_t>(LARGE), *hash = managed<uint32_t>(1);
    uint32_t *scratch[LANES];
    int pipes[LANES][2];
    for (int lane = 1; lane < LANES; lane++) {
        scratch[lane] = managed<uint32_t>(4000);
        guest::require(pipe(pipes[lane]) == 0, "a pipe", 0);
    }
    std::vector<uint32_t> expected(WORDS), expected_large(LARGE);
    Node *tree = plant(NODES), *twin = plant(NODES);

    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        // All four lanes of the same pages at the same time.
        launch(words, WORDS, LANES, step, work * 4, streams[0]);
        std::thread threads[LANES];
        for (int lane = 1; lane < LANES; lane++) {
            for (int i = 0; i < 600; i++) scratch[lane][i] = step * i + lane;
            threads[lane] = std::thread(change, words, scratch[lane], lane, step, pipes[lane]);
        }
        // And another kernel meanwhile, elsewhere.
        launch(large, LARGE, 7, step, 1, streams[1]);
        for (int lane = 1; lane < LANES; lane++) {
            threads[lane].join();
            if (step % 2 == 0)
                guest::require(memcmp(scratch[lane], scratch[lane] + 2000, 512 + lane * 4) == 0, "system calls", step);
        }
        expect(expected, LANES, step, work * 4);
        for (int i = 0; i < WORDS; i++)
            if (i % LANES) expected[i] += step * i;
        CUDA(cudaStreamSynchronize(streams[0]));
        guest::require(memcmp(words, expected.data(), WORDS * 4) == 0, "both sides in the same pages", step);

        // Written by one kernel behind another, and seen by a host function, with no call that waits.
        launch(words, WORDS, 1, step, work, streams[0]);
        launch(words, WORDS, 3, step, work, streams[0]);
        expect(expected, 1, step, work);
        expect(expected, 3, step, work);
        Seen seen{words + step % WORDS, words + WORDS + 1, 0};
        CUDA(cudaLaunchHostFunc(streams[0], look, &seen));
        pass_on<<<1, 1, 0, streams[0]>>>(words + WORDS + 1, hash);
        LAUNCHED();
        CUDA(cudaEventRecord(event, streams[0]));
        while (cudaEventQuery(event) == cudaErrorNotReady) words[WORDS]++;
        guest::require(seen.value == expected[step % WORDS], "what a host function saw", step);
        guest::require(*hash == seen.value + 1, "what a kernel saw of what a host function wrote", step);
        guest::require(memcmp(words, expected.data(), WORDS * 4) == 0, "what an event told", step);

        // The large one, in both directions, then written in part and read again with no kernel between.
        CUDA(cudaStreamSynchronize(streams[1]));
        expect(expected_large, 7, step, 1);
        if (step % 2)
            for (int i = 0; i < LARGE; i++) guest::require(large[i] == expected_large[i], "forwards", step);
        else
            for (int i = LARGE; i-- > 0;) guest::require(large[i] == expected_large[i], "backwards", step);
        for (int i = step * 1000 % LARGE; i < LARGE && i < step * 1000 % LARGE + 3000; i++) large[i] = expected_large[i] = step ^ i;
        guest::require(memcmp(large, expected_large.data(), LARGE * 4) == 0, "written and read again", step);

        // The tree, on the device, on the host, and again, beside one that only the host has touched.
        walk_on_device<<<1, 1, 0, streams[step % 2]>>>(tree, step, hash);
        LAUNCHED();
        CUDA(cudaStreamSynchronize(streams[step % 2]));
        uint32_t on_host = walk(twin, step);
        guest::require(*hash == on_host, "a tree", step);
        guest::require(walk(tree, step + 1) == walk(twin, step + 1), "a tree, walked by the host", step);

        sum = guest::mix(guest::fold(sum, words, WORDS), *hash);
        sum = guest::mix(sum, large[step % LARGE]);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaDeviceSynchronize());
    return guest::done(guest::fold(sum, large, LARGE));
}
