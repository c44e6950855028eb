// A grid that lives in arrays: each step a kernel reads it through a texture, half-way between texels, and writes the next one
// through a surface. Beside it a solid that is copied in boxes, and a pyramid of levels. The host computes the same.
#include "guest.cuh"

constexpr int SIDE = 64;
constexpr int DEEP = 5, HIGH = 6, WIDE = 12;
constexpr int LEVELS = 4;
constexpr int COUNT = 1000;

// Texels are whole numbers below 1024, so a mean of two is exact.
__host__ __device__ float next_value(float mean, int place, int step) {
    return float(guest::mix(uint32_t(2 * mean) * 4099u + place, step) & 1023);
}

// What the kernels are given: objects inside of a structure, as programs keep them.
struct Grid {
    cudaTextureObject_t from;
    cudaSurfaceObject_t to;
    int step;
};

__global__ void advance(Grid grid) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    // Between this texel and the next of the row; beyond the last the edge goes on.
    float mean = tex2D<float>(grid.from, x + 1.0f, y + 0.5f);
    surf2Dwrite(next_value(mean, y * SIDE + x, grid.step), grid.to, x * sizeof(float), y);
}

__global__ void look(cudaTextureObject_t solid, cudaTextureObject_t pyramid, cudaTextureObject_t line, float *out) {
    int i = threadIdx.x;
    float x = i % WIDE, y = i / WIDE % HIGH, z = i / WIDE / HIGH;
    if (i < WIDE * HIGH * DEEP) out[i] = tex3D<float>(solid, x + 0.5f, y + 0.5f, z + 0.5f);
    float spot = (i % 8 + 0.5f) / 8;
    if (i < LEVELS * 8) out[512 + i] = tex2DLod<float>(pyramid, spot, spot, i / 8);
    out[1024 + i] = tex1Dfetch<float>(line, i * 7 % COUNT);
}

static cudaTextureObject_t texture(const cudaResourceDesc &resource, cudaTextureFilterMode filter, bool normalized) {
    cudaTextureDesc desc = {};
    for (auto &mode : desc.addressMode) mode = cudaAddressModeClamp;
    desc.filterMode = filter;
    desc.readMode = cudaReadModeElementType;
    desc.normalizedCoords = normalized;
    desc.mipmapFilterMode = cudaFilterModePoint;
    desc.maxMipmapLevelClamp = LEVELS;
    cudaTextureObject_t object;
    CUDA(cudaCreateTextureObject(&object, &resource, &desc, nullptr));
    return object;
}

