/* Processes that are awkward to copy, each with memory of its own that must stay as it is:
 *
 *   stopped  a child that has been stopped by a signal, and stays so until the end
 *   huge     private huge pages (MAP_HUGETLB), which the machine must have
 *   many     hundreds of files in memory that have no names, half of them deleted, half memory files
 *   segment  System V shared memory, which goes with the process
 *   vforked  a parent that waits so many seconds for a child of vfork, and then works for one
 *
 * Begins when it has said so, and else is over after so many seconds, and not before it is told so, as other guests are. Knows nothing of CUDA. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES (8u << 20)
#define WORDS (BYTES / sizeof(uint32_t))

static void require(int is_true, const char *what) {
    if (is_true) return;
    printf("failed: %s\n", what);
    exit(1);
}

static uint32_t *memory(int flags) {
    void *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    require(at != MAP_FAILED, "no memory");
    return at;
}

static uint32_t *segment(void) {
    int id = shmget(IPC_PRIVATE, BYTES, 0600);
    void *at = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
    require(at != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0, "no segment");
    return at;
}

#define FILES 300
#define FILE_BYTES (1u << 20)

static int files[FILES];

static void make_files(void) {
    static uint32_t contents[FILE_BYTES / sizeof(uint32_t)];
    for (uint32_t number = 0; number < FILES; number++) {
        char path[] = "/dev/shm/odd_processes-XXXXXX";
        int is_deleted = number % 2, fd = is_deleted ? mkstemp(path) : memfd_create("odd", 0);
        require(fd >= 0 && (!is_deleted || unlink(path) == 0), "no file");
        for (uint32_t i = 0; i < FILE_BYTES / sizeof(uint32_t); i++) contents[i] = i * 2654435761u + number;
        /* With a hole before. */
        require(pwrite(fd, contents, FILE_BYTES, 3 * FILE_BYTES) == FILE_BYTES, "a file is not written");
        files[number] = fd;
    }
}

static void check_files(void) {
    static uint32_t contents[FILE_BYTES / sizeof(uint32_t)];
    for (uint32_t number = 0; number < FILES; number++) {
        require(pread(files[number], contents, FILE_BYTES, 3 * FILE_BYTES) == FILE_BYTES, "a file is short");
        for (uint32_t i = 0; i < FILE_BYTES / sizeof(uint32_t); i++)
            require(contents[i] == i * 2654435761u + number, "a file is not what it was");
        require(pread(files[number], contents, FILE_BYTES, 0) == FILE_BYTES && contents[0] == 0, "a hole has something in it");
    }
}

static void fill(uint32_t *words, uint32_t seed) {
    for (size_t i = 0; i < WORDS; i++) words[i] = (uint32_t)i * 2654435761u + seed;
}

static int is_filled(const uint32_t *words, uint32_t seed) {
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != (uint32_t)i * 2654435761u + seed) return 0;
    return 1;
}

/* See guest.cuh. */
static int is_told(void) {
    const char *file = getenv("GUEST_LAST_LINE_AFTER");
    return !file || access(file, F_OK) == 0;
}

/* Passes the time, changing and checking memory: a restart goes on in the middle. */
static void work(uint32_t *words, int seconds) {
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    uint32_t round = 1;
    do {
        require(is_filled(words, round), "memory is not what it was");
        fill(words, ++round);
        usleep(1000);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - began.tv_sec < seconds || !is_told());
    require(is_filled(words, round), "memory is not what it was");
}

static pid_t stopped_child(void) {
    pid_t child = fork();
    require(child >= 0, "no child");
    if (child == 0) {
        uint32_t *own = memory(0);
        fill(own, 77);
        raise(SIGSTOP);
        _exit(is_filled(own, 77) ? 0 : 1);
    }
    int status;
    require(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status), "the child has not stopped");
    return child;
}

int main(int argc, char **argv) {
    require(argc == 3, "a sort and a number of seconds are asked for");
    const char *sort = argv[1];
    int seconds = atoi(argv[2]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    pid_t stopped = strcmp(sort, "stopped") == 0 ? stopped_child() : 0;
    uint32_t *words = strcmp(sort, "segment") == 0 ? segment() : memory(strcmp(sort, "huge") == 0 ? MAP_HUGETLB : 0);
    fill(words, 1);
    if (strcmp(sort, "many") == 0) make_files();
    if (strcmp(sort, "vforked") == 0) {
        printf("ready\n");
        pid_t child = vfork();
        if (child == 0) {
            struct timespec rest = {seconds, 0};
            while (nanosleep(&rest, &rest) != 0) {
            }
            _exit(0);
        }
        int status;
        require(waitpid(child, &status, 0) == child && status == 0, "the child has failed");
        work(words, 1);
    } else {
        printf("ready\n");
        work(words, seconds);
    }
    if (strcmp(sort, "many") == 0) check_files();
    if (stopped) {
        int status;
        require(waitpid(stopped, &status, WNOHANG | WCONTINUED) == 0, "the child goes on");
        require(kill(stopped, SIGCONT) == 0, "the child is gone");
        require(waitpid(stopped, &status, 0) == stopped && status == 0, "the child's memory is not what it was");
    }
    printf("done\n");
    return 0;
}
