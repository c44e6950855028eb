// Managed memory where a program had better not be, and where it may be at any moment: `managed_edges HOW [SECONDS]`.
//   taken   a program has memory of its own where managed memory begins
//   freed   reads a region that is freed, beside one that is not
//   twice   frees a region twice, and what lies within one
//   beyond  reads behind the last page of a region, beside another one
//   ended   contexts end whose regions have just been written, while another thread makes, uses and frees some in its own
//   chosen  makes a region, and another one when there is a file `go`; says of both in which part of the address space they are
//   raw     has the kernel write a region that a kernel has just written, by a system call of its own; says how that went; and by the C library
//   polled  waits by reading for what a kernel writes that takes three seconds
//   dropped, filtered, killed   makes a region and then gives up CAP_SYS_PTRACE, or has a filter of its system calls forbid userfaultfd, or end it for that;
//           says so, and goes on when there is a file `go`
//   touched two threads read and write for SECONDS, and nobody calls CUDA meanwhile
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include "driver.cuh"

constexpr size_t PAGE = 4096, REGION = 3 << 19, LARGE = 64 << 20;
// What every byte of the large regions is at first.
constexpr int FILL = 0xa5;
constexpr uint32_t FILLED = 0xa5a5a5a5;

__global__ void stir(uint32_t *words, int count, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) words[i] = guest::mix(words[i], step);
}

__global__ void take_long(volatile uint32_t *word) {
    uint64_t begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begun < 3000000000);
    *word = 1;
}

static uint32_t *managed(size_t bytes) {
    uint32_t *memory;
    CUDA(cudaMallocManaged(&memory, bytes));
    return memory;
}

