// Walks a list built on the device: nodes in several allocations hold pointers to nodes, to __device__ variables and to
// device functions. All of them must mean the same for as long as the program runs.
#include "guest.cuh"

constexpr int LISTS = 256;
constexpr int LENGTH = 24;
constexpr int POOLS = 5;

using Operation = uint32_t (*)(uint32_t, uint32_t);

struct Node {
    Node *next;
    uint32_t *tally;  // one of the __device__ variables below
    Operation operation;
    uint32_t payload;
};

__device__ uint32_t even_tally[LISTS], odd_tally[LISTS];

__host__ __device__ uint32_t plus(uint32_t a, uint32_t b) { return a * 5 + b; }
__host__ __device__ uint32_t exclusive(uint32_t a, uint32_t b) { return (a ^ b) * 3; }
__host__ __device__ uint32_t rotate(uint32_t a, uint32_t b) { return (a << (b % 31 + 1)) | (a >> (31 - b % 31)); }

struct Pools {
    Node *nodes[POOLS];
};

__global__ void build(Pools pools, Node **heads) {
    int list = threadIdx.x;
    Node *next = nullptr;
    for (int k = LENGTH - 1; k >= 0; k--) {
        Node *node = &pools.nodes[(list + k) % POOLS][list * LENGTH + k];
        node->next = next;
        node->tally = k % 2 ? &odd_tally[list] : &even_tally[list];
        node->operation = k % 3 == 0 ? plus : k % 3 == 1 ? exclusive : rotate;
        node->payload = list + k;
        next = node;
    }
    heads[list] = next;
}

__global__ void walk(Node **heads, int rounds) {
    int list = threadIdx.x;
    for (int r = 0; r < rounds; r++)
        for (Node *node = heads[list]; node; node = node->next) {
            node->payload = node->operation(node->payload, *node->tally + r);
            *node->tally += node->payload;
        }
}

struct HostList {
    uint32_t payload[LENGTH], even, odd;
};

void walk_on_host(HostList &list, int rounds) {
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < LENGTH; k++) {
            uint32_t &tally = k % 2 ? list.odd : list.even;
            Operation operation = k % 3 == 0 ? plus : k % 3 == 1 ? exclusive : rotate;
            list.payload[k] = operation(list.payload[k], tally + r);
            tally += list.payload[k];
        }
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 8);
    Pools pools;
    Node **heads;
    for (auto &nodes : pools.nodes) CUDA(cudaMalloc(&nodes, LISTS * LENGTH * sizeof(Node)));
    CUDA(cudaMalloc(&heads, LISTS * sizeof *heads));
    build<<<1, LISTS>>>(pools, heads);
    LAUNCHED();

    std::vector<HostList> lists(LISTS);
    for (int l = 0; l < LISTS; l++)
        for (int k = 0; k < LENGTH; k++) lists[l].payload[k] = l + k;
    uint32_t even[LISTS], odd[LISTS], sum = 0;
    for (int step = 1; step <= steps; step++) {
        walk<<<1, LISTS>>>(heads, work);
        LAUNCHED();
        for (auto &list : lists) walk_on_host(list, work);
        if (!guest::report_at(step, steps)) continue;
        CUDA(cudaMemcpyFromSymbol(even, even_tally, sizeof even));
        CUDA(cudaMemcpyFromSymbol(odd, odd_tally, sizeof odd));
        for (int l = 0; l < LISTS; l++)
            guest::require(even[l] == lists[l].even && odd[l] == lists[l].odd, "a list's tallies", step);
        sum = guest::fold(guest::fold(sum, even, LISTS), odd, LISTS);
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
