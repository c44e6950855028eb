// A process that works on memory of the device that another one has made: a child, another program as far as CUDA knows, which gives it away
// by descriptor and then only waits. It may end, however it likes, and the memory stays.
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

#include "driver.cuh"

constexpr size_t PIECE = 2 << 20;
constexpr int N = PIECE / 4;

__global__ void stir_all(uint32_t *words, int count, int step, int work) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        words[i] = guest::mix_rounds(words[i], step + i, work);
}

uint32_t *mapped(CUmemGenericAllocationHandle handle) {
    CUdeviceptr at;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUDA(cuMemAddressReserve(&at, PIECE, 0, 0, 0));
    CUDA(cuMemMap(at, PIECE, 0, handle, 0));
    CUDA(cuMemSetAccess(at, PIECE, &access, 1));
    return reinterpret_cast<uint32_t *>(at);
}

// Sends a descriptor, or receives one.
int pass(int socket, int file) {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (file < 0) {
        guest::require(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message), "a descriptor is heard", -1);
        memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
        return file;
    }
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(header), &file, sizeof file);
    guest::require(sendmsg(socket, &message, 0) == 1, "a descriptor is sent", -1);
    return file;
}

int owner(int socket) {
    CUDA(cudaFree(0));
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUDA(cuMemCreate(&handle, PIECE, &prop, 0));
    uint32_t *words = mapped(handle);
    stir_all<<<8, 128>>>(words, N, 0, 1);
    LAUNCHED();
    CUDA(cudaDeviceSynchronize());
    int file;
    CUDA(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    pass(socket, file);
    // Until the other ends.
    char byte;
    return read(socket, &byte, 1) > 0;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 60, 8);
    if (argc > 3) return owner(atoi(argv[3]));
    int ends[2];
    guest::require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "a pair of sockets", -1);
    if (fork() == 0) {
        close(ends[0]);
        std::string end = std::to_string(ends[1]);
        execl("/proc/self/exe", argv[0], "1", "1", end.c_str(), nullptr);
        _exit(3);
    }
    close(ends[1]);
    CUDA(cudaFree(0));
    int file = pass(ends[0], -1);
    CUmemGenericAllocationHandle handle;
    CUDA(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void *>(uintptr_t(file)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    uint32_t *words = mapped(handle);
    std::vector<uint32_t> seen(N);
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        stir_all<<<8, 128>>>(words, N, step, work);
        LAUNCHED();
        CUDA(cudaMemcpy(seen.data(), words, PIECE, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, seen.data(), seen.size());
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
