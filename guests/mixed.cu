// Mixes both APIs: runtime memory and kernels, a driver-loaded module, and streams and events passed from one to the other.
#include "driver.cuh"

constexpr int STATE = 1 << 12;

__global__ void stir_all(uint32_t *buffer, const uint32_t *other, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i] ^ other[i], i, work);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 24);
    uint32_t *buffer;
    CUDA(cudaMalloc(&buffer, STATE * sizeof *buffer));  // makes the primary context current
    CUDA(cudaMemset(buffer, 0, STATE * sizeof *buffer));
    CUDA(cudaDeviceSynchronize());
    CUcontext context;
    CUDA(cuCtxGetCurrent(&context));
    guest::require(context != nullptr, "the runtime's context is current for the driver API", 0);

    CUmodule beta;
    CUDA(cuModuleLoad(&beta, guest::beside_program("beta.fatbin").c_str()));
    CUfunction advance = guest::function(beta, "beta_advance");
    CUdeviceptr state = guest::global(beta, "beta_state", STATE * sizeof(uint32_t));
    cudaStream_t runtime_stream;
    CUstream driver_stream;
    cudaEvent_t stirred;
    CUevent advanced;
    CUDA(cudaStreamCreateWithFlags(&runtime_stream, cudaStreamNonBlocking));
    CUDA(cuStreamCreate(&driver_stream, CU_STREAM_NON_BLOCKING));
    CUDA(cudaEventCreateWithFlags(&stirred, cudaEventDisableTiming));
    CUDA(cuEventCreate(&advanced, CU_EVENT_DISABLE_TIMING));
    CUDA(cudaEventRecord(stirred, runtime_stream));

    std::vector<uint32_t> host(STATE), expected(STATE), expected_state(STATE);
    expected_state[0] = 0xbe7a;
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        CUDA(cuStreamWaitEvent(driver_stream, stirred, 0));
        void *arguments[] = {&step, &work};
        CUDA(cuLaunchKernel(advance, STATE / 128, 1, 1, 128, 1, 1, 0, driver_stream, arguments, nullptr));
        CUDA(cuEventRecord(advanced, driver_stream));
        CUDA(cudaStreamWaitEvent(runtime_stream, advanced, 0));
        stir_all<<<STATE / 128, 128, 0, runtime_stream>>>(buffer, reinterpret_cast<uint32_t *>(state), work);
        LAUNCHED();
        CUDA(cudaEventRecord(stirred, runtime_stream));
        for (int i = 0; i < STATE; i++) {
            expected_state[i] = guest::mix_rounds(expected_state[i] + 1, step + i, work);
            expected[i] = guest::mix_rounds(expected[i] ^ expected_state[i], i, work);
        }
        if (!guest::report_at(step, steps)) continue;
        CUDA(cudaMemcpyAsync(host.data(), buffer, STATE * sizeof *buffer, cudaMemcpyDeviceToHost, runtime_stream));
        CUDA(cuStreamSynchronize(runtime_stream));
        guest::require(host == expected, "the buffer", step);
        sum = guest::fold(sum, host.data(), STATE);
        guest::progress(step, steps, sum);
    }
    CUDA(cuModuleUnload(beta));
    CUDA(cudaFree(buffer));
    return guest::done(sum);
}
