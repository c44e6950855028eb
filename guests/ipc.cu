// Two processes that share memory of the device. The parent starts a child, another program as far as CUDA knows, and they take
// turns: each reads with kernels what the other has written, and waits for it by events of the other's, never by waiting for the
// device. What is shared: allocations, large and small, that stay; one that is new every few steps; and a piece of memory, by a
// descriptor, of which the parent lets go half-way.
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.cuh"

constexpr int N = 1 << 16, SMALL = 200;
constexpr size_t PIECE = 2 << 20;

__global__ void stir_all(uint32_t *words, int count, int step, int work) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        words[i] = guest::mix_rounds(words[i], step + i, work);
}

__global__ void add_all(uint32_t *sum, const uint32_t *words, int count) {
    uint32_t mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        mine += guest::mix(words[i], i);
    atomicAdd(sum, mine);
}

// What the two say to each other.
struct Word {
    int what;
    uint32_t value;
    cudaIpcMemHandle_t memory[3];
    cudaIpcEventHandle_t event;
};

struct Line {
    int socket;

    void send(const Word &word, int file = -1) const {
        iovec part = {const_cast<Word *>(&word), sizeof word};
        char control[CMSG_SPACE(sizeof(int))] = {};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        if (file >= 0) {
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            cmsghdr *header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(sizeof file);
            memcpy(CMSG_DATA(header), &file, sizeof file);
        }
        guest::require(sendmsg(socket, &message, 0) == sizeof word, "a word is sent", -1);
    }

    Word hear(int *file = nullptr) const {
        Word word;
        iovec part = {&word, sizeof word};
        char control[CMSG_SPACE(sizeof(int))];
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        guest::require(recvmsg(socket, &message, 0) == sizeof word, "a word is heard", -1);
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (file != nullptr) {
            guest::require(header != nullptr && header->cmsg_type == SCM_RIGHTS, "a descriptor is heard", -1);
            memcpy(file, CMSG_DATA(header), sizeof *file);
        }
        return word;
    }
};

// A piece of memory, mapped.
struct Piece {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;

    void map() {
        CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CUDA(cuMemAddressReserve(&at, PIECE, 0, 0, 0));
        CUDA(cuMemMap(at, PIECE, 0, handle, 0));
        CUDA(cuMemSetAccess(at, PIECE, &access, 1));
    }
    void let_go() {
        CUDA(cudaDeviceSynchronize());
        CUDA(cuMemUnmap(at, PIECE));
        CUDA(cuMemAddressFree(at, PIECE));
        CUDA(cuMemRelease(handle));
    }
};

// What both have: their own event and stream, a sum, and the other's event.
struct Side {
    cudaStream_t stream;
    cudaEvent_t mine, theirs;
    uint32_t *sum;

