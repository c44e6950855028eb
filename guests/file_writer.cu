// Writes results as it goes: appends to `file_writer.log`, and rewrites a few records of `file_writer.table` in place.
#include <fcntl.h>
#include <unistd.h>

#include "guest.cuh"

constexpr int N = 1 << 13;
constexpr int RECORDS = 64;

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

int create(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0) {
        perror(path);
        exit(3);
    }
    return file;
}

void write_all(int file, const void *bytes, size_t count, off_t offset) {
    if (pwrite(file, bytes, count, offset) != ssize_t(count)) {
        perror("write");
        exit(3);
    }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 150, 64);
    uint32_t *buffer;
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    FILE *log = fopen("file_writer.log", "w");
    if (!log) {
        perror("file_writer.log");
        return 3;
    }
    int table = create("file_writer.table");
    uint32_t records[RECORDS] = {};
    write_all(table, records, sizeof records, 0);

    std::vector<uint32_t> host(N);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        stir_all<<<N / 128, 128>>>(buffer, step, work);
        LAUNCHED();
        CUDA(cudaMemcpy(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        fprintf(log, "%d %08x\n", step, sum);
        if (step % 7 == 0) fflush(log);
        records[sum % RECORDS] += step;
        write_all(table, &records[sum % RECORDS], sizeof(uint32_t), sum % RECORDS * sizeof(uint32_t));
        guest::progress(step, steps, sum);
    }

    uint32_t stored[RECORDS];
    guest::require(pread(table, stored, sizeof stored, 0) == ssize_t(sizeof stored), "the table can be read", steps);
    for (int r = 0; r < RECORDS; r++) guest::require(stored[r] == records[r], "the table's contents", steps);
    fclose(log);
    close(table);
    return guest::done(sum);
}
