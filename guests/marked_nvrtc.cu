// A kernel that the program itself compiles, by NVRTC, marked by the header; the host follows the same rule.
#include <nvrtc.h>

#include "driver.cuh"

// Code for the host, and its text for the device.
#define ON_BOTH(...) \
    __VA_ARGS__      \
    const std::string rule = "__device__ " #__VA_ARGS__ "\n";

ON_BOTH(inline unsigned advance(unsigned value, int round) {
    value = (value ^ round * 0x9e3779b1u) * 0x85ebca6bu;
    return value ^ value >> 13;
})

constexpr int BLOCKS = 4;
constexpr int THREADS = 64;

const char *const kernel = R"(
#include <dormouse.cuh>
extern "C" __global__ void evolve(unsigned *values, int rounds) {
    unsigned value = values[blockIdx.x * blockDim.x + threadIdx.x];
    for (int round = 0; round < rounds; round++) {
        value = advance(value, round);
        DORMOUSE_CPT();
    }
    values[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
)";

static std::string compile() {
    nvrtcProgram program;
    std::string include = "-I" + guest::beside_program("../include");
    const char *options[] = {"--gpu-architecture=compute_90", include.c_str()};
    guest::require(!nvrtcCreateProgram(&program, (rule + kernel).c_str(), "evolve.cu", 0, nullptr, nullptr), "a program", 0);
    size_t bytes = 0;
    if (nvrtcCompileProgram(program, 2, options) != NVRTC_SUCCESS) {
        std::string log(nvrtcGetProgramLogSize(program, &bytes) ? 0 : bytes, 0);
        nvrtcGetProgramLog(program, log.data());
        guest::require(false, log.c_str(), 0);
    }
    guest::require(!nvrtcGetPTXSize(program, &bytes), "the size of PTX", 0);
    std::string ptx(bytes, 0);
    guest::require(!nvrtcGetPTX(program, ptx.data()) && !nvrtcDestroyProgram(&program), "PTX", 0);
    return ptx;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 3, 5000);
    CUdevice device = guest::use_primary_context();
    CUmodule module;
    CUDA(cuModuleLoadData(&module, compile().c_str()));
    CUfunction evolve = guest::function(module, "evolve");

    std::vector<unsigned> values(BLOCKS * THREADS), got(values.size());
    for (size_t i = 0; i < values.size(); i++) values[i] = guest::mix(7, i);
    CUdeviceptr memory;
    CUDA(cuMemAlloc(&memory, values.size() * sizeof(unsigned)));
    CUDA(cuMemcpyHtoD(memory, values.data(), values.size() * sizeof(unsigned)));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        int rounds = work;
        void *params[] = {&memory, &rounds};
        CUDA(cuLaunchKernel(evolve, BLOCKS, 1, 1, THREADS, 1, 1, 0, nullptr, params, nullptr));
        bool is_checked = guest::checked_at(step, steps);
        for (int round = 0; is_checked && round < rounds; round++) {
            for (unsigned &value : values) value = advance(value, round);
        }
        CUDA(cuMemcpyDtoH(got.data(), memory, got.size() * sizeof(unsigned)));
        guest::require(!is_checked || got == values, "a value", step);
        values = got;
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cuMemFree(memory));
    CUDA(cuModuleUnload(module));
    CUDA(cuDevicePrimaryCtxRelease(device));
    return guest::done(sum);
}
