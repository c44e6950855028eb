// Works on the device for STEPS steps, then ends in one of many ways: `endings HOW [STEPS [WORK]]`.
#include <csignal>
#include <cstring>
#include <optional>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.cuh"

constexpr int N = 1 << 12;

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

volatile sig_atomic_t asked_to_stop = 0;
void on_signal(int signal) { asked_to_stop = signal; }

uint32_t compute(int steps, int work) {
    uint32_t *buffer, sum = 0;
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    std::vector<uint32_t> host(N);
    for (int step = 1; step <= steps && !asked_to_stop; step++) {
        stir_all<<<N / 128, 128>>>(buffer, step, work);
        LAUNCHED();
        CUDA(cudaMemcpy(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        if (!asked_to_stop) guest::progress(step, steps, sum);
    }
    return sum;
}

void say(const char *words) {
    if (write(1, words, strlen(words)) < 0) _exit(3);
}

// A grandchild whose parent is gone. It speaks when `asked` has something to read or is at its end, and keeps `alive` open
// as long as it lives.
struct Grandchild {
    int asked[2], alive[2];

    explicit Grandchild(bool linger) {
        if (pipe(asked) != 0 || pipe(alive) != 0) exit(3);
        pid_t child = fork();
        if (child == 0) {
            if (fork() == 0) {
                close(asked[1]);
                char byte;
                ssize_t got = read(asked[0], &byte, 1);
                if (linger) usleep(100'000);
                say(got == 1 ? "grandchild: asked\n" : "grandchild: alone\n");
                _exit(0);
            }
            _exit(4);
        }
        close(alive[1]);
        int status;
        waitpid(child, &status, 0);
        printf("child left %d\n", WEXITSTATUS(status));
    }

    void ask_and_wait() {
        char byte = 1;
        if (write(asked[1], &byte, 1) != 1) exit(3);
        if (read(alive[0], &byte, 1) != 0) exit(3);
    }
};

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s exit|abort|kill|segfault|sigterm|sigint|grandchild|survivor|stdio [STEPS [WORK]]\n", argv[0]);
        return 2;
    }
    const char *how = argv[1];
    auto is = [how](const char *name) { return strcmp(how, name) == 0; };
    auto [steps, work] = guest::args(argc - 1, argv + 1, 60, 64);

    if (is("stdio")) printf("terminals: %d %d %d\n", isatty(0), isatty(1), isatty(2));
    if (is("sigterm")) signal(SIGTERM, on_signal);
    if (is("sigint")) signal(SIGINT, on_signal);
    // One is asked to speak before the program ends, the other speaks after its end.
    std::optional<Grandchild> grandchild;
    if (is("grandchild") || is("survivor")) grandchild.emplace(is("survivor"));
    uint32_t sum = compute(steps, work);
    if (asked_to_stop) {
        printf("asked to stop by signal %d\n", int(asked_to_stop));
        return 7;
    }
    printf("done sum %08x\n", sum);
    fflush(stdout);
    if (is("exit")) return 42;
    if (is("abort")) abort();
    if (is("kill")) raise(SIGKILL);
    if (is("segfault")) raise(SIGSEGV);
    if (is("grandchild")) grandchild->ask_and_wait();
    if (is("stdio")) {
        for (int i = 0; i < 5; i++) {
            fprintf(stdout, "out %d\n", i);
            fflush(stdout);
            fprintf(stderr, "err %d\n", i);
        }
    }
    return 0;
}
