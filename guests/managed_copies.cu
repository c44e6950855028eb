// Copies and fills that name managed memory, in whole and in part, while the host works on other managed memory beside it, on parts of the same pages, and
// a kernel on all of it; then a stream that waits until the host has written what its kernel is to read.
#include <cstring>
#include <thread>

#include "driver.cuh"

constexpr int WORDS = 40000, PART = 3000;
constexpr int WIDTH = 100, HEIGHT = 30, PITCH = 256;

__global__ void stir(uint32_t *words, int count, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) words[i] = guest::mix_rounds(words[i] + i, step, work);
}

__global__ void sum_up(const uint32_t *words, int count, uint32_t *sum) {
    uint32_t hash = 0;
    for (int i = 0; i < count; i++) hash = guest::mix(hash, words[i]);
    *sum = hash;
}

struct Region {
    uint32_t *words;
    std::vector<uint32_t> expected;

    Region() : expected(WORDS) {
        CUDA(cudaMallocManaged(&words, WORDS * sizeof *words));
        memset(words, 0, WORDS * sizeof *words);
    }

    void launch(int count, int step, int work, cudaStream_t stream) {
        stir<<<(count + 127) / 128, 128, 0, stream>>>(words, count, step, work);
        LAUNCHED();
        for (int i = 0; i < count; i++) expected[i] = guest::mix_rounds(expected[i] + i, step, work);
    }

    // Some by the host, behind the first `from`.
    void write(int from, int step) {
        for (int i = from + step % 5; i < WORDS; i += 5) words[i] ^= step * i, expected[i] ^= step * i;
    }

    void check(const char *what, int step) {
        guest::require(memcmp(words, expected.data(), WORDS * sizeof *words) == 0, what, step);
    }
};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 8);
    cudaStream_t streams[2];
    for (auto &stream : streams) CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Region busy, from, to;
    uint32_t *plain, *flag, *seen, *pinned;
    std::vector<uint32_t> pageable(WORDS);
    CUDA(cudaMalloc(&plain, WORDS * sizeof *plain));
    CUDA(cudaMalloc(&flag, sizeof *flag));
    CUDA(cudaMemset(flag, 0, sizeof *flag));
    CUDA(cudaMallocManaged(&seen, sizeof *seen));
    CUDA(cudaMallocHost(&pinned, 2 * PART * sizeof *pinned));
    cudaFuncAttributes loaded;
    CUDA(cudaFuncGetAttributes(&loaded, sum_up));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        // From one to the other, in part, while two threads of the host write elsewhere: in another region, and behind what is copied.
        from.launch(WORDS, step, work, streams[0]);
        CUDA(cudaStreamSynchronize(streams[0]));
        CUDA(cudaMemcpyAsync(to.words, from.words, PART * 4, cudaMemcpyDefault, streams[0]));
        memcpy(to.expected.data(), from.expected.data(), PART * 4);
        std::thread writer([&] { busy.write(0, step); });
        to.write(PART, step);
        CUDA(cudaMemsetAsync(from.words + PART, step, 400, streams[0]));
        memset(from.expected.data() + PART, step, 400);
        writer.join();
        from.write(PART + 100, step);
        CUDA(cudaStreamSynchronize(streams[0]));
        busy.check("beside copies", step);
        from.check("written behind a fill", step);
        to.check("written behind a copy", step);

        // Copies that name no managed memory, or one side alone, with a kernel in flight that uses all of another.
        busy.launch(WORDS, step, work, streams[1]);
        to.write(0, step + 1);
        CUDA(cudaMemcpyAsync(plain, pageable.data(), WORDS * 4, cudaMemcpyHostToDevice, streams[0]));
        CUDA(cudaMemcpyAsync(plain, to.words, WORDS * 2, cudaMemcpyDefault, streams[0]));
        CUDA(cudaMemcpyAsync(from.words, plain, WORDS * 2, cudaMemcpyDefault, streams[0]));
        CUDA(cudaStreamSynchronize(streams[0]));
        memcpy(from.expected.data(), to.expected.data(), WORDS * 2);
        from.check("by way of plain memory", step);
        CUDA(cudaMemcpy(pageable.data(), to.words, WORDS * 4, cudaMemcpyDeviceToHost));
        guest::require(pageable == to.expected, "a copy that has returned", step);
        CUDA(cudaStreamSynchronize(streams[1]));
        busy.check("a kernel beside copies", step);

        // Rows, with the host's words between them.
        CUDA(cudaMemcpy2DAsync(to.words, PITCH * 4, busy.words, PITCH * 4, WIDTH * 4, HEIGHT, cudaMemcpyDefault, streams[0]));
        CUDA(cudaMemset2DAsync(to.words + WIDTH, PITCH * 4, step, 40, HEIGHT, streams[0]));
        for (int row = 0; row < HEIGHT; row++) {
            memcpy(&to.expected[row * PITCH], &busy.expected[row * PITCH], WIDTH * 4);
            memset(&to.expected[row * PITCH + WIDTH], step, 40);
            for (int i = WIDTH + 10; i < PITCH; i++) to.words[row * PITCH + i] += step, to.expected[row * PITCH + i] += step;
        }
        CUDA(cudaStreamSynchronize(streams[0]));
        to.check("rows", step);

        // A kernel that has been submitted is let go by a copy when the host has written what it reads.
        if (step > steps - steps / 4) {
            CUDA(cuStreamWaitValue32(streams[1], CUdeviceptr(flag), step, CU_STREAM_WAIT_VALUE_EQ));
            sum_up<<<1, 1, 0, streams[1]>>>(to.words, 2000, seen);
            LAUNCHED();
            // Nor do copies between pinned and managed memory behind it keep anybody.
            for (int i = 0; i < PART; i++) pinned[i] = step * i;
            CUDA(cudaMemcpyAsync(pinned + PART, to.words, PART * 4, cudaMemcpyDefault, streams[1]));
            CUDA(cudaMemcpyAsync(from.words + 2 * PART, pinned, PART * 4, cudaMemcpyDefault, streams[1]));
            CUDA(cudaMemcpy2DAsync(from.words + 4 * PART, PITCH * 4, pinned, WIDTH * 4, WIDTH * 4, HEIGHT, cudaMemcpyDefault, streams[1]));
            to.write(0, step);
            CUDA(cudaMemcpyAsync(flag, &step, sizeof step, cudaMemcpyHostToDevice, streams[0]));
            CUDA(cudaStreamSynchronize(streams[1]));
            uint32_t hash = 0;
            for (int i = 0; i < 2000; i++) hash = guest::mix(hash, to.expected[i]);
            guest::require(*seen == hash, "what was written before a copy let a kernel go", step);
            guest::require(memcmp(pinned + PART, to.expected.data(), PART * 4) == 0, "a copy behind it to pinned memory", step);
            memcpy(&from.expected[2 * PART], pinned, PART * 4);
            for (int row = 0; row < HEIGHT; row++) memcpy(&from.expected[4 * PART + row * PITCH], pinned + row * WIDTH, WIDTH * 4);
            from.check("copies behind it from pinned memory", step);
        }
        sum = guest::fold(sum, to.words, WORDS);
        sum = guest::fold(sum, from.words, PART);
        sum = guest::mix(sum, busy.words[step]);
        guest::progress(step, steps, sum);
    }
    for (auto region : {&busy, &from, &to}) CUDA(cudaFree(region->words));
    for (auto memory : {plain, flag, seen}) CUDA(cudaFree(memory));
    CUDA(cudaFreeHost(pinned));
    return guest::done(sum);
}
