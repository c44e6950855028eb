// Memory of the processes' own, all of which changes in every step: of a thread, of a child, and such as a forked copy would not have (wiped or left
// out on fork, locked); and some that nobody may read meanwhile. Each step finds what the one before has left, or says so; and the parent has no child that it has not made.
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "guest.cuh"

constexpr size_t PAGE = 4096;

__global__ void stir(uint32_t *word, int step) { *word = guest::mix(*word, step); }

// Pages with a pattern of their own and, at both ends, the number of the last step.
struct Area {
    uint32_t *words;
    size_t pages;
    uint32_t step = 0;

    explicit Area(size_t bytes, int advice = 0) : pages(bytes / PAGE) {
        void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        guest::require(at != MAP_FAILED, "no memory", 0);
        if (advice) guest::require(madvise(at, bytes, advice) == 0, "an advice is not taken", 0);
        words = static_cast<uint32_t *>(at);
        for (size_t page = 0; page < pages; page++)
            for (size_t i = 1; i < PAGE / 4 - 1; i++) words[page * (PAGE / 4) + i] = guest::mix(page, i);
    }

    bool advance() {
        bool same = true;
        for (size_t page = 0; page < pages; page++) {
            uint32_t *here = words + page * (PAGE / 4), &last = here[PAGE / 4 - 1];
            size_t middle = 1 + step % (PAGE / 4 - 2);
            same &= here[0] == step && last == ~step * (step > 0) && here[middle] == guest::mix(page, middle);
            here[0] = step + 1;
            last = ~(step + 1);
        }
        step++;
        return same;
    }
};

std::atomic<int> children_heard{0};

// Goes on until nobody holds the other end of the pipe; answers whether all was right.
int be_child(int pipe) {
    Area own(4 << 20);
    for (;;) {
        if (!own.advance()) return 1;
        usleep(300);
        char byte;
        if (read(pipe, &byte, 1) == 0) return 0;
    }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 200, 32);
    int ends[2];
    guest::require(pipe2(ends, O_NONBLOCK) == 0, "no pipe", 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit(be_child(ends[0]));
    }
    close(ends[0]);
    signal(SIGCHLD, [](int) { children_heard++; });

    Area plain(size_t(work) << 20), wiped(64 * PAGE, MADV_WIPEONFORK), kept(64 * PAGE, MADV_DONTFORK), locked(8 * PAGE);
    Area wiped_whole(4 << 20, MADV_WIPEONFORK);
    guest::require(mlock(locked.words, 8 * PAGE) == 0, "memory is not locked", 0);
    Area hidden(64 * PAGE), hidden_wiped(64 * PAGE, MADV_WIPEONFORK);
    for (Area *area : {&hidden, &hidden_wiped})
        guest::require(area->advance() && mprotect(area->words, 64 * PAGE, PROT_NONE) == 0, "memory is not hidden", 0);
    std::atomic<bool> over{false}, right{true};
    std::thread other([&] {
        Area own(4 << 20);
        while (!over) right = own.advance() && right;
    });
    uint32_t *word, sum = 0;
    CUDA(cudaMalloc(&word, sizeof *word));
    CUDA(cudaMemset(word, 0, sizeof *word));
    for (int step = 1; step <= steps; step++) {
        stir<<<1, 1>>>(word, step);
        LAUNCHED();
        for (Area *area : {&plain, &wiped, &kept, &locked, &wiped_whole})
            guest::require(area->advance(), "memory is not what it was", step);
        int status;
        guest::require(waitpid(-1, &status, WNOHANG | __WALL) == 0, "a child that is none of it", step);
        CUDA(cudaMemcpy(&sum, word, sizeof sum, cudaMemcpyDeviceToHost));
        if (guest::report_at(step, steps)) printf("step %d sum %08x\n", step, sum);
    }
    over = true;
    other.join();
    guest::require(right, "the thread's memory is not what it was", steps);
    for (Area *area : {&hidden, &hidden_wiped}) {
        guest::require(mprotect(area->words, 64 * PAGE, PROT_READ | PROT_WRITE) == 0, "memory stays hidden", steps);
        guest::require(area->advance(), "hidden memory is not what it was", steps);
    }
    guest::require(children_heard == 0, "a signal of a child that is none of it", steps);
    close(ends[1]);
    int status;
    guest::require(waitpid(child, &status, 0) == child && status == 0, "the child's memory is not what it was", steps);
    return guest::done(sum);
}
