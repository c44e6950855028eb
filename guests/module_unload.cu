// Loads modules A and B, unloads A, loads C, and goes on using B's global through an address that lies in device memory.
// From time to time A is loaded again for a moment and C is replaced.
#include "driver.cuh"

constexpr int STATE = 1 << 12;
constexpr int ALPHA = 1 << 16;

void launch(CUfunction function, int blocks, int threads, void **arguments) {
    CUDA(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, nullptr, arguments, nullptr));
}

CUmodule load(const char *file) {
    CUmodule module;
    CUDA(cuModuleLoad(&module, guest::beside_program(file).c_str()));
    return module;
}

// Fills A's table, sums it, and lets A go.
uint32_t visit_alpha(CUmodule alpha, CUdeviceptr out, int count, uint32_t seed) {
    void *fill_arguments[] = {&seed}, *sum_arguments[] = {&out, &count};
    uint32_t sum;
    CUDA(cuMemsetD32(out, 0, 1));
    launch(guest::function(alpha, "alpha_fill"), ALPHA / 256, 256, fill_arguments);
    launch(guest::function(alpha, "alpha_sum"), 1, 256, sum_arguments);
    CUDA(cuMemcpyDtoH(&sum, out, sizeof sum));
    CUDA(cuModuleUnload(alpha));
    return sum;
}

uint32_t alpha_on_host(int count, uint32_t seed) {
    uint32_t sum = 0;
    for (int i = 0; i < count; i++) sum += guest::mix(seed, i);
    return sum;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    CUdevice device = guest::use_primary_context();
    CUdeviceptr where, out;
    CUDA(cuMemAlloc(&where, sizeof(uint32_t *)));
    CUDA(cuMemAlloc(&out, sizeof(uint32_t)));

    CUmodule alpha = load("alpha.fatbin"), beta = load("beta.fatbin");
    guest::require(visit_alpha(alpha, out, ALPHA, 7) == alpha_on_host(ALPHA, 7), "A's sum", 0);
    CUmodule gamma = load("gamma.fatbin");
    CUfunction stir = guest::function(gamma, "gamma_stir");
    void *tell_arguments[] = {&where};
    launch(guest::function(beta, "beta_tell"), 1, 1, tell_arguments);

    std::vector<uint32_t> expected(STATE), got(STATE);
    expected[0] = 0xbe7a;
    CUdeviceptr state = guest::global(beta, "beta_state", STATE * sizeof(uint32_t));
    uint32_t sum = 0, gamma_calls = 0;
    for (int step = 1; step <= steps; step++) {
        if (step % 16 == 0) {
            uint32_t calls;
            CUDA(cuMemcpyDtoH(&calls, guest::global(gamma, "gamma_calls", sizeof calls), sizeof calls));
            guest::require(calls == gamma_calls, "how often C was called", step);
            CUDA(cuModuleUnload(gamma));
            uint32_t alpha_sum = visit_alpha(load("alpha.fatbin"), out, step * 16, step);
            guest::require(alpha_sum == alpha_on_host(step * 16, step), "A's sum", step);
            gamma = load(step % 32 ? "gamma.ptx" : "gamma.fatbin");
            stir = guest::function(gamma, "gamma_stir");
            gamma_calls = 0;
        }
        void *arguments[] = {&where, &step, &work};
        launch(stir, STATE / 256, 256, arguments);
        gamma_calls++;
        for (int i = 0; i < STATE; i++) expected[i] = guest::mix_rounds(expected[i], step * 3 + i, work);
        if (!guest::report_at(step, steps)) continue;
        CUDA(cuMemcpyDtoH(got.data(), state, STATE * sizeof(uint32_t)));
        guest::require(got == expected, "B's global", step);
        sum = guest::fold(sum, got.data(), STATE);
        guest::progress(step, steps, sum);
    }
    CUDA(cuModuleUnload(gamma));
    CUDA(cuModuleUnload(beta));
    CUDA(cuMemFree(where));
    CUDA(cuMemFree(out));
    CUDA(cuDevicePrimaryCtxRelease(device));
    return guest::done(sum);
}
