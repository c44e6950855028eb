// Two contexts side by side on one device, each with its own copy of a module, pushed and popped in turn.
#include "driver.cuh"

constexpr int STATE = 1 << 12;

struct Side {
    CUcontext context;
    CUmodule module;
    CUfunction advance;
    CUdeviceptr state, copy;
    std::vector<uint32_t> expected;

    Side(CUdevice device, const char *file) : expected(STATE) {
        CUDA(cuCtxCreate(&context, nullptr, 0, device));
        CUDA(cuModuleLoad(&module, guest::beside_program(file).c_str()));
        advance = guest::function(module, "beta_advance");
        state = guest::global(module, "beta_state", STATE * sizeof(uint32_t));
        CUDA(cuMemAlloc(&copy, STATE * sizeof(uint32_t)));
        expected[0] = 0xbe7a;
        CUcontext popped;
        CUDA(cuCtxPopCurrent(&popped));
        guest::require(popped == context, "a new context is current", 0);
    }

    uint32_t step(int step, int work, uint32_t sum) {
        std::vector<uint32_t> got(STATE);
        void *arguments[] = {&step, &work};
        CUcontext popped;
        CUDA(cuCtxPushCurrent(context));
        CUDA(cuLaunchKernel(advance, STATE / 256, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
        CUDA(cuMemcpyDtoD(copy, state, STATE * sizeof(uint32_t)));
        CUDA(cuMemcpyDtoH(got.data(), copy, STATE * sizeof(uint32_t)));
        CUDA(cuCtxSynchronize());
        CUDA(cuCtxPopCurrent(&popped));
        guest::require(popped == context, "the popped context", step);
        for (int i = 0; i < STATE; i++) expected[i] = guest::mix_rounds(expected[i] + 1, step + i, work);
        guest::require(got == expected, "a context's global", step);
        return guest::fold(sum, got.data(), STATE);
    }
};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    CUDA(cuInit(0));
    CUdevice device;
    CUDA(cuDeviceGet(&device, 0));
    Side left(device, "beta.fatbin"), right(device, "beta.ptx");
    CUcontext current;
    CUDA(cuCtxGetCurrent(&current));
    guest::require(current == nullptr, "no context is current", 0);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        sum = left.step(2 * step, work, sum);
        sum = right.step(3 * step, work, sum);
        guest::progress(step, steps, sum);
    }
    CUDA(cuCtxDestroy(left.context));
    CUDA(cuCtxDestroy(right.context));
    return guest::done(sum);
}
