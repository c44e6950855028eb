// Marked kernels of every kind. kernels.ptx is made of it by `nvcc -ptx -arch=sm_80 -lineinfo kernels.cu`, with the names of files as they are here.
#define CPT asm volatile(".pragma \"cpt\";" ::: "memory")
typedef unsigned int u32;
typedef unsigned long long u64;

// Each thread stops for itself, after another number of rounds.
extern "C" __global__ void collatz(u64 *out, u32 n) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u64 value = i + 27, steps = 0, sum = 0;
    while (value != 1) {
        value = value & 1 ? 3 * value + 1 : value / 2;
        sum += value, steps++;
        CPT;
    }
    out[i] = steps * 1000003 + sum;
}

// Barriers, shared memory, an array of each thread's own that is indexed, wide and narrow values.
extern "C" __global__ void stencil(float *data, double *sums, u32 rounds) {
    __shared__ float row[2][130];
    __shared__ unsigned char bytes[3];
    u32 t = threadIdx.x, at = blockIdx.x * blockDim.x + t;
    float own[8];
    for (int k = 0; k < 8; k++) own[k] = data[at] * k;
    double sum = 0;
    unsigned short narrow = t;
    bool odd = at & 1;
    if (t < 3) bytes[t] = t + blockIdx.x;
    if (t == 0) row[0][0] = row[1][0] = row[0][blockDim.x + 1] = row[1][blockDim.x + 1] = 0;
    row[0][t + 1] = data[at];
    for (u32 round = 0; round < rounds; round++) {
        __syncthreads();
        u32 from = round & 1;
        float value = 0.25f * row[from][t] + 0.5f * row[from][t + 1] + 0.25f * row[from][t + 2];
        row[from ^ 1][t + 1] = value;
        own[(t + round) & 7] += value;
        sum += (double)value * bytes[round % 3];
        narrow = narrow * 7 + round;
        odd ^= narrow & 1;
        CPT;
    }
    float all = 0;
    for (int k = 0; k < 8; k++) all += own[k];
    data[at] = all + narrow + (odd ? 0.5f : 0.0f);
    sums[at] = sum;
}

// What a launch asks for of shared memory; threads that have left; two markers, one of them before a loop.
extern "C" __global__ void leaving(u32 *out, u32 rounds) {
    extern __shared__ u32 words[];
    u32 t = threadIdx.x;
    words[t] = t * 7 + blockIdx.x;
    if (t >= blockDim.x - 40) {
        out[blockIdx.x * blockDim.x + t] = 1;
        return;
    }
    u32 active = blockDim.x - 40, value = t;
    __syncthreads();
    CPT;
    for (u32 round = 0; round < rounds; round++) {
        value = value * 1664525 + words[(t + round) % active];
        __syncthreads();
        words[t] ^= value;
        __syncthreads();
        CPT;
    }
    out[blockIdx.x * blockDim.x + t] = value;
}

// Values are exchanged within a warp, and each warp has another number of rounds.
extern "C" __global__ void lanes(u32 *out, const u32 *rounds) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, value = at;
    u32 mine = __shfl_sync(0xffffffff, rounds[at / 32], 0);
    for (u32 round = 0; round < mine; round++) {
        value = value * 1664525 + __shfl_xor_sync(0xffffffff, value, 1 << (round % 5)) + at;
        CPT;
    }
    out[at] = value;
}

// No barrier, but what a launch asks for of shared memory: each thread has a slice of its own.
extern "C" __global__ void slices(u32 *out, u32 rounds) {
    extern __shared__ u32 words[];
    u32 t = threadIdx.x, at = blockIdx.x * blockDim.x + t;
    words[t] = at;
    for (u32 round = 0; round < rounds; round++) {
        words[t] = words[t] * 1664525 + round;
        CPT;
    }
    out[at] = words[t];
}

__device__ __noinline__ u32 together(u32 value) {
    __syncthreads();
    return value * 3 + 1;
}

// The barrier is in a function.
extern "C" __global__ void inside(u32 *out, u32 rounds) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, value = at;
    for (u32 round = 0; round < rounds; round++) {
        value = together(value);
        CPT;
    }
    out[at] = value;
}

