// Graphs that decide by themselves: loops whose length the device finds out, two-way and many-way choices, choices inside of loops,
// and nodes captured into their bodies. Other graphs with conditions come and go between them.
#include "guest.cuh"

constexpr uint32_t WAYS = 3;

// What the graph works on: a number that is stirred until it ends in enough zeros, and what was seen on the way.
struct State {
    uint32_t value, rounds, even, odd, way[WAYS], other, inner;
};

__host__ __device__ static void stir(State *state, uint32_t step, int work) {
    state->value = guest::mix_rounds(state->value, step + state->rounds, work);
    state->rounds++;
}

__host__ __device__ static bool goes_on(const State *state) { return state->value % 16 != 0 && state->rounds % 64 != 0; }

__global__ void begin(State *state, cudaGraphConditionalHandle loop) {
    state->rounds++;
    cudaGraphSetConditional(loop, 1);
}

__global__ void round(State *state, const uint32_t *step, int work, cudaGraphConditionalHandle loop,
                      cudaGraphConditionalHandle parity) {
    stir(state, *step, work);
    cudaGraphSetConditional(loop, goes_on(state));
    cudaGraphSetConditional(parity, state->value & 1);
}

__global__ void choose(const State *state, cudaGraphConditionalHandle way) {
    cudaGraphSetConditional(way, state->value / 16 % (WAYS + 1));
}

__global__ void count(uint32_t *counter) { ++*counter; }

// The same on the host.
static void expect(State *state, uint32_t step, int work) {
    state->rounds++;
    do {
        stir(state, step, work);
        ++(state->value & 1 ? state->odd : state->even);
    } while (goes_on(state));
    uint32_t way = state->value / 16 % (WAYS + 1);
    if (way < WAYS) state->way[way]++;
    state->other += 2;
}

static cudaGraphConditionalHandle condition(cudaGraph_t graph, unsigned initial, unsigned flags) {
    cudaGraphConditionalHandle handle;
    CUDA(cudaGraphConditionalHandleCreate(&handle, graph, initial, flags));
    return handle;
}

static cudaGraphNode_t conditional(cudaGraph_t graph, cudaGraphNode_t after, cudaGraphConditionalHandle handle,
                                   cudaGraphConditionalNodeType type, unsigned size, cudaGraph_t *bodies) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    cudaGraphNode_t node;
    CUDA(cudaGraphAddNode(&node, graph, after ? &after : nullptr, nullptr, after ? 1 : 0, &params));
    for (unsigned i = 0; i < size; i++) bodies[i] = params.conditional.phGraph_out[i];
    return node;
}

template <class... A>
static cudaGraphNode_t kernel(cudaGraph_t graph, cudaGraphNode_t after, void (*function)(A...), A... values) {
    void *arguments[] = {&values...};
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeKernel;
    params.kernel.func = reinterpret_cast<void *>(function);
    params.kernel.gridDim = params.kernel.blockDim = dim3(1);
    params.kernel.kernelParams = arguments;
    cudaGraphNode_t node;
    CUDA(cudaGraphAddNode(&node, graph, after ? &after : nullptr, nullptr, after ? 1 : 0, &params));
    return node;
}

// A graph that counts twice, by a choice: for a condition of its own.
static void passing(uint32_t *counter, cudaStream_t stream) {
    cudaGraph_t graph, bodies[2];
    CUDA(cudaGraphCreate(&graph, 0));
    auto handle = condition(graph, 1, cudaGraphCondAssignDefault);
    conditional(graph, nullptr, handle, cudaGraphCondTypeIf, 2, bodies);
    auto first = kernel(bodies[0], nullptr, count, counter);
    kernel(bodies[0], first, count, counter);
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphExecDestroy(exec));
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    cudaStream_t stream, side;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    State *state, expected = {}, found;
    uint32_t *device_step, *step;
    CUDA(cudaMalloc(&state, sizeof *state));
    CUDA(cudaMalloc(&device_step, sizeof *device_step));
    CUDA(cudaMallocHost(&step, sizeof *step));
    CUDA(cudaMemset(state, 0, sizeof *state));
    CUDA(cudaDeviceSynchronize());

    // Conditions that are gone before the ones that stay, and one that goes when they are there.
    cudaGraph_t before, graph, body, ways[WAYS], sides[2];
    CUDA(cudaGraphCreate(&before, 0));
    condition(before, 0, 0);
    CUDA(cudaGraphCreate(&graph, 0));
    auto loop = condition(graph, 0, 0), parity = condition(graph, 0, 0);
    passing(&state->other, stream);
    expected.other += 2;
    auto way = condition(graph, WAYS, cudaGraphCondAssignDefault);
    CUDA(cudaGraphDestroy(before));

    // The step comes from pinned memory; a loop of a kernel and a choice; a choice between ways.
    cudaGraphNode_t in;
    CUDA(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, device_step, step, sizeof *step, cudaMemcpyHostToDevice));
    auto start = kernel(graph, in, begin, state, loop);
    auto looping = conditional(graph, start, loop, cudaGraphCondTypeWhile, 1, &body);
    auto turn = kernel(body, nullptr, round, state, (const uint32_t *)device_step, work, loop, parity);
    conditional(body, turn, parity, cudaGraphCondTypeIf, 2, sides);
    kernel(sides[0], nullptr, count, &state->odd);
    kernel(sides[1], nullptr, count, &state->even);
    auto chosen = kernel(graph, looping, choose, (const State *)state, way);
    conditional(graph, chosen, way, cudaGraphCondTypeSwitch, WAYS, ways);
    for (uint32_t i = 0; i < WAYS; i++) {
        // Captured into the body: one counter is counted there, another set.
        CUDA(cudaStreamBeginCaptureToGraph(side, ways[i], nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
        count<<<1, 1, 0, side>>>(&state->way[i]);
        CUDA(cudaMemsetAsync(&state->inner, int(i), sizeof state->inner, side));
        // Whose graph it is need not be told.
        CUDA(cudaStreamEndCapture(side, i == 0 ? nullptr : &ways[i]));
    }
    cudaGraph_t copy;
    guest::require(cudaGraphClone(&copy, graph) != cudaSuccess, "such a graph cannot be copied", -1);
    cudaGetLastError();
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));

    uint32_t sum = 0;
    for (int i = 1; i <= steps; i++) {
        *step = i;
        if (i % 10 == 0) {
            // Made again from the same graph; one at a time.
            CUDA(cudaGraphExecDestroy(exec));
            CUDA(cudaGraphInstantiate(&exec, graph, 0));
        }
        CUDA(cudaGraphLaunch(exec, stream));
        passing(&state->other, stream);
        CUDA(cudaStreamSynchronize(stream));
        expect(&expected, i, work);
        CUDA(cudaMemcpy(&found, state, sizeof found, cudaMemcpyDeviceToHost));
        guest::require(found.value == expected.value && found.rounds == expected.rounds, "the loop's result", i);
        guest::require(found.even == expected.even && found.odd == expected.odd, "both sides of the choice", i);
        for (uint32_t way = 0; way < WAYS; way++)
            guest::require(found.way[way] == expected.way[way], "the way that was chosen", i);
        guest::require(found.other == expected.other, "graphs that come and go", i);
        sum = guest::fold(sum, &found.value, 1);
        guest::progress(i, steps, sum);
    }
    return guest::done(sum);
}
