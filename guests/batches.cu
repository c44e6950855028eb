// Copies in batches: runs of bytes between pageable, pinned and device memory, and boxes of rows, with every order in which
// a source may be read; the older form is looked up by its version.
#include <cstring>

#include "driver.cuh"

constexpr int PARTS = 6, WORDS = 3000, WIDTH = 20, HEIGHT = 5, DEPTH = 3;

using Older = CUresult (*)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t,
                           size_t *, CUstream);

__global__ void stir_all(uint32_t *words, int count, uint32_t step, int rounds) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        words[i] = guest::mix_rounds(words[i], step, rounds);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 4);
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Older older;
    CUDA(cuGetProcAddress("cuMemcpyBatchAsync", (void **)&older, 12080, 0, nullptr));
    uint32_t *device, *pinned, *box;
    CUDA(cudaMalloc(&device, PARTS * WORDS * sizeof *device));
    CUDA(cudaMalloc(&box, WIDTH * HEIGHT * DEPTH * 4));
    CUDA(cudaMemset(box, 0, WIDTH * HEIGHT * DEPTH * 4));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMallocHost(&pinned, WORDS * sizeof *pinned));
    std::vector<uint32_t> host(PARTS * WORDS, 1), back(PARTS * WORDS), rows(WIDTH * HEIGHT * DEPTH);
    std::vector<uint32_t> expected(PARTS * WORDS), flat(WIDTH * HEIGHT * DEPTH);

    auto address = [](const auto *pointer) { return (CUdeviceptr)pointer; };
    CUmemcpyAttributes attributes[3] = {};
    attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    attributes[2].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    attributes[2].flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    size_t firsts[3] = {0, 2, 4};

    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        // Out: a part is pinned memory's, the others are pageable memory's.
        for (int i = 0; i < WORDS; i++) pinned[i] = guest::mix(step, i);
        for (size_t i = 0; i < host.size(); i++) host[i] += step;
        CUdeviceptr to[PARTS], from[PARTS];
        size_t bytes[PARTS];
        for (int part = 0; part < PARTS; part++) {
            to[part] = address(device + part * WORDS);
            from[part] = part == 3 ? address(pinned) : address(&host[part * WORDS]);
            bytes[part] = (WORDS - part) * sizeof(uint32_t);
        }
        CUDA(cuMemcpyBatchAsync(to, from, bytes, PARTS, attributes, firsts, 3, stream));
        // What is read during the call may be gone after it.
        memset(pinned, 0xff, WORDS * sizeof *pinned);
        stir_all<<<4, 128, 0, stream>>>(device, PARTS * WORDS, step, work);
        LAUNCHED();
        for (int part = 0; part < PARTS; part++) std::swap(to[part], from[part]), to[part] = address(&back[part * WORDS]);
        size_t at_fault = 0;
        CUDA(older(to, from, bytes, PARTS, attributes, firsts, 3, &at_fault, stream));
        CUDA(cudaStreamSynchronize(stream));
        for (int part = 0; part < PARTS; part++)
            for (int i = 0; i < WORDS - part; i++) {
                uint32_t sent = part == 3 ? guest::mix(step, i) : host[part * WORDS + i];
                expected[part * WORDS + i] = guest::mix_rounds(sent, step, work);
            }
        guest::require(back == expected, "batches copy everything", step);

        // A box out of the middle of pageable rows, and the whole box back.
        for (size_t i = 0; i < rows.size(); i++) rows[i] = guest::mix(step, i);
        CUDA_MEMCPY3D_BATCH_OP boxes[1] = {};
        boxes[0].src.type = boxes[0].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
        boxes[0].src.op.ptr = {address(&rows[WIDTH + 4]), WIDTH * 4, HEIGHT, {}};
        boxes[0].dst.op.ptr = {address(box), 8 * 4, 0, {}};
        boxes[0].extent = {8 * 4, 2, DEPTH};
        boxes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
        CUDA(cuMemcpy3DBatchAsync(1, boxes, 0, stream));
        boxes[0].src.op.ptr = {address(box), 0, 0, {}};
        boxes[0].dst.op.ptr = {address(flat.data()), 0, 0, {}};
        boxes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        CUDA(cuMemcpy3DBatchAsync(1, boxes, 0, stream));
        CUDA(cudaStreamSynchronize(stream));
        for (int z = 0; z < DEPTH; z++)
            for (int y = 0; y < 2; y++)
                for (int x = 0; x < 8; x++) {
                    uint32_t sent = rows[(z * HEIGHT + y + 1) * WIDTH + x + 4];
                    guest::require(flat[(z * 2 + y) * 8 + x] == sent, "a box arrives", step);
                }
        sum = guest::fold(sum, flat.data(), 8 * 2 * DEPTH);
        sum = guest::mix(sum, host[7]);
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
