// Manages virtual memory itself, as growing buffers do: one long reservation, filled piece by piece and emptied again; one
// piece mapped at two addresses; one that is unmapped and mapped elsewhere with its contents.
#include "driver.cuh"

__global__ void fill(uint32_t *words, size_t count, uint32_t seed) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        words[i * 64] = guest::mix(seed, uint32_t(i));
}

__global__ void check_all(const uint32_t *words, size_t count, uint32_t seed, uint32_t *wrong) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        if (words[i * 64] != guest::mix(seed, uint32_t(i))) atomicAdd(wrong, 1u);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 4);
    uint32_t *wrong;
    CUDA(cudaMalloc(&wrong, sizeof *wrong));
    CUDA(cudaMemset(wrong, 0, sizeof *wrong));
    CUmemAllocationProp prop{}, found{}, dense;
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    size_t piece;
    CUDA(cuMemGetAllocationGranularity(&piece, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    size_t words = piece / 4 / 64;
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    // The long reservation, and a second view of its first piece.
    size_t room = size_t(1) << 36;
    CUdeviceptr range, view, other;
    CUDA(cuMemAddressReserve(&range, room, 0, 0, 0));
    CUDA(cuMemAddressReserve(&view, piece, 0, 0, 0));
    CUDA(cuMemAddressReserve(&other, 2 * piece, 0, 0, 0));
    CUmemGenericAllocationHandle twice, mover, again;
    CUDA(cuMemCreate(&twice, piece, &prop, 0));
    // What is moved about is compressed, where the device can.
    int compresses;
    CUDA(cuDeviceGetAttribute(&compresses, CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 0));
    dense = prop;
    dense.allocFlags.compressionType = compresses ? CU_MEM_ALLOCATION_COMP_GENERIC : CU_MEM_ALLOCATION_COMP_NONE;
    CUDA(cuMemCreate(&mover, piece, &dense, 0));
    CUDA(cuMemGetAllocationPropertiesFromHandle(&found, mover));
    auto compressed = found.allocFlags.compressionType;
    guest::require(compressed <= dense.allocFlags.compressionType, "compressed only if asked", 0);
    CUDA(cuMemGetAllocationPropertiesFromHandle(&found, twice));
    guest::require(found.location.id == 0 && found.type == prop.type, "a handle tells its properties", 0);
    for (CUdeviceptr at : {range, view}) {
        CUDA(cuMemMap(at, piece, 0, twice, 0));
        CUDA(cuMemSetAccess(at, piece, &access, 1));
    }
    CUDA(cuMemMap(other, piece, 0, mover, 0));
    CUDA(cuMemSetAccess(other, piece, &access, 1));
    fill<<<work, 128>>>((uint32_t *)other, words, 99);
    LAUNCHED();
    CUDA(cuMemRetainAllocationHandle(&again, (void *)view));
    CUDA(cuMemRelease(again));

    guest::Random random{4711};
    size_t held = 1;
    uint32_t sum = compressed, mistakes;
    for (int step = 1; step <= steps; step++) {
        // Grows by some pieces, whose handles are not kept, and now and then shrinks.
        bool grow = held < 4 || (held < 20 && random.below(2));
        if (grow) {
            size_t more = 1 + random.below(3);
            for (size_t i = 0; i < more; i++) {
                CUmemGenericAllocationHandle handle;
                CUDA(cuMemCreate(&handle, piece, &prop, 0));
                CUDA(cuMemMap(range + (held + i) * piece, piece, 0, handle, 0));
                CUDA(cuMemRelease(handle));
            }
            CUDA(cuMemSetAccess(range + held * piece, more * piece, &access, 1));
            held += more;
        } else {
            size_t less = 1 + random.below(uint32_t(held) - 2);
            CUDA(cudaDeviceSynchronize());
            CUDA(cuMemUnmap(range + (held - less) * piece, less * piece));
            held -= less;
        }
        // All of it as one, written and checked across the borders of the pieces.
        fill<<<work, 128>>>((uint32_t *)range, held * words, step);
        LAUNCHED();
        check_all<<<work, 128>>>((uint32_t *)range, held * words, step, wrong);
        LAUNCHED();
        check_all<<<work, 128>>>((uint32_t *)view, words, step, wrong);
        LAUNCHED();
        // The piece that moves has kept what was written at the beginning.
        CUdeviceptr here = other + (step % 2 ? 0 : piece), there = other + (step % 2 ? piece : 0);
        check_all<<<work, 128>>>((uint32_t *)here, words, 99, wrong);
        LAUNCHED();
        CUDA(cudaDeviceSynchronize());
        CUDA(cuMemUnmap(here, piece));
        CUDA(cuMemMap(there, piece, 0, mover, 0));
        CUDA(cuMemSetAccess(there, piece, &access, 1));
        CUDA(cuMemGetAllocationPropertiesFromHandle(&found, mover));
        guest::require(found.allocFlags.compressionType == compressed, "compressed as it was", step);
        unsigned long long flags;
        CUDA(cuMemGetAccess(&flags, &prop.location, there));
        guest::require(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access is what was set", step);
        CUDA(cudaMemcpy(&mistakes, wrong, sizeof mistakes, cudaMemcpyDeviceToHost));
        guest::require(mistakes == 0, "every piece keeps what was written to it", step);
        sum = guest::mix(sum, uint32_t(held));
        guest::progress(step, steps, sum);
    }
    CUDA(cuMemUnmap(range, held * piece));
    CUDA(cuMemUnmap(view, piece));
    CUDA(cuMemUnmap(other + (steps % 2 ? piece : 0), piece));
    CUDA(cuMemRelease(twice));
    CUDA(cuMemRelease(mover));
    CUDA(cuMemAddressFree(range, room));
    CUDA(cuMemAddressFree(view, piece));
    CUDA(cuMemAddressFree(other, 2 * piece));
    return guest::done(sum);
}
