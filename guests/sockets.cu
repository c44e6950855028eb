// Sends each step's checksum to itself over a TCP connection on loopback and over a pair of UNIX sockets, and reads it back
// some steps later: there is always something under way in both.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest.cuh"

constexpr int N = 1 << 13;
constexpr int LAG = 3;

__global__ void stir_all(uint32_t *buffer, int step, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    buffer[i] = guest::mix_rounds(buffer[i], step + i, work);
}

int must(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(3);
    }
    return result;
}

struct Pair {
    int in, out;
    void send(uint32_t value) { guest::require(write(in, &value, sizeof value) == sizeof value, "a send", -1); }
    uint32_t receive() {
        uint32_t value;
        guest::require(recv(out, &value, sizeof value, MSG_WAITALL) == sizeof value, "a receive", -1);
        return value;
    }
};

Pair tcp_pair() {
    int listener = must(socket(AF_INET, SOCK_STREAM, 0), "socket");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    must(bind(listener, reinterpret_cast<sockaddr *>(&address), length), "bind");
    must(listen(listener, 1), "listen");
    must(getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length), "getsockname");
    int client = must(socket(AF_INET, SOCK_STREAM, 0), "socket");
    must(connect(client, reinterpret_cast<sockaddr *>(&address), length), "connect");
    int server = must(accept(listener, nullptr, nullptr), "accept");
    close(listener);
    return {client, server};
}

Pair unix_pair() {
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    return {ends[0], ends[1]};
}

int main(int argc, char **argv) {
    auto [steps, work] = guest::args(argc, argv, 100, 64);
    Pair tcp = tcp_pair(), local = unix_pair();
    uint32_t *buffer, sum = 0, echo = 0;
    CUDA(cudaMalloc(&buffer, N * sizeof *buffer));
    CUDA(cudaMemset(buffer, 0, N * sizeof *buffer));
    std::vector<uint32_t> host(N);
    for (int step = 1; step <= steps; step++) {
        stir_all<<<N / 128, 128>>>(buffer, step + echo, work);
        LAUNCHED();
        CUDA(cudaMemcpy(host.data(), buffer, N * sizeof *buffer, cudaMemcpyDeviceToHost));
        sum = guest::fold(sum, host.data(), N);
        tcp.send(sum);
        local.send(~sum);
        if (step > LAG) {
            echo = tcp.receive();
            guest::require(local.receive() == ~echo, "both ways carry the same", step);
        }
        guest::progress(step, steps, sum);
    }
    return guest::done(sum);
}
