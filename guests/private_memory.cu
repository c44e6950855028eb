// Memory of the processes' own, all of which changes in every step: of a thread, of a child, and such as a forked copy would not have (wiped or left
// out on fork, locked); and some that nobody may read meanwhile. Each step finds what the one before has left, or says so; and the parent has no child that it has not made.
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>

#include "area.cuh"

__global__ void stir(uint32_t *word, int step) { *word = guest::mix(*word, step); }

Area area(size_t bytes, int advice = 0) {
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    guest::require(at != MAP_FAILED, "no memory", 0);
    if (advice) guest::require(madvise(at, bytes, advice) == 0, "an advice is not taken", 0);
    return Area(at, bytes);
}

std::atomic<int> children_heard{0};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 200, 32);
    int ends[2];
    guest::require(pipe2(ends, O_NONBLOCK) == 0, "no pipe", 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit(advance_until_closed(area(4 << 20), ends[0]));
    }
    close(ends[0]);
    signal(SIGCHLD, [](int) { children_heard++; });

    Area plain = area(size_t(work) << 20), wiped = area(64 * PAGE, MADV_WIPEONFORK), kept = area(64 * PAGE, MADV_DONTFORK);
    Area locked = area(8 * PAGE), wiped_whole = area(4 << 20, MADV_WIPEONFORK);
    guest::require(mlock(locked.words, 8 * PAGE) == 0, "memory is not locked", 0);
    Area hidden = area(64 * PAGE), hidden_wiped = area(64 * PAGE, MADV_WIPEONFORK);
    for (Area *area : {&hidden, &hidden_wiped})
        guest::require(area->advance() && mprotect(area->words, 64 * PAGE, PROT_NONE) == 0, "memory is not hidden", 0);
    std::atomic<bool> over{false}, right{true};
    std::thread other([&] {
        Area own = area(4 << 20);
        while (!over) right = own.advance() && right;
    });
    auto advance_all = [&](int step) {
        for (Area *area : {&plain, &wiped, &kept, &locked, &wiped_whole})
            guest::require(area->advance(), "memory is not what it was", step);
    };
    uint32_t *word, sum = 0;
    CUDA(cudaMalloc(&word, sizeof *word));
    CUDA(cudaMemset(word, 0, sizeof *word));
    for (int step = 1; step <= steps; step++) {
        stir<<<1, 1>>>(word, step);
        LAUNCHED();
        advance_all(step);
        int status;
        guest::require(waitpid(-1, &status, WNOHANG | __WALL) == 0, "a child that is none of it", step);
        CUDA(cudaMemcpy(&sum, word, sizeof sum, cudaMemcpyDeviceToHost));
        guest::progress(step, steps, sum);
    }
    // What the last step has left, however long ago.
    advance_all(steps);
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
