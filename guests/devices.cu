// Works on every device that it sees, and says first which those are.
#include "guest.cuh"

constexpr int COUNT = 1 << 12;

__global__ void stir(uint32_t *values, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = guest::mix_rounds(values[i], step + i, work);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 200, 16);
    int count = 0;
    cudaError_t found = cudaGetDeviceCount(&count);
    if (found == cudaErrorNoDevice) {
        printf("no devices\n");
        return 0;
    }
    CUDA(found);
    std::vector<uint32_t *> values(count);
    for (int device = 0; device < count; device++) {
        char bus[16];
        CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
        printf("device %d at %s\n", device, bus);
        CUDA(cudaSetDevice(device));
        CUDA(cudaMalloc(&values[device], COUNT * sizeof(uint32_t)));
        CUDA(cudaMemset(values[device], device, COUNT * sizeof(uint32_t)));
    }
    uint32_t sum = 0;
    std::vector<uint32_t> got(COUNT);
    for (int step = 1; step <= steps; step++) {
        for (int device = 0; device < count; device++) {
            CUDA(cudaSetDevice(device));
            stir<<<COUNT / 128, 128>>>(values[device], step, work);
            LAUNCHED();
            CUDA(cudaMemcpy(got.data(), values[device], COUNT * sizeof(uint32_t), cudaMemcpyDeviceToHost));
            sum = guest::fold(sum, got.data(), COUNT);
        }
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
