// Excludes buffers on the device and on the host from its checkpoints (dormouse.h). What it prints is the same without Dormouse, with it, and when it is
// restarted: excluded buffers may hold anything then, and are written again; all else has to be as it was.
//
// `excluded [STEPS [WORK [HOW]]]`: HOW is "exclude", "plain" (the same memory, and it excludes nothing), or "end" (the exclusions end in all ways before
// the checkpoint: by freeing and allocating again, by unmapping, by including).
#include <cstring>
#include <sys/mman.h>

#include <dormouse.h>

#include "guest.cuh"

constexpr size_t BYTES = 32 << 20, WORDS = BYTES / 4;

__global__ void fill(uint32_t *buffer, uint32_t seed) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix(seed, uint32_t(i));
}

uint32_t *device(uint32_t seed) {
    uint32_t *buffer;
    CUDA(cudaMalloc(&buffer, BYTES));
    fill<<<WORDS / 256, 256>>>(buffer, seed);
    LAUNCHED();
    return buffer;
}

void stir(uint32_t *buffer, uint32_t seed) {
    for (size_t i = 0; i < WORDS; i++) buffer[i] = guest::mix(seed, uint32_t(i));
}

uint32_t *host(uint32_t seed) {
    void *buffer = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    guest::require(buffer != MAP_FAILED, "no memory", 0);
    stir(static_cast<uint32_t *>(buffer), seed);
    return static_cast<uint32_t *>(buffer);
}

size_t wrong(const uint32_t *buffer, uint32_t seed) {
    size_t wrong = 0;
    for (size_t i = 0; i < WORDS; i++) wrong += buffer[i] != guest::mix(seed, uint32_t(i));
    return wrong;
}

size_t wrong_on_device(const uint32_t *buffer, uint32_t seed) {
    std::vector<uint32_t> copy(WORDS);
    CUDA(cudaMemcpy(copy.data(), buffer, BYTES, cudaMemcpyDeviceToHost));
    return wrong(copy.data(), seed);
}

// What each call has to answer here.
void answered(int code, int expected, const char *what) {
    guest::require(code == (dormouse_available() ? expected : DORMOUSE_NOT_HERE), what, code);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 2, 1);
    const char *how = argc > 3 ? argv[3] : "exclude";
    bool ends = strcmp(how, "end") == 0, excludes = ends || strcmp(how, "exclude") == 0;
    uint32_t *kept = device(1), *scratch = device(2);
    uint32_t *host_kept = host(3), *host_scratch = host(4);
    void *pinned;
    uint32_t *managed;
    CUDA(cudaHostAlloc(&pinned, 1 << 20, cudaHostAllocDefault));
    CUDA(cudaMallocManaged(&managed, 1 << 20));
    CUDA(cudaDeviceSynchronize());
    if (excludes) {
        answered(dormouse_exclude(scratch, BYTES), DORMOUSE_OK, "device memory is not excluded");
        answered(dormouse_exclude(host_scratch, BYTES), DORMOUSE_OK, "memory of the process is not excluded");
        answered(dormouse_exclude(pinned, 4096), DORMOUSE_REFUSED, "pinned memory is excluded");
        answered(dormouse_exclude(managed, 4096), DORMOUSE_REFUSED, "managed memory is excluded");
        answered(dormouse_exclude(nullptr, 4096), DORMOUSE_USAGE, "nothing is excluded");
        answered(dormouse_exclude(scratch, BYTES + 1), DORMOUSE_USAGE, "more than an allocation is excluded");
        answered(dormouse_exclude(scratch, 0), DORMOUSE_USAGE, "no bytes are excluded");
    }
    if (ends) {
        uint32_t *before = scratch;
        CUDA(cudaFree(scratch));
        scratch = device(2);
        guest::require(scratch == before || !dormouse_available(), "it lies elsewhere", 0);
        munmap(host_scratch, BYTES);
        uint32_t *again = host(4);
        guest::require(again == host_scratch, "it lies elsewhere", 0);
        answered(dormouse_exclude(kept, BYTES), DORMOUSE_OK, "device memory is not excluded");
        answered(dormouse_include(kept, BYTES), DORMOUSE_OK, "device memory is not included");
        answered(dormouse_exclude(host_kept, BYTES), DORMOUSE_OK, "memory of the process is not excluded");
        answered(dormouse_include(host_kept, BYTES), DORMOUSE_OK, "memory of the process is not included");
        CUDA(cudaDeviceSynchronize());
    }
    for (int step = 1; step <= steps; step++) {
        dormouse_outcome outcome = DORMOUSE_OUTCOME_INIT;
        int code = dormouse_checkpoint(0, &outcome);
        size_t lost = wrong_on_device(scratch, 2), host_lost = wrong(host_scratch, 4);
        fprintf(stderr, "step %d code %d restarts %u: lost %zu and %zu of %zu words %s\n", step, code, dormouse_restarts(), lost,
                host_lost, WORDS, outcome.text);
        guest::require(wrong_on_device(kept, 1) == 0, "device memory is lost", step);
        guest::require(wrong(host_kept, 3) == 0, "memory of the process is lost", step);
        bool may_be_lost = code == DORMOUSE_RESTARTED && excludes && !ends;
        guest::require(may_be_lost || (lost == 0 && host_lost == 0), "it was not excluded, and is lost", step);
        // What was excluded is memory like any other.
        fill<<<WORDS / 256, 256>>>(scratch, 2);
        LAUNCHED();
        stir(host_scratch, 4);
        guest::require(wrong_on_device(scratch, 2) == 0 && wrong(host_scratch, 4) == 0, "it cannot be written", step);
        printf("step %d\n", step);
    }
    std::vector<uint32_t> copy(WORDS);
    CUDA(cudaMemcpy(copy.data(), kept, BYTES, cudaMemcpyDeviceToHost));
    return guest::done(guest::mix_rounds(guest::fold(0, copy.data(), WORDS), host_kept[WORDS - 1], work));
}
