// A program with managed memory that protects parts of it against itself, and that forks: its children work on, without the GPU, and never find zeros where
// there was something (natively they have none of that memory).
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.cuh"

constexpr int PAGE = 1024, PAGES = 100, WORDS = PAGES * PAGE;

__global__ void stir(uint32_t *words, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < WORDS) words[i] = guest::mix_rounds(words[i] + i, step, work) | 1;
}

static void expect(std::vector<uint32_t> &words, int step, int work) {
    for (int i = 0; i < WORDS; i++) words[i] = guest::mix_rounds(words[i] + i, step, work) | 1;
}

static void protect(uint32_t *words, int page, int pages, int protection) {
    guest::require(mprotect(words + page * PAGE, pages * 4096, protection) == 0, "protection", page);
}

// What a child does with one word of managed memory, which is not 0, and with memory of its own.
static void child(const uint32_t *word, uint32_t value, std::vector<uint32_t> &own, int step) {
    rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (auto &each : own) each = guest::mix(each, step);
    if (guest::fold(0, own.data(), own.size()) == 0) _exit(3);
    uint32_t found = *const_cast<const volatile uint32_t *>(word);
    _exit(found == value ? 0 : 2);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 8);
    uint32_t *words;
    CUDA(cudaMallocManaged(&words, WORDS * sizeof *words));
    std::vector<uint32_t> expected(WORDS);
    memset(words, 0, WORDS * sizeof *words);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        stir<<<(WORDS + 127) / 128, 128>>>(words, step, work);
        LAUNCHED();
        CUDA(cudaDeviceSynchronize());
        expect(expected, step, work);

        // A part may only be read for a while; what lies around it is written.
        int page = step * 7 % (PAGES - 20) + 2, pages = 1 + step % 10;
        protect(words, page, pages, PROT_READ);
        for (int i = 0; i < WORDS; i += 97) guest::require(words[i] == expected[i], "read where it is protected", step);
        for (int at : {page * PAGE - 1, (page + pages) * PAGE}) words[at] = expected[at] = step | 1;
        usleep(300);
        guest::require(memcmp(words, expected.data(), WORDS * 4) == 0, "protected", step);
        protect(words, page, pages, PROT_READ | PROT_WRITE);
        for (int i = page * PAGE; i < (page + pages) * PAGE; i += 50) words[i] = expected[i] = step * i | 1;

        // A child, of whom nobody knows beforehand which pages are here when it looks; the parent goes on meanwhile.
        if (step % 4 == 0) {
            int at = step * 4099 % WORDS;
            uint32_t value = expected[at];
            std::vector<uint32_t> own(1000, step);
            pid_t pid = fork();
            guest::require(pid >= 0, "fork", step);
            if (pid == 0) child(words + at, value, own, step);
            stir<<<(WORDS + 127) / 128, 128>>>(words, step + 1, 1);
            LAUNCHED();
            words[at] += 0;
            int status = 0;
            guest::require(waitpid(pid, &status, 0) == pid, "the child", step);
            bool has_none = WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
            guest::require(has_none || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "what a child found", step);
            CUDA(cudaDeviceSynchronize());
            expect(expected, step + 1, 1);
        }
        guest::require(memcmp(words, expected.data(), WORDS * 4) == 0, "in the end", step);
        sum = guest::fold(sum, words, WORDS);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(words));
    return guest::done(sum);
}
