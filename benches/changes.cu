// A program that is checkpointed while it works, for `checkpoint-bench`: `changes GIB FOLDER [random|half|zero|thin [SIDE [COPIED]]]`. Fills GIB of device memory with random words (the second half, or
// all of it with zeros; `thin`: a random byte in each word), says so, and multiplies matrices of SIDE x SIDE (2048), and copies COPIED MiB (none) of pinned memory to the device and back, until there is a file `stop` in the folder. A file `go` there says what to do between
// two steps; it is removed when that is done, and the answer printed:
//   PERCENT contiguous|scattered|zero   change a word of so many of the chunks of 2 MiB, side by side or spread, or clear them
//   0 report                            how many steps there were since the last report, their median, mean and longest in ms; the mean without the longest
//   0 save, 0 load                      the naive checkpoint: all memory through ordinary memory into the file `naive` of the folder, synced; and back
//   0 fill                              allocate until the device refuses a single megabyte, free it again, and print how many there were
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <numeric>
#include <string>
#include <unistd.h>
#include <vector>

#include "check.cuh"

using Clock = std::chrono::steady_clock;
constexpr size_t CHUNK = 2 << 20;

__device__ unsigned long long scrambled(unsigned long long word) {
    word = (word ^ word >> 33) * 0xff51afd7ed558ccdull;
    word = (word ^ word >> 33) * 0xc4ceb9fe1a85ec53ull;
    return word ^ word >> 33;
}

__global__ void fill(unsigned long long *words, size_t count, unsigned long long bits) {
    size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += step) words[at] = scrambled(at + 1) & bits;
}

__global__ void change(char *chunks, size_t stride, unsigned turn) {
    *reinterpret_cast<unsigned *>(chunks + blockIdx.x * stride * CHUNK + (turn * 4096 + blockIdx.x * 64) % CHUNK) += turn;
}

__global__ void multiply(const float *a, const float *b, float *c, int side) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < side; k++) sum += a[row * side + k] * b[k * side + column];
    c[row * side + column] = sum;
}

double since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

void report(std::vector<double> &steps) {
    std::sort(steps.begin(), steps.end());
    double sum = std::accumulate(steps.begin(), steps.end(), 0.0), longest = steps.back();
    printf("steps %zu median %.3f mean %.3f longest %.1f\n", steps.size(), steps[steps.size() / 2],
           steps.size() > 1 ? (sum - longest) / (steps.size() - 1) : sum, longest);
}

// Moves all memory between the device and a file.
void naive(char *memory, size_t bytes, const std::string &path, bool save) {
    auto start = Clock::now();
    std::vector<char> piece(64 << 20);
    int file = open(path.c_str(), save ? O_CREAT | O_TRUNC | O_WRONLY : O_RDONLY, 0600);
    bool good = file >= 0;
    for (size_t at = 0; good && at < bytes; at += piece.size()) {
        size_t len = std::min(piece.size(), bytes - at);
        if (save) CHECK(cudaMemcpy(piece.data(), memory + at, len, cudaMemcpyDeviceToHost));
        for (size_t done = 0; good && done < len;) {
            ssize_t moved = save ? write(file, piece.data() + done, len - done) : read(file, piece.data() + done, len - done);
            good = moved > 0;
            done += good ? moved : 0;
        }
        if (good && !save) CHECK(cudaMemcpy(memory + at, piece.data(), len, cudaMemcpyHostToDevice));
    }
    // What throws away has nothing to sync.
    if (!good || (save && fsync(file) != 0 && errno != EINVAL)) return perror(path.c_str()), exit(1);
    close(file);
    printf("%s ms %.1f\n", save ? "saved" : "loaded", since(start));
}

// Halves what it asks for until nothing is left.
void fill_device() {
    std::vector<void *> all;
    size_t megabytes = 0;
    for (size_t size = 1 << 20; size; size /= 2)
        for (void *piece; cudaMalloc(&piece, size << 20) == cudaSuccess; megabytes += size) all.push_back(piece);
    cudaGetLastError();
    for (void *piece : all) CHECK(cudaFree(piece));
    printf("filled MB %zu\n", megabytes);
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: changes GIB FOLDER [random|half|zero|thin [SIDE [COPIED]]]\n"), 2;
    size_t chunks = std::max<size_t>(1, size_t(atof(argv[1]) * (1 << 30) / CHUNK)), bytes = chunks * CHUNK;
    std::string folder = argv[2], go = folder + "/go", stop = folder + "/stop", contents = argc > 3 ? argv[3] : "random";
    size_t full = contents == "zero" ? 0 : contents == "half" ? bytes / 2 : bytes;
    int side = argc > 4 ? std::max(32, atoi(argv[4]) / 32 * 32) : 2048;
    size_t square = size_t(side) * side, copied = argc > 5 ? size_t(atoi(argv[5])) << 20 : 0;
    char *memory, *pinned = nullptr, *copy = nullptr;
    float *matrices;
    CHECK(cudaMalloc(&memory, bytes));
    CHECK(cudaMalloc(&matrices, 3 * square * sizeof(float)));
    CHECK(cudaMemset(matrices, 0, 3 * square * sizeof(float)));
    CHECK(cudaMemset(memory + full, 0, bytes - full));
    if (copied) {
        CHECK(cudaMallocHost(&pinned, copied));
        CHECK(cudaMalloc(&copy, copied));
        memset(pinned, 1, copied);
    }
    if (full) fill<<<4096, 256>>>(reinterpret_cast<unsigned long long *>(memory), full / 8, contents == "thin" ? 0xff : ~0ull);
    CHECK(cudaDeviceSynchronize());
    puts("ready");
    fflush(stdout);
    std::vector<double> steps;
    auto last = Clock::now();
    for (unsigned turn = 1; access(stop.c_str(), F_OK) != 0;) {
        multiply<<<dim3(side / 32, side / 32), dim3(32, 32)>>>(matrices, matrices + square, matrices + 2 * square, side);
        if (copied) {
            CHECK(cudaMemcpyAsync(copy, pinned, copied, cudaMemcpyHostToDevice));
            CHECK(cudaMemcpyAsync(pinned, copy, copied, cudaMemcpyDeviceToHost));
        }
        CHECK(cudaDeviceSynchronize());
        steps.push_back(since(last));
        last = Clock::now();
        FILE *file = fopen(go.c_str(), "r");
        if (!file) continue;
        double percent;
        char what[16];
        bool read = fscanf(file, "%lf %15s", &percent, what) == 2;
        fclose(file);
        if (!read) continue;
        size_t count = std::max<size_t>(1, size_t(chunks * percent / 100));
        std::string how = what;
        if (how == "report") {
            report(steps);
            steps.clear();
        } else if (how == "save" || how == "load") {
            naive(memory, bytes, folder + "/naive", how == "save");
        } else if (how == "fill") {
            fill_device();
        } else {
            if (how == "zero") CHECK(cudaMemset(memory, 0, count * CHUNK));
            else if (percent > 0) change<<<count, 1>>>(memory, how == "scattered" ? chunks / count : 1, turn++);
            CHECK(cudaDeviceSynchronize());
            puts("changed");
        }
        fflush(stdout);
        unlink(go.c_str());
        last = Clock::now();
    }
    if (!steps.empty()) report(steps);
}
