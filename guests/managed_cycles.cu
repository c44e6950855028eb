// Managed regions that processor and kernels use in turn, again and again, so that they may lie where both reach them; between that, phases in which only
// kernels use them, or the processor one of them; host functions between kernels; one that is freed and made again in the middle of it; and now and then a graph
// that was instantiated before all that.
#include "guest.cuh"

constexpr int REGIONS = 3, PHASE = 60;
// A word of each half of a page; so many pages that they come back by themselves where all are written.
constexpr size_t BYTES = 2304 << 10, STRIDE = 512;
constexpr int COUNT = BYTES / sizeof(uint32_t) / STRIDE;

__global__ void stir(uint32_t *words, const uint32_t *others, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) words[i * STRIDE] = guest::mix_rounds(words[i * STRIDE] + others[i * STRIDE], step + i, work);
}

// A word of each half of a page that no kernel has yet, and what a graph makes of it.
constexpr int FILLED = 1, COPIED = 2, ADDED = 3;

__global__ void add(uint32_t *words, const uint32_t *others) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) words[i * STRIDE + ADDED] += others[i * STRIDE];
}

// Copies one region, and fills, copies and adds to words of another.
static cudaGraphExec_t instantiate(const uint32_t *from, uint32_t *to, uint32_t *copy) {
    constexpr size_t PITCH = STRIDE * sizeof(uint32_t), WORD = sizeof(uint32_t);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaMemcpyAsync(copy, from, BYTES, cudaMemcpyDefault, stream));
    CUDA(cudaMemset2DAsync(to + FILLED, PITCH, 0x5a, WORD, COUNT, stream));
    CUDA(cudaMemcpy2DAsync(to + COPIED, PITCH, copy, PITCH, WORD, COUNT, cudaMemcpyDefault, stream));
    add<<<(COUNT + 127) / 128, 128, 0, stream>>>(to, copy);
    LAUNCHED();
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    return exec;
}

// What the host does to a word when a stream gets there.
struct Note {
    uint32_t *word;
    int step;

    static void write(void *note) {
        auto [word, step] = *static_cast<Note *>(note);
        *word = guest::mix(*word, step);
    }
};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 600, 16);
    std::vector<uint32_t *> regions(REGIONS);
    std::vector<std::vector<uint32_t>> expected(REGIONS, std::vector<uint32_t>(COUNT, 0));
    auto make = [&](int at) {
        CUDA(cudaMallocManaged(&regions[at], BYTES));
        for (int i = 0; i < COUNT; i++) regions[at][i * STRIDE] = expected[at][i] = at + i;
    };
    for (int at = 0; at < REGIONS; at++) make(at);
    uint32_t sum = 0, *copy;
    CUDA(cudaMalloc(&copy, BYTES));
    cudaGraphExec_t graph = instantiate(regions[0], regions[1], copy);
    std::vector<uint32_t> copied(COUNT, 0), added(COUNT, 0);
    for (int step = 0; step < steps; step++) {
        int phase = step / PHASE % 5;
        int to = step % REGIONS, from = (step + 1) % REGIONS;
        if (step % 10 == 0) {
            CUDA(cudaGraphLaunch(graph, 0));
            for (int i = 0; i < COUNT; i++) added[i] += copied[i] = expected[0][i];
        }
        stir<<<(COUNT + 127) / 128, 128>>>(regions[to], regions[from], step, work);
        LAUNCHED();
        for (int i = 0; i < COUNT; i++)
            expected[to][i] = guest::mix_rounds(expected[to][i] + expected[from][i], step + i, work);
        // Phase 1, when it has gone on for a while: the host's turn begins in the middle of the work.
        Note note{&regions[to][STRIDE], step};
        if (phase == 1 && step % PHASE >= PHASE / 2) {
            CUDA(cudaLaunchHostFunc(0, Note::write, &note));
            expected[to][1] = guest::mix(expected[to][1], step);
            stir<<<(COUNT + 127) / 128, 128>>>(regions[from], regions[to], step, work);
            LAUNCHED();
            for (int i = 0; i < COUNT; i++)
                expected[from][i] = guest::mix_rounds(expected[from][i] + expected[to][i], step + i, work);
        }
        CUDA(cudaDeviceSynchronize());
        for (int at = 0; at < REGIONS; at++) {
            // Phase 3: kernels only. Phase 4: the processor uses one.
            if (phase == 3 || (phase == 4 && at != 1)) continue;
            for (int i = 0; i < COUNT; i++)
                guest::require(regions[at][i * STRIDE] == expected[at][i], "what a kernel made of a region", step);
            for (int i = 0; i < COUNT; i++) regions[at][i * STRIDE] = expected[at][i] = guest::mix(expected[at][i], step);
        }
        if (phase != 3) {
            for (int i = 0; i < COUNT; i++) {
                const uint32_t *words = regions[1] + i * STRIDE;
                bool is_right = words[FILLED] == 0x5a5a5a5a && words[COPIED] == copied[i] && words[ADDED] == added[i];
                guest::require(is_right, "what a graph made of a region", step);
            }
        }
        if (step % (PHASE * 2) == PHASE - 1) {
            CUDA(cudaFree(regions[2]));
            make(2);
        }
        sum = guest::mix(sum, guest::fold(step, expected[step % REGIONS].data(), COUNT));
        guest::progress(step, steps, sum);
    }
    for (int at = 0; at < REGIONS; at++) {
        for (int i = 0; i < COUNT; i++)
            guest::require(regions[at][i * STRIDE] == expected[at][i], "a region in the end", at);
        CUDA(cudaFree(regions[at]));
    }
    CUDA(cudaGraphExecDestroy(graph));
    CUDA(cudaFree(copy));
    printf("sum %08x\n", sum);
}
