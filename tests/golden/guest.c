// What the golden image is of (tests/golden.rs): a static program, so that nothing of a distribution is in it. It has memory, a thread, a child, pipes to that, and a file
// that it appends to, and looks whether they are what they were.
//
//     zig cc -target x86_64-linux-musl -static -O2 -s -o guest guest.c
//
// `store` has its image, taken in /tmp/dormouse-golden while it waited for the file `go`, by a bundle's dormouse with `--compress zstd`, on a machine whose /proc/cpuinfo said `fpu sse
// sse2` alone. Its init was linked statically, too ($DORMOUSE_INIT): cargo rustc --release -p host --bin dormouse-init -- -C target-feature=+crt-static
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1 << 14 };
static unsigned memory[WORDS];
static atomic_uint turns;

static unsigned word(unsigned n) { return (n + 1) * 2654435761u; }

static void require(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "wrong: %s\n", what);
    exit(1);
}

static void *turn(void *unused) {
    for (;;) {
        turns++;
        usleep(10000);
    }
    return unused;
}

// Answers each byte with the next one, until there are no more.
static int child(int from, int to) {
    unsigned char byte;
    while (read(from, &byte, 1) == 1) {
        byte++;
        write(to, &byte, 1);
    }
    return 7;
}

int main(void) {
    int to[2], from[2];
    require(pipe(to) == 0 && pipe(from) == 0, "pipes");
    pid_t pid = fork();
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        return child(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    for (unsigned n = 0; n < WORDS; n++) memory[n] = word(n);
    pthread_t thread;
    require(pthread_create(&thread, 0, turn, 0) == 0, "a thread");
    int log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    require(log >= 0 && write(log, "before\n", 7) == 7, "a file");
    puts("begun");
    fflush(stdout);
    while (access("go", F_OK) != 0) usleep(10000);

    for (unsigned n = 0; n < WORDS; n++) require(memory[n] == word(n), "memory");
    unsigned seen = turns;
    for (int tries = 0; turns == seen && tries < 1000; tries++) usleep(10000);
    require(turns != seen, "the thread runs");
    unsigned char byte = 41;
    require(write(to[1], &byte, 1) == 1 && read(from[0], &byte, 1) == 1 && byte == 42, "the child answers");
    close(to[1]);
    int status;
    require(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child's end");
    require(write(log, "after\n", 6) == 6, "the file");
    puts("done");
    return 0;
}
