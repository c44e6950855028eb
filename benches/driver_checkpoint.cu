// The driver's own checkpoint of a running process, to compare with: `driver_checkpoint PID` locks it, moves its device memory to the host's, and back, and tells what each part took in ms.
// cuCheckpointProcess* (CUDA 12.8): what NVIDIA's `cuda-checkpoint` calls.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>

using Clock = std::chrono::steady_clock;

static double ms(const char *what, CUresult result, Clock::time_point start) {
    if (result != CUDA_SUCCESS) {
        const char *name = "an unknown error";
        cuGetErrorName(result, &name);
        fprintf(stderr, "%s: %s\n", what, name);
        exit(1);
    }
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: driver_checkpoint PID\n"), 2;
    int pid = atoi(argv[1]);
    ms("cuInit", cuInit(0), Clock::now());
    CUcheckpointLockArgs lock = {};
    lock.timeoutMs = 10000;
    auto start = Clock::now();
    double locked = ms("lock", cuCheckpointProcessLock(pid, &lock), start);
    CUresult result = cuCheckpointProcessCheckpoint(pid, nullptr);
    // One that is refused (it has managed memory, say) would stand still for ever.
    if (result != CUDA_SUCCESS) cuCheckpointProcessUnlock(pid, nullptr);
    double saved = ms("checkpoint", result, start);
    auto back = Clock::now();
    ms("restore", cuCheckpointProcessRestore(pid, nullptr), back);
    double restored = ms("unlock", cuCheckpointProcessUnlock(pid, nullptr), back);
    printf("lock %.1f checkpoint %.1f restore %.1f\n", locked, saved - locked, restored);
}
