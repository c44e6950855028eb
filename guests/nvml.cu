// Asks NVML which devices there are, before CUDA is initialised, in a child, and beside every step; what it says of the device that CUDA
// uses must stay what CUDA says.
#include <cstring>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.cuh"

constexpr int N = 1 << 12;

// As nvml.h declares them.
using Device = struct nvmlDevice *;
struct Memory {
    unsigned long long total, free, used;
};

struct Nvml {
    int (*init)();
    int (*shutdown)();
    const char *(*error)(int);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, Device *);
    int (*by_bus_id)(const char *, Device *);
    int (*name)(Device, char *, unsigned);
    int (*uuid)(Device, char *, unsigned);
    int (*memory)(Device, Memory *);
} nvml;

void succeed(int result, const char *call) {
    if (result == 0) return;
    fprintf(stderr, "%s: %s (%d)\n", call, nvml.error(result), result);
    exit(3);
}
#define NVML(call) succeed(nvml.call, #call)

template <class F>
void find(void *library, const char *name, F *&function) {
    function = reinterpret_cast<F *>(dlsym(library, name));
    guest::require(function != nullptr, name, 0);
}

void load() {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    find(library, "nvmlInit_v2", nvml.init);
    find(library, "nvmlShutdown", nvml.shutdown);
    find(library, "nvmlErrorString", nvml.error);
    find(library, "nvmlDeviceGetCount_v2", nvml.count);
    find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.by_index);
    find(library, "nvmlDeviceGetHandleByPciBusId_v2", nvml.by_bus_id);
    find(library, "nvmlDeviceGetName", nvml.name);
    find(library, "nvmlDeviceGetUUID", nvml.uuid);
    find(library, "nvmlDeviceGetMemoryInfo", nvml.memory);
}

struct Identity {
    char name[96], uuid[96];

    bool operator==(const Identity &other) const {
        return !strcmp(name, other.name) && !strcmp(uuid, other.uuid);
    }
};

Identity identity(Device device) {
    Identity found;
    NVML(name(device, found.name, sizeof found.name));
    NVML(uuid(device, found.uuid, sizeof found.uuid));
    return found;
}

// What CUDA says of its first device, in NVML's words.
Identity by_cuda(char (&bus_id)[32]) {
    cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, 0));
    CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, 0));
    Identity told;
    snprintf(told.name, sizeof told.name, "%s", properties.name);
    char *to = told.uuid + sprintf(told.uuid, "GPU");
    for (int i = 0; i < 16; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        to += sprintf(to, "%s%02x", dash ? "-" : "", (unsigned char)properties.uuid.bytes[i]);
    }
    return told;
}

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 40, 64);
    load();
    char few[2];
    guest::require(nvml.count(nullptr) == 1, "NVML answers before it is initialised", 0);
    NVML(init());
    unsigned count = 0;
    NVML(count(&count));
    guest::require(count > 0, "there is no device", 0);
    Device first, none;
    NVML(by_index(0, &first));
    guest::require(nvml.by_index(count, &none) == 2, "there is one device more than there are", 0);
    guest::require(nvml.name(first, few, sizeof few) == 7, "a name fits into two bytes", 0);
    guest::require(nvml.name(nullptr, few, sizeof few) == 2, "nothing has a name", 0);
    Identity said = identity(first);

    // A child can use CUDA: nothing of it is initialised yet.
    pid_t child = fork();
    if (child == 0) {
        void *memory;
        CUDA(cudaMalloc(&memory, N));
        _exit(0);
    }
    int status = -1;
    guest::require(waitpid(child, &status, 0) == child && status == 0, "the child cannot use CUDA", 0);

    uint32_t *buffer, sum = 0;
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    char bus_id[32];
    Identity told = by_cuda(bus_id);
    std::vector<uint32_t> host(N);
    for (int step = 1; step <= steps; step++) {
        stir_all<<<N / 128, 128>>>(buffer, step, work);
        LAUNCHED();
        Device device;
        NVML(by_bus_id(bus_id, &device));
        guest::require(identity(device) == told, "NVML and CUDA differ on which device it is", step);
        Memory memory;
        NVML(memory(device, &memory));
        guest::require(memory.used <= memory.total && memory.free <= memory.total, "more memory than there is", step);
        CUDA(cudaMemcpy(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        if (guest::report_at(step, steps)) printf("step %d sum %08x\n", step, sum);
    }
    guest::require(identity(first) == said, "the first device has become another", steps);
    NVML(shutdown());
    guest::require(nvml.shutdown() == 1, "NVML ends twice", steps);
    return guest::done(sum);
}
