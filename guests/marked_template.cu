// Two kernels made of one template that a header has, with rules of different types; the host follows the same rules.
#include "guest.cuh"
#include "marked_template.cuh"

constexpr int THREADS = 96;
constexpr size_t COUNT = 700;

// A generator of random numbers with four words of state (xorshift128).
struct Xorshift {
    __host__ __device__ void operator()(uint32_t (&s)[4], int) const {
        uint32_t t = s[3] ^ s[3] << 11;
        s[3] = s[2], s[2] = s[1], s[1] = s[0];
        s[0] ^= s[0] >> 19 ^ t ^ t >> 8;
    }
};

// Two words that take each other's sum, and a weight, which is looked up by a number that only the data tells.
struct Feistel {
    uint64_t key;
    __host__ __device__ void operator()(uint64_t (&s)[3], int round) const {
        uint64_t left = s[round % 2], right = s[1 - round % 2];
        right ^= (left + key) * 0x9e3779b97f4a7c15ull;
        s[1 - round % 2] = right << 23 | right >> 41;
        s[2] += s[right % 3];
    }
};

template <class T, int WIDTH, class Rule>
struct States {
    std::vector<T> host;
    T (*device)[WIDTH];
    Rule rule;

    explicit States(Rule rule) : host(COUNT * WIDTH), rule(rule) {
        for (size_t i = 0; i < host.size(); i++) host[i] = T(guest::mix(WIDTH, i)) * 0x10001;
        CUDA(cudaMalloc(&device, host.size() * sizeof(T)));
        CUDA(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    }

    // On both sides; the checksum with what came out.
    uint32_t advance(int step, int rounds, bool is_checked, uint32_t sum) {
        evolve<<<(COUNT + THREADS - 1) / THREADS, THREADS>>>(device, COUNT, rounds, rule);
        LAUNCHED();
        for (size_t i = 0; is_checked && i < COUNT; i++) {
            auto &state = *reinterpret_cast<T(*)[WIDTH]>(&host[i * WIDTH]);
            for (int round = 0; round < rounds; round++) rule(state, round);
        }
        std::vector<T> got(host.size());
        CUDA(cudaMemcpy(got.data(), device, got.size() * sizeof(T), cudaMemcpyDeviceToHost));
        guest::require(!is_checked || got == host, "a state", step);
        host = got;
        return guest::fold(sum, got.data(), got.size());
    }
};

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 3, 5000);
    States<uint32_t, 4, Xorshift> words{Xorshift{}};
    States<uint64_t, 3, Feistel> pairs{Feistel{0x243f6a8885a308d3ull}};
    uint32_t sum = 0;
    for (int step = 1; step <= steps; step++) {
        bool is_checked = guest::checked_at(step, steps);
        sum = words.advance(step, 2 * work, is_checked, sum);
        sum = pairs.advance(step, work, is_checked, sum);
        guest::progress(step, steps, sum);
    }
    CUDA(cudaFree(words.device));
    CUDA(cudaFree(pairs.device));
    return guest::done(sum);
}
