// Forks after CUDA was initialised: the child cannot use it, unless it becomes another program; the parent goes on. A child forked
// before could have.
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.cuh"

constexpr int N = 1 << 12;

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

uint32_t compute(const char *who, int steps, int work) {
    uint32_t *buffer, sum = 0;
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    std::vector<uint32_t> host(N);
    for (int step = 1; step <= steps; step++) {
        stir_all<<<N / 128, 128>>>(buffer, step, work);
        LAUNCHED();
        CUDA(cudaMemcpy(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        if (guest::report_at(step, steps)) printf("%s step %d sum %08x\n", who, step, sum);
    }
    return sum;
}

int wait_for(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// What a child of a process that has used CUDA is told, whatever it asks for.
void ask_in_vain(uint32_t *parents) {
    uint32_t *buffer, word;
    printf("late child: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    printf("late child allocates: %s\n", cudaGetErrorName(cudaMalloc(&buffer, 64)));
    stir_all<<<1, 128>>>(parents, 1, 1);
    printf("late child launches: %s\n", cudaGetErrorName(cudaGetLastError()));
    printf("late child copies: %s\n", cudaGetErrorName(cudaMemcpy(&word, parents, 4, cudaMemcpyDeviceToHost)));
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 40, 64);
    if (argc > 3 && strcmp(argv[3], "again") == 0) {
        printf("new program sum %08x\n", compute("new program", steps, work));
        return 0;
    }
    pid_t early = fork();
    if (early == 0) {
        printf("early child sum %08x\n", compute("early child", steps / 4 + 1, work));
        exit(0);
    }
    printf("early child left %d\n", wait_for(early));

    uint32_t sum = compute("parent", steps / 2 + 1, work), *mine;
    CUDA(cudaMalloc(&mine, 4096));
    pid_t late = fork();
    if (late == 0) {
        ask_in_vain(mine);
        fflush(stdout);
        _exit(9);
    }
    printf("late child left %d\n", wait_for(late));
    pid_t other = fork();
    if (other == 0) {
        std::string some = std::to_string(steps / 4 + 1), much = std::to_string(work);
        execl("/proc/self/exe", argv[0], some.c_str(), much.c_str(), "again", nullptr);
        _exit(3);
    }
    printf("new program left %d\n", wait_for(other));
    CUDA(cudaFree(mine));
    sum = guest::mix(sum, compute("parent again", steps / 2 + 1, work));
    return guest::done(sum);
}
