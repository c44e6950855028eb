// Forks after CUDA was initialised: the child cannot use it, the parent goes on. A child forked before could have.
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

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 40, 64);
    pid_t early = fork();
    if (early == 0) {
        printf("early child sum %08x\n", compute("early child", steps / 4 + 1, work));
        exit(0);
    }
    printf("early child left %d\n", wait_for(early));

    uint32_t sum = compute("parent", steps, work);
    pid_t late = fork();
    if (late == 0) {
        printf("late child: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
        fflush(stdout);
        _exit(9);
    }
    printf("late child left %d\n", wait_for(late));
    sum = guest::mix(sum, compute("parent again", steps, work));
    return guest::done(sum);
}
