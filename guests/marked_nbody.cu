// Moves bodies that attract one another, a cluster for each block, which has them copied tile by tile into shared memory, the next one while it works on one;
// the host moves copies. Built without fused multiplication and addition, and with exact division and square root, so that both agree to the bit.
#include <cuda_pipeline.h>

#include <cmath>
#include <cstring>

#include <algorithm>

#include "guest.cuh"

constexpr int CLUSTERS = 6;
constexpr int BODIES = 96;
constexpr int TILE = 32;

struct alignas(16) Body {
    float x, y, z, mass;
};

__host__ __device__ void attract(const Body &one, const Body &other, float force[3]) {
    float dx = other.x - one.x, dy = other.y - one.y, dz = other.z - one.z;
    float square = dx * dx + dy * dy + dz * dz + 0.01f;
    float pull = other.mass / (square * sqrtf(square));
    force[0] += pull * dx;
    force[1] += pull * dy;
    force[2] += pull * dz;
}

__host__ __device__ void move(Body &body, float speed[3], const float force[3]) {
    constexpr float TIME = 1.0f / 1024.0f;
    for (int k = 0; k < 3; k++) speed[k] += TIME * force[k];
    body.x += TIME * speed[0];
    body.y += TIME * speed[1];
    body.z += TIME * speed[2];
}

__global__ void fly(Body *bodies, float *speeds, int rounds) {
    __shared__ Body tiles[2][TILE];
    int t = threadIdx.x;
    Body *cluster = bodies + blockIdx.x * BODIES;
    auto begin = [&](int from) {
        if (t < TILE && from < BODIES) __pipeline_memcpy_async(&tiles[from / TILE % 2][t], &cluster[from + t], sizeof(Body));
        __pipeline_commit();
    };
    float *own = speeds + 3 * (blockIdx.x * BODIES + t);
    float speed[3] = {own[0], own[1], own[2]};
    Body mine = cluster[t];
    for (int round = 0; round < rounds; round++) {
        float force[3] = {};
        begin(0);
        for (int from = 0; from < BODIES; from += TILE) {
            begin(from + TILE);
            __pipeline_wait_prior(1);
            __syncthreads();
            for (int i = 0; i < TILE; i++) {
                attract(mine, tiles[from / TILE % 2][i], force);
#pragma CPT
            }
            __syncthreads();
        }
        move(mine, speed, force);
        cluster[t] = mine;
        __syncthreads();
    }
    for (int k = 0; k < 3; k++) own[k] = speed[k];
}

void fly_on_host(Body *bodies, float (*speeds)[3], int rounds) {
    for (int round = 0; round < rounds; round++) {
        Body moved[BODIES];
        for (int i = 0; i < BODIES; i++) {
            float force[3] = {};
            for (int k = 0; k < BODIES; k++) attract(bodies[i], bodies[k], force);
            moved[i] = bodies[i];
            move(moved[i], speeds[i], force);
        }
        std::copy(moved, moved + BODIES, bodies);
    }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 50);
    constexpr int N = CLUSTERS * BODIES;
    std::vector<Body> wanted(N), got(N);
    std::vector<float> wanted_speeds(3 * N, 0.0f), got_speeds(3 * N);
    auto place = [](int i, int axis) { return float(guest::mix(axis, i) % 4096) / 2048.0f - 1.0f; };
    for (int i = 0; i < N; i++) wanted[i] = {place(i, 1), place(i, 2), place(i, 3), 1.0f + float(i % 7)};
    Body *bodies;
    float *speeds;
    CUDA(cudaMalloc(&bodies, N * sizeof(Body)));
    CUDA(cudaMalloc(&speeds, 3 * N * sizeof(float)));
    CUDA(cudaMemcpy(bodies, wanted.data(), N * sizeof(Body), cudaMemcpyHostToDevice));
    CUDA(cudaMemset(speeds, 0, 3 * N * sizeof(float)));
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        fly<<<CLUSTERS, BODIES>>>(bodies, speeds, work);
        LAUNCHED();
        bool is_checked = guest::checked_at(step, steps);
        for (int cluster = 0; is_checked && cluster < CLUSTERS; cluster++) {
            auto own = reinterpret_cast<float(*)[3]>(&wanted_speeds[3 * cluster * BODIES]);
            fly_on_host(&wanted[cluster * BODIES], own, work);
        }
        CUDA(cudaMemcpy(got.data(), bodies, N * sizeof(Body), cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(got_speeds.data(), speeds, 3 * N * sizeof(float), cudaMemcpyDeviceToHost));
        bool are_there = memcmp(got.data(), wanted.data(), N * sizeof(Body)) == 0;
        guest::require(!is_checked || are_there, "where bodies are", step);
        guest::require(!is_checked || got_speeds == wanted_speeds, "their speeds", step);
        wanted = got;
        wanted_speeds = got_speeds;
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(bodies));
    CUDA(cudaFree(speeds));
    return guest::done(sum);
}
