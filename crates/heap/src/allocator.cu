// What code that calls malloc and free in kernels gets in place of the device library's. allocator.ptx is made of it by `nvcc -ptx -rdc=true -arch=compute_75 allocator.cu`.
//
// A heap is one piece of memory of zeros: counters and hints (`Head`), a word for each page, 256 bits for each page, the pages. Its sizes follow from the
// number of pages, and nothing in it is a secret of the device's, so a copy of its bytes is a copy of the heap.
//
// A page is nobody's, or holds slots of one size, or is one of a run of pages that are one allocation. Its word has which (`kind`) and how many slots of it
// are taken, or how many pages the run has, and changes in one atomic step: who has counted a slot for himself will find a bit that is clear, since bits are
// cleared before slots are given back. Where nothing is counted the page is nobody's, whatever its kind is. Nobody waits for a lock. Who finds nothing looks
// again if something was given back meanwhile, by `free` or by who had taken pages for a run and met one that was taken: so `malloc` fails only where there
// was no room.

using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 PAGE = 4096;
constexpr u32 WORDS = 4;
// What CUDA promises.
constexpr u32 ALIGNMENT = 16;
// Slots have 16, 32, 48, 64, 96, 128, 192 … 2048 bytes; kinds 0 to 14 are named by twice and three times powers of two.
constexpr u32 LARGEST_SLOT = 2048;
constexpr u32 KINDS = 15;
constexpr u32 RUN = 30;
constexpr u32 INSIDE = 31;
constexpr u32 COUNT_BITS = 27;
constexpr u32 COUNT = (1u << COUNT_BITS) - 1;
// Threads look for slots where one before them has found one; so many of them do not meet there.
constexpr u32 WAYS = 16;
// Who finds nothing while others try runs of pages looks so many times again: in code for old devices a thread can keep the one that it waits for from going on.
constexpr u32 PATIENCE = 1000;

struct Head {
    // Goes up whenever something has been given back.
    u32 returns;
    // How many threads hold pages that may not become a run.
    u32 trying;
    // Where to look for runs and for slots: a page, or the one behind it, so that zeros are no hint.
    u32 run_hint;
    u32 slot_hints[KINDS][WAYS];
};
// `crates/heap/src/layout.rs` leaves so much room for it.
static_assert(sizeof(Head) <= 1024);

// Where the parts of the heap are; written before a kernel of this module is launched (`Layout::variable`).
struct Heap {
    Head *head;
    u32 *words;
    u64 (*bits)[WORDS];
    char (*pages)[PAGE];
    u64 count;
};

extern "C" {
__device__ Heap __dormouse_heap;
}

