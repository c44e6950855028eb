// Uses the device's memory up, in every way there is, and goes on: each call is refused with the error for it, and nothing else
// changes. Before the first line the device is really full; at each step more is asked for than there is at all, and a little of
// everything is had. What is had is kept for some steps and checked.
#include "driver.cuh"

constexpr int N = 1 << 14;
constexpr size_t PIECE = 2 << 20;

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

__global__ void add_words(const uint32_t *from, uint32_t *to, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] += from[i];
}

cudaStream_t stream;
CUmemoryPool pool;

CUmemAllocationProp here() {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return prop;
}

// Asks for memory in one way; gives it back at once if it was had.
struct Way {
    const char *name;
    CUresult (*ask)(size_t bytes);
};

CUresult array_of(size_t bytes, unsigned levels) {
    // Slices of 64 MiB.
    CUDA_ARRAY3D_DESCRIPTOR desc{};
    desc.Width = 2048;
    desc.Height = 2048;
    desc.Depth = (bytes + (64 << 20) - 1) >> 26;
    desc.Format = CU_AD_FORMAT_UNSIGNED_INT32;
    desc.NumChannels = 4;
    if (levels > 0) {
        CUmipmappedArray mipmap;
        CUresult result = cuMipmappedArrayCreate(&mipmap, &desc, levels);
        return result == CUDA_SUCCESS ? cuMipmappedArrayDestroy(mipmap) : result;
    }
    CUarray array;
    CUresult result = cuArray3DCreate(&array, &desc);
    return result == CUDA_SUCCESS ? cuArrayDestroy(array) : result;
}

const Way WAYS[] = {
    {"cuMemAlloc",
     [](size_t bytes) {
         CUdeviceptr at;
         CUresult result = cuMemAlloc(&at, bytes);
         return result == CUDA_SUCCESS ? cuMemFree(at) : result;
     }},
    {"cuMemAllocPitch",
     [](size_t bytes) {
         CUdeviceptr at;
         size_t pitch;
         CUresult result = cuMemAllocPitch(&at, &pitch, 1 << 20, bytes >> 20, 4);
         return result == CUDA_SUCCESS ? cuMemFree(at) : result;
     }},
    {"cuMemAllocAsync",
     [](size_t bytes) {
         CUdeviceptr at;
         CUresult result = cuMemAllocAsync(&at, bytes, stream);
         return result == CUDA_SUCCESS ? cuMemFreeAsync(at, stream) : result;
     }},
    {"cuMemAllocFromPoolAsync",
     [](size_t bytes) {
         CUdeviceptr at;
         CUresult result = cuMemAllocFromPoolAsync(&at, bytes, pool, stream);
         return result == CUDA_SUCCESS ? cuMemFreeAsync(at, stream) : result;
     }},
    {"cuMemCreate",
     [](size_t bytes) {
         CUmemGenericAllocationHandle handle;
         CUmemAllocationProp prop = here();
         CUresult result = cuMemCreate(&handle, bytes, &prop, 0);
         return result == CUDA_SUCCESS ? cuMemRelease(handle) : result;
     }},
    {"cuArray3DCreate", [](size_t bytes) { return array_of(bytes, 0); }},
    {"cuMipmappedArrayCreate", [](size_t bytes) { return array_of(bytes, 2); }},
    {"graph",
     [](size_t bytes) {
         // Which of these calls says so is the driver's affair.
         CUgraph graph;
         CUgraphExec exec;
         CUgraphNode allocate, free;
         CUDA_MEM_ALLOC_NODE_PARAMS params{};
         params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
         params.poolProps.location = here().location;
         params.bytesize = bytes;
         CUDA(cuGraphCreate(&graph, 0));
         CUresult result = cuGraphAddMemAllocNode(&allocate, graph, nullptr, 0, &params);
         if (result == CUDA_SUCCESS) result = cuGraphAddMemFreeNode(&free, graph, &allocate, 1, params.dptr);
         bool made = false;
         if (result == CUDA_SUCCESS) {
             result = cuGraphInstantiate(&exec, graph, 0);
             made = result == CUDA_SUCCESS;
         }
         if (result == CUDA_SUCCESS) result = cuGraphLaunch(exec, stream);
         if (result == CUDA_SUCCESS) result = cuStreamSynchronize(stream);
         if (made) CUDA(cuGraphExecDestroy(exec));
         CUDA(cuGraphDestroy(graph));
         CUDA(cuDeviceGraphMemTrim(0));
         return result;
     }},
};

// Takes all there is, down to `PIECE`.
std::vector<CUdeviceptr> take_everything(size_t total) {
    std::vector<CUdeviceptr> all;
    for (size_t bytes = total / 4; bytes >= PIECE; bytes /= 2) {
        CUdeviceptr at;
        CUresult result;
        while ((result = cuMemAlloc(&at, bytes)) == CUDA_SUCCESS) all.push_back(at);
        guest::require(result == CUDA_ERROR_OUT_OF_MEMORY, "a full device says that it is full", 0);
    }
    return all;
}

// A little of everything, filled from the buffer.
struct Little {
    CUdeviceptr plain, pooled, mapped;
    CUarray array;
    CUmemGenericAllocationHandle handle;

