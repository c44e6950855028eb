// Streams that hold each other up through words of memory: a chain of waits and writes in device memory, batches of
// several operations, and a host thread that lets a stream go on through pinned memory.
#include <atomic>
#include <cstring>
#include <thread>

#include "driver.cuh"

constexpr int STREAMS = 3;

__global__ void stir(uint32_t *value, uint32_t step, int rounds) { *value = guest::mix_rounds(*value, step, rounds); }

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 16);
    cudaStream_t streams[STREAMS];
    for (auto &stream : streams) CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint32_t *values, *words, *shared;
    uint64_t *wide;
    CUDA(cudaMalloc(&values, sizeof *values));
    CUDA(cudaMalloc(&words, (STREAMS + 1) * sizeof *words));
    CUDA(cudaMalloc(&wide, 2 * sizeof *wide));
    CUDA(cudaHostAlloc(&shared, 4096, cudaHostAllocMapped));
    CUDA(cudaMemset(values, 0, sizeof *values));
    CUDA(cudaMemset(words, 0, (STREAMS + 1) * sizeof *words));
    CUDA(cudaMemset(wide, 0, 2 * sizeof *wide));
    CUDA(cudaDeviceSynchronize());
    memset(shared, 0, 4096);
    // Loading a kernel may wait for all streams, and one of them will be waiting for its kernel.
    cudaFuncAttributes loaded;
    CUDA(cudaFuncGetAttributes(&loaded, stir));
    CUDA(cudaStreamSynchronize(cudaStreamPerThread));
    auto address = [](auto *pointer) { return (CUdeviceptr)pointer; };
    auto *go = reinterpret_cast<std::atomic<uint32_t> *>(shared), *seen = go + 1;

    uint32_t expected = 0, host;
    for (uint32_t step = 1; step <= uint32_t(steps); step++) {
        // The streams take turns, whatever order they are given their work in: each waits for the word of the one before.
        for (int i = STREAMS; i-- > 0;) {
            CUDA(cuStreamWaitValue32(streams[i], address(words + i), step, CU_STREAM_WAIT_VALUE_GEQ));
            stir<<<1, 1, 0, streams[i]>>>(values, step + i, work);
            LAUNCHED();
            CUDA(cuStreamWriteValue32(streams[i], address(words + i + 1), step, CU_STREAM_WRITE_VALUE_DEFAULT));
            if (i == 0) continue;
            CUDA(cuStreamWriteValue64(streams[i], address(wide), uint64_t(step) << 32 | i, 0));
        }
        // The last one tells the host, in one batch, and waits for its answer.
        CUstreamBatchMemOpParams batch[3] = {};
        batch[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
        batch[0].waitValue.address = address(wide);
        batch[0].waitValue.value64 = uint64_t(step) << 32;
        batch[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
        batch[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        batch[1].writeValue.address = address(seen);
        batch[1].writeValue.value = step;
        batch[2].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        batch[2].waitValue.address = address(go);
        batch[2].waitValue.value = step;
        batch[2].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
        CUDA(cuStreamBatchMemOp(streams[STREAMS - 1], 3, batch, 0));
        CUDA(cuStreamWaitValue64(streams[STREAMS - 1], address(wide), uint64_t(step) << 32, CU_STREAM_WAIT_VALUE_GEQ));
        std::thread answer([&] {
            while (seen->load() != step) std::this_thread::yield();
            go->store(step);
        });
        // Now the first one may go.
        CUDA(cuStreamWriteValue32(streams[0], address(words + STREAMS), 0, CU_STREAM_WRITE_VALUE_DEFAULT));
        cudaStream_t starter = cudaStreamPerThread;
        CUDA(cuStreamWriteValue32(starter, address(words), step, CU_STREAM_WRITE_VALUE_DEFAULT));
        CUDA(cudaStreamSynchronize(streams[STREAMS - 1]));
        answer.join();
        CUDA(cudaMemcpy(&host, values, sizeof host, cudaMemcpyDeviceToHost));
        for (int i = 0; i < STREAMS; i++) expected = guest::mix_rounds(expected, step + i, work);
        guest::require(host == expected, "the streams took their turns", step);
        guest::progress(step, steps, host);
    }
    return guest::done(host);
}