namespace {

__device__ u32 read(const u32 *at) { return *const_cast<const volatile u32 *>(at); }
__device__ u64 read(const u64 *at) { return *const_cast<const volatile u64 *>(at); }
__device__ void hint(u32 *at, u32 page) { *const_cast<volatile u32 *>(at) = page; }

__device__ u32 count_of(u32 word) { return word & COUNT; }
__device__ u32 kind_of(u32 word) { return word >> COUNT_BITS; }
__device__ u32 word_of(u32 kind, u32 count) { return kind << COUNT_BITS | count; }

__device__ u32 slot_bytes(u32 kind) { return (2 + (kind & 1)) << (kind >> 1) << 3; }

// The smallest slots that hold so many bytes; there are none of 24.
__device__ u32 kind_for(u32 bytes) {
    if (bytes <= 16) return 0;
    if (bytes <= 32) return 2;
    u32 last = bytes - 1, log = 31 - __clz(last), half = last >> (log - 1) & 1;
    return 2 * (log - 4) + 1 + half;
}

__device__ u32 lane() {
    u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

__device__ u32 multiprocessor() {
    u32 number;
    asm("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

// Takes one of the slots of a page in which one has been counted for us, with how many were before.
__device__ u32 take_bit(const Heap &heap, u32 page, u32 slots, u32 before) {
    u64 *bits = heap.bits[page];
    // Where nothing has been given back yet each thread has its own.
    u32 first = before / 64, from = before % 64;
    for (u32 i = first;; i = (i + 1) % WORDS, from = 0) {
        if (i * 64 >= slots) continue;
        u32 here = slots - i * 64;
        u64 all = here < 64 ? (u64(1) << here) - 1 : ~u64(0);
        u64 clear = ~read(&bits[i]) & all;
        while (clear != 0) {
            u64 behind = clear >> from << from;
            u32 bit = __ffsll(behind != 0 ? behind : clear) - 1;
            u64 old = atomicOr(&bits[i], u64(1) << bit);
            if ((old >> bit & 1) == 0) return i * 64 + bit;
            clear = ~old & all;
        }
    }
}

__device__ char *find_slot(const Heap &heap, u32 kind) {
    u32 slots = PAGE / slot_bytes(kind);
    u32 way = (lane() + 5 * multiprocessor()) % WAYS;
    u32 *hinted = &heap.head->slot_hints[kind][way];
    u32 start = read(hinted);
    // A heap of zeros has no hints yet.
    if (start == 0) start = u32(heap.count * way / WAYS) + 1;
    u32 page = (start - 1) % u32(heap.count);
    for (u32 seen = 0; seen < heap.count; seen++) {
        u32 *at = &heap.words[page];
        u32 word = read(at);
        while (count_of(word) == 0 || (kind_of(word) == kind && count_of(word) < slots)) {
            u32 before = count_of(word);
            u32 old = atomicCAS(at, word, word_of(kind, before + 1));
            if (old == word) {
                if (page + 1 != start) hint(hinted, page + 1);
                u32 slot = take_bit(heap, page, slots, before);
                return heap.pages[page] + slot * slot_bytes(kind);
            }
            word = old;
        }
        if (++page == heap.count) page = 0;
    }
    return nullptr;
}

// Makes a run of free pages ours: all, or none when somebody was quicker.
__device__ bool take_pages(const Heap &heap, u32 first, u32 count) {
    u32 taken = 0;
    atomicAdd(&heap.head->trying, 1u);
#pragma unroll 1
    for (; taken < count; taken++) {
        u32 *at = &heap.words[first + taken];
        u32 word = read(at), ours = taken == 0 ? word_of(RUN, count) : word_of(INSIDE, 1);
        if (count_of(word) != 0 || atomicCAS(at, word, ours) != word) break;
    }
    bool all = taken == count;
    if (!all && taken > 0) {
#pragma unroll 1
        while (taken > 0) atomicExch(&heap.words[first + --taken], 0u);
        __threadfence();
        atomicAdd(&heap.head->returns, 1u);
    }
    __threadfence();
    atomicSub(&heap.head->trying, 1u);
    return all;
}

__device__ char *find_run(const Heap &heap, u32 count, u64 align) {
    for (u32 from = read(&heap.head->run_hint);; from = 0) {
        for (u32 first = from, page = from; page < heap.count;) {
            u32 word = read(&heap.words[page]);
            if (count_of(word) != 0) {
                page += kind_of(word) == RUN ? count_of(word) : 1;
                first = page;
            } else if ((reinterpret_cast<u64>(heap.pages[first]) & (align - 1)) != 0) {
                first = ++page;
            } else if (++page - first == count) {
                if (take_pages(heap, first, count)) {
                    hint(&heap.head->run_hint, page);
                    return heap.pages[first];
                }
                // Who was quicker is seen now.
                page = first;
            }
        }
        if (from == 0) return nullptr;
    }
}

__device__ char *find(const Heap &heap, u64 bytes, u64 align) {
    return bytes <= LARGEST_SLOT ? find_slot(heap, kind_for(u32(bytes))) : find_run(heap, u32((bytes - 1) / PAGE) + 1, align);
}

}  // namespace

// `align` is a power of two, as in `__nv_aligned_device_malloc`.
extern "C" __device__ __noinline__ void *__dormouse_aligned_malloc(u64 bytes, u64 align) {
    const Heap heap = __dormouse_heap;
    if (bytes == 0 || bytes > heap.count * PAGE) return nullptr;
    if (align > ALIGNMENT) {
        // Slots whose size is a power of two are aligned to it.
        if (bytes < align) bytes = align;
        if (bytes <= LARGEST_SLOT) bytes = u64(1) << (64 - __clzll(bytes - 1));
    }
    for (u32 round = 0, waited = 0;; round++) {
        u32 returns = read(&heap.head->returns);
        // Mostly there is room; the first round alone does not say that there is none.
        if (round > 0) __threadfence();
        char *found = find(heap, bytes, align);
        // What its last owner has read and written there came before.
        __threadfence();
        if (found != nullptr) return found;
        bool tried = read(&heap.head->trying) != 0;
        __threadfence();
        bool returned = read(&heap.head->returns) != returns;
        if (round > 0 && !returned && (!tried || ++waited == PATIENCE)) return nullptr;
    }
}

extern "C" __device__ __noinline__ void *__dormouse_malloc(u64 bytes) { return __dormouse_aligned_malloc(bytes, ALIGNMENT); }

// What was not allocated ends the kernel.
extern "C" __device__ __noinline__ void __dormouse_free(void *memory) {
    if (memory == nullptr) return;
    // What was read and written there comes before.
    __threadfence();
    const Heap heap = __dormouse_heap;
    u64 offset = static_cast<char *>(memory) - heap.pages[0], number = offset / PAGE;
    if (number >= heap.count) __trap();
    u32 page = u32(number), within = u32(offset % PAGE), word = read(&heap.words[page]), kind = kind_of(word);
    if (kind == RUN) {
        u32 count = count_of(word);
        if (within != 0 || atomicCAS(&heap.words[page], word, word_of(INSIDE, 1)) != word) __trap();
#pragma unroll 1
        while (count > 0) atomicExch(&heap.words[page + --count], 0u);
    } else {
        u32 slot = within / slot_bytes(kind);
        if (kind >= KINDS || within % slot_bytes(kind) != 0 || slot >= PAGE / slot_bytes(kind)) __trap();
        u64 bit = u64(1) << slot % 64;
        if ((atomicAnd(&heap.bits[page][slot / 64], ~bit) & bit) == 0) __trap();
        __threadfence();
        atomicSub(&heap.words[page], 1u);
    }
    __threadfence();
    atomicAdd(&heap.head->returns, 1u);
}
