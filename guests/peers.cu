// Devices that work on one another's memory: what was allocated before they were let (cudaDeviceEnablePeerAccess) and after, and managed memory, large and small,
// which they need no leave for: with a third argument nobody gets any. With one device it does all by itself.
#include "guest.cuh"

constexpr int COUNT = 1 << 12, LARGE = 4 << 20;

__global__ void stir(uint32_t *values, const uint32_t *others, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = guest::mix_rounds(values[i] ^ others[i], step + i, work);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 200, 16);
    int count = 0;
    CUDA(cudaGetDeviceCount(&count));
    printf("%d devices\n", count);
    std::vector<uint32_t *> before(count), after(count), large(count), small(count);
    for (int device = 0; device < count; device++) {
        CUDA(cudaSetDevice(device));
        CUDA(cudaMalloc(&before[device], COUNT * sizeof(uint32_t)));
        CUDA(cudaMemset(before[device], device, COUNT * sizeof(uint32_t)));
    }
    for (int device = 0; device < count; device++) {
        CUDA(cudaSetDevice(device));
        for (int other = 0; other < count; other++) {
            int can = 0;
            if (other != device) CUDA(cudaDeviceCanAccessPeer(&can, device, other));
            if (can && argc < 4) CUDA(cudaDeviceEnablePeerAccess(other, 0));
            guest::require(other == device || can, "devices that reach one another", device);
        }
        CUDA(cudaMalloc(&after[device], LARGE));
        CUDA(cudaMemset(after[device], device, LARGE));
        CUDA(cudaMallocManaged(&large[device], LARGE));
        CUDA(cudaMallocManaged(&small[device], COUNT * sizeof(uint32_t)));
        for (int i = 0; i < COUNT; i++) large[device][i] = i, small[device][i] = device;
    }
    uint32_t sum = 0;
    std::vector<uint32_t> got(COUNT);
    for (int step = 1; step <= steps; step++) {
        for (int device = 0; device < count; device++) {
            int next = (device + step) % count;
            CUDA(cudaSetDevice(device));
            int reached = argc < 4 ? next : device;
            stir<<<COUNT / 128, 128>>>(before[reached], after[device], step, work);
            stir<<<COUNT / 128, 128>>>(after[reached], large[next], step, work);
            stir<<<COUNT / 128, 128>>>(large[next], small[next], step, work);
            stir<<<COUNT / 128, 128>>>(small[next], before[device], step, work);
            LAUNCHED();
            CUDA(cudaDeviceSynchronize());
            sum = guest::fold(sum, large[next], COUNT);
            sum = guest::fold(sum, small[next], COUNT);
            large[next][step % COUNT] += step;
        }
        for (auto memory : {before[0], after[count - 1]}) {
            CUDA(cudaMemcpy(got.data(), memory, COUNT * sizeof(uint32_t), cudaMemcpyDefault));
            sum = guest::fold(sum, got.data(), COUNT);
        }
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