// Refused: the marker is on the other way than the barrier.
extern "C" __global__ void other_way(u32 *out, u32 rounds) {
    u32 t = threadIdx.x, value = t;
    if (t >= 64) {
        for (u32 round = 0; round < rounds; round++) {
            value = value * 3 + out[t];
            CPT;
        }
        out[t] = value;
        return;
    }
    __syncthreads();
    out[t] = value;
}

__device__ __noinline__ u32 some_rounds(u32 t) { return t * 7 % 13; }

// Refused: how often, a function says, of each thread.
extern "C" __global__ void as_told(u32 *out) {
    __shared__ u32 word;
    word = 5;
    __syncthreads();
    for (u32 round = 0; round < some_rounds(threadIdx.x); round++) {
        out[threadIdx.x] += word;
        CPT;
    }
}

// Refused: a barrier of half of the block.
extern "C" __global__ void half(u32 *out) {
    if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
    CPT;
    out[threadIdx.x] = 1;
}

// Refused: only some threads come to the marker.
extern "C" __global__ void some(u32 *out, u32 rounds) {
    __shared__ u32 word;
    word = rounds;
    __syncthreads();
    for (u32 round = 0; round < threadIdx.x; round++) {
        out[threadIdx.x] += word;
        CPT;
    }
}

// Refused: nobody can say who has arrived.
extern "C" __global__ void arrived(u32 *out) {
    asm volatile("bar.arrive 1, 64;" ::: "memory");
    CPT;
    out[threadIdx.x] = 1;
}

__device__ __noinline__ u32 called(u32 value) {
    for (u32 i = 0; i < value % 5; i++) {
        value *= 3;
        CPT;
    }
    return value;
}

extern "C" __global__ void calls(u32 *out) { out[threadIdx.x] = called(threadIdx.x); }

struct Pair { float weight; u64 sum; short few; };

__device__ __noinline__ u32 deeper(u32 value, Pair pair) {
    float own[4];
    for (int k = 0; k < 4; k++) own[k] = pair.weight * k;
    for (u32 i = 0; i < value % 7; i++) {
        own[(value + i) & 3] += pair.few;
        value = value * 5 + (u32)pair.sum;
        CPT;
    }
    return value + (u32)(own[0] + own[1] + own[2] + own[3]);
}

__device__ __noinline__ Pair both(u32 value, double scale, bool twice, unsigned char narrow) {
    Pair pair = {(float)scale, value * 3ull, (short)narrow};
    if (twice) pair.sum += deeper(value, pair);
    CPT;
    pair.few += deeper(value + 1, pair);
    return pair;
}

// Functions with markers that call one another, with values of every kind, in a loop; another that has none.
extern "C" __global__ void nested(u32 *out, u64 *sums, u32 rounds) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, value = at;
    for (u32 round = 0; round < rounds; round++) {
        Pair pair = both(value, 0.5 * round, value & 1, value >> 3);
        value += (u32)pair.sum + pair.few + some_rounds(round);
        sums[at] += pair.sum + (u64)(pair.weight * 4);
    }
    out[at] = value;
}

__device__ __noinline__ u32 exchanged(u32 *words, u32 value) {
    words[threadIdx.x] = value;
    __syncthreads();
    CPT;
    u32 other = words[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    return value * 3 + other;
}

// A function with a marker between barriers.
extern "C" __global__ void shared_by(u32 *out, u32 rounds) {
    __shared__ u32 words[128];
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, value = at;
    for (u32 round = 0; round < rounds; round++) value = exchanged(words, value);
    out[at] = value;
}

__device__ __noinline__ u32 again(u32 value) {
    CPT;
    return value < 3 ? 1 : again(value - 1) + again(value - 2);
}

// Refused: a function that calls itself.
extern "C" __global__ void recursive(u32 *out) { out[threadIdx.x] = again(threadIdx.x % 7); }

// The barrier of the whole grid of cooperative groups, for a grid along x (`cooperative_groups/details/sync.h`).
__device__ __forceinline__ void sync_grid() {
    u32 low, high, before, now, added = blockIdx.x ? 1 : 0x80000001 - gridDim.x;
    asm volatile("mov.u32 %0, %%envreg2;" : "=r"(low));
    asm volatile("mov.u32 %0, %%envreg1;" : "=r"(high));
    u32 *word = (u32 *)((u64)high << 32 | low) + 1;
    asm volatile("barrier.sync 0;" ::: "memory");
    if (threadIdx.x == 0) {
        asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(added) : "memory");
        do {
            asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
        } while (!((before ^ now) & 0x80000000));
    }
    asm volatile("barrier.sync 0;" ::: "memory");
}

