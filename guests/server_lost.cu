// Many threads, each at a different kind of call, until theirs fails: `server_lost [SECONDS]`. When the file `block` is there, two
// more begin that wait for what never comes: a kernel's turn behind a word of memory, and a host function's end. Each thread says
// with which error it ended and when, by the clock of the machine. When the file `end` is there, all of them end well.
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>

#include "driver.cuh"

using Clock = std::chrono::steady_clock;

constexpr int N = 1 << 12;
constexpr size_t LARGE = 16 << 20;

std::atomic<bool> over{false};
std::mutex output;
std::atomic<int> failed{0};

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

// Repeats a call until it fails, or until all is over.
void repeat(const char *name, const std::function<cudaError_t()> &call) {
    cudaError_t error = cudaSetDevice(0);
    while (error == cudaSuccess && !over) error = call();
    auto now = std::chrono::system_clock::now().time_since_epoch();
    std::lock_guard<std::mutex> alone(output);
    printf("%s: %s at %lld ms\n", name, cudaGetErrorName(error),
           (long long)std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
    if (error != cudaSuccess) failed++;
}

// The first error of several calls.
cudaError_t all(std::initializer_list<cudaError_t> results) {
    for (cudaError_t each : results)
        if (each != cudaSuccess) return each;
    return cudaSuccess;
}

cudaError_t of(CUresult result) { return static_cast<cudaError_t>(result); }

void CUDART_CB until_over(void *) {
    while (!over) usleep(1000);
}

struct Mine {
    cudaStream_t stream;
    uint32_t *buffer;
    Mine() {
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA(cudaMalloc(&buffer, LARGE));
        CUDA(cudaMemset(buffer, 0, LARGE));
        CUDA(cudaDeviceSynchronize());
    }
    cudaError_t launch() {
        stir_all<<<N / 128, 128, 0, stream>>>(buffer, 1, 4);
        return cudaGetLastError();
    }
};

int main(int argc, char **argv) {
    auto [seconds, unused] = guest::args(argc, argv, 120, 1);
    (void)unused;
    std::vector<std::thread> threads;
    std::vector<Mine> mine(8);
    auto begin = [&](const char *name, std::function<cudaError_t()> call) {
        threads.emplace_back(repeat, name, std::move(call));
    };
    begin("launches", [&] { return mine[0].launch(); });
    begin("waits", [&] { return all({mine[1].launch(), cudaStreamSynchronize(mine[1].stream)}); });
    begin("allocates", [&] {
        void *other = nullptr;
        return all({cudaMalloc(&other, 1 << 16), cudaFree(other)});
    });
    begin("pins", [&] {
        void *other = nullptr;
        return all({cudaMallocHost(&other, 1 << 16), cudaFreeHost(other)});
    });
    std::vector<uint32_t> here(LARGE / 4), there(LARGE / 4);
    begin("sends", [&] { return cudaMemcpy(mine[2].buffer, here.data(), LARGE, cudaMemcpyHostToDevice); });
    begin("fetches", [&] { return cudaMemcpy(there.data(), mine[3].buffer, LARGE, cudaMemcpyDeviceToHost); });
    cudaEvent_t event;
    CUDA(cudaEventCreate(&event));
    CUDA(cudaEventRecord(event, mine[4].stream));
    CUDA(cudaEventSynchronize(event));
    // Complete, and known to be.
    begin("asks", [&] {
        usleep(1000);
        return cudaEventQuery(event);
    });
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(mine[5].stream, cudaStreamCaptureModeThreadLocal));
    CUDA(mine[5].launch());
    CUDA(mine[5].launch());
    CUDA(cudaStreamEndCapture(mine[5].stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    begin("graph", [&] {
        return all({cudaGraphLaunch(exec, mine[5].stream), cudaStreamSynchronize(mine[5].stream)});
    });
    printf("working\n");

    bool blocked = false;
    auto end = Clock::now() + std::chrono::seconds(seconds);
    while (Clock::now() < end && failed == 0 && access("end", F_OK) != 0) {
        if (!blocked && access("block", F_OK) == 0) {
            blocked = true;
            begin("word", [&] {
                auto word = reinterpret_cast<CUdeviceptr>(mine[6].buffer);
                return all({of(cuStreamWaitValue32(mine[6].stream, word, 1, CU_STREAM_WAIT_VALUE_EQ)),
                            cudaStreamSynchronize(mine[6].stream)});
            });
            begin("host function", [&] {
                return all({cudaLaunchHostFunc(mine[7].stream, until_over, nullptr),
                            cudaStreamSynchronize(mine[7].stream)});
            });
            // They are in their calls by then.
            usleep(300'000);
            printf("blocked\n");
        }
        usleep(2000);
    }
    // Those that nothing keeps from it have failed long ago.
    if (failed > 0) usleep(1'500'000);
    over = true;
    for (auto &thread : threads) thread.join();
    cudaError_t last = cudaDeviceSynchronize();
    printf("%d of %zu failed, main: %s\n", failed.load(), threads.size(), cudaGetErrorName(last));
    return failed == 0 ? 0 : 6;
}
