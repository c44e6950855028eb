// Memory as PyTorch's caching allocator manages it with expandable segments: for each of two pools a reservation of nine eighths of the
// device, grown by pieces of 2 and 20 MiB with handles that could be exported, shrunk at its end and in its middle, filled up again.
#include "driver.cuh"

constexpr size_t MIB = 1 << 20;

__global__ void fill(uint32_t *words, size_t count, uint32_t seed) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        words[i * 1024] = guest::mix(seed, uint32_t(i));
}

__global__ void check_all(const uint32_t *words, size_t count, uint32_t seed, uint32_t *wrong) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        if (words[i * 1024] != guest::mix(seed, uint32_t(i))) atomicAdd(wrong, 1u);
}

// One segment: pieces one behind another, some of them missing.
struct Segment {
    struct Piece {
        CUmemGenericAllocationHandle handle = 0;
        uint32_t seed = 0;
        bool there = false;
    };
    size_t piece, room;
    CUdeviceptr base;
    cudaStream_t stream;
    std::vector<Piece> pieces;

    Segment(size_t piece, size_t total) : piece(piece) {
        room = (total + total / 8 + piece - 1) / piece * piece;
        CUDA(cuMemAddressReserve(&base, room, 0, 0, 0));
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }

    // Maps the pieces from `begin` to `end`, none of which is there.
    void map(size_t begin, size_t end) {
        if (pieces.size() < end) pieces.resize(end);
        for (size_t i = begin; i < end; i++) {
            CUmemAllocationProp prop = {};
            prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
            prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            int direct = 0;
            CUDA(cuDeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0));
            prop.allocFlags.gpuDirectRDMACapable = direct != 0;
            prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
            CUDA(cuMemCreate(&pieces[i].handle, piece, &prop, 0));
            pieces[i].there = true;
        }
        for (size_t i = begin; i < end; i++) CUDA(cuMemMap(base + i * piece, piece, 0, pieces[i].handle, 0));
        CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CUDA(cuMemSetAccess(base + begin * piece, (end - begin) * piece, &access, 1));
    }

    void unmap(size_t begin, size_t end) {
        CUDA(cudaStreamSynchronize(stream));
        for (size_t i = begin; i < end; i++) {
            CUDA(cuMemUnmap(base + i * piece, piece));
            CUDA(cuMemRelease(pieces[i].handle));
            pieces[i] = {};
        }
        while (!pieces.empty() && !pieces.back().there) pieces.pop_back();
    }

    // Checks what is in the pieces, and writes something else.
    void turn(uint32_t seed, int work, uint32_t *wrong) {
        size_t words = piece / 4096;
        for (size_t i = 0; i < pieces.size(); i++) {
            if (!pieces[i].there) continue;
            auto at = (uint32_t *)(base + i * piece);
            if (pieces[i].seed) check_all<<<work, 128, 0, stream>>>(at, words, pieces[i].seed, wrong);
            LAUNCHED();
            pieces[i].seed = guest::mix(seed, uint32_t(i)) | 1;
            fill<<<work, 128, 0, stream>>>(at, words, pieces[i].seed);
            LAUNCHED();
        }
    }

    void end() {
        for (size_t i = 0, all = pieces.size(); i < all; i++)
            if (i < pieces.size() && pieces[i].there) unmap(i, i + 1);
        CUDA(cuMemAddressFree(base, room));
        CUDA(cudaStreamDestroy(stream));
    }
};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 2);
    uint32_t *wrong, mistakes;
    CUDA(cudaMalloc(&wrong, sizeof *wrong));
    CUDA(cudaMemset(wrong, 0, sizeof *wrong));
    size_t available, total;
    CUDA(cudaMemGetInfo(&available, &total));
    Segment small(2 * MIB, total), large(20 * MIB, total);
    guest::Random random{1711};
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        for (Segment *segment : {&small, &large}) {
            size_t most = segment == &small ? 10 : 3, held = segment->pieces.size();
            size_t hole = 0;
            while (hole < held && segment->pieces[hole].there) hole++;
            if (hole < held && random.below(2)) {
                // What was taken out of the middle comes first again.
                segment->map(hole, hole + 1);
            } else if (held < most && random.below(3)) {
                segment->map(held, held + 1 + random.below(uint32_t(most - held)));
            } else if (held > 1) {
                size_t which = random.below(uint32_t(held));
                if (segment->pieces[which].there) segment->unmap(which, which + 1);
            }
            segment->turn(step, work, wrong);
            for (auto &piece : segment->pieces) sum = guest::mix(sum, piece.seed);
        }
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(&mistakes, wrong, sizeof mistakes, cudaMemcpyDeviceToHost));
        guest::require(mistakes == 0, "every piece keeps what was written to it", step);
        guest::progress(step, steps, sum);
    }
    small.end();
    large.end();
    return guest::done(sum);
}
