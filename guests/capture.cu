// Captures work across forked streams into a graph and launches it again and again; captures it anew with other arguments and
// updates the executable graph; nothing of it may differ from what the host computes.
#include <thread>

#include "guest.cuh"

constexpr int N = 1 << 12;
constexpr size_t BYTES = N * sizeof(uint32_t);

__host__ __device__ uint32_t stir(uint32_t value, uint32_t key, int i, int work) {
    return guest::mix_rounds(value, key + i, work);
}

__global__ void stir_all(uint32_t *to, const uint32_t *from, const uint32_t *key, uint32_t salt, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = stir(from[i], key[0] + salt, i, work);
}

__global__ void join(uint32_t *buffer, const uint32_t *left, const uint32_t *right) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = left[i] ^ right[i];
}

struct Counter {
    uint32_t calls = 0, seen = 0;
    const uint32_t *result;
};

void CUDART_CB count(void *data) {
    auto counter = static_cast<Counter *>(data);
    counter->calls++;
    counter->seen = counter->result[0];
}

struct Work {
    uint32_t *buffer, *left, *right, *key, *host_key, *result;
    Counter counter;
    cudaStream_t main, fork;
    cudaEvent_t forked, joined;
};

// buffer = stir(buffer, key) ^ stir(buffer, key + salt), one half on each stream; the key comes from pinned memory, the result goes there.
cudaGraph_t capture(Work &w, uint32_t salt, int work, cudaStreamCaptureMode mode) {
    CUDA(cudaStreamBeginCapture(w.main, mode));
    CUDA(cudaMemcpyAsync(w.key, w.host_key, sizeof(uint32_t), cudaMemcpyHostToDevice, w.main));
    CUDA(cudaEventRecord(w.forked, w.main));
    CUDA(cudaStreamWaitEvent(w.fork, w.forked, 0));
    stir_all<<<N / 128, 128, 0, w.main>>>(w.left, w.buffer, w.key, 0, work);
    LAUNCHED();
    CUDA(cudaMemsetAsync(w.right, 0, BYTES, w.fork));
    stir_all<<<N / 128, 128, 0, w.fork>>>(w.right, w.buffer, w.key, salt, work);
    LAUNCHED();
    CUDA(cudaEventRecord(w.joined, w.fork));
    CUDA(cudaStreamWaitEvent(w.main, w.joined, 0));
    join<<<N / 128, 128, 0, w.main>>>(w.buffer, w.left, w.right);
    LAUNCHED();
    CUDA(cudaMemcpyAsync(w.result, w.buffer, BYTES, cudaMemcpyDeviceToHost, w.main));
    CUDA(cudaLaunchHostFunc(w.main, count, &w.counter));
    cudaStreamCaptureStatus status;
    unsigned long long id;
    CUDA(cudaStreamGetCaptureInfo(w.fork, &status, &id));
    guest::require(status == cudaStreamCaptureStatusActive, "the forked stream is captured", 0);
    cudaGraph_t graph;
    CUDA(cudaStreamEndCapture(w.main, &graph));
    CUDA(cudaStreamIsCapturing(w.fork, &status));
    guest::require(status == cudaStreamCaptureStatusNone, "the capture has ended", 0);
    return graph;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    Work w;
    for (auto buffer : {&w.buffer, &w.left, &w.right, &w.key}) CUDA(cudaMalloc(buffer, BYTES));
    CUDA(cudaHostAlloc(&w.host_key, sizeof(uint32_t), cudaHostAllocDefault));
    CUDA(cudaHostAlloc(&w.result, BYTES, cudaHostAllocDefault));
    w.counter.result = w.result;
    CUDA(cudaStreamCreateWithFlags(&w.main, cudaStreamNonBlocking));
    CUDA(cudaStreamCreate(&w.fork));
    CUDA(cudaEventCreateWithFlags(&w.forked, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&w.joined, cudaEventDisableTiming));
    CUDA(cudaMemset(w.buffer, 0, BYTES));
    CUDA(cudaDeviceSynchronize());

    std::vector<uint32_t> expected(N, 0);
    uint32_t salt = 1, sum = 0;
    cudaGraph_t graph = capture(w, salt, work, cudaStreamCaptureModeGlobal);
    size_t nodes = 0, edges = 0;
    CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    guest::require(nodes == 7, "the graph has a node for each call", 0);
    CUDA(cudaGraphGetRootNodes(graph, nullptr, &edges));
    guest::require(edges == 1, "the graph has one root", 0);
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));

    for (int step = 1; step <= steps; step++) {
        if (step % 8 == 0) {
            salt = guest::mix(salt, step);
            auto mode = step % 16 ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeRelaxed;
            graph = capture(w, salt, work, mode);
            cudaGraphExecUpdateResultInfo info;
            CUDA(cudaGraphExecUpdate(exec, graph, &info));
            guest::require(info.result == cudaGraphExecUpdateSuccess, "the update succeeds", step);
            CUDA(cudaGraphDestroy(graph));
        }
        w.host_key[0] = guest::mix(step, salt);
        int launches = step % 3 + 1;
        for (int i = 0; i < launches; i++) CUDA(cudaGraphLaunch(exec, w.main));
        CUDA(cudaStreamSynchronize(w.main));
        for (int l = 0; l < launches; l++) {
            for (int i = 0; i < N; i++) {
                uint32_t value = expected[i];
                expected[i] = stir(value, w.host_key[0], i, work) ^ stir(value, w.host_key[0] + salt, i, work);
            }
        }
        guest::require(memcmp(w.result, expected.data(), BYTES) == 0, "the buffer", step);
        guest::require(w.counter.seen == expected[0], "what the host function saw", step);
        sum = guest::fold(sum, w.result, N);
        sum = guest::mix(sum, w.counter.calls);
        guest::progress(step, steps, sum);
    }

    // What cannot be captured breaks the capture, and leaves nothing else behind.
    CUDA(cudaStreamBeginCapture(w.main, cudaStreamCaptureModeThreadLocal));
    guest::require(cudaStreamSynchronize(w.main) == cudaErrorStreamCaptureUnsupported, "a wait is refused", steps);
    guest::require(cudaStreamEndCapture(w.main, &graph) == cudaErrorStreamCaptureInvalidated && graph == nullptr,
                   "the capture has come to nothing", steps);
    CUDA(cudaStreamBeginCapture(w.main, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaEventRecord(w.forked, w.main));
    CUDA(cudaStreamWaitEvent(w.fork, w.forked, 0));
    CUDA(cudaMemsetAsync(w.right, 0, BYTES, w.fork));
    guest::require(cudaStreamEndCapture(w.main, &graph) == cudaErrorStreamCaptureUnjoined, "a fork must be joined", steps);
    cudaGetLastError();
    // A stream that took part may go before the capture ends.
    cudaStream_t brief;
    CUDA(cudaStreamBeginCapture(w.main, cudaStreamCaptureModeGlobal));
    CUDA(cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking));
    CUDA(cudaEventRecord(w.forked, w.main));
    CUDA(cudaStreamWaitEvent(brief, w.forked, 0));
    CUDA(cudaMemsetAsync(w.right, 0, BYTES, brief));
    CUDA(cudaEventRecord(w.joined, brief));
    CUDA(cudaStreamWaitEvent(w.main, w.joined, 0));
    CUDA(cudaStreamDestroy(brief));
    CUDA(cudaStreamEndCapture(w.main, &graph));
    CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    guest::require(nodes == 1, "what it captured is there", steps);
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaDeviceSynchronize());
    return guest::done(sum);
}
