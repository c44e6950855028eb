// Speaks the driver API alone: modules from a PTX file and from a fat binary, pitched memory, streams, events, attributes.
#include <algorithm>

#include "driver.cuh"

constexpr int SIDE = 96;
constexpr int STATE = 1 << 12;

// Adds the values of a PTX module's global, as beta_advance makes them.
struct HostBeta {
    std::vector<uint32_t> state;
    HostBeta() : state(STATE) { state[0] = 0xbe7a; }
    void advance(uint32_t key, int step, int work) {
        for (int i = 0; i < STATE; i++) state[i] = guest::mix_rounds(state[i] + key, step + i, work);
    }
};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    CUDA(cuInit(0));
    int devices;
    CUDA(cuDeviceGetCount(&devices));
    guest::require(devices >= 1, "there is a device", 0);
    CUdevice device;
    CUDA(cuDeviceGet(&device, 0));
    CUcontext context;
    CUDA(cuCtxCreate(&context, nullptr, CU_CTX_SCHED_BLOCKING_SYNC, device));

    CUmodule beta, gamma;
    CUDA(cuModuleLoad(&beta, guest::beside_program("beta.ptx").c_str()));
    CUDA(cuModuleLoad(&gamma, guest::beside_program("gamma.fatbin").c_str()));
    CUfunction advance = guest::function(beta, "beta_advance");
    CUfunction transpose = guest::function(gamma, "gamma_transpose");
    CUdeviceptr state = guest::global(beta, "beta_state", STATE * sizeof(uint32_t));
    CUdeviceptr key_symbol = guest::global(beta, "beta_key", sizeof(uint32_t));
    int threads;
    CUDA(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, advance));
    guest::require(threads >= 256, "threads per block", 0);

    CUdeviceptr square, turned;
    size_t pitch;
    CUDA(cuMemAllocPitch(&square, &pitch, SIDE * sizeof(uint32_t), SIDE, 4));
    CUDA(cuMemAlloc(&turned, SIDE * SIDE * sizeof(uint32_t)));
    uint32_t *host;
    CUDA(cuMemHostAlloc(reinterpret_cast<void **>(&host), STATE * sizeof(uint32_t), 0));
    CUstream stream;
    CUevent copied;
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));

    HostBeta expected;
    std::vector<uint32_t> picture(SIDE * SIDE), back(SIDE * SIDE);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        uint32_t key = guest::mix(step, work);
        CUDA(cuMemcpyHtoDAsync(key_symbol, &key, sizeof key, stream));
        void *advance_arguments[] = {&step, &work};
        CUDA(cuLaunchKernel(advance, STATE / 256, 1, 1, 256, 1, 1, 0, stream, advance_arguments, nullptr));
        CUDA(cuMemcpyDtoHAsync(host, state, STATE * sizeof(uint32_t), stream));
        CUDA(cuEventRecord(copied, stream));

        for (int i = 0; i < SIDE * SIDE; i++) picture[i] = guest::mix(step, i);
        CUDA_MEMCPY2D copy{};
        copy.srcMemoryType = CU_MEMORYTYPE_HOST;
        copy.srcHost = picture.data();
        copy.srcPitch = SIDE * sizeof(uint32_t);
        copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.dstDevice = square;
        copy.dstPitch = pitch;
        copy.WidthInBytes = SIDE * sizeof(uint32_t);
        copy.Height = SIDE;
        CUDA(cuMemcpy2D(&copy));
        int side = SIDE, words = int(pitch / sizeof(uint32_t));
        void *transpose_arguments[] = {&square, &turned, &side, &words};
        CUDA(cuLaunchKernel(transpose, SIDE / 16, SIDE / 16, 1, 16, 16, 1, 16 * 17 * sizeof(uint32_t), nullptr,
                            transpose_arguments, nullptr));
        CUDA(cuMemcpyDtoH(back.data(), turned, SIDE * SIDE * sizeof(uint32_t)));
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++)
                guest::require(back[x * SIDE + y] == picture[y * SIDE + x], "the transposed square", step);

        CUDA(cuEventSynchronize(copied));
        expected.advance(key, step, work);
        guest::require(std::equal(host, host + STATE, expected.state.begin()), "the module's global", step);
        sum = guest::fold(guest::fold(sum, host, STATE), back.data(), 16);
        guest::progress(step, steps, sum);
    }
    CUDA(cuMemFreeHost(host));
    CUDA(cuMemFree(square));
    CUDA(cuMemFree(turned));
    CUDA(cuEventDestroy(copied));
    CUDA(cuStreamDestroy(stream));
    CUDA(cuModuleUnload(beta));
    CUDA(cuModuleUnload(gamma));
    CUDA(cuCtxDestroy(context));
    return guest::done(sum);
}