static cudaResourceDesc of(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 4);
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    constexpr size_t ROW = SIDE * sizeof(float);

    std::vector<float> host(SIDE * SIDE), next(SIDE * SIDE), got(SIDE * SIDE);
    for (int i = 0; i < SIDE * SIDE; i++) host[i] = float(guest::mix(3, i) & 1023);
    cudaArray_t grids[2];
    cudaTextureObject_t textures[2];
    cudaSurfaceObject_t surfaces[2];
    for (int k = 0; k < 2; k++) {
        CUDA(cudaMallocArray(&grids[k], &format, SIDE, SIDE, cudaArraySurfaceLoadStore));
        textures[k] = texture(of(grids[k]), cudaFilterModeLinear, false);
        auto resource = of(grids[k]);
        CUDA(cudaCreateSurfaceObject(&surfaces[k], &resource));
    }
    CUDA(cudaMemcpy2DToArray(grids[0], 0, 0, host.data(), ROW, ROW, SIDE, cudaMemcpyHostToDevice));

    std::vector<float> solid(WIDE * HIGH * DEEP);
    for (size_t i = 0; i < solid.size(); i++) solid[i] = float(guest::mix(5, i) & 0xffff);
    cudaArray_t box;
    CUDA(cudaMalloc3DArray(&box, &format, make_cudaExtent(WIDE, HIGH, DEEP)));
    cudaMemcpy3DParms whole = {};
    whole.srcPtr = make_cudaPitchedPtr(solid.data(), WIDE * sizeof(float), WIDE, HIGH);
    whole.dstArray = box;
    whole.extent = make_cudaExtent(WIDE, HIGH, DEEP);
    whole.kind = cudaMemcpyHostToDevice;
    CUDA(cudaMemcpy3D(&whole));
    cudaTextureObject_t solid_texture = texture(of(box), cudaFilterModePoint, false);

    cudaMipmappedArray_t pyramid;
    CUDA(cudaMallocMipmappedArray(&pyramid, &format, make_cudaExtent(8, 8, 0), LEVELS));
    std::vector<std::vector<float>> levels;
    for (int level = 0; level < LEVELS; level++) {
        int side = 8 >> level;
        levels.emplace_back(side * side);
        for (int i = 0; i < side * side; i++) levels[level][i] = float(guest::mix(level, i) & 0xffff);
        cudaArray_t array;
        CUDA(cudaGetMipmappedArrayLevel(&array, pyramid, level));
        size_t row = side * sizeof(float);
        CUDA(cudaMemcpy2DToArray(array, 0, 0, levels[level].data(), row, row, side, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc of_pyramid = {};
    of_pyramid.resType = cudaResourceTypeMipmappedArray;
    of_pyramid.res.mipmap.mipmap = pyramid;
    cudaTextureObject_t pyramid_texture = texture(of_pyramid, cudaFilterModePoint, true);

    std::vector<float> values(COUNT);
    for (int i = 0; i < COUNT; i++) values[i] = float(guest::mix(9, i) & 0xffff);
    float *line, *out;
    CUDA(cudaMalloc(&line, COUNT * sizeof(float)));
    CUDA(cudaMalloc(&out, 2048 * sizeof(float)));
    CUDA(cudaMemcpy(line, values.data(), COUNT * sizeof(float), cudaMemcpyHostToDevice));
    cudaResourceDesc of_line = {};
    of_line.resType = cudaResourceTypeLinear;
    of_line.res.linear.devPtr = line;
    of_line.res.linear.desc = format;
    of_line.res.linear.sizeInBytes = COUNT * sizeof(float);
    cudaTextureObject_t line_texture = texture(of_line, cudaFilterModePoint, false);

    uint32_t sum = 0;
    int current = 0;
    std::vector<float> seen(2048);
    for (int step = 1; step <= steps; step++) {
        for (int k = 0; k < work; k++) {
            advance<<<dim3(SIDE / 16, SIDE / 16), dim3(16, 16)>>>(
                Grid{textures[current], surfaces[1 - current], step * work + k});
            LAUNCHED();
            current = 1 - current;
            for (int y = 0; y < SIDE; y++)
                for (int x = 0; x < SIDE; x++) {
                    int right = x + 1 < SIDE ? x + 1 : SIDE - 1;
                    float mean = (host[y * SIDE + x] + host[y * SIDE + right]) * 0.5f;
                    next[y * SIDE + x] = next_value(mean, y * SIDE + x, step * work + k);
                }
            std::swap(host, next);
        }
        // An object that is not in use is made anew: another may get its value.
        CUDA(cudaDestroyTextureObject(textures[1 - current]));
        CUDA(cudaDestroyTextureObject(line_texture));
        textures[1 - current] = texture(of(grids[1 - current]), cudaFilterModeLinear, false);
        line_texture = texture(of_line, cudaFilterModePoint, false);
        if (!guest::report_at(step, steps)) continue;

        // A box of the solid changes: from the grid, by way of memory with gaps.
        float *gaps;
        CUDA(cudaMalloc(&gaps, 4 * 1024));
        CUDA(cudaMemcpy2DFromArray(gaps, 1024, grids[current], 16, step % 32, 4 * sizeof(float), 4,
                                   cudaMemcpyDeviceToDevice));
        cudaMemcpy3DParms part = {};
        part.srcPtr = make_cudaPitchedPtr(gaps, 1024, 4, 2);
        part.dstArray = box;
        part.dstPos = make_cudaPos(5, 3, 1);
        part.extent = make_cudaExtent(4, 2, 2);
        part.kind = cudaMemcpyDeviceToDevice;
        CUDA(cudaMemcpy3D(&part));
        for (int i = 0; i < 16; i++) {
            int x = i % 4, y = i / 4 % 2, z = i / 8;
            solid[((1 + z) * HIGH + 3 + y) * WIDE + 5 + x] = host[(step % 32 + 2 * z + y) * SIDE + 4 + x];
        }
        CUDA(cudaFree(gaps));

        look<<<1, 512>>>(solid_texture, pyramid_texture, line_texture, out);
        LAUNCHED();
        CUDA(cudaMemcpy(seen.data(), out, 2048 * sizeof(float), cudaMemcpyDeviceToHost));
        bool same = true;
        for (size_t i = 0; i < solid.size(); i++) same &= seen[i] == solid[i];
        guest::require(same, "the solid differs from the host's", step);
        for (int i = 0; i < LEVELS * 8; i++) {
            int level = i / 8, side = 8 >> level, at = i % 8 * side / 8;
            same &= seen[512 + i] == levels[level][at * side + at];
        }
        guest::require(same, "the pyramid differs from the host's", step);
        for (int i = 0; i < 512; i++) same &= seen[1024 + i] == values[i * 7 % COUNT];
        guest::require(same, "the line differs from the host's", step);

        CUDA(cudaMemcpy2DFromArray(got.data(), ROW, grids[current], 0, 0, ROW, SIDE, cudaMemcpyDeviceToHost));
        guest::require(got == host, "the grid differs from the host's", step);
        sum = guest::fold(guest::fold(sum, got.data(), got.size()), seen.data(), solid.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cudaDestroyTextureObject(solid_texture));
    CUDA(cudaFreeArray(box));
    CUDA(cudaDestroyTextureObject(pyramid_texture));
    CUDA(cudaFreeMipmappedArray(pyramid));
    CUDA(cudaDestroyTextureObject(line_texture));
    for (int k = 0; k < 2; k++) {
        CUDA(cudaDestroyTextureObject(textures[k]));
        CUDA(cudaDestroySurfaceObject(surfaces[k]));
        CUDA(cudaFreeArray(grids[k]));
    }
    CUDA(cudaFree(line));
    CUDA(cudaFree(out));
    return guest::done(sum);
}