    Side() {
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA(cudaEventCreateWithFlags(&mine, cudaEventDisableTiming | cudaEventInterprocess));
        CUDA(cudaMalloc(&sum, sizeof *sum));
        CUDA(cudaMemset(sum, 0, sizeof *sum));
        CUDA(cudaDeviceSynchronize());
    }
    void wait() { CUDA(cudaStreamWaitEvent(stream, theirs, 0)); }
    void stir(uint32_t *words, int count, int step, int work) {
        stir_all<<<8, 128, 0, stream>>>(words, count, step, work);
        LAUNCHED();
    }
    void add(const uint32_t *words, int count) {
        add_all<<<8, 128, 0, stream>>>(sum, words, count);
        LAUNCHED();
    }
    // All that was given to the stream comes before what the other does once it is told.
    void done() { CUDA(cudaEventRecord(mine, stream)); }
    uint32_t total() {
        uint32_t value;
        CUDA(cudaMemcpyAsync(&value, sum, sizeof value, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        return value;
    }
};

int child(Line line, int work) {
    Side side;
    int file;
    Word first = line.hear(&file);
    uint32_t *large, *small[2];
    CUDA(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&large), first.memory[0], cudaIpcMemLazyEnablePeerAccess));
    for (int i = 0; i < 2; i++)
        CUDA(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&small[i]), first.memory[1 + i], cudaIpcMemLazyEnablePeerAccess));
    CUDA(cudaIpcOpenEventHandle(&side.theirs, first.event));
    Piece piece;
    CUDA(cuMemImportFromShareableHandle(&piece.handle, reinterpret_cast<void *>(uintptr_t(file)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    piece.map();
    auto words = reinterpret_cast<uint32_t *>(piece.at);
    Word word{};
    CUDA(cudaIpcGetEventHandle(&word.event, side.mine));
    line.send(word);
    for (;;) {
        Word told = line.hear();
        if (told.what < 0) break;
        int step = told.what;
        side.wait();
        side.add(large, N);
        side.add(small[0], SMALL);
        side.stir(small[1], SMALL, step, work);
        side.stir(words, int(PIECE / 4), step, 1);
        side.add(words, int(PIECE / 4));
        uint32_t *fresh = nullptr;
        if (told.value) {
            // Twice is once more, at the same place.
            void *again;
            CUDA(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&fresh), told.memory[0], cudaIpcMemLazyEnablePeerAccess));
            CUDA(cudaIpcOpenMemHandle(&again, told.memory[0], cudaIpcMemLazyEnablePeerAccess));
            guest::require(again == fresh, "what is open is opened at its place", step);
            side.add(fresh, N);
            side.stir(fresh, N, step + 1, work);
        }
        side.done();
        word.what = step;
        line.send(word);
        if (fresh != nullptr) {
            // The parent waits for that before it frees the memory.
            CUDA(cudaIpcCloseMemHandle(fresh));
            CUDA(cudaIpcCloseMemHandle(fresh));
            word.value = side.total();
            line.send(word);
        }
    }
    word.value = side.total();
    piece.let_go();
    for (auto each : {large, small[0], small[1]}) CUDA(cudaIpcCloseMemHandle(each));
    CUDA(cudaEventDestroy(side.theirs));
    line.send(word);
    return 0;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 8);
    if (argc > 3) return child({atoi(argv[3])}, work);
    int ends[2];
    guest::require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "a pair of sockets", -1);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        std::string much = std::to_string(work), end = std::to_string(ends[1]);
        execl("/proc/self/exe", argv[0], argv[1] ? argv[1] : "1", much.c_str(), end.c_str(), nullptr);
        _exit(3);
    }
    close(ends[1]);
    Line line{ends[0]};
    Side side;
    // Large and small: the first has a block of its own, the others share one.
    uint32_t *large, *small[2];
    CUDA(cudaMalloc(&large, 5 * N * sizeof *large));
    CUDA(cudaMemset(large, 0, 5 * N * sizeof *large));
    for (auto &each : small) {
        CUDA(cudaMalloc(&each, SMALL * sizeof *each));
        CUDA(cudaMemset(each, 0, SMALL * sizeof *each));
    }
    Piece piece;
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUDA(cuMemCreate(&piece.handle, PIECE, &prop, 0));
    piece.map();
    CUDA(cudaMemset(reinterpret_cast<void *>(piece.at), 0, PIECE));
    CUDA(cudaDeviceSynchronize());
    int file;
    CUDA(cuMemExportToShareableHandle(&file, piece.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    Word word{};
    CUDA(cudaIpcGetMemHandle(&word.memory[0], large));
    CUDA(cudaIpcGetMemHandle(&word.memory[1], small[0]));
    CUDA(cudaIpcGetMemHandle(&word.memory[2], small[1]));
    CUDA(cudaIpcGetEventHandle(&word.event, side.mine));
    line.send(word, file);
    close(file);
    CUDA(cudaIpcOpenEventHandle(&side.theirs, line.hear().event));

    // No process opens what is its own, nor what nobody has given out.
    void *wrong;
    cudaIpcMemHandle_t nonsense{};
    printf("own: %s\n", cudaGetErrorName(cudaIpcOpenMemHandle(&wrong, word.memory[0], cudaIpcMemLazyEnablePeerAccess)));
    guest::require(cudaIpcOpenMemHandle(&wrong, nonsense, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess,
                   "nonsense is refused", 0);
    cudaGetLastError();

    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        side.stir(large, N, step, work);
        side.stir(small[0], SMALL, step, work);
        Word word{};
        word.what = step;
        word.value = step % 5 == 0;
        uint32_t *fresh = nullptr;
        if (word.value) {
            CUDA(cudaMalloc(&fresh, N * sizeof *fresh));
            CUDA(cudaMemcpyAsync(fresh, large, N * sizeof *fresh, cudaMemcpyDeviceToDevice, side.stream));
            CUDA(cudaIpcGetMemHandle(&word.memory[0], fresh));
        }
        side.done();
        line.send(word);
        guest::require(line.hear().what == step, "the child has had its turn", step);
        side.wait();
        side.add(small[1], SMALL);
        if (step <= steps / 2) side.add(reinterpret_cast<uint32_t *>(piece.at), int(PIECE / 4));
        if (fresh != nullptr) {
            side.add(fresh, N);
            // The child has it no longer.
            sum = guest::mix(sum, line.hear().value);
            CUDA(cudaStreamSynchronize(side.stream));
            CUDA(cudaFree(fresh));
        }
        if (step == steps / 2) piece.let_go();
        sum = guest::mix(sum, side.total());
        guest::progress(step, steps, sum);
    }
    word.what = -1;
    line.send(word);
    sum = guest::mix(sum, line.hear().value);
    int status;
    guest::require(waitpid(pid, &status, 0) == pid && status == 0, "the child ends well", steps);
    return guest::done(sum);
}
