// Records what a GPU computes for every case of table.rs. Built and run where there is a GPU:
//   cc -O2 record.c -o record -ldl && ./record opcodes.ptx inputs.bin results.bin CASES
// opcodes.ptx and inputs.bin come from `cargo run -p backend-soft --example opcodes -- write DIR`; the same program turns
// results.bin into golden.txt (`hash DIR`) and compares it value by value (`compare DIR`).
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 1024
#define CHECK(call) \
    do { \
        int code = (call); \
        if (code) { fprintf(stderr, "%s: %d\n", #call, code); return 1; } \
    } while (0)

static void *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) { perror(path); exit(1); }
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *bytes = calloc(*size + 1, 1);
    if (fread(bytes, 1, *size, file) != *size) { perror(path); exit(1); }
    fclose(file);
    return bytes;
}

int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "usage: record PTX INPUTS RESULTS CASES\n"); return 2; }
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) { fprintf(stderr, "%s\n", dlerror()); return 1; }
#define FN(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(lib, #name)
    FN(cuInit, unsigned);
    FN(cuDeviceGet, int *, int);
    FN(cuDevicePrimaryCtxRetain, void **, int);
    FN(cuCtxSetCurrent, void *);
    FN(cuModuleLoadDataEx, void **, const void *, unsigned, int *, void **);
    FN(cuModuleGetFunction, void **, void *, const char *);
    FN(cuMemAlloc_v2, unsigned long long *, size_t);
    FN(cuMemcpyHtoD_v2, unsigned long long, const void *, size_t);
    FN(cuMemcpyDtoH_v2, void *, unsigned long long, size_t);
    FN(cuMemsetD8_v2, unsigned long long, unsigned char, size_t);
    FN(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    FN(cuCtxSynchronize, void);
    size_t ptx_size, input_size;
    char *ptx = load(argv[1], &ptx_size), *inputs = load(argv[2], &input_size);
    FILE *results = fopen(argv[3], "wb");
    int device, cases = atoi(argv[4]);
    void *context, *module;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    static char log[65536];
    int options[] = {5, 6};
    void *values[] = {log, (void *)(size_t)sizeof log};
    int code = cuModuleLoadDataEx(&module, ptx, 2, options, values);
    if (code) { fprintf(stderr, "load: %d\n%s\n", code, log); return 1; }
    unsigned long long in, out;
    CHECK(cuMemAlloc_v2(&in, 3 * THREADS * 8));
    CHECK(cuMemAlloc_v2(&out, THREADS * 8));
    for (int i = 0; i < cases; ++i) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        void *function, *params[] = {&in, &out};
        static unsigned long long result[THREADS];
        CHECK(cuModuleGetFunction(&function, module, name));
        CHECK(cuMemcpyHtoD_v2(in, inputs + (size_t)i * 3 * THREADS * 8, 3 * THREADS * 8));
        CHECK(cuMemsetD8_v2(out, 0, THREADS * 8));
        CHECK(cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
        CHECK(cuCtxSynchronize());
        CHECK(cuMemcpyDtoH_v2(result, out, THREADS * 8));
        fwrite(result, 8, THREADS, results);
    }
    fclose(results);
    printf("%d cases recorded\n", cases);
    return 0;
}