    void take(CUdeviceptr from) {
        CUDA(cuMemAlloc(&plain, N * 4));
        CUDA(cuMemAllocFromPoolAsync(&pooled, N * 4, pool, stream));
        CUmemAllocationProp prop = here();
        CUDA(cuMemCreate(&handle, PIECE, &prop, 0));
        CUDA(cuMemAddressReserve(&mapped, PIECE, 0, 0, 0));
        CUDA(cuMemMap(mapped, PIECE, 0, handle, 0));
        CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CUDA(cuMemSetAccess(mapped, PIECE, &access, 1));
        CUDA_ARRAY_DESCRIPTOR desc{128, N / 128, CU_AD_FORMAT_UNSIGNED_INT32, 1};
        CUDA(cuArrayCreate(&array, &desc));
        CUDA(cuMemcpyDtoDAsync(pooled, from, N * 4, stream));
        CUDA(cuStreamSynchronize(stream));
        CUDA(cuMemcpyDtoD(plain, from, N * 4));
        CUDA(cuMemcpyDtoD(mapped, from, N * 4));
        copy_array(array, 0, 0, from);
    }

    static void copy_array(CUarray to, CUdeviceptr out, CUarray array, CUdeviceptr in) {
        CUDA_MEMCPY2D copy{};
        copy.srcMemoryType = array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
        copy.srcArray = array;
        copy.srcDevice = in;
        copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 512;
        copy.dstMemoryType = to ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
        copy.dstArray = to;
        copy.dstDevice = out;
        copy.Height = N / 128;
        CUDA(cuMemcpy2D(&copy));
    }

    // Adds up all of it and gives it back.
    uint32_t give(uint32_t hash, uint32_t *sums, CUdeviceptr room) {
        CUDA(cudaMemset(sums, 0, N * 4));
        copy_array(nullptr, room, array, 0);
        for (CUdeviceptr from : {plain, pooled, mapped, room}) {
            add_words<<<N / 128, 128>>>(reinterpret_cast<uint32_t *>(from), sums, N);
            LAUNCHED();
        }
        std::vector<uint32_t> host(N);
        CUDA(cudaMemcpy(host.data(), sums, N * 4, cudaMemcpyDeviceToHost));
        CUDA(cuMemFree(plain));
        CUDA(cuMemFreeAsync(pooled, stream));
        CUDA(cuMemUnmap(mapped, PIECE));
        CUDA(cuMemAddressFree(mapped, PIECE));
        CUDA(cuMemRelease(handle));
        CUDA(cuArrayDestroy(array));
        return guest::fold(hash, host.data(), N);
    }
};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 16);
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreate(&stream));
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUDA(cuMemPoolCreate(&pool, &props));
    uint32_t *buffer, *sums;
    CUdeviceptr room;
    CUDA(cudaMalloc(&buffer, N * 4));
    CUDA(cudaMalloc(&sums, N * 4));
    CUDA(cuMemAlloc(&room, N * 4));
    CUDA(cudaMemset(buffer, 0, N * 4));
    size_t free, total, again;
    // With everything loaded that kernels need.
    stir_all<<<N / 128, 128>>>(buffer, 0, work);
    LAUNCHED();
    CUDA(cudaDeviceSynchronize());
    CUDA(cuMemGetInfo(&free, &total));

    auto all = take_everything(total);
    for (const Way &way : WAYS) guest::require(way.ask(64 << 20) == CUDA_ERROR_OUT_OF_MEMORY, way.name, 0);
    stir_all<<<N / 128, 128>>>(buffer, 1, work);
    LAUNCHED();
    CUDA(cudaDeviceSynchronize());
    // What is freed is there at once, in every way.
    for (const Way &way : WAYS) {
        CUDA(cuMemFree(all.front()));
        guest::require(way.ask(64 << 20) == CUDA_SUCCESS, way.name, 1);
        CUDA(cuStreamSynchronize(stream));
        CUDA(cuMemPoolTrimTo(pool, 0));
        CUDA(cuMemAlloc(&all.front(), 256 << 20));
        std::vector<CUdeviceptr> more = take_everything(total);
        all.insert(all.end(), more.begin(), more.end());
    }
    for (CUdeviceptr each : all) CUDA(cuMemFree(each));
    CUDA(cuMemGetInfo(&again, &total));
    guest::require(again > free - free / 16, "all of it is free again", 1);

    // A size that every way could have: what there is in all need not be whole pieces.
    const size_t twice = (2 * total + PIECE - 1) / PIECE * PIECE;
    constexpr int KEPT = 4;
    Little kept[KEPT];
    std::vector<uint32_t> host(N);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        for (const Way &way : WAYS) guest::require(way.ask(twice) == CUDA_ERROR_OUT_OF_MEMORY, way.name, step);
        stir_all<<<N / 128, 128>>>(buffer, step, work);
        LAUNCHED();
        Little &oldest = kept[step % KEPT];
        if (step > KEPT) sum = oldest.give(sum, sums, room);
        oldest.take(reinterpret_cast<CUdeviceptr>(buffer));
        CUDA(cudaMemcpy(host.data(), buffer, N * 4, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
