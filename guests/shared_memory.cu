// Shared memory without a name, all of which changes in every step: anonymous (a child has its own part of it, and of some the end is unmapped meanwhile), memory
// files, and a deleted file of /dev/shm, with holes and an end that is no whole page. Each step finds what the one before has left, or says so.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "area.cuh"

__global__ void stir(uint32_t *word, int step) { *word = guest::mix(*word, step); }

void *map(size_t bytes, int fd = -1) {
    int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    guest::require(at != MAP_FAILED, "no memory", 0);
    return at;
}

int memory_file() {
    int fd = memfd_create("guest", 0);
    guest::require(fd >= 0, "no memory file", 0);
    return fd;
}

int deleted_file() {
    char path[] = "/dev/shm/shared_memory-XXXXXX";
    int fd = mkstemp(path);
    guest::require(fd >= 0 && unlink(path) == 0, "no file", 0);
    return fd;
}

// A file with a hole of 3 MiB, then an area, a hole again, and at the end some bytes that are no whole page.
struct Holes {
    static constexpr size_t HOLE = 3 << 20;
    int fd;
    size_t bytes;
    Area area;

    Holes(int fd, size_t bytes) : fd(fd), bytes(bytes), area(mapped(fd, bytes), bytes) {}

    static void *mapped(int fd, size_t bytes) {
        guest::require(ftruncate(fd, 2 * HOLE + bytes) == 0, "no room", 0);
        guest::require(pwrite(fd, "the end", 7, 2 * HOLE + bytes) == 7, "it cannot be written", 0);
        return static_cast<char *>(map(HOLE + bytes, fd)) + HOLE;
    }

    // Whether it is as long as it was, takes no more memory than it did, and has its end.
    bool is_whole() const {
        struct stat status;
        char end[9] = {}, hole = 1;
        return fstat(fd, &status) == 0 && size_t(status.st_size) == 2 * HOLE + bytes + 7 &&
               size_t(status.st_blocks) * 512 <= bytes + HOLE && pread(fd, end, 8, 2 * HOLE + bytes) == 7 &&
               !strcmp(end, "the end") && pread(fd, &hole, 1, HOLE + bytes) == 1 && hole == 0;
    }
};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 200, 8);
    size_t bytes = size_t(work) << 20;
    Area childs(map(4 << 20), 4 << 20);
    int ends[2];
    guest::require(pipe2(ends, O_NONBLOCK) == 0, "no pipe", 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit(advance_until_closed(childs, ends[0]));
    }
    close(ends[0]);

    Area plain(map(bytes), bytes), shorter(map(2 * bytes), 2 * bytes);
    guest::require(munmap(shorter.words + bytes / 4, bytes) == 0, "it stays mapped", 0);
    shorter.pages /= 2;
    Holes file(memory_file(), bytes), deleted(deleted_file(), bytes);
    // Nobody has it open.
    int fd = memory_file();
    guest::require(ftruncate(fd, bytes) == 0, "no room", 0);
    Area closed(map(bytes, fd), bytes);
    close(fd);

    auto advance_all = [&](int step) {
        for (Area *area : {&plain, &shorter, &file.area, &deleted.area, &closed})
            guest::require(area->advance(), "memory is not what it was", step);
        for (Holes *holes : {&file, &deleted}) guest::require(holes->is_whole(), "a file is not what it was", step);
    };
    uint32_t *word, sum = 0, before = 0;
    CUDA(cudaMalloc(&word, sizeof *word));
    CUDA(cudaMemset(word, 0, sizeof *word));
    for (int step = 1; step <= steps; step++) {
        stir<<<1, 1>>>(word, step);
        LAUNCHED();
        advance_all(step);
        uint32_t now = *static_cast<volatile uint32_t *>(childs.words);
        guest::require(now >= before, "the child's memory goes back", step);
        before = now;
        CUDA(cudaMemcpy(&sum, word, sizeof sum, cudaMemcpyDeviceToHost));
        guest::progress(step, steps, sum);
    }
    // What the last step has left, however long ago; what nobody had mapped is as it was, too.
    advance_all(steps);
    void *whole = mremap(shorter.words, bytes, 2 * bytes, MREMAP_MAYMOVE);
    guest::require(whole != MAP_FAILED, "it stays unmapped", steps);
    guest::require(Area::is_fresh(static_cast<uint32_t *>(whole) + bytes / 4, bytes, shorter.pages), "its end is not what it was", steps);
    close(ends[1]);
    int status;
    guest::require(waitpid(child, &status, 0) == child && status == 0, "the child's memory is not what it was", steps);
    return guest::done(sum);
}
