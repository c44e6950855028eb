// Kernels that allocate. kernels.ptx is made of it by `nvcc -ptx -arch=compute_75 kernels.cu`.
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ u32 mix(u32 a, u32 b) {
    u32 h = a * 0x9e3779b1u ^ b * 0x85ebca77u;
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    return h ^ h >> 12;
}

__device__ u32 number() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Each thread allocates so many bytes, if any, and gives back what it has from before, if that is wanted.
extern "C" __global__ void exchange(const u64 *bytes, const u32 *frees, u64 *memory, u32 count) {
    u32 i = number();
    if (i >= count) return;
    if (frees[i]) {
        free(reinterpret_cast<void *>(memory[i]));
        memory[i] = 0;
    }
    if (bytes[i]) memory[i] = reinterpret_cast<u64>(malloc(bytes[i]));
}

// Each thread allocates so many bytes at a multiple of a power of two.
extern "C" __global__ void aligned(u64 *memory, u32 bytes, u32 align) {
    memory[number()] = reinterpret_cast<u64>(__nv_aligned_device_malloc(bytes, align));
}

// Each thread gives back what another one has.
extern "C" __global__ void give_back(u64 *memory, u32 count, u32 shift) {
    u32 i = number();
    if (i < count) free(reinterpret_cast<void *>(memory[(i + shift) % count]));
}

// Each thread has up to four allocations of up to so many bytes, whose every word is its own, and gives them back at the end. Counts those that it did not get, and words that
// were somebody else's.
extern "C" __global__ void churn(u32 rounds, u32 seed, u32 least, u32 most, u32 held, u32 *missed, u32 *spoilt) {
    u32 i = number();
    u32 *have[4] = {}, words[4] = {};
    for (u32 round = 0; round < rounds; round++) {
        u32 at = mix(seed + round, i) % held, mark = i * 4 + at;
        if (have[at]) {
            for (u32 word = 0; word < words[at]; word++) {
                if (have[at][word] != mark) atomicAdd(spoilt, 1u);
            }
            free(have[at]);
            have[at] = nullptr;
        } else {
            u32 bytes = least + mix(i, seed * 31 + round) % (most - least + 1);
            have[at] = static_cast<u32 *>(malloc(bytes));
            words[at] = bytes / 4;
            if (!have[at]) atomicAdd(missed, 1u);
            else for (u32 word = 0; word < words[at]; word++) have[at][word] = mark;
        }
    }
    for (u32 at = 0; at < held; at++) free(have[at]);
}