// Blocks that wait for one another, at two places, one of them not in every round; shared memory.
extern "C" __global__ void grid(u32 *cells, u32 rounds) {
    __shared__ u32 row[64];
    u32 t = threadIdx.x, at = blockIdx.x * blockDim.x + t, count = gridDim.x * blockDim.x, sum = at;
    u32 *next = cells + count;
    row[t] = t;
    for (u32 round = 0; round < rounds; round++) {
        next[at] = cells[(at + count - 1) % count] * 3 + cells[(at + 1) % count] + row[t];
        sync_grid();
        row[t] = row[t] * 5 + next[(at + round * 7) % count];
        sum ^= row[t];
        if (round % 3 == 0) {
            sync_grid();
            next[at] += sum;
        }
        u32 *made = next;
        next = cells, cells = made;
        CPT;
        sync_grid();
    }
    cells[at] += sum;
}

// Refused: such a grid stops at its barriers.
extern "C" __global__ void beside_grid(u32 *cells, u32 rounds) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    sync_grid();
    for (u32 round = 0; round < rounds; round++) {
        cells[at] = cells[at] * 3 + round;
        CPT;
    }
}

// Refused: what one barrier found in the word is kept until behind another.
extern "C" __global__ void kept_word(u32 *cells, u32 rounds) {
    u32 low, high, now = 0;
    asm volatile("mov.u32 %0, %%envreg2;" : "=r"(low));
    asm volatile("mov.u32 %0, %%envreg1;" : "=r"(high));
    u32 *word = (u32 *)((u64)high << 32 | low) + 1;
    for (u32 round = 0; round < rounds; round++) {
        cells[threadIdx.x] += now;
        asm volatile("barrier.sync 0;" ::: "memory");
        asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
        asm volatile("barrier.sync 0;" ::: "memory");
        CPT;
    }
}

// Refused: it is some other barrier.
extern "C" __global__ void other_barrier(u32 *cells) {
    u32 low, high;
    asm volatile("mov.u32 %0, %%envreg2;" : "=r"(low));
    asm volatile("mov.u32 %0, %%envreg1;" : "=r"(high));
    u32 *word = (u32 *)((u64)high << 32 | low) + 1;
    *word = cells[threadIdx.x];
    CPT;
    cells[threadIdx.x] = 1;
}

// Each thread has 16 bytes copied into shared memory while the tile before is read: at the mark two such copies may be under way.
extern "C" __global__ void tiles(u32 *cells, u32 rounds) {
    __shared__ __align__(16) u32 tile[2][256];
    u32 t = threadIdx.x, value = t;
    u32 *own = cells + blockIdx.x * (3 * 256 + 64);
    auto begin = [&](u32 round) {
        u32 to = __cvta_generic_to_shared(&tile[round & 1][4 * t]);
        const u32 *from = own + 64 + round % 3 * 256 + 4 * t;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    begin(0);
    for (u32 round = 0; round < rounds; round++) {
        begin(round + 1);
        CPT;
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        value = value * 1664525 + tile[round & 1][(4 * t + value) % 256];
        __syncthreads();
    }
    own[t] = value;
}

// Pointers into shared and local memory that walk from mark to mark.
extern "C" __global__ void walks(u32 *out, u32 rounds) {
    __shared__ u32 row[256];
    u32 t = threadIdx.x, at = blockIdx.x * blockDim.x + t, own[8], value = 0;
    for (int k = 0; k < 8; k++) own[k] = at * (k + 1);
    for (u32 k = t; k < 256; k += blockDim.x) row[k] = k * 7;
    __syncthreads();
    const u32 *here = row + t;
    u32 *mine = own;
    for (u32 round = 0; round < rounds; round++) {
        value = value * 1664525 + *here + *mine;
        *mine ^= value;
        here = here < row + 200 ? here + 13 : row + t % 11;
        mine = mine == own + 7 ? own : mine + 1;
        asm volatile("" : "+l"(here), "+l"(mine));
        CPT;
    }
    out[at] = value + own[t % 8];
}

// Addresses of shared memory that are in memory.
extern "C" __global__ void kept(u32 *out, u32 rounds) {
    __shared__ u32 row[256];
    u32 t = threadIdx.x, at = blockIdx.x * blockDim.x + t, value = at;
    const u32 *ways[4];
    for (int k = 0; k < 4; k++) ways[k] = row + (t + 31 * k) % 256;
    for (u32 k = t; k < 256; k += blockDim.x) row[k] = k * 7;
    __syncthreads();
    for (u32 round = 0; round < rounds; round++) {
        value = value * 1664525 + *ways[value >> 30];
        CPT;
    }
    out[at] = value;
}

// Threads take sides, with a barrier on each that nobody comes to: what they choose there is another value for each.
extern "C" __global__ void sides(u32 *out, u32 *seen, u32 rounds, u32 sync) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, value = at, chosen = 7;
    volatile u32 *own = seen + at;
    bool odd = *own & 1;
    for (u32 round = 0; round < rounds; round++) {
        if (odd) {
            chosen = 1 + round * 2;
            asm volatile("" : "+r"(chosen));
            if (sync) __syncthreads();
            *own = round;
        } else {
            chosen = 4096 + round * 4;
            asm volatile("" : "+r"(chosen));
            if (sync) __syncthreads();
            *own = round + 9;
        }
        __syncthreads();
        CPT;
        value = (value ^ value >> 7) * 31 + chosen;
    }
    out[at] = value;
}

