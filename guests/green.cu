// Two green contexts and the primary one hand a buffer round: in streams of theirs, and in what NULL is while one of them is current.
#include "driver.cuh"

constexpr int N = 1 << 12;

__global__ void stir(uint32_t *words, uint32_t key, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    words[i] = guest::mix_rounds(words[i], key + i, work);
}

#define REQUIRE(held) guest::require((held), #held, __LINE__)
#define REFUSED(call, error) guest::require((call) == (error), #call " is " #error, __LINE__)

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 80, 24);
    uint32_t *words;
    CUDA(cudaMalloc(&words, N * sizeof *words));
    CUDA(cudaMemset(words, 0, N * sizeof *words));
    CUcontext primary;
    CUDA(cuCtxGetCurrent(&primary));

    // Two parts of the device, and one of them split again.
    CUdevResource all, parts[2], rest, own, again[1];
    CUDA(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    int multiprocessors;
    CUDA(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    REQUIRE(all.type == CU_DEV_RESOURCE_TYPE_SM && all.sm.smCount == unsigned(multiprocessors));
    unsigned groups = 0;
    CUDA(cuDevSmResourceSplitByCount(nullptr, &groups, &all, nullptr, 0, 8));
    REQUIRE(groups >= 2 && groups <= all.sm.smCount / 8);
    groups = 2;
    CUDA(cuDevSmResourceSplitByCount(parts, &groups, &all, &rest, 0, 8));
    REQUIRE(groups == 2 && parts[0].sm.smCount >= 8 && parts[0].sm.smCount == parts[1].sm.smCount);
    REQUIRE(rest.type == CU_DEV_RESOURCE_TYPE_INVALID || rest.sm.smCount + 2 * parts[0].sm.smCount == all.sm.smCount);
    REFUSED(cuDevSmResourceSplitByCount(parts, &groups, &all, &rest, 0, all.sm.smCount + 1),
            CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    CUdevResourceDesc desc;
    CUgreenCtx greens[2], which;
    CUcontext contexts[2], current;
    CUstream streams[2];
    unsigned long long ids[2];
    for (int g = 0; g < 2; g++) {
        CUDA(cuDevResourceGenerateDesc(&desc, &parts[g], 1));
        REFUSED(cuGreenCtxCreate(&greens[g], desc, 0, 0), CUDA_ERROR_INVALID_VALUE);
        CUDA(cuGreenCtxCreate(&greens[g], desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        CUDA(cuCtxFromGreenCtx(&contexts[g], greens[g]));
        CUDA(cuGreenCtxStreamCreate(&streams[g], greens[g], CU_STREAM_NON_BLOCKING, 0));
        CUDA(cuGreenCtxGetId(greens[g], &ids[g]));
        CUDA(cuGreenCtxGetDevResource(greens[g], &own, CU_DEV_RESOURCE_TYPE_SM));
        REQUIRE(own.sm.smCount == parts[g].sm.smCount);
        CUDA(cuCtxGetDevResource(contexts[g], &own, CU_DEV_RESOURCE_TYPE_SM));
        REQUIRE(own.sm.smCount == parts[g].sm.smCount);
    }
    REQUIRE(ids[0] != ids[1] && contexts[0] != contexts[1] && contexts[0] != primary);
    groups = 1;
    CUDA(cuDevSmResourceSplitByCount(again, &groups, &own, nullptr, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 2));
    REQUIRE(groups == 1 && again[0].sm.smCount < own.sm.smCount);
    CUgreenCtx inner;
    CUDA(cuDevResourceGenerateDesc(&desc, again, 1));
    CUDA(cuGreenCtxCreate(&inner, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CUstream inner_stream;
    CUDA(cuGreenCtxStreamCreate(&inner_stream, inner, CU_STREAM_NON_BLOCKING, 0));
    CUDA(cuStreamGetGreenCtx(streams[1], &which));
    REQUIRE(which == greens[1]);
    CUDA(cuStreamGetCtx(streams[1], &current));
    REQUIRE(current == contexts[1]);
    CUDA(cuStreamGetCtx_v2(streams[1], &current, &which));
    REQUIRE(current == primary && which == greens[1]);
    CUDA(cuStreamGetGreenCtx(nullptr, &which));
    REQUIRE(which == nullptr);

    CUevent event, done;
    CUDA(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUDA(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    std::vector<uint32_t> result(N);
    uint32_t expected = 0, sum = 0;
    auto turn = [&](CUstream stream, uint32_t key) {
        stir<<<N / 128, 128, 0, stream>>>(words, key, work);
        LAUNCHED();
        expected = guest::mix_rounds(expected, key, work);
    };
    for (int step = 1; step <= steps; step++) {
        uint32_t key = guest::mix(step, work);
        // From the primary context's default stream to a stream of each green context.
        turn(nullptr, key);
        CUDA(cuEventRecord(event, nullptr));
        CUDA(cuStreamWaitEvent(streams[0], event, 0));
        turn(streams[0], key + 1);
        CUDA(cuGreenCtxRecordEvent(greens[0], event));
        CUDA(cuGreenCtxWaitEvent(greens[1], event));
        turn(streams[1], key + 2);
        CUDA(cuEventRecord(event, streams[1]));
        CUDA(cuStreamWaitEvent(inner_stream, event, 0));
        turn(inner_stream, key + 3);
        CUDA(cuCtxRecordEvent(primary, event));

        // A green context is current: NULL is its own stream, memory made now is the primary context's.
        int g = step % 2;
        CUDA(cuCtxPushCurrent(contexts[g]));
        CUDA(cuCtxGetCurrent(&current));
        REQUIRE(current == contexts[g]);
        CUDA(cuStreamGetGreenCtx(nullptr, &which));
        REQUIRE(which == greens[g]);
        CUDA(cuCtxWaitEvent(contexts[g], event));
        turn(nullptr, key + 4);
        uint32_t *copy;
        CUDA(cudaMalloc(&copy, N * sizeof *copy));
        CUDA(cudaMemcpyAsync(copy, words, N * sizeof *copy, cudaMemcpyDeviceToDevice, nullptr));
        CUDA(cudaMemcpy(result.data(), copy, N * sizeof *copy, cudaMemcpyDeviceToHost));
        CUDA(cuEventRecord(done, nullptr));
        CUDA(cuCtxPopCurrent(&current));
        REQUIRE(current == contexts[g]);
        CUDA(cuStreamWaitEvent(nullptr, done, 0));
        CUDA(cudaFree(copy));
        guest::require(result[0] == expected, "the buffer's first word", step);
        sum = guest::fold(sum, result.data(), N);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaDeviceSynchronize());
    CUDA(cuStreamDestroy(inner_stream));
    CUDA(cuGreenCtxDestroy(inner));
    for (int g = 0; g < 2; g++) {
        CUDA(cuStreamDestroy(streams[g]));
        CUDA(cuGreenCtxDestroy(greens[g]));
    }
    REFUSED(cuCtxFromGreenCtx(&current, greens[0]), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return guest::done(sum);
}
