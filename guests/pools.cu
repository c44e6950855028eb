// Allocates and frees in stream order on several streams, from the default pool and from one of its own, and checks at every
// step that no buffer was written by anybody but its owner; pool handles, settings and counters are the same throughout.
#include "driver.cuh"

constexpr int STREAMS = 3, SLOTS = 12;

__global__ void fill(uint32_t *buffer, uint32_t count, uint32_t seed) {
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        buffer[i] = guest::mix(seed, i);
}

// Adds the number of words that are not as `fill` left them to `wrong`, and a word of the buffer to `sum`.
__global__ void check_all(const uint32_t *buffer, uint32_t count, uint32_t seed, uint32_t *wrong, uint32_t *sum) {
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        if (buffer[i] != guest::mix(seed, i)) atomicAdd(wrong, 1);
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(sum, guest::mix(seed, buffer[count / 2]));
}

struct Slot {
    uint32_t *buffer = nullptr;
    uint32_t count, seed;
    int stream;
    cudaMemPool_t pool;
};

static uint64_t used(cudaMemPool_t pool) {
    uint64_t bytes;
    CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes));
    return bytes;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 8);
    cudaMemPool_t usual, own, found;
    CUDA(cudaDeviceGetDefaultMemPool(&usual, 0));
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location = {cudaMemLocationTypeDevice, 0};
    CUDA(cudaMemPoolCreate(&own, &props));
    uint64_t threshold = 32 << 20;
    CUDA(cudaMemPoolSetAttribute(own, cudaMemPoolAttrReleaseThreshold, &threshold));
    int off = 0;
    CUDA(cudaMemPoolSetAttribute(own, cudaMemPoolReuseAllowOpportunistic, &off));

    cudaMemAccessFlags reach;
    cudaMemLocation here = {cudaMemLocationTypeDevice, 0};
    cudaMemAccessDesc access = {here, cudaMemAccessFlagsProtReadWrite};
    CUDA(cudaMemPoolSetAccess(own, &access, 1));
    CUDA(cudaMemPoolGetAccess(&reach, own, &here));
    guest::require(reach == cudaMemAccessFlagsProtReadWrite, "a device reaches its pool", 0);

    cudaStream_t streams[STREAMS];
    for (auto &stream : streams) CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaEvent_t passed;
    CUDA(cudaEventCreateWithFlags(&passed, cudaEventDisableTiming));
    uint32_t *state;
    CUDA(cudaMalloc(&state, 2 * sizeof *state));
    CUDA(cudaMemset(state, 0, 2 * sizeof *state));
    CUDA(cudaDeviceSynchronize());

    guest::Random random{12345};
    Slot slots[SLOTS];
    uint32_t host[2] = {0, 0};
    for (int step = 1; step <= steps; step++) {
        for (int round = 0; round < work; round++) {
            Slot &slot = slots[random.below(SLOTS)];
            if (slot.buffer) {
                // Freed in its own stream, or in another one that has waited for it.
                cudaStream_t last = streams[slot.stream];
                check_all<<<4, 128, 0, last>>>(slot.buffer, slot.count, slot.seed, &state[0], &state[1]);
                LAUNCHED();
                if (random.below(3) == 0) {
                    CUDA(cudaEventRecord(passed, last));
                    last = streams[random.below(STREAMS)];
                    CUDA(cudaStreamWaitEvent(last, passed, 0));
                }
                CUDA(cudaFreeAsync(slot.buffer, last));
                slot.buffer = nullptr;
            }
            slot.stream = int(random.below(STREAMS));
            slot.seed = random.next();
            slot.count = random.below(4) == 0 ? 300000 + random.below(100000) : 1 + random.below(5000);
            cudaStream_t stream = streams[slot.stream];
            slot.pool = own;
            if (random.below(2)) {
                CUDA(cudaDeviceGetMemPool(&slot.pool, 0));
                CUDA(cudaMallocAsync(&slot.buffer, slot.count * sizeof(uint32_t), stream));
            } else {
                CUDA(cudaMallocFromPoolAsync(&slot.buffer, slot.count * sizeof(uint32_t), own, stream));
            }
            fill<<<4, 128, 0, stream>>>(slot.buffer, slot.count, slot.seed);
            LAUNCHED();
        }
        for (auto &stream : streams) CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(host, state, sizeof host, cudaMemcpyDeviceToHost));
        guest::require(host[0] == 0, "a buffer keeps what its owner wrote", step);
        uint64_t kept;
        int reuse;
        CUDA(cudaMemPoolGetAttribute(own, cudaMemPoolAttrReleaseThreshold, &kept));
        CUDA(cudaMemPoolGetAttribute(own, cudaMemPoolReuseAllowOpportunistic, &reuse));
        guest::require(kept == threshold && reuse == 0, "a pool keeps its settings", step);
        // The current pool is now one, now the other, and said by either way to ask.
        cudaMemPool_t current = step % 2 ? own : usual;
        CUDA(cudaDeviceGetMemPool(&found, 0));
        guest::require(found == (step % 2 ? usual : own), "the current pool stays", step);
        if (step % 3) {
            CUDA(cudaDeviceSetMemPool(0, current));
        } else {
            CUDA(cuMemSetMemPool((CUmemLocation *)&here, CU_MEM_ALLOCATION_TYPE_PINNED, current));
        }
        CUmemoryPool said, its;
        CUDA(cuMemGetMemPool(&said, (CUmemLocation *)&here, CU_MEM_ALLOCATION_TYPE_PINNED));
        CUDA(cuMemGetDefaultMemPool(&its, (CUmemLocation *)&here, CU_MEM_ALLOCATION_TYPE_PINNED));
        guest::require(said == current && its == usual, "pools are told by location", step);
        uint64_t live = 0;
        for (auto &slot : slots) {
            if (!slot.buffer) continue;
            live += slot.count * sizeof(uint32_t);
            CUmemoryPool of;
            CUDA(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, (CUdeviceptr)slot.buffer));
            guest::require(of == slot.pool, "a pointer tells its pool", step);
        }
        guest::require(used(usual) + used(own) >= live, "what is allocated is counted", step);
        guest::progress(step, steps, guest::mix(host[1], step));
    }
    for (auto &slot : slots)
        if (slot.buffer) CUDA(cudaFreeAsync(slot.buffer, streams[slot.stream]));
    CUDA(cudaDeviceSynchronize());
    guest::require(used(usual) == 0 && used(own) == 0, "everything is freed", steps);
    CUDA(cudaMemPoolTrimTo(own, 0));
    CUDA(cudaDeviceSetMemPool(0, own));
    CUDA(cudaMemPoolDestroy(own));
    CUDA(cudaDeviceGetMemPool(&found, 0));
    guest::require(found == usual, "the default pool takes a destroyed one's place", steps);
    return guest::done(host[1]);
}
