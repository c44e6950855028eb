// Links device code at run time, again and again: a kernel, the function that it calls, and a file that has nothing to do
// with them; what is missing is told in the log.
#include <cstring>

#include "driver.cuh"

constexpr int N = 1 << 10;

static const char HEADER[] = ".version 7.0\n.target sm_70\n.address_size 64\n";
static const char CALLER[] =
    ".extern .func (.param .b32 r) change (.param .b32 x);\n"
    ".visible .entry change_all(.param .u64 words)\n{\n"
    ".reg .b32 %r<6>;\n.reg .b64 %rd<4>;\n"
    "ld.param.u64 %rd1, [words];\n"
    "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\n"
    "mad.lo.u32 %r1, %r1, %r2, %r3;\nmul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd1, %rd1, %rd2;\n"
    "ld.global.u32 %r4, [%rd1];\n"
    "{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r4; call.uni (q), change, (p); ld.param.b32 %r5, [q]; }\n"
    "st.global.u32 [%rd1], %r5;\nret;\n}\n";

static std::string callee(uint32_t factor) {
    return std::string(HEADER) + ".visible .global .u32 calls = 0;\n"
        ".visible .func (.param .b32 r) change (.param .b32 x)\n{\n.reg .b32 %r<4>;\n"
        "ld.param.b32 %r1, [x];\natom.global.add.u32 %r3, [calls], 1;\nmul.lo.u32 %r2, %r1, "
        + std::to_string(factor) + ";\nst.param.b32 [r], %r2;\nret;\n}\n";
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 30, 4);
    guest::use_primary_context();
    std::string caller = std::string(HEADER) + CALLER, file = guest::beside_program("beta.ptx");
    CUdeviceptr words;
    CUDA(cuMemAlloc(&words, N * 4));
    std::vector<uint32_t> host(N);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        char log[1024] = "";
        CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        void *values[] = {log, (void *)sizeof log};
        CUlinkState state;
        // Without the function there is nothing to call.
        CUDA(cuLinkCreate(2, options, values, &state));
        CUDA(cuLinkAddData(state, CU_JIT_INPUT_PTX, &caller[0], caller.size() + 1, "caller", 0, nullptr, nullptr));
        void *image;
        size_t bytes;
        CUresult refused = cuLinkComplete(state, &image, &bytes);
        guest::require(refused != CUDA_SUCCESS && strstr(log, "change"), "what is missing is told", step);
        CUDA(cuLinkDestroy(state));

        uint32_t factor = 2 * step + 1;
        std::string called = callee(factor);
        CUDA(cuLinkCreate(0, nullptr, nullptr, &state));
        CUDA(cuLinkAddData(state, CU_JIT_INPUT_PTX, &caller[0], caller.size() + 1, "caller", 0, nullptr, nullptr));
        CUDA(cuLinkAddFile(state, CU_JIT_INPUT_PTX, file.c_str(), 0, nullptr, nullptr));
        CUDA(cuLinkAddData(state, CU_JIT_INPUT_PTX, &called[0], called.size() + 1, "callee", 0, nullptr, nullptr));
        CUDA(cuLinkComplete(state, &image, &bytes));
        CUmodule module;
        CUDA(cuModuleLoadData(&module, image));
        CUDA(cuLinkDestroy(state));
        CUfunction change = guest::function(module, "change_all");
        CUdeviceptr calls = guest::global(module, "calls", 4);
        for (int i = 0; i < N; i++) host[i] = guest::mix(step, i);
        CUDA(cuMemcpyHtoD(words, host.data(), N * 4));
        void *params[] = {&words};
        for (int i = 0; i < work; i++)
            CUDA(cuLaunchKernel(change, N / 128, 1, 1, 128, 1, 1, 0, nullptr, params, nullptr));
        std::vector<uint32_t> back(N);
        CUDA(cuMemcpyDtoH(back.data(), words, N * 4));
        uint32_t counted, power = 1;
        CUDA(cuMemcpyDtoH(&counted, calls, 4));
        for (int i = 0; i < work; i++) power *= factor;
        for (int i = 0; i < N; i++) guest::require(back[i] == host[i] * power, "linked code computes", step);
        guest::require(counted == uint32_t(work) * N, "linked variables are there", step);
        CUDA(cuModuleUnload(module));
        sum = guest::fold(sum, back.data(), N);
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
