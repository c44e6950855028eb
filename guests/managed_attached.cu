// Managed memory that is attached to the host, to a stream, or to nobody, by turns; and used by kernels of every stream, and by the host beside them, all the
// same: where `concurrentManagedAccess` is not 0 an attachment is a hint.
#include <thread>

#include "guest.cuh"

constexpr int WORDS = 6000, REGIONS = 3;

__global__ void stir(uint32_t *words, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < WORDS) words[i] = guest::mix_rounds(words[i] + i, step, work);
}

struct Region {
    uint32_t *words;
    std::vector<uint32_t> expected = std::vector<uint32_t>(WORDS);

    explicit Region(unsigned flags) {
        CUDA(cudaMallocManaged(&words, WORDS * sizeof *words, flags));
        for (int i = 0; i < WORDS; i++) words[i] = 0;
    }

    void launch(int step, int work, cudaStream_t stream) {
        stir<<<(WORDS + 127) / 128, 128, 0, stream>>>(words, step, work);
        LAUNCHED();
        for (int i = 0; i < WORDS; i++) expected[i] = guest::mix_rounds(expected[i] + i, step, work);
    }

    // Some by the host.
    void write(int step) {
        for (int i = step % 7; i < WORDS; i += 7) words[i] += step, expected[i] += step;
    }

    void check(const char *what, int step) {
        for (int i = 0; i < WORDS; i++) guest::require(words[i] == expected[i], what, step);
    }
};

// What no driver takes.
static void bad_input(Region &region, cudaStream_t stream) {
    uint32_t *plain;
    CUDA(cudaMalloc(&plain, 4096));
    guest::require(cudaStreamAttachMemAsync(0, region.words, 0, cudaMemAttachSingle) != cudaSuccess, "no stream of its own", 0);
    guest::require(cudaStreamAttachMemAsync(stream, region.words, 4096, cudaMemAttachSingle) != cudaSuccess, "a part", 0);
    guest::require(cudaStreamAttachMemAsync(stream, plain, 0, cudaMemAttachHost) != cudaSuccess, "not managed", 0);
    guest::require(cudaStreamAttachMemAsync(stream, region.words, 0, 9) != cudaSuccess, "no such flag", 0);
    uint32_t *none;
    guest::require(cudaMallocManaged(&none, 4096, cudaMemAttachSingle) != cudaSuccess, "there is no stream yet", 0);
    cudaGetLastError();
    CUDA(cudaFree(plain));
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 8);
    int concurrent = 0;
    CUDA(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    guest::require(concurrent != 0, "concurrent access", 0);
    cudaStream_t streams[2];
    for (auto &stream : streams) CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Region regions[REGIONS] = {Region(cudaMemAttachHost), Region(cudaMemAttachGlobal), Region(cudaMemAttachHost)};
    bad_input(regions[0], streams[0]);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        // Who is attached to what goes round.
        Region &host = regions[step % REGIONS], &single = regions[(step + 1) % REGIONS], &global = regions[(step + 2) % REGIONS];
        CUDA(cudaStreamAttachMemAsync(streams[0], host.words, 0, cudaMemAttachHost));
        CUDA(cudaStreamAttachMemAsync(streams[0], single.words));
        CUDA(cudaStreamAttachMemAsync(streams[1], global.words, 0, cudaMemAttachGlobal));
        CUDA(cudaStreamSynchronize(streams[0]));
        CUDA(cudaStreamSynchronize(streams[1]));

        // The host works on what no stream is said to use, and on what an idle stream is said to use, while another one is busy.
        global.launch(step, work * 4, streams[1]);
        std::thread writer([&] { host.write(step); });
        single.write(step);
        writer.join();

        // Kernels use what they are not said to use.
        host.launch(step, work, streams[1]);
        CUDA(cudaStreamSynchronize(streams[1]));
        single.launch(step, work, streams[1]);
        CUDA(cudaStreamSynchronize(streams[1]));
        host.check("attached to the host", step);
        single.check("attached to another stream", step);
        global.check("attached to nobody", step);

        host.write(step + 1);
        single.write(step + 1);
        host.launch(step + 1, 1, 0);
        single.launch(step + 1, 1, streams[0]);
        CUDA(cudaDeviceSynchronize());
        for (auto &region : regions) {
            region.check("in the end", step);
            sum = guest::fold(sum, region.words, WORDS);
        }
        guest::progress(step, steps, sum);
    }
    for (auto &region : regions) CUDA(cudaFree(region.words));
    return guest::done(sum);
}
