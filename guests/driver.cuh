// The same for guests that speak the driver API.
#pragma once

#include <string>

#include <cuda.h>
#include <unistd.h>

#include "guest.cuh"

namespace guest {

inline void check(CUresult result, const char *call, int line) {
    if (result == CUDA_SUCCESS) return;
    const char *name = "unknown error";
    cuGetErrorName(result, &name);
    fprintf(stderr, "line %d: %s: %s (%d)\n", line, call, name, int(result));
    exit(3);
}

// The first device, whose primary context is this thread's from now on.
inline CUdevice use_primary_context() {
    CUdevice device;
    CUcontext context;
    CUDA(cuInit(0));
    CUDA(cuDeviceGet(&device, 0));
    CUDA(cuDevicePrimaryCtxRetain(&context, device));
    CUDA(cuCtxSetCurrent(context));
    return device;
}

// The path of a file that lies beside this program, wherever it was started from.
inline std::string beside_program(const char *name) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) {
        perror("/proc/self/exe");
        exit(3);
    }
    std::string folder(path, length);
    return folder.substr(0, folder.rfind('/') + 1) + name;
}

inline CUfunction function(CUmodule module, const char *name) {
    CUfunction found;
    CUDA(cuModuleGetFunction(&found, module, name));
    return found;
}

// The address of a module's global variable, checked for its size.
inline CUdeviceptr global(CUmodule module, const char *name, size_t expected) {
    CUdeviceptr address;
    size_t bytes;
    CUDA(cuModuleGetGlobal(&address, &bytes, module, name));
    require(bytes == expected, "size of a global", -1);
    return address;
}

}  // namespace guest