static int taken() {
    constexpr size_t OWN = 16 * PAGE, BYTES = 4 << 20;
    void *wanted = (void *)0x200000200000;
    void *own = mmap(wanted, OWN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    guest::require(own == wanted, "memory of its own", 0);
    memset(own, 7, OWN);
    uint32_t sum = 0;
    for (int step = 1; step <= 3; step++) {
        uint32_t *words = managed(BYTES);
        memset(words, step, BYTES);
        stir<<<BYTES / 4 / 256, 256>>>(words, BYTES / 4, step);
        LAUNCHED();
        CUDA(cudaDeviceSynchronize());
        uint32_t expected = guest::mix(0x01010101u * step, step);
        for (size_t i = 0; i < BYTES / 4; i += 61) guest::require(words[i] == expected, "managed memory", step);
        sum = guest::mix(sum, words[0]);
        CUDA(cudaFree(words));
        for (size_t i = 0; i < OWN; i++) guest::require(((char *)own)[i] == 7, "memory of its own", step);
    }
    return guest::done(sum);
}

// Reads a word that nobody has, which ends the program.
static int stray(bool freed) {
    rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    uint32_t *regions[] = {managed(REGION), managed(REGION), managed(REGION)};
    for (uint32_t *region : regions) CUDA(cudaMemset(region, FILL, REGION));
    CUDA(cudaDeviceSynchronize());
    for (uint32_t *region : regions) guest::require(region[0] == FILLED && region[REGION / 4 - 1] == FILLED, "a region", 0);
    if (freed) CUDA(cudaFree(regions[1]));
    printf("reading\n");
    const volatile uint32_t *word = freed ? regions[1] : regions[1] + REGION / 4;
    printf("WRONG: %08x is there\n", *word);
    return 1;
}

static int twice() {
    uint32_t *regions[] = {managed(REGION), managed(REGION), managed(REGION)}, *small[] = {managed(64), managed(64)};
    for (uint32_t *region : regions) memset(region, FILL, REGION);
    for (uint32_t *piece : small) memset(piece, FILL, 64);
    CUDA(cudaFree(regions[1]));
    CUDA(cudaFree(small[0]));
    for (uint32_t *none : {regions[1], small[0], regions[0] + 1, regions[2] + REGION / 8}) {
        cudaError_t error = cudaFree(none);
        guest::require(error == cudaErrorInvalidValue, cudaGetErrorName(error), none == regions[1]);
    }
    // It was the program's own mistake, and no more than that.
    guest::require(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess, "an error is told once", 0);
    stir<<<REGION / 4 / 256, 256>>>(regions[0], REGION / 4, 1);
    LAUNCHED();
    CUDA(cudaDeviceSynchronize());
    guest::require(regions[0][5] == guest::mix(FILLED, 1) && regions[2][5] == FILLED && small[1][5] == FILLED, "the others", 0);
    return guest::done(regions[0][5]);
}

// Touches pages in no order, one at a time, and knows what is in each.
static void touch(uint32_t *words, bool write, const std::atomic<bool> &over) {
    std::vector<uint32_t> expected(LARGE / PAGE, FILLED);
    guest::Random random{write ? 7u : 9u};
    for (int step = 0; !over; step++) {
        size_t page = random.below(LARGE / PAGE);
        volatile uint32_t *word = words + page * (PAGE / 4) + page % (PAGE / 4);
        guest::require(*word == expected[page], write ? "what was written" : "what was there", step);
        if (write) *word = expected[page] = random.next();
        usleep(200);
    }
}

static int touched(int seconds) {
    uint32_t *regions[] = {managed(LARGE), managed(LARGE)};
    for (uint32_t *region : regions) CUDA(cudaMemset(region, FILL, LARGE));
    CUDA(cudaDeviceSynchronize());
    std::atomic<bool> over{false};
    std::thread reads(touch, regions[0], false, std::cref(over)), writes(touch, regions[1], true, std::cref(over));
    printf("touching\n");
    sleep(seconds);
    over = true;
    reads.join();
    writes.join();
    for (uint32_t *region : regions) CUDA(cudaFree(region));
    return guest::done(0);
}

static void make_and_end(int rounds, std::atomic<bool> &over) {
    for (int round = 0; round < rounds; round++) {
        CUcontext context;
        CUDA(cuCtxCreate(&context, nullptr, 0, 0));
        // They take a while to go.
        for (int i = 0; i < 16; i++) {
            CUstream stream;
            CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        }
        CUdeviceptr regions[4];
        for (CUdeviceptr &region : regions) {
            CUDA(cuMemAllocManaged(&region, REGION, CU_MEM_ATTACH_GLOBAL));
            memset((void *)region, round, REGION);
        }
        CUDA(cuCtxDestroy(context));
    }
    over = true;
}

static int ended() {
    CUDA(cudaFree(nullptr));
    std::atomic<bool> over{false};
    std::thread ends(make_and_end, 60, std::ref(over));
    for (int step = 1; !over; step++) {
        uint32_t *words = managed(REGION);
        memset(words, FILL, REGION);
        stir<<<REGION / 4 / 256, 256>>>(words, REGION / 4, step);
        LAUNCHED();
        CUDA(cudaDeviceSynchronize());
        for (size_t i = 0; i < REGION / 4; i += 61) guest::require(words[i] == guest::mix(FILLED, step), "its own", step);
        CUDA(cudaFree(words));
    }
    ends.join();
    return guest::done(0);
}

static int chosen() {
    printf("%x\n", unsigned(uint64_t(managed(REGION)) >> 44));
    while (access("go", F_OK) != 0) usleep(1000);
    printf("%x\n", unsigned(uint64_t(managed(REGION)) >> 44));
    return 0;
}

static int raw() {
    uint32_t *words = managed(REGION);
    int pipes[2], count = REGION / sizeof *words;
    guest::require(pipe(pipes) == 0, "a pipe", 0);
    uint32_t told[4] = {1, 2, 3, 4};
    auto stirred = [&](int step) {
        guest::require(write(pipes[1], told, sizeof told) == sizeof told, "a pipe is written", step);
        stir<<<(count + 255) / 256, 256>>>(words, count, step);
        CUDA(cudaDeviceSynchronize());
    };
    stirred(1);
    bool refused = syscall(SYS_read, pipes[0], words, sizeof told) < 0 && errno == EFAULT;
    printf("raw %s\n", refused ? "EFAULT" : "read");
    if (refused) guest::require(read(pipes[0], told, sizeof told) == sizeof told, "nothing is lost", 1);
    stirred(2);
    uint32_t beside = guest::mix(guest::mix(0, 1), 2);
    guest::require(read(pipes[0], words, sizeof told) == sizeof told, "read", 2);
    guest::require(memcmp(words, told, sizeof told) == 0 && words[4] == beside, "what was read", 2);
    stirred(3);
    guest::require(write(pipes[1], words + 4, 4) == 4 && read(pipes[0], told, sizeof told) == sizeof told, "written", 3);
    uint32_t came;
    guest::require(read(pipes[0], &came, 4) == 4 && came == guest::mix(beside, 3), "what was written", 3);
    printf("library works\n");
    return 0;
}

static int polled() {
    volatile uint32_t *words = managed(LARGE);
    take_long<<<1, 1>>>(words + PAGE);
    LAUNCHED();
    while (words[PAGE] == 0) {}
    CUDA(cudaDeviceSynchronize());
    printf("came\n");
    return 0;
}

static void drop_capability() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2];
    guest::require(syscall(SYS_capget, &header, data) == 0, "its capabilities", 0);
    for (uint32_t *set : {&data[0].effective, &data[0].permitted}) *set &= ~(1u << CAP_SYS_PTRACE);
    guest::require(syscall(SYS_capset, &header, data) == 0, "fewer capabilities", 0);
}

static void forbid(uint32_t answer) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog program{sizeof filter / sizeof *filter, filter};
    guest::require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter", 0);
}

static int confined(const std::string &how) {
    uint32_t *words = managed(LARGE);
    memset(words, FILL, LARGE);
    if (how == "dropped") drop_capability();
    else forbid(how == "filtered" ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_KILL_PROCESS);
    printf("%s\n", how.c_str());
    while (access("go", F_OK) != 0) usleep(1000);
    stir<<<LARGE / 4 / 256, 256>>>(words, LARGE / 4, 1);
    LAUNCHED();
    CUDA(cudaDeviceSynchronize());
    for (size_t i = 0; i < LARGE / 4; i += 61) guest::require(words[i] == guest::mix(FILLED, 1), "managed memory", 1);
    return guest::done(words[0]);
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    std::string how = argc > 1 ? argv[1] : "";
    if (how == "taken") return taken();
    if (how == "twice") return twice();
    if (how == "freed" || how == "beyond") return stray(how == "freed");
    if (how == "ended") return ended();
    if (how == "chosen") return chosen();
    if (how == "raw") return raw();
    if (how == "polled") return polled();
    if (how == "dropped" || how == "filtered" || how == "killed") return confined(how);
    if (how == "touched") return touched(argc > 2 ? atoi(argv[2]) : 1);
    fprintf(stderr, "usage: %s taken|twice|freed|beyond|ended|chosen|raw|polled|dropped|filtered|killed|touched [SECONDS]\n", argv[0]);
    return 2;
}