// The same of a warp, whose lanes meet at two places.
extern "C" __global__ void sides_of_lanes(u32 *out, u32 *seen, u32 rounds) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, value = at, chosen = 7;
    volatile u32 *own = seen + at;
    bool odd = *own & 1;
    for (u32 round = 0; round < rounds; round++) {
        if (odd) {
            chosen = 1 + round * 2;
            asm volatile("" : "+r"(chosen));
            __syncwarp();
            *own = round;
        } else {
            chosen = 4096 + round * 4;
            asm volatile("" : "+r"(chosen));
            __syncwarp();
            *own = round + 9;
        }
        CPT;
        value = (value ^ value >> 7) * 31 + chosen;
    }
    out[at] = value;
}

// Lanes have rounds of their own, and vote whether there is another one.
extern "C" __global__ void voting(u64 *out, u32 items) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    u64 sum = 0;
    for (u32 item = 0; item < items; item++) {
        u64 value = 1 + at + (u64)item * all;
        while (__any_sync(0xffffffff, value != 1)) {
            if (value != 1) value = value & 1 ? 3 * value + 1 : value / 2, sum += value;
            CPT;
        }
    }
    out[at] = sum;
}

// Refused: the marker is on one side, where a barrier is that nobody may come to.
extern "C" __global__ void one_side(u32 *out, u32 rounds, u32 sync) {
    __shared__ u32 words[64];
    u32 t = threadIdx.x, value = t;
    for (u32 round = 0; round < rounds; round++) {
        if (t & 1) {
            if (sync) __syncthreads();
            CPT;
            words[t] = value * 3 + round;
        } else words[t] = value * 5 + round;
        __syncthreads();
        value = value * 7 + words[t ^ 1];
        __syncthreads();
    }
    out[t] = value;
}

// Refused: the same of a warp, whose lanes meet at two places.
extern "C" __global__ void one_side_of_lanes(u32 *out, volatile u32 *seen, u32 rounds) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, value = at;
    for (u32 round = 0; round < rounds; round++) {
        if (at & 1) {
            value = value * 3 + seen[at];
            __syncwarp();
            CPT;
            seen[at] = value;
        } else {
            __syncwarp();
            value = value * 5 + 1;
        }
    }
    out[at] = value;
}

// Refused: each lane has another number of rounds, of each item.
extern "C" __global__ void own_rounds(u32 *out, u32 items) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    for (u32 item = 0; item < items; item++) {
        u64 value = 1 + at + (u64)item * all;
        u32 length = 0;
        while (value != 1) {
            value = value & 1 ? 3 * value + 1 : value / 2, length++;
            __syncwarp();
            CPT;
        }
        out[at + item * all] = length;
    }
}
