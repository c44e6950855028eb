// A kernel that allocates for itself: a list for each thread, which grows and shrinks in one launch, and whose nodes are checked against what is known
// of them. What is left of it lives on in the device's heap until the next launch.
#include "guest.cuh"

constexpr int BLOCKS = 4;
constexpr int THREADS = 64;
constexpr int N = BLOCKS * THREADS;
// A list is no longer than that.
constexpr uint32_t MOST = 24;

struct Node {
    Node *next;
    uint32_t value;
};

__device__ Node *lists[N];

// Whether a list grows in a round.
__host__ __device__ bool grows(uint32_t length, uint32_t value) {
    return length == 0 || (length < MOST && value % 5 < 3);
}

__global__ void work_on_lists(uint32_t *sums, uint32_t *lengths, int step, int rounds) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    Node *first = lists[i];
    uint32_t sum = sums[i], length = lengths[i];
    for (int round = 0; round < rounds; round++) {
        uint32_t value = guest::mix(guest::mix(step, i), round);
        if (grows(length, value)) {
            Node *node = static_cast<Node *>(malloc(sizeof(Node)));
            if (node == nullptr) {
                sum = 0;
                break;
            }
            *node = {first, value};
            first = node;
            length++;
        } else {
            Node *node = first;
            first = node->next;
            sum = guest::mix(sum, node->value);
            free(node);
            length--;
        }
        for (Node *node = first; node != nullptr; node = node->next) sum += node->value;
#pragma CPT
    }
    lists[i] = first;
    sums[i] = sum;
    lengths[i] = length;
}

__global__ void give_back() {
    for (Node *node = lists[blockIdx.x * THREADS + threadIdx.x]; node != nullptr;) {
        Node *next = node->next;
        free(node);
        node = next;
    }
}

uint32_t on_host(std::vector<uint32_t> &list, int i, uint32_t sum, int step, int rounds) {
    for (int round = 0; round < rounds; round++) {
        uint32_t value = guest::mix(guest::mix(step, i), round);
        if (grows(list.size(), value)) {
            list.push_back(value);
        } else {
            sum = guest::mix(sum, list.back());
            list.pop_back();
        }
        for (uint32_t each : list) sum += each;
    }
    return sum;
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 4, 2500);
    constexpr size_t BYTES = N * sizeof(uint32_t);
    std::vector<uint32_t> wanted(N), got(N);
    std::vector<std::vector<uint32_t>> known(N);
    uint32_t *sums, *lengths;
    for (uint32_t **memory : {&sums, &lengths}) {
        CUDA(cudaMalloc(memory, BYTES));
        CUDA(cudaMemset(*memory, 0, BYTES));
    }
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        work_on_lists<<<BLOCKS, THREADS>>>(sums, lengths, step, work);
        LAUNCHED();
        for (int i = 0; i < N; i++) wanted[i] = on_host(known[i], i, wanted[i], step, work);
        CUDA(cudaMemcpy(got.data(), sums, BYTES, cudaMemcpyDeviceToHost));
        guest::require(got == wanted, "what lists hold", step);
        sum = guest::fold(sum, got.data(), got.size());
        guest::progress(step, steps, sum);
    }
    give_back<<<BLOCKS, THREADS>>>();
    LAUNCHED();
    CUDA(cudaFree(sums));
    CUDA(cudaFree(lengths));
    return guest::done(sum);
}
